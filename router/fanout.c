/* fanout: one JSON request, whole. With all its layers on one shard it goes on raw
 * (flow.c); over several it is split, run in parallel and merged.
 *
 *   fanout_start -> parse -> plan -> [one shard: flow_forward_whole]
 *                                 -> sub_send each -> on_sub_end* -> merge -> answer
 *                                                        | any failure: fail, the rest is dropped
 *
 * parse and merge run on the JSON thread when large (a DOM of hostile JSON takes 80
 * times its bytes and the loop must not wait for it). The subs are a fixed array;
 * the last one to end calls the merge. Never a 200 with layers missing. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/offload.h"
#include "proto/wire_json.h"
#include "router/health.h"
#include "router/link.h"

enum { JSON_ON_LOOP_BYTES_MAX = 64 * 1024, PART_BYTES_MAX = 64 << 20, LIST_CHARS = 96 };

struct sub { /* one shard's part */
    struct link_use use; /* first; use.link NULL: not under way */
    struct fan *fan;
    char *url; /* of the shard that was asked last */
    struct tried tried;
    uint32_t *layers; /* into fan->sub_layers */
    uint32_t layers_n;
    struct http_call *call;
    struct evbuffer *body, *answer;
    int status;
    char retry_after[8]; /* of its answer */
};

struct fan {
    struct offload_task task; /* first: parse, then merge */
    bool on_thread;           /* the task is out: only its done may free */
    struct router *rt;
    struct http_req *req; /* NULL: answered or gone */
    uint64_t deadline_us;
    size_t body_n;
    struct evbuffer *body;
    struct wire_json_request in;
    bool parsed;
    struct sub *subs;
    size_t subs_n, waiting_n;
    uint32_t *sub_layers;
    char *merged;
    size_t merged_n;
    struct lq_fault fault; /* of parse or merge */
};

static enum lq_err sub_send(struct sub *s, struct member *m, struct lq_fault *fault);

static void drop_calls(struct fan *f)
{
    for (size_t i = 0; i < f->subs_n; i++) {
        if (f->subs[i].call)
            http_call_cancel(f->subs[i].call);
        f->subs[i].call = NULL;
        if (f->subs[i].use.link)
            link_use_end(&f->subs[i].use);
    }
}

static void fan_free(struct fan *f)
{
    drop_calls(f);
    for (size_t i = 0; i < f->subs_n; i++) {
        if (f->subs[i].body)
            evbuffer_free(f->subs[i].body);
        if (f->subs[i].answer)
            evbuffer_free(f->subs[i].answer);
        free(f->subs[i].url);
    }
    free(f->subs);
    free(f->sub_layers);
    free(f->merged);
    if (f->parsed)
        wire_json_request_release(&f->in);
    if (f->body)
        evbuffer_free(f->body);
    free(f);
}

/* The request is answered or gone; the fan too, unless the thread has it. */
static void fan_end(struct fan *f)
{
    f->req = NULL;
    drop_calls(f);
    if (!f->on_thread)
        fan_free(f);
}

static void on_gone(struct http_req *r, void *arg)
{
    (void)r;
    fan_end(arg);
}

static struct http_front_visit visit_of(const struct fan *f, uint64_t out_bytes)
{
    return (struct http_front_visit){.layer = f->parsed ? f->in.layers[0] : 0,
                                     .layers_n = f->parsed ? f->in.layers_n : 0,
                                     .rows_n = f->parsed ? f->in.seq_len : 0,
                                     .format = WIRE_FORMATS_N,
                                     .answer_format = WIRE_FORMATS_N,
                                     .in_bytes = f->body_n,
                                     .out_bytes = out_bytes};
}

static void fail(struct fan *f, const struct lq_fault *fault)
{
    struct http_req *r = f->req;
    f->req = NULL;
    const struct http_front_visit v = visit_of(f, 0);
    http_front_fail_visit(&f->rt->m.books, r, &v, fault); /* fault may be f's own */
    fan_end(f);
}

/* Runs work on the JSON thread when bytes say so, else here and now. */
static void run_step(struct fan *f, size_t bytes, void (*run)(struct offload_task *t, void *arg),
                     void (*done)(struct loop_msg *m))
{
    f->task = (struct offload_task){.done.fn = done, .run = run, .bytes = bytes};
    struct lq_fault fault;
    if (bytes <= JSON_ON_LOOP_BYTES_MAX) {
        run(&f->task, NULL);
        done(&f->task.done);
        return;
    }
    f->on_thread = true;
    if (offload_put(f->rt->json_thread, &f->task, &fault) != LQ_OK) {
        f->on_thread = false;
        fail(f, &fault);
    }
}

/* ---- merge ---------------------------------------------------------------- */

static void merge_run(struct offload_task *t, void *arg)
{
    (void)arg;
    struct fan *f = (struct fan *)t;
    struct wire_json_part *parts = calloc(f->subs_n, sizeof *parts);
    if (!parts) {
        (void)lq_fail(&f->fault, LQ_NOMEM, "out of memory for a merge");
        return;
    }
    for (size_t i = 0; i < f->subs_n; i++) {
        struct sub *s = &f->subs[i];
        size_t n = evbuffer_get_length(s->answer);
        unsigned char *p = n ? evbuffer_pullup(s->answer, -1) : (unsigned char *)"";
        parts[i] = (struct wire_json_part){.body = (char *)p,
                                           .body_n = p ? n : 0,
                                           .layers = s->layers,
                                           .layers_n = s->layers_n,
                                           .url = s->url};
    }
    f->fault.code =
        wire_json_merge(f->in.layers, f->in.layers_n, parts, f->subs_n, &f->merged, &f->merged_n, &f->fault);
    free(parts);
}

static void on_merged(struct loop_msg *m)
{
    struct fan *f = (struct fan *)m;
    struct http_req *r = f->req;
    f->on_thread = false;
    if (!r) {
        fan_free(f);
    } else if (f->fault.code != LQ_OK) {
        fail(f, &f->fault);
    } else {
        const struct http_front_visit v = visit_of(f, f->merged_n);
        http_front_close(&f->rt->m.books, r, 200, &v);
        f->req = NULL;
        http_front_json_text_take(r, 200, f->merged, f->merged_n);
        f->merged = NULL;
        fan_free(f);
    }
}

/* ---- one part --------------------------------------------------------------- */

/* "3, 4, 5" or "3, 4, ... (900 layers)", for messages. */
static const char *list_layers(const struct sub *s, char buf[LIST_CHARS])
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->layers_n; i++) {
        if (n > LIST_CHARS - 48) {
            snprintf(buf + n, LIST_CHARS - n, ", ... (%u layers)", s->layers_n);
            break;
        }
        n += (size_t)snprintf(buf + n, LIST_CHARS - n, "%s%u", i ? ", " : "", s->layers[i]);
    }
    return buf;
}

static void on_sub_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg)
{
    (void)c, (void)length;
    struct sub *s = arg;
    const char *after = http_headers_get(h, "Retry-After");
    s->status = status;
    snprintf(s->retry_after, sizeof s->retry_after, "%s", after ? after : "1");
}

/* A replica that has all of its layers and was not asked for them yet. */
static struct member *replica_left(struct sub *s)
{
    struct member *one = NULL, *chosen[WIRE_LAYERS_MAX];
    struct fan *f = s->fan;
    struct lq_fault fault;
    if (s->tried.n >= ROUTER_TRIES_MAX || clock_us() >= f->deadline_us ||
        flow_choose(f->rt, f->in.model_id, s->layers, s->layers_n, &s->tried, chosen, &one, &fault) != LQ_OK)
        return NULL;
    return one && !tried_has(&s->tried, one) ? one : NULL;
}

static bool has_live_replica(struct sub *s)
{
    const struct member *m = replica_left(s);
    return m && m->health != MEMBER_DOWN;
}

/* The part once more, elsewhere. */
static bool try_again(struct sub *s)
{
    struct fan *f = s->fan;
    struct lq_fault fault;
    struct member *m = replica_left(s);
    if (!m)
        return false;
    if (!budget_take(&f->rt->crew->budget, clock_us())) {
        metric_add(f->rt->m.budget_spent, 1);
        return false;
    }
    log_info("retry req=%s from=%s to=%s", http_req_id(f->req), s->url, m->url);
    metric_add(f->rt->m.retries, 1);
    return sub_send(s, m, &fault) == LQ_OK;
}

static void sub_failed(struct sub *s, enum lq_err rc, const struct lq_fault *fault)
{
    struct fan *f = s->fan;
    struct lq_fault why, named;
    char list[LIST_CHARS];
    (void)flow_shard_fault(s->use.link->member, rc, fault, &why);
    if (rc == LQ_BIG_BODY) /* the request's doing, not the shard's */
        (void)lq_fail(&why, rc, "shard %s: %s: ask for fewer layers or rows", s->url, fault->text);
    else if (why.code == LQ_SHARD_DOWN)
        link_failed(&s->use, fault->text);
    else if (why.code == LQ_DEADLINE)
        health_suspect(f->rt->crew, s->use.link->member);
    link_use_end(&s->use);
    if ((why.code == LQ_SHARD_DOWN || why.code == LQ_DEADLINE) && try_again(s))
        return;
    (void)lq_fail(&named, why.code, "layers %s: %s", list_layers(s, list), why.text);
    fail(f, &named);
}

static void sub_refused(struct sub *s, const struct evbuffer *in)
{
    struct lq_fault named;
    char list[LIST_CHARS], text[320];
    size_t n = in ? evbuffer_get_length(in) : 0;
    const char *p = n ? (const char *)evbuffer_pullup((struct evbuffer *)(uintptr_t)in, -1) : "";
    wire_json_error_text(p, n, text, sizeof text);
    (void)lq_fail(&named, lq_err_of_status(s->status), "layers %s: shard %s: %d %s", list_layers(s, list), s->url,
                  s->status, text);
    fail(s->fan, &named);
}

static void on_sub_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault,
                       void *arg)
{
    (void)c;
    struct sub *s = arg;
    struct fan *f = s->fan;
    struct lq_fault refused;
    s->call = NULL;
    if (rc == LQ_OK && link_refuses_key(s->status, &refused)) {
        rc = LQ_SHARD_DOWN;
        fault = &refused;
    }
    if (rc != LQ_OK) {
        sub_failed(s, rc, fault);
        return;
    }
    link_answered(&s->use);
    if (s->status == 503)
        link_busy(&s->use, s->retry_after);
    else if (s->status == 504) /* its part of the deadline passed, and its clock was first */
        health_suspect(f->rt->crew, s->use.link->member);
    link_use_end(&s->use);
    if ((s->status == 503 || s->status == 504) && try_again(s))
        return;
    if (s->status != 200) {
        sub_refused(s, in);
        return;
    }
    s->answer = evbuffer_new();
    if (!s->answer || evbuffer_add_buffer(s->answer, in) != 0) {
        struct lq_fault nomem;
        (void)lq_fail(&nomem, LQ_NOMEM, "out of memory for an answer");
        fail(f, &nomem);
        return;
    }
    if (--f->waiting_n == 0) {
        size_t bytes = 0;
        for (size_t i = 0; i < f->subs_n; i++)
            bytes += evbuffer_get_length(f->subs[i].answer);
        f->fault.code = LQ_OK;
        run_step(f, bytes, merge_run, on_merged);
    }
}

static void on_down(struct link_use *u)
{
    struct sub *s = (struct sub *)u;
    struct lq_fault fault;
    if (!has_live_replica(s))
        return; /* there is nobody else: it may come back */
    (void)lq_fail(&fault, LQ_SHARD_DOWN, "it stopped answering");
    http_call_cancel(s->call);
    s->call = NULL;
    sub_failed(s, LQ_SHARD_DOWN, &fault);
}

static enum lq_err sub_send(struct sub *s, struct member *m, struct lq_fault *fault)
{
    static const struct http_call_cb cb = {.on_head = on_sub_head, .on_end = on_sub_end};
    struct fan *f = s->fan;
    free(s->url);
    s->url = strdup(m->url);
    tried_add(&s->tried, m);
    uint64_t ms = flow_try_ms(f->deadline_us, has_live_replica(s));
    struct link *l = link_of(f->rt, m, fault); /* after has_live_replica(), which may take a table */
    if (!l)
        return fault->code;
    struct http_headers *h = s->url ? flow_shard_headers(f->req, ms) : NULL;
    if (!h)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    const struct http_call_opts o = {.method = "POST",
                                     .path = "/v1/walk-ffn",
                                     .headers = h,
                                     .body = s->body,
                                     .deadline_ms = ms,
                                     .answer_max = PART_BYTES_MAX};
    enum lq_err rc = http_call_start(l->pool, &o, &cb, s, &s->call, fault);
    http_headers_free(h);
    if (!rc) {
        s->use.on_down = on_down;
        link_use_begin(l, &s->use);
    }
    return rc;
}

/* ---- plan --------------------------------------------------------------------- */

static enum lq_err sub_encode(struct sub *s, struct lq_fault *fault)
{
    size_t n;
    char *text = wire_json_request_encode(&s->fan->in, s->layers, s->layers_n, &n);
    s->body = evbuffer_new();
    if (s->body && http_front_give(s->body, text, n))
        return LQ_OK;
    if (!s->body)
        free(text);
    return lq_fail(fault, LQ_NOMEM, "out of memory for a part of the request");
}

/* One sub a member, its layers in the order asked, each once. */
static enum lq_err make_subs(struct fan *f, struct member *const *chosen, struct member **asked,
                             struct lq_fault *fault)
{
    uint32_t layers_n = f->in.layers_n, used = 0;
    f->subs = calloc(layers_n, sizeof *f->subs);
    f->sub_layers = malloc(layers_n * sizeof *f->sub_layers);
    if (!f->subs || !f->sub_layers)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %u parts", layers_n);
    for (uint32_t i = 0; i < layers_n; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = chosen[k] == chosen[i];
        if (seen)
            continue;
        asked[f->subs_n] = chosen[i];
        struct sub *s = &f->subs[f->subs_n++];
        *s = (struct sub){.fan = f, .layers = f->sub_layers + used};
        for (uint32_t k = i; k < layers_n; k++) {
            if (chosen[k] != chosen[i])
                continue;
            bool twice = false;
            for (uint32_t j = 0; j < s->layers_n && !twice; j++)
                twice = s->layers[j] == f->in.layers[k];
            if (!twice)
                s->layers[s->layers_n++] = f->in.layers[k];
        }
        used += s->layers_n;
        enum lq_err rc = sub_encode(s, fault);
        if (rc)
            return rc;
    }
    return LQ_OK;
}

static void plan(struct fan *f)
{
    struct router *rt = f->rt;
    struct member *one = NULL, *chosen[WIRE_LAYERS_MAX], *asked[WIRE_LAYERS_MAX];
    struct lq_fault fault;
    assert(f->in.layers_n <= WIRE_LAYERS_MAX);
    enum lq_err rc = flow_choose(rt, f->in.model_id, f->in.layers, f->in.layers_n, NULL, chosen, &one, &fault);
    if (!rc && one) {
        struct http_req *r = f->req;
        flow_forward_whole(rt, r, f->body, f->in.model_id, f->in.layers, f->in.layers_n, one, WIRE_FORMATS_N);
        f->req = NULL;
        fan_free(f);
        return;
    }
    if (!rc)
        rc = make_subs(f, chosen, asked, &fault);
    metric_add(rt->m.fan_outs, rc == LQ_OK);
    f->waiting_n = f->subs_n;
    budget_request(&rt->crew->budget, clock_us());
    for (size_t i = 0; i < f->subs_n && !rc; i++)
        rc = sub_send(&f->subs[i], asked[i], &fault);
    if (rc)
        fail(f, &fault);
}

/* ---- parse ---------------------------------------------------------------------- */

static void parse_run(struct offload_task *t, void *arg)
{
    (void)arg;
    struct fan *f = (struct fan *)t;
    const char *p = f->body_n ? (const char *)evbuffer_pullup(f->body, -1) : "";
    f->fault.code = p ? wire_json_request_decode(p, f->body_n, &f->in, &f->fault)
                      : lq_fail(&f->fault, LQ_NOMEM, "out of memory for a body of %zu bytes", f->body_n);
    f->parsed = f->fault.code == LQ_OK;
}

static void on_parsed(struct loop_msg *m)
{
    struct fan *f = (struct fan *)m;
    f->on_thread = false;
    if (!f->req)
        fan_free(f);
    else if (f->fault.code != LQ_OK)
        fail(f, &f->fault);
    else
        plan(f);
}

void fanout_start(struct router *rt, struct http_req *r, struct evbuffer *body)
{
    struct fan *f = calloc(1, sizeof *f);
    if (!f || !(f->body = evbuffer_new()) || evbuffer_add_buffer(f->body, body) != 0) {
        if (f)
            fan_free(f);
        http_front_nomem(r);
        return;
    }
    f->rt = rt;
    f->req = r;
    f->deadline_us = http_front_deadline_us(r, rt->deadline_ms);
    f->body_n = evbuffer_get_length(f->body);
    http_req_on_gone(r, on_gone, f);
    run_step(f, f->body_n, parse_run, on_parsed);
}
