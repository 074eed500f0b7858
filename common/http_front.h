/* http_front: what router and shard do alike at the door: a table of pages, JSON
 * and metrics as answers, the deadline that travels with a request. */
#ifndef LQ_COMMON_HTTP_FRONT_H
#define LQ_COMMON_HTTP_FRONT_H

#include <jansson.h>

#include "common/access.h"
#include "common/http.h"
#include "common/metrics.h"
#include "proto/wire.h"

struct http_page {
    const char *path, *method; /* "GET" takes HEAD too */
    void (*answer)(void *arg, struct http_req *r);
    enum access_who who; /* left out: the grid key */
};

/* Calls the page of r's path and method; or answers 404, 405 with Allow, and then as
 * access.h says: 401, 403, 429. access NULL: everybody may. */
void http_front_dispatch(const struct http_page *pages, size_t pages_n, struct access *access, void *arg,
                         struct http_req *r);

/* When r must be answered: limit_ms after its head, or what X-Larql-Deadline-Ms
 * leaves where that is less; a value that is no number counts as absent. */
uint64_t http_front_deadline_us(const struct http_req *r, uint64_t limit_ms);

/* Steals the reference to `value`, on failure too; NULL (out of memory) answers 503. */
void http_front_json_new(struct http_req *r, int status, json_t *value);
void http_front_metrics(struct http_req *r, const struct metrics *m);
/* One fault, answered. */
void http_front_refuse(struct http_req *r, enum lq_err code, const char *text);
void http_front_nomem(struct http_req *r);

/* p's n bytes by reference to the end of `to`; takes p (malloc'd) on every path. False:
 * out of memory, or p is NULL. */
bool http_front_give(struct evbuffer *to, void *p, size_t n) LQ_MUST_CHECK;
/* A malloc'd JSON text as the answer, by reference; takes it. NULL answers 503. */
void http_front_json_text_take(struct http_req *r, int status, char *text, size_t n);

/* What both servers count of each walk-ffn request. */
enum { HTTP_FRONT_CLASSES_N = 3 };
struct http_front_books {
    struct metric *requests[WIRE_FORMATS_N + 1][HTTP_FRONT_CLASSES_N]; /* [body format, JSON last][2xx, 4xx, 5xx] */
    struct metric *seconds;                                            /* header whole -> answer handed over */
    struct metric *bytes_in, *bytes_out;                               /* bodies */
    _Atomic uint64_t served_n;                                         /* answered with 200 */
};
/* Registers requests_total under that name. False: out of memory. */
bool http_front_request_series(struct metrics *m, const char *name, struct http_front_books *b);
/* Closes the books of one request. format WIRE_FORMATS_N: JSON. */
void http_front_count(struct http_front_books *b, unsigned format, int status, uint64_t start_us, uint64_t in_bytes,
                      uint64_t out_bytes);
/* Answers r with the fault: counted, and logged where it is not the client's. */
void http_front_fail(struct http_front_books *b, struct http_req *r, unsigned format, uint64_t in_bytes,
                     const struct lq_fault *fault);

#endif
