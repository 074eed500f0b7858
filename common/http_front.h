/* http_front: what router and shard do alike at the door: a table of pages, JSON
 * and metrics as answers, the deadline that travels with a request. */
#ifndef LQ_COMMON_HTTP_FRONT_H
#define LQ_COMMON_HTTP_FRONT_H

#include <jansson.h>

#include "common/access.h"
#include "common/http.h"
#include "common/layer_books.h"
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

/* What both servers count of walk-ffn requests, and of what their listeners refuse. */
enum { HTTP_FRONT_CLASSES_N = 3, HTTP_FRONT_FORMATS_N = WIRE_FORMATS_N + 1 }; /* formats: JSON last */
enum http_front_way { HTTP_FRONT_IN, HTTP_FRONT_OUT, HTTP_FRONT_WAYS_N };
struct http_front_books {
    struct metric *requests[HTTP_FRONT_FORMATS_N][HTTP_FRONT_CLASSES_N]; /* [body's format][2xx, 4xx, 5xx] */
    struct metric *seconds;                                              /* header whole -> answer handed over */
    struct layer_books *layers;                                          /* the same, of those answered with 200 */
    struct metric *bytes[HTTP_FRONT_WAYS_N][HTTP_FRONT_FORMATS_N];       /* bodies, each way in its own format */
    struct metric *refused[HTTP_REFUSED_N];                              /* for http_server_count_refused() */
    _Atomic uint64_t served_n;                                           /* answered with 200 */
};
/* Registers them: `prefix`_requests_total and so on (docs/operating.md). False: out of memory. */
bool http_front_series(struct metrics *m, const char *prefix, struct http_front_books *b);

/* One request as the books and the log see it. Formats: WIRE_FORMATS_N is JSON. */
struct http_front_visit {
    uint32_t layer, layers_n; /* the first one asked for, and how many; layers_n 0: not known */
    uint32_t rows_n;          /* 0: not known */
    unsigned format, answer_format;
    uint64_t in_bytes, out_bytes;
};
/* Closes the books of r, answered with that status, and logs it: see log_requests_set(). */
void http_front_close(struct http_front_books *b, const struct http_req *r, int status,
                      const struct http_front_visit *v);
/* Answers r with the fault: closed, and a warning where it is not the client's. */
void http_front_fail_visit(struct http_front_books *b, struct http_req *r, const struct http_front_visit *v,
                           const struct lq_fault *fault);

#endif
