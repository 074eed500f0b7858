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

static bool label_series(struct metrics *m, const char *prefix, struct http_front_books *b)
{
    static const char *const class[HTTP_FRONT_CLASSES_N] = {"2xx", "4xx", "5xx"};
    static const char *const way[HTTP_FRONT_WAYS_N] = {"in", "out"};
    static const char *const reason[HTTP_REFUSED_N] = {HTTP_REFUSED_WORDS};
    char name[64], labels[64];
    bool ok = true;
    snprintf(name, sizeof name, "%s_requests_total", prefix);
    for (unsigned f = 0; f < HTTP_FRONT_FORMATS_N; f++) {
        for (unsigned c = 0; c < HTTP_FRONT_CLASSES_N; c++) {
            snprintf(labels, sizeof labels, "wire=\"%s\",code=\"%s\"", layer_books_format(f), class[c]);
            b->requests[f][c] = metrics_counter(m, name, "walk-ffn requests by body format and status class", labels);
            ok &= b->requests[f][c] != NULL;
        }
    }
    snprintf(name, sizeof name, "%s_body_bytes_total", prefix);
    for (unsigned w = 0; w < HTTP_FRONT_WAYS_N; w++) {
        for (unsigned f = 0; f < HTTP_FRONT_FORMATS_N; f++) {
            snprintf(labels, sizeof labels, "direction=\"%s\",format=\"%s\"", way[w], layer_books_format(f));
            b->bytes[w][f] = metrics_counter(m, name, "walk-ffn bodies: requests in, answers out", labels);
            ok &= b->bytes[w][f] != NULL;
        }
    }
    snprintf(name, sizeof name, "%s_refused_total", prefix);
    for (unsigned i = 0; i < HTTP_REFUSED_N; i++) {
        snprintf(labels, sizeof labels, "reason=\"%s\"", reason[i]);
        b->refused[i] = metrics_counter(m, name, "what a limit or a check at the door turned away", labels);
        ok &= b->refused[i] != NULL;
    }
    return ok;
}

bool http_front_series(struct metrics *m, const char *prefix, struct http_front_books *b)
{
    char name[64];
    bool ok = label_series(m, prefix, b);
    snprintf(name, sizeof name, "%s_request_seconds", prefix);
    b->seconds = metrics_histogram(m, name, "walk-ffn, header read to answer handed over", "");
    snprintf(name, sizeof name, "%s_layer_seconds", prefix);
    b->layers = layer_books_new(m, name, "the same by layer and body format, of those answered with 200");
    return ok && b->seconds && b->layers;
}

static void count(struct http_front_books *b, int status, uint64_t us, const struct http_front_visit *v)
{
    metric_add(b->requests[v->format][status < 400 ? 0 : status < 500 ? 1 : 2], 1);
    metric_observe_us(b->seconds, us);
    metric_add(b->bytes[HTTP_FRONT_IN][v->format], v->in_bytes);
    metric_add(b->bytes[HTTP_FRONT_OUT][v->answer_format], v->out_bytes);
    if (status != 200)
        return;
    b->served_n++;
    if (v->layers_n > 0)
        layer_books_observe(b->layers, v->layers_n > 1 ? LAYER_BOOKS_BATCH : v->layer, v->format, us);
}

void http_front_close(struct http_front_books *b, const struct http_req *r, int status,
                      const struct http_front_visit *v)
{
    uint64_t us = clock_us() - http_req_start_us(r);
    char layer[16] = "-";
    count(b, status, us, v);
    if (!log_requests_wanted())
        return;
    if (v->layers_n > 1)
        snprintf(layer, sizeof layer, "batch");
    else if (v->layers_n == 1)
        snprintf(layer, sizeof layer, "%u", v->layer);
    log_request("request req=%s layer=%s layers=%u rows=%u format=%s answer=%s status=%d us=%llu bytes_in=%llu "
                "bytes_out=%llu",
                http_req_id(r), layer, v->layers_n, v->rows_n, layer_books_format(v->format),
                layer_books_format(v->answer_format), status, (unsigned long long)us, (unsigned long long)v->in_bytes,
                (unsigned long long)v->out_bytes);
}

void http_front_fail_visit(struct http_front_books *b, struct http_req *r, const struct http_front_visit *v,
                           const struct lq_fault *fault)
{
    int status = lq_err_status(fault->code);
    http_front_close(b, r, status, v);
    if (fault->code == LQ_QUEUE_FULL)
        metric_add(b->refused[HTTP_REFUSED_QUEUE], 1);
    if (status >= 500)
        log_warn("walk_ffn_failed req=%s error=%s why=%s", http_req_id(r), lq_err_word(fault->code),
                 log_q(fault->text));
    http_req_reply_fault(r, fault, NULL);
}
