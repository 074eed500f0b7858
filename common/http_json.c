/* http_json: see http_json.h. */
#include "common/http_json.h"

#include <stdlib.h>
#include <string.h>

void http_req_reply_json_new(struct http_req *r, int status, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text) {
        http_req_reply_text(r, status, "application/json", text, strlen(text));
    } else {
        struct lq_fault fault;
        (void)lq_fail(&fault, LQ_NOMEM, "out of memory");
        http_req_reply_fault(r, &fault, NULL);
    }
    free(text);
}
