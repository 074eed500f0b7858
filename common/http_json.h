/* http_json: a jansson value as the answer to a request; and a request refused
 * in one sentence. What router and shard say alike. */
#ifndef LQ_COMMON_HTTP_JSON_H
#define LQ_COMMON_HTTP_JSON_H

#include <jansson.h>

#include "common/http.h"

/* Steals the reference to `value`, on failure too; NULL (out of memory) answers 503. */
void http_req_reply_json_new(struct http_req *r, int status, json_t *value);

#endif
