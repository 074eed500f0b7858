/* http_front: what router and shard do alike at the door: a table of pages, JSON
 * and metrics as answers, the deadline that travels with a request. */
#ifndef LQ_COMMON_HTTP_FRONT_H
#define LQ_COMMON_HTTP_FRONT_H

#include <jansson.h>

#include "common/http.h"
#include "common/metrics.h"

struct http_page {
    const char *path, *method; /* "GET" takes HEAD too */
    void (*answer)(void *arg, struct http_req *r);
};

/* Calls the page of r's path and method, or answers 404 or 405 with Allow. */
void http_front_dispatch(const struct http_page *pages, size_t pages_n, void *arg, struct http_req *r);

/* When r must be answered: limit_ms after its head, or what X-Larql-Deadline-Ms
 * leaves where that is less; a value that is no number counts as absent. */
uint64_t http_front_deadline_us(const struct http_req *r, uint64_t limit_ms);

/* Will http_req_read() refuse r at once: 417 for its Expect, 413 for its length? Those
 * come before a Content-Type that nobody reads (415). */
bool http_front_unreadable(const struct http_req *r, uint64_t limit_bytes);

/* Steals the reference to `value`, on failure too; NULL (out of memory) answers 503. */
void http_front_json_new(struct http_req *r, int status, json_t *value);
void http_front_metrics(struct http_req *r, const struct metrics *m);
/* One fault, answered. */
void http_front_refuse(struct http_req *r, enum lq_err code, const char *text);
void http_front_nomem(struct http_req *r);

/* requests_total by body format and status class: series[WIRE_FORMATS_N + 1][3], JSON
 * last. False: out of memory. */
enum { HTTP_FRONT_CLASSES_N = 3 };
bool http_front_request_series(struct metrics *m, const char *name, struct metric *series[][HTTP_FRONT_CLASSES_N]);
struct metric *http_front_class(struct metric *of_format[HTTP_FRONT_CLASSES_N], int status);

#endif
