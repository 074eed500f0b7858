/* attempt: see attempt.h. Bodies are moved between evbuffers by reference. */
#include "router/attempt.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/log.h"
#include "proto/negotiate.h"
#include "router/health.h"

enum { HEDGE_MS_MIN = 1 };

static enum lq_err send_to(struct attempt *a, struct member *m, struct lq_fault *fault);

/* ---- life ------------------------------------------------------------------ */

struct forward *forward_new(struct router *rt, struct http_req *r, unsigned format)
{
    struct forward *f = calloc(1, sizeof *f);
    if (!f || !(f->body = evbuffer_new())) {
        free(f);
        return NULL;
    }
    f->rt = rt;
    f->req = r;
    f->visit.format = f->visit.answer_format = format;
    f->deadline_us = http_front_deadline_us(r, rt->deadline_ms);
    for (size_t i = 0; i < FORWARD_ATTEMPTS; i++)
        f->attempts[i].forward = f;
    return f;
}

static void attempt_drop(struct attempt *a)
{
    if (a->call)
        http_call_cancel(a->call);
    if (a->use.link)
        link_use_end(&a->use);
    http_headers_free(a->head);
    a->call = NULL;
    a->head = NULL;
    a->head_seen = false;
}

void forward_free(struct forward *f)
{
    for (size_t i = 0; i < FORWARD_ATTEMPTS; i++)
        attempt_drop(&f->attempts[i]);
    if (f->hedge_ev)
        event_free(f->hedge_ev);
    evbuffer_free(f->body);
    free(f->model_copy);
    free(f->layers);
    free(f);
}

void forward_refuse(struct forward *f, const struct lq_fault *fault)
{
    struct http_req *r = f->req;
    f->req = NULL;
    f->visit.answer_format = WIRE_FORMATS_N;
    http_front_fail_visit(&f->rt->m.books, r, &f->visit, fault);
    forward_free(f);
}

static struct attempt *other_of(struct attempt *a)
{
    struct attempt *b = &a->forward->attempts[a == a->forward->attempts];
    return b->call ? b : NULL;
}

/* ---- again, elsewhere -------------------------------------------------------- */

/* A replica that was not tried yet; NULL: none, or nothing can be sent again. */
static struct member *replica_left(struct forward *f)
{
    struct member *one = NULL, *chosen[WIRE_LAYERS_MAX];
    struct lq_fault fault;
    if (f->started || f->cut || f->tried.n >= ROUTER_TRIES_MAX || clock_us() >= f->deadline_us ||
        flow_choose(f->rt, f->model_id, f->layers, f->layers_n, &f->tried, chosen, &one, &fault) != LQ_OK)
        return NULL;
    return one && !tried_has(&f->tried, one) ? one : NULL;
}

/* Somebody to whom part of the deadline is left: not one that is known to be dead. */
static bool has_live_replica(struct forward *f)
{
    const struct member *m = replica_left(f);
    return m && m->health != MEMBER_DOWN;
}

/* Sends the request once more if that can help and the budget allows it. */
static bool try_again(struct attempt *a, const char *failed_url)
{
    struct forward *f = a->forward;
    struct lq_fault fault;
    struct member *m = replica_left(f);
    if (!m)
        return false;
    if (!budget_take(&f->rt->crew->budget, clock_us())) {
        metric_add(f->rt->m.budget_spent, 1);
        return false;
    }
    a->hedge = false;
    metric_add(f->rt->m.retries, 1);
    log_info("retry req=%s from=%s to=%s", http_req_id(f->req), failed_url, m->url);
    return send_to(a, m, &fault) == LQ_OK;
}

static void on_hedge(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct forward *f = arg;
    struct attempt *a = &f->attempts[0], *b = &f->attempts[1];
    struct lq_fault fault;
    if (!a->call || a->head_seen || b->call)
        return;
    struct member *m = replica_left(f);
    if (!m || m->health != MEMBER_UP || m->busy_until_us > clock_us())
        return;
    if (!budget_take(&f->rt->crew->budget, clock_us())) {
        metric_add(f->rt->m.budget_spent, 1);
        return;
    }
    b->hedge = true;
    if (send_to(b, m, &fault) == LQ_OK) {
        metric_add(f->rt->m.hedges, 1);
        log_debug("hedge req=%s from=%s to=%s", http_req_id(f->req), a->use.link->member->url, m->url);
    }
}

static void plan_hedge(struct forward *f, const struct member *m)
{
    double p95_us = m->p95_us;
    if (!f->rt->crew->hedge || f->cut || p95_us <= 0 || !replica_left(f))
        return;
    if (!f->hedge_ev && !(f->hedge_ev = evtimer_new(loop_base(f->rt->loop), on_hedge, f)))
        return; /* out of memory: the request does without */
    uint64_t us = p95_us < HEDGE_MS_MIN * 1000 ? HEDGE_MS_MIN * 1000 : (uint64_t)p95_us;
    struct timeval tv = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
    evtimer_add(f->hedge_ev, &tv);
}

/* ---- the answer ---------------------------------------------------------------- */

static bool is_relayed(const char *name)
{
    return strcasecmp(name, "Content-Type") == 0 || strcasecmp(name, "Retry-After") == 0 ||
           strcasecmp(name, "Server-Timing") == 0 || strcasecmp(name, "Allow") == 0 ||
           strncasecmp(name, "X-Larql-", 8) == 0;
}

static void on_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg)
{
    (void)c;
    struct attempt *a = arg;
    a->status = status;
    a->length = length;
    a->head_seen = true;
    http_headers_free(a->head);
    a->head = http_headers_new();
    for (size_t i = 0; i < http_headers_n(h) && a->head; i++) {
        const char *name, *value;
        http_headers_at(h, i, &name, &value);
        if (is_relayed(name) && !http_headers_copy(a->head, h, i)) {
            http_headers_free(a->head); /* out of memory: on_end says so */
            a->head = NULL;
        }
    }
}

static void on_client_room(struct http_req *r, void *arg)
{
    (void)r;
    struct forward *f = arg;
    f->client_full = false;
    if (f->started->call)
        http_call_resume(f->started->call);
}

/* Small answers wait until they are whole, so that a shard lost half-way can be
 * asked again; a large one leaves as it comes. */
static void on_data(struct http_call *c, struct evbuffer *in, void *arg)
{
    (void)c;
    struct attempt *a = arg, *other;
    struct forward *f = a->forward;
    bool large = (a->length != HTTP_LENGTH_UNKNOWN && a->length > ROUTER_WHOLE_ANSWER_MAX) ||
                 evbuffer_get_length(in) > ROUTER_WHOLE_ANSWER_MAX;
    if (!a->head || (!f->started && !large))
        return;
    if (!f->started) {
        if ((other = other_of(a)))
            attempt_drop(other);
        f->started = a;
        http_req_on_room(f->req, on_client_room, f);
        http_req_reply_start(f->req, a->status, a->head, a->length);
    }
    if (f->client_full) /* what comes stays, and stops the shard; on_client_room() goes on */
        return;
    f->visit.out_bytes += evbuffer_get_length(in);
    f->client_full = !http_req_reply_data(f->req, in);
}

/* What its Content-Type says; anything unknown counts as JSON. */
static unsigned answer_format(const struct attempt *a)
{
    bool json = false;
    enum wire_format format;
    struct lq_fault fault;
    const char *type = a->head ? http_headers_get(a->head, "Content-Type") : NULL;
    return negotiate_body(type, &json, &format, &fault) != LQ_OK || json ? WIRE_FORMATS_N : format;
}

static void relay_end(struct attempt *a, struct evbuffer *in)
{
    struct forward *f = a->forward;
    struct http_req *r = f->req;
    f->visit.out_bytes += evbuffer_get_length(in);
    f->visit.answer_format = answer_format(a);
    http_front_close(&f->rt->m.books, r, a->status, &f->visit);
    metric_add(f->rt->m.hedge_wins, a->hedge);
    f->req = NULL;
    if (f->started) {
        (void)http_req_reply_data(r, in);
        http_req_reply_end(r);
    } else {
        http_req_reply(r, a->status, a->head, in);
    }
    forward_free(f);
}

/* Never a short body that looks complete. */
static void cut_answer(struct attempt *a, const char *why)
{
    struct forward *f = a->forward;
    struct http_req *r = f->req;
    metric_add(f->rt->m.cut_answers, 1);
    f->visit.answer_format = answer_format(a);
    http_front_close(&f->rt->m.books, r, 502, &f->visit);
    log_warn("answer_cut req=%s url=%s why=%s", http_req_id(r), a->use.link->member->url, log_q(why));
    f->req = NULL;
    forward_free(f);
    http_req_abort(r);
}

/* Its try came to nothing: the other one goes on, or a new one, or the request fails. */
static void attempt_failed(struct attempt *a, enum lq_err rc, const struct lq_fault *fault)
{
    struct forward *f = a->forward;
    struct member *m = a->use.link->member; /* stays this turn: tables and links go after it */
    struct lq_fault why, named;
    if (rc == LQ_OK)
        rc = lq_fail(&why, LQ_NOMEM, "out of memory");
    else
        rc = flow_shard_fault(m, rc, fault, &why);
    if (rc == LQ_SHARD_DOWN)
        link_failed(&a->use, fault->text);
    else if (rc == LQ_DEADLINE) /* slow or dead? A probe finds out. A client's short deadline proves nothing. */
        health_suspect(f->rt->crew, m);
    if (f->started == a) {
        cut_answer(a, why.text);
        return;
    }
    attempt_drop(a);
    if (other_of(a) || ((rc == LQ_SHARD_DOWN || rc == LQ_DEADLINE) && try_again(a, m->url)))
        return;
    (void)lq_fail(&named, why.code, "layer %" PRIu32 ": %s", f->layers[0], why.text);
    forward_refuse(f, &named);
}

static void on_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault, void *arg)
{
    (void)c;
    struct attempt *a = arg;
    struct lq_fault refused;
    a->call = NULL;
    if (rc == LQ_OK && link_refuses_key(a->status, &refused)) {
        rc = LQ_SHARD_DOWN;
        fault = &refused;
    }
    if (rc != LQ_OK || !a->head) {
        attempt_failed(a, rc, fault);
        return;
    }
    link_answered(&a->use);
    if ((a->status == 503 || a->status == 504) && !a->forward->started) {
        struct member *m = a->use.link->member;
        if (a->status == 503)
            link_busy(&a->use, http_headers_get(a->head, "Retry-After"));
        else /* its part of the deadline passed, and its clock was first */
            health_suspect(a->forward->rt->crew, m);
        struct http_headers *head = a->head; /* kept for the case that nobody else can help */
        bool hedge = a->hedge;
        a->head = NULL;
        attempt_drop(a);
        if (other_of(a) || try_again(a, m->url)) {
            http_headers_free(head);
            return;
        }
        a->head = head;
        a->hedge = hedge;
    }
    relay_end(a, in);
}

static void on_down(struct link_use *u)
{
    struct attempt *a = (struct attempt *)u;
    struct forward *f = a->forward;
    struct lq_fault fault;
    if (a->head_seen || f->cut || (!other_of(a) && !has_live_replica(f)))
        return; /* there is nobody else: it may come back */
    (void)lq_fail(&fault, LQ_SHARD_DOWN, "it stopped answering");
    http_call_cancel(a->call);
    a->call = NULL;
    attempt_failed(a, LQ_SHARD_DOWN, &fault);
}

/* ---- the request ---------------------------------------------------------------- */

static void on_shard_room(struct http_call *c, void *arg)
{
    (void)c;
    struct forward *f = ((struct attempt *)arg)->forward;
    f->shard_full = false;
    if (f->req)
        http_req_resume(f->req);
}

static enum lq_err send_to(struct attempt *a, struct member *m, struct lq_fault *fault)
{
    static const struct http_call_cb cb = {
        .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_room = on_shard_room};
    struct forward *f = a->forward;
    assert(!a->call);
    tried_add(&f->tried, m);
    uint64_t ms = flow_try_ms(f->deadline_us, has_live_replica(f));
    struct link *l = link_of(f->rt, m, fault); /* after has_live_replica(), which may take a table */
    if (!l)
        return fault->code;
    struct http_headers *h = flow_shard_headers(f->req, ms);
    if (!h)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    const struct http_call_opts o = {.method = "POST",
                                     .path = "/v1/walk-ffn",
                                     .headers = h,
                                     .body = f->cut ? NULL : f->body,
                                     .streamed = f->cut,
                                     .stream_length = http_req_length(f->req),
                                     .deadline_ms = ms};
    enum lq_err rc = http_call_start(l->pool, &o, &cb, a, &a->call, fault);
    http_headers_free(h);
    if (!rc) {
        a->use.on_down = on_down;
        link_use_begin(l, &a->use);
    }
    return rc;
}

enum lq_err attempt_first(struct forward *f, struct lq_fault *fault)
{
    struct member *chosen[WIRE_LAYERS_MAX];
    enum lq_err rc = LQ_OK;
    budget_request(&f->rt->crew->budget, clock_us());
    if (f->generation != f->rt->table->generation) /* the grid changed while the body came */
        rc = flow_choose(f->rt, f->model_id, f->layers, f->layers_n, NULL, chosen, &f->first, fault);
    if (!rc && !f->first)
        rc = lq_fail(fault, LQ_NOT_READY, "its layers went to several shards while the body came; try again");
    if (!rc)
        rc = send_to(&f->attempts[0], f->first, fault);
    if (!rc)
        plan_hedge(f, f->first);
    return rc;
}

void attempt_pass_on(struct forward *f, struct evbuffer *in)
{
    struct http_call *call = f->attempts[0].call;
    if (f->shard_full)
        return;
    bool room = evbuffer_get_length(f->body) == 0 || http_call_send(call, f->body); /* what came before the cut */
    f->shard_full = !room || !http_call_send(call, in);
}

void attempt_pass_end(struct forward *f, struct evbuffer *in)
{
    struct http_call *call = f->attempts[0].call;
    if (evbuffer_get_length(f->body) > 0)
        (void)http_call_send(call, f->body);
    (void)http_call_send(call, in);
    http_call_send_end(call);
}
