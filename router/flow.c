/* flow: one POST /v1/walk-ffn, passed on raw to one shard.
 *
 *   the page table -> flow_start    ------------ refused (503, 413, 415)
 *        | JSON: whole body -> fanout_start (which comes back to flow_forward_whole
 *        |                                   when one shard has all the layers)
 *        | binary: on_body_data until the head is there
 *      route_head ------------------------------ refused (400, 503)
 *        | body <= 1 MiB: kept whole, sent, may be sent again   | larger: cut through
 *      attempt_first -> attempt.c: tries at shards, until an answer or an error
 *
 * No float is decoded here. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "proto/negotiate.h"
#include "router/attempt.h"

/* ---- what both kinds of request need --------------------------------------- */

enum lq_err flow_shard_fault(const struct member *m, enum lq_err rc, const struct lq_fault *cause, struct lq_fault *out)
{
    /* A shard that breaks the framing and one that is gone are the same to the client. */
    enum lq_err code = rc == LQ_DEADLINE || rc == LQ_NOMEM ? rc : LQ_SHARD_DOWN;
    return lq_fail(out, code, "shard %s: %s", m->url, cause->text);
}

uint64_t flow_ms_left(uint64_t deadline_us)
{
    uint64_t now = clock_us();
    return now < deadline_us ? (deadline_us - now + 999) / 1000 : 1;
}

uint64_t flow_try_ms(uint64_t deadline_us, bool another)
{
    uint64_t ms = flow_ms_left(deadline_us);
    return another && ms > 1 ? ms / 2 : ms;
}

struct http_headers *flow_shard_headers(struct http_req *r, uint64_t ms_left)
{
    const struct http_headers *from = http_req_headers(r);
    struct http_headers *h = http_headers_new();
    bool ok = h && http_headers_add(h, "X-Request-Id", http_req_id(r)) &&
              http_headers_add_u64(h, "X-Larql-Deadline-Ms", ms_left);
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

/* ---- a binary body --------------------------------------------------------- */

static void on_gone(struct http_req *r, void *arg)
{
    (void)r;
    struct forward *f = arg;
    f->req = NULL;
    forward_free(f);
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
    f->layers_n = f->visit.layers_n = head.layers_n;
    f->visit.layer = f->layers[0];
    return LQ_OK;
}

/* The head may be there: finds the member. LQ_OK with f->first NULL: not yet. */
static enum lq_err route_head(struct forward *f, uint64_t body_n, struct lq_fault *fault)
{
    struct member *one = NULL, *chosen[WIRE_LAYERS_MAX];
    enum lq_err rc = read_layers(f, body_n, fault);
    if (rc || f->layers_n == 0)
        return rc;
    rc = flow_choose(f->rt, f->model_id, f->layers, f->layers_n, NULL, chosen, &one, fault);
    if (!rc && !one)
        rc = lq_fail(fault, LQ_BAD_LAYER,
                     "binary fan-out across multiple shards is not supported; use JSON or split by shard");
    f->first = one;
    f->generation = f->rt->table->generation;
    return rc;
}

static void on_body_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct forward *f = arg;
    struct lq_fault fault;
    size_t n = evbuffer_get_length(in);
    if (f->cut) {
        attempt_pass_on(f, in);
        f->visit.in_bytes += n - evbuffer_get_length(in);
        return;
    }
    f->visit.in_bytes += n;
    enum lq_err rc = evbuffer_add_buffer(f->body, in) == 0 ? LQ_OK : lq_fail(&fault, LQ_NOMEM, "out of memory");
    if (!rc && f->layers_n == 0)
        rc = route_head(f, http_req_length(r), &fault);
    if (!rc && f->first && evbuffer_get_length(f->body) > 0 &&
        (http_req_length(r) == HTTP_LENGTH_UNKNOWN ? evbuffer_get_length(f->body) : http_req_length(r)) >
            ROUTER_RETRY_BYTES_MAX) {
        f->cut = true;
        rc = attempt_first(f, &fault);
        if (!rc)
            attempt_pass_on(f, in);
    }
    if (rc)
        forward_refuse(f, &fault);
}

static void on_body_end(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)r;
    struct forward *f = arg;
    struct lq_fault fault;
    if (f->cut) {
        f->visit.in_bytes += evbuffer_get_length(in);
        attempt_pass_end(f, in);
        return;
    }
    f->visit.in_bytes += evbuffer_get_length(in);
    enum lq_err rc = evbuffer_add_buffer(f->body, in) == 0 ? LQ_OK : lq_fail(&fault, LQ_NOMEM, "out of memory");
    if (!rc && f->layers_n == 0)
        rc = route_head(f, evbuffer_get_length(f->body), &fault);
    if (!rc)
        rc = attempt_first(f, &fault);
    if (rc)
        forward_refuse(f, &fault);
}

/* ---- the door ----------------------------------------------------------- */

static void on_json_body(struct http_req *r, struct evbuffer *in, void *arg)
{
    fanout_start(arg, r, in);
}

void flow_forward_whole(struct router *rt, struct http_req *r, struct evbuffer *body, const char *model_id,
                        const uint32_t *layers, uint32_t layers_n, struct member *one, unsigned format)
{
    struct lq_fault fault;
    struct forward *f = forward_new(rt, r, format);
    if (!f) {
        http_front_nomem(r);
        return;
    }
    http_req_on_gone(r, on_gone, f);
    enum lq_err rc = lq_fail(&fault, LQ_NOMEM, "out of memory");
    f->visit.in_bytes = evbuffer_get_length(body);
    f->layers = malloc(layers_n * sizeof *layers);
    f->model_id = f->model_copy = model_id ? strdup(model_id) : NULL;
    if (f->layers && (!model_id || f->model_copy) && evbuffer_add_buffer(f->body, body) == 0) {
        memcpy(f->layers, layers, layers_n * sizeof *layers);
        f->layers_n = f->visit.layers_n = layers_n;
        f->visit.layer = layers[0];
        f->first = one;
        f->generation = rt->table->generation;
        rc = attempt_first(f, &fault);
    }
    if (rc)
        forward_refuse(f, &fault);
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
    if (!f) {
        http_front_nomem(r);
        return;
    }
    f->model_id = http_headers_get(http_req_headers(r), "X-Larql-Model");
    http_req_on_gone(r, on_gone, f);
    http_req_read(r, limit, on_body_data, on_body_end, f);
}
