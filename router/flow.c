/* flow: one POST /v1/walk-ffn, passed on raw to one shard.
 *
 *   the page table -> flow_start    ------------ refused (503, 413, 415)
 *        | JSON: whole body -> fanout_start (which comes back to flow_forward_whole
 *        |                                   when one shard has all the layers)
 *        | binary: on_body_data until the head is there
 *      route_head ------------------------------ refused (400)
 *        | body <= 1 MiB: kept whole, sent, may be sent again   | larger: cut through
 *      send_to -> [ shard ] -> on_head -> on_answer_data -> on_answer_end
 *        | answer <= 64 KiB: leaves when whole    | larger: streams from its head on
 *      relayed; or, before a byte of it left: again on another replica; or 502, 504
 *
 * Bodies are moved between evbuffers by reference; no float is decoded here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/log.h"
#include "proto/negotiate.h"
#include "router/link.h"

enum { TRIES_MAX = 3 };

struct forward {
    struct router *rt;
    struct http_req *req; /* NULL: answered or gone */
    struct http_call *call;
    struct link *link;
    unsigned format;
    uint64_t deadline_us, sent_us, in_bytes, out_bytes;
    unsigned tries_n;
    uint32_t *layers; /* for a second choice and for messages */
    uint32_t layers_n;
    /* the request's body */
    struct evbuffer *body; /* what came and was not sent; kept for another try unless `cut` */
    bool cut;              /* cut through: leaves as it comes */
    bool shard_full;       /* it takes no more until on_shard_room() */
    /* the answer */
    int status;
    struct http_headers *head; /* what of the shard's head the client gets */
    uint64_t length;
    bool started;     /* the client has seen the head */
    bool client_full; /* it takes no more until on_client_room() */
};

static enum lq_err send_to(struct forward *f, struct link *l, struct lq_fault *fault);

static void forward_free(struct forward *f)
{
    if (f->call)
        http_call_cancel(f->call);
    if (f->body)
        evbuffer_free(f->body);
    http_headers_free(f->head);
    free(f->layers);
    free(f);
}

/* Ends the exchange with an error of our own. */
static void refuse(struct forward *f, const struct lq_fault *fault)
{
    struct http_req *r = f->req;
    f->req = NULL;
    http_front_fail(&f->rt->m.books, r, f->format, f->in_bytes, fault);
    forward_free(f);
}

static void on_gone(struct http_req *r, void *arg)
{
    (void)r;
    struct forward *f = arg;
    f->req = NULL;
    forward_free(f);
}

enum lq_err flow_shard_fault(const struct link *l, enum lq_err rc, const struct lq_fault *cause, struct lq_fault *out)
{
    /* A shard that breaks the framing and one that is gone are the same to the client. */
    enum lq_err code = rc == LQ_DEADLINE || rc == LQ_NOMEM ? rc : LQ_SHARD_DOWN;
    return lq_fail(out, code, "shard %s: %s", l->url, cause->text);
}

/* ---- the answer ------------------------------------------------------- */

static bool is_relayed(const char *name)
{
    return strcasecmp(name, "Content-Type") == 0 || strcasecmp(name, "Retry-After") == 0 ||
           strcasecmp(name, "Server-Timing") == 0 || strcasecmp(name, "Allow") == 0 ||
           strncasecmp(name, "X-Larql-", 8) == 0;
}

static void on_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg)
{
    (void)c;
    struct forward *f = arg;
    f->status = status;
    f->length = length;
    http_headers_free(f->head);
    f->head = http_headers_new();
    for (size_t i = 0; i < http_headers_n(h) && f->head; i++) {
        const char *name, *value;
        http_headers_at(h, i, &name, &value);
        if (is_relayed(name) && !http_headers_copy(f->head, h, i)) {
            http_headers_free(f->head); /* out of memory: on_answer_end says so */
            f->head = NULL;
        }
    }
}

static void on_client_room(struct http_req *r, void *arg)
{
    (void)r;
    struct forward *f = arg;
    f->client_full = false;
    if (f->call)
        http_call_resume(f->call);
}

/* Small answers wait until they are whole, so that a shard lost half-way can be
 * asked again; a large one leaves as it comes. */
static void on_answer_data(struct http_call *c, struct evbuffer *in, void *arg)
{
    (void)c;
    struct forward *f = arg;
    bool large = (f->length != HTTP_LENGTH_UNKNOWN && f->length > ROUTER_WHOLE_ANSWER_MAX) ||
                 evbuffer_get_length(in) > ROUTER_WHOLE_ANSWER_MAX;
    if (!f->head || (!f->started && !large))
        return;
    if (!f->started) {
        f->started = true;
        http_req_on_room(f->req, on_client_room, f);
        http_req_reply_start(f->req, f->status, f->head, f->length);
    }
    if (f->client_full) /* what comes stays, and stops the shard; on_client_room() goes on */
        return;
    f->out_bytes += evbuffer_get_length(in);
    f->client_full = !http_req_reply_data(f->req, in);
}

static void relay_end(struct forward *f, struct evbuffer *in)
{
    struct http_req *r = f->req;
    f->out_bytes += evbuffer_get_length(in);
    http_front_count(&f->rt->m.books, f->format, f->status, http_req_start_us(r), f->in_bytes, f->out_bytes);
    f->req = NULL;
    if (f->started) {
        (void)http_req_reply_data(r, in);
        http_req_reply_end(r);
    } else {
        http_req_reply(r, f->status, f->head, in);
    }
    forward_free(f);
}

/* Sends the request once more if that can help: another replica, time left, no
 * byte of an answer passed on, the body still here. */
static bool try_again(struct forward *f, struct link *failed)
{
    struct link *other = NULL;
    struct lq_fault fault;
    if (f->started || f->cut || f->tries_n >= TRIES_MAX || clock_us() >= f->deadline_us)
        return false;
    if (flow_choose(f->rt, f->layers, f->layers_n, failed, (struct link *[WIRE_LAYERS_MAX]){0}, &other, &fault) ||
        !other || other == failed)
        return false;
    metric_add(f->rt->m.retries, 1);
    log_info("retry req=%s from=%s to=%s", http_req_id(f->req), failed->url, other->url);
    return send_to(f, other, &fault) == LQ_OK;
}

static void on_answer_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault,
                          void *arg)
{
    (void)c;
    struct forward *f = arg;
    struct link *l = f->link;
    struct lq_fault why, refused;
    f->call = NULL;
    if (rc == LQ_OK && link_refuses_key(f->status, &refused)) {
        rc = LQ_SHARD_DOWN;
        fault = &refused;
    }
    if (rc == LQ_OK && f->head) {
        link_answered(l, clock_us() - f->sent_us);
        relay_end(f, in);
        return;
    }
    if (rc == LQ_OK)
        rc = lq_fail(&why, LQ_NOMEM, "out of memory");
    else
        rc = flow_shard_fault(l, rc, fault, &why);
    if (rc == LQ_SHARD_DOWN)
        link_failed(l, fault->text);
    if (f->started) { /* never a short body that looks complete */
        struct http_req *r = f->req;
        metric_add(f->rt->m.cut_answers, 1);
        http_front_count(&f->rt->m.books, f->format, 502, http_req_start_us(r), f->in_bytes, f->out_bytes);
        log_warn("answer_cut req=%s url=%s why=%s", http_req_id(r), l->url, log_q(why.text));
        f->req = NULL;
        forward_free(f);
        http_req_abort(r);
        return;
    }
    if (rc == LQ_SHARD_DOWN && try_again(f, l))
        return;
    struct lq_fault named;
    (void)lq_fail(&named, why.code, "layer %" PRIu32 ": %s", f->layers[0], why.text);
    refuse(f, &named);
}

/* ---- the request ------------------------------------------------------- */

static void on_shard_room(struct http_call *c, void *arg)
{
    (void)c;
    struct forward *f = arg;
    f->shard_full = false;
    if (f->req)
        http_req_resume(f->req);
}

uint64_t flow_ms_left(uint64_t deadline_us)
{
    uint64_t now = clock_us();
    return now < deadline_us ? (deadline_us - now + 999) / 1000 : 1;
}

struct http_headers *flow_shard_headers(struct http_req *r, uint64_t deadline_us)
{
    const struct http_headers *from = http_req_headers(r);
    struct http_headers *h = http_headers_new();
    bool ok = h && http_headers_add(h, "X-Request-Id", http_req_id(r)) &&
              http_headers_add_u64(h, "X-Larql-Deadline-Ms", flow_ms_left(deadline_us));
    for (size_t i = 0; i < http_headers_n(from) && ok; i++) {
        const char *name, *value;
        http_headers_at(from, i, &name, &value);
        if (strcasecmp(name, "Content-Type") == 0 || strcasecmp(name, "Accept") == 0)
            ok = http_headers_copy(h, from, i);
    }
    if (ok)
        return h;
    http_headers_free(h);
    return NULL;
}

static enum lq_err send_to(struct forward *f, struct link *l, struct lq_fault *fault)
{
    static const struct http_call_cb cb = {
        .on_head = on_head, .on_data = on_answer_data, .on_end = on_answer_end, .on_room = on_shard_room};
    struct http_headers *h = flow_shard_headers(f->req, f->deadline_us);
    if (!h)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    const struct http_call_opts o = {.method = "POST",
                                     .path = "/v1/walk-ffn",
                                     .headers = h,
                                     .body = f->cut ? NULL : f->body,
                                     .streamed = f->cut,
                                     .stream_length = http_req_length(f->req),
                                     .deadline_ms = flow_ms_left(f->deadline_us)};
    f->link = l;
    f->tries_n++;
    f->sent_us = clock_us();
    enum lq_err rc = http_call_start(l->pool, &o, &cb, f, &f->call, fault);
    http_headers_free(h);
    return rc;
}

/* Reads the layer list of a binary body. LQ_OK with layers_n 0: more is needed. */
static enum lq_err read_layers(struct forward *f, uint64_t body_n, struct lq_fault *fault)
{
    size_t have_n = evbuffer_get_length(f->body), more_n = 0;
    if (have_n > WIRE_HEAD_BYTES_MAX)
        have_n = WIRE_HEAD_BYTES_MAX;
    const uint8_t *p = have_n ? evbuffer_pullup(f->body, (ev_ssize_t)have_n) : (const uint8_t *)"";
    struct wire_head head;
    if (!p)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    enum lq_err rc = wire_head_decode(p, have_n, body_n, &head, &more_n, fault);
    if (rc || more_n)
        return rc;
    if (!(f->layers = malloc(head.layers_n * sizeof *f->layers)))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    for (uint32_t i = 0; i < head.layers_n; i++)
        f->layers[i] = wire_head_layer(&head, i);
    f->layers_n = head.layers_n;
    return LQ_OK;
}

/* The head may be there: finds the link. LQ_OK with f->link NULL: not yet. */
static enum lq_err route_head(struct forward *f, uint64_t body_n, struct lq_fault *fault)
{
    struct link *one = NULL, *chosen[WIRE_LAYERS_MAX];
    enum lq_err rc = read_layers(f, body_n, fault);
    if (rc || f->layers_n == 0)
        return rc;
    rc = flow_choose(f->rt, f->layers, f->layers_n, NULL, chosen, &one, fault);
    if (!rc && !one)
        rc = lq_fail(fault, LQ_BAD_LAYER,
                     "binary fan-out across multiple shards is not supported; use JSON or split by shard");
    f->link = one;
    return rc;
}

/* Moves what came to the shard; while that is full it stays in `in`, and stops the client. */
static void pass_on(struct forward *f, struct evbuffer *in)
{
    if (f->shard_full)
        return;
    bool room = evbuffer_get_length(f->body) == 0 || http_call_send(f->call, f->body); /* what came before the cut */
    f->shard_full = !room || !http_call_send(f->call, in);
}

static void on_body_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct forward *f = arg;
    struct lq_fault fault;
    size_t n = evbuffer_get_length(in);
    if (f->cut) {
        pass_on(f, in);
        f->in_bytes += n - evbuffer_get_length(in);
        return;
    }
    f->in_bytes += n;
    enum lq_err rc = evbuffer_add_buffer(f->body, in) == 0 ? LQ_OK : lq_fail(&fault, LQ_NOMEM, "out of memory");
    if (!rc && f->layers_n == 0)
        rc = route_head(f, http_req_length(r), &fault);
    if (!rc && f->link && evbuffer_get_length(f->body) > 0 &&
        (http_req_length(r) == HTTP_LENGTH_UNKNOWN ? evbuffer_get_length(f->body) : http_req_length(r)) >
            ROUTER_RETRY_BYTES_MAX) {
        f->cut = true;
        rc = send_to(f, f->link, &fault);
        if (!rc)
            pass_on(f, in);
    }
    if (rc)
        refuse(f, &fault);
}

static void on_body_end(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)r;
    struct forward *f = arg;
    struct lq_fault fault;
    if (f->cut) {
        f->in_bytes += evbuffer_get_length(in);
        if (evbuffer_get_length(f->body) > 0)
            (void)http_call_send(f->call, f->body);
        (void)http_call_send(f->call, in);
        http_call_send_end(f->call);
        return;
    }
    f->in_bytes += evbuffer_get_length(in);
    enum lq_err rc = evbuffer_add_buffer(f->body, in) == 0 ? LQ_OK : lq_fail(&fault, LQ_NOMEM, "out of memory");
    if (!rc && f->layers_n == 0)
        rc = route_head(f, evbuffer_get_length(f->body), &fault);
    if (!rc)
        rc = send_to(f, f->link, &fault);
    if (rc)
        refuse(f, &fault);
}

/* ---- the door ----------------------------------------------------------- */

static void on_json_body(struct http_req *r, struct evbuffer *in, void *arg)
{
    fanout_start(arg, r, in);
}

static struct forward *forward_new(struct router *rt, struct http_req *r, unsigned format)
{
    struct forward *f = calloc(1, sizeof *f);
    if (!f || !(f->body = evbuffer_new())) {
        free(f);
        return NULL;
    }
    f->rt = rt;
    f->req = r;
    f->format = format;
    f->deadline_us = http_front_deadline_us(r, rt->deadline_ms);
    http_req_on_gone(r, on_gone, f);
    return f;
}

void flow_forward_whole(struct router *rt, struct http_req *r, struct evbuffer *body, const uint32_t *layers,
                        uint32_t layers_n, struct link *one, unsigned format)
{
    struct lq_fault fault;
    struct forward *f = forward_new(rt, r, format);
    if (!f) {
        http_front_nomem(r);
        return;
    }
    enum lq_err rc = lq_fail(&fault, LQ_NOMEM, "out of memory");
    f->in_bytes = evbuffer_get_length(body);
    f->layers = malloc(layers_n * sizeof *layers);
    if (f->layers && evbuffer_add_buffer(f->body, body) == 0) {
        memcpy(f->layers, layers, layers_n * sizeof *layers);
        f->layers_n = layers_n;
        rc = send_to(f, one, &fault);
    }
    if (rc)
        refuse(f, &fault);
}

void flow_start(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    bool json = false;
    enum wire_format body = WIRE_F32;
    struct lq_fault fault;
    if (rt->draining) {
        http_front_refuse(r, LQ_NOT_READY, "draining: this router is about to stop");
        return;
    }
    enum lq_err rc = negotiate_body(http_headers_get(http_req_headers(r), "Content-Type"), &json, &body, &fault);
    uint64_t limit = !rc && json ? rt->json_max : rt->body_max;
    if (rc && http_req_may_read(r, limit, NULL) == LQ_OK) { /* else 417 or 413, which come before this 415 */
        http_req_reply_fault(r, &fault, NULL);
        return;
    }
    if (json) {
        http_req_read(r, limit, NULL, on_json_body, rt);
        return;
    }
    struct forward *f = forward_new(rt, r, body);
    if (!f)
        http_front_nomem(r);
    else
        http_req_read(r, limit, on_body_data, on_body_end, f);
}
