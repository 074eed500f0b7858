/* http_front: see http_front.h. */
#include "common/http_front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/log.h"

/* False: answered. Two Authorization lines are no key: which one counts is not for us to say. */
static bool may_enter(const struct http_page *p, struct access *access, struct http_req *r)
{
    const struct http_headers *h = http_req_headers(r);
    const char *authorization = NULL;
    struct sockaddr_storage peer;
    struct lq_fault fault;
    if (!access || !access_is_guarded(access, p->who))
        return true;
    size_t lines_n = 0;
    for (size_t i = 0; i < http_headers_n(h); i++) {
        const char *name, *value;
        http_headers_at(h, i, &name, &value);
        if (strcasecmp(name, "Authorization") == 0) {
            authorization = value;
            lines_n++;
        }
    }
    enum lq_err rc = access_check(access, p->who, lines_n == 1 ? authorization : NULL, p->path, &fault);
    if (!rc)
        return true;
    const struct sockaddr *from = http_req_peer(r, &peer) ? (const struct sockaddr *)&peer : NULL;
    (void)!access_failed(access, rc, from, p->path, &fault); /* the code is in the fault too */
    http_req_reply_fault(r, &fault, NULL);
    return false;
}

void http_front_dispatch(const struct http_page *pages, size_t pages_n, struct access *access, void *arg,
                         struct http_req *r)
{
    const char *path = http_req_path(r), *method = http_req_method(r);
    struct lq_fault fault;
    for (size_t i = 0; i < pages_n; i++) {
        const struct http_page *p = &pages[i];
        if (strcmp(p->path, path) != 0)
            continue;
        bool get = strcmp(p->method, "GET") == 0;
        if (strcmp(p->method, method) == 0 || (get && strcmp(method, "HEAD") == 0)) {
            if (may_enter(p, access, r))
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

static void free_given(const void *p, size_t n, void *arg)
{
    (void)n, (void)arg;
    free((void *)(uintptr_t)p);
}

bool http_front_give(struct evbuffer *to, void *p, size_t n)
{
    if (p && evbuffer_add_reference(to, p, n, free_given, NULL) == 0)
        return true;
    free(p);
    return false;
}

void http_front_json_text_take(struct http_req *r, int status, char *text, size_t n)
{
    struct evbuffer *body = evbuffer_new();
    struct http_headers *h = http_headers_new();
    bool given = body && http_front_give(body, text, n);
    if (!body)
        free(text);
    if (given && h && http_headers_add(h, "Content-Type", "application/json"))
        http_req_reply(r, status, h, body);
    else
        http_front_nomem(r);
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
}

void http_front_json_new(struct http_req *r, int status, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    http_front_json_text_take(r, status, text, text ? strlen(text) : 0);
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

bool http_front_request_series(struct metrics *m, const char *name, struct http_front_books *b)
{
    static const char *const class[HTTP_FRONT_CLASSES_N] = {"2xx", "4xx", "5xx"};
    bool ok = true;
    for (unsigned f = 0; f <= WIRE_FORMATS_N; f++) {
        for (unsigned c = 0; c < HTTP_FRONT_CLASSES_N; c++) {
            char labels[64];
            snprintf(labels, sizeof labels, "wire=\"%s\",code=\"%s\"",
                     f == WIRE_FORMATS_N ? "json" : wire_name((enum wire_format)f), class[c]);
            b->requests[f][c] = metrics_counter(m, name, "walk-ffn requests by body format and status class", labels);
            ok &= b->requests[f][c] != NULL;
        }
    }
    return ok;
}

void http_front_count(struct http_front_books *b, unsigned format, int status, uint64_t start_us, uint64_t in_bytes,
                      uint64_t out_bytes)
{
    metric_add(b->requests[format][status < 400 ? 0 : status < 500 ? 1 : 2], 1);
    metric_observe_us(b->seconds, clock_us() - start_us);
    metric_add(b->bytes_in, in_bytes);
    metric_add(b->bytes_out, out_bytes);
    b->served_n += status == 200 ? 1 : 0;
}

void http_front_fail(struct http_front_books *b, struct http_req *r, unsigned format, uint64_t in_bytes,
                     const struct lq_fault *fault)
{
    int status = lq_err_status(fault->code);
    http_front_count(b, format, status, http_req_start_us(r), in_bytes, 0);
    if (status >= 500)
        log_warn("walk_ffn_failed req=%s error=%s why=%s", http_req_id(r), lq_err_word(fault->code),
                 log_q(fault->text));
    http_req_reply_fault(r, fault, NULL);
}
