/* http_front: see http_front.h. */
#include "common/http_front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "proto/wire.h"

void http_front_dispatch(const struct http_page *pages, size_t pages_n, void *arg, struct http_req *r)
{
    const char *path = http_req_path(r), *method = http_req_method(r);
    struct lq_fault fault;
    for (size_t i = 0; i < pages_n; i++) {
        const struct http_page *p = &pages[i];
        if (strcmp(p->path, path) != 0)
            continue;
        bool get = strcmp(p->method, "GET") == 0;
        if (strcmp(p->method, method) == 0 || (get && strcmp(method, "HEAD") == 0)) {
            p->answer(arg, r);
            return;
        }
        (void)lq_fail(&fault, LQ_BAD_METHOD, "%s takes %s, not %.32s", path, p->method, method);
        http_req_reply_fault(r, &fault, get ? "GET, HEAD" : p->method);
        return;
    }
    (void)lq_fail(&fault, LQ_NO_PATH, "no such path: %.200s", path);
    http_req_reply_fault(r, &fault, NULL);
}

uint64_t http_front_deadline_us(const struct http_req *r, uint64_t limit_ms)
{
    const char *asked = http_headers_get(http_req_headers(r), "X-Larql-Deadline-Ms");
    if (asked && *asked >= '0' && *asked <= '9') {
        char *end;
        unsigned long long v = strtoull(asked, &end, 10);
        if (!*end && v < limit_ms)
            limit_ms = v;
    }
    return http_req_start_us(r) + limit_ms * 1000;
}

bool http_front_unreadable(const struct http_req *r, uint64_t limit_bytes)
{
    const char *expect = http_headers_get(http_req_headers(r), "Expect");
    uint64_t length = http_req_length(r);
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return true;
    return length != HTTP_LENGTH_UNKNOWN && length > limit_bytes;
}

void http_front_refuse(struct http_req *r, enum lq_err code, const char *text)
{
    struct lq_fault fault;
    (void)lq_fail(&fault, code, "%s", text);
    http_req_reply_fault(r, &fault, NULL);
}

void http_front_nomem(struct http_req *r)
{
    http_front_refuse(r, LQ_NOMEM, "out of memory");
}

void http_front_json_new(struct http_req *r, int status, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text)
        http_req_reply_text(r, status, "application/json", text, strlen(text));
    else
        http_front_nomem(r);
    free(text);
}

void http_front_metrics(struct http_req *r, const struct metrics *m)
{
    struct evbuffer *page = evbuffer_new();
    struct http_headers *h = http_headers_new();
    if (page && h && metrics_print(m, page) && http_headers_add(h, "Content-Type", METRICS_CONTENT_TYPE))
        http_req_reply(r, 200, h, page);
    else
        http_front_nomem(r);
    http_headers_free(h);
    if (page)
        evbuffer_free(page);
}

bool http_front_request_series(struct metrics *m, const char *name, struct metric *series[][HTTP_FRONT_CLASSES_N])
{
    static const char *const class[HTTP_FRONT_CLASSES_N] = {"2xx", "4xx", "5xx"};
    bool ok = true;
    for (unsigned f = 0; f <= WIRE_FORMATS_N; f++) {
        for (unsigned c = 0; c < HTTP_FRONT_CLASSES_N; c++) {
            char labels[64];
            snprintf(labels, sizeof labels, "wire=\"%s\",code=\"%s\"",
                     f == WIRE_FORMATS_N ? "json" : wire_name((enum wire_format)f), class[c]);
            series[f][c] = metrics_counter(m, name, "walk-ffn requests by body format and status class", labels);
            ok &= series[f][c] != NULL;
        }
    }
    return ok;
}

struct metric *http_front_class(struct metric *of_format[HTTP_FRONT_CLASSES_N], int status)
{
    return of_format[status < 400 ? 0 : status < 500 ? 1 : 2];
}
