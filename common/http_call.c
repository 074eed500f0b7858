/* http_call: one exchange of a client, from http_call_start() to on_end. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/http_pool_impl.h"

/* ---- the end ------------------------------------------------------------------------------ */

static void call_free(struct http_call *c)
{
    if (c->deadline)
        event_free(c->deadline);
    if (c->fail_ev)
        event_free(c->fail_ev);
    struct evbuffer *bufs[] = {c->head, c->pending, c->in};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        if (bufs[i])
            evbuffer_free(bufs[i]);
    free(c);
}

/* Takes the call off its wire and every list. keep: the wire may carry another. */
static void call_unlink(struct http_call *c, bool keep)
{
    struct http_pool *p = c->pool;
    if (c->waiting)
        TAILQ_REMOVE(&p->waiting, c, entry);
    if (c->failed)
        TAILQ_REMOVE(&p->calls_failing, c, entry);
    if (c->wire)
        wire_done(c->wire, keep);
    c->wire = NULL;
    c->waiting = false;
    c->failed = LQ_OK;
}

void call_end(struct http_call *c, enum lq_err rc)
{
    struct http_pool *p = c->pool;
    bool keep = rc == LQ_OK && c->wire && c->wire->parse.keep_alive && c->sent_all && io_output_n(&c->wire->io) == 0;
    call_unlink(c, keep);
    c->cb.on_end(c, rc, c->in, &c->fault, c->arg);
    call_free(c);
    pool_next(p);
}

void http_call_cancel(struct http_call *c)
{
    struct http_pool *p = c->pool;
    call_unlink(c, false);
    call_free(c);
    pool_next(p);
}

static void on_fail(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_call *c = arg;
    call_end(c, c->failed);
}

void call_fail_later(struct http_call *c, enum lq_err rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    c->fault.code = rc;
    c->fault.at_byte = LQ_NO_BYTE;
    (void)vsnprintf(c->fault.text, sizeof c->fault.text, fmt, ap);
    va_end(ap);
    c->failed = rc;
    TAILQ_INSERT_TAIL(&c->pool->calls_failing, c, entry);
    event_active(c->fail_ev, 0, 0);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_call *c = arg;
    (void)lq_fail(&c->fault, LQ_DEADLINE, "no answer within the deadline");
    call_end(c, LQ_DEADLINE);
}

/* ---- the request --------------------------------------------------------------------------- */

static bool write_head(struct http_call *c, const struct http_call_opts *o)
{
    struct evbuffer *h = c->head;
    bool ok = evbuffer_add_printf(h, "%s %s HTTP/1.1\r\nHost: %s\r\n", o->method, o->path, c->pool->host_header) > 0;
    for (size_t i = 0; o->headers && i < http_headers_n(o->headers) && ok; i++) {
        const char *name, *value;
        http_headers_at(o->headers, i, &name, &value);
        ok = evbuffer_add_printf(h, "%s: %s\r\n", name, value) > 0;
    }
    uint64_t length = o->streamed ? o->stream_length : o->body ? evbuffer_get_length(o->body) : 0;
    c->chunked = o->streamed && length == HTTP_LENGTH_UNKNOWN;
    if (c->chunked)
        ok &= evbuffer_add_printf(h, "Transfer-Encoding: chunked\r\n") > 0;
    else if (o->body || o->streamed || strcmp(o->method, "POST") == 0)
        ok &= evbuffer_add_printf(h, "Content-Length: %" PRIu64 "\r\n", length) > 0;
    return ok && evbuffer_add(h, "\r\n", 2) == 0;
}

enum lq_err http_call_start(struct http_pool *p, const struct http_call_opts *o, const struct http_call_cb *cb,
                            void *arg, struct http_call **out, struct lq_fault *fault)
{
    struct http_call *c = calloc(1, sizeof *c);
    if (!c)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    c->pool = p;
    c->cb = *cb;
    c->arg = arg;
    c->body = o->body;
    c->streamed = o->streamed;
    c->answer_max = o->answer_max;
    c->is_head = strcmp(o->method, "HEAD") == 0;
    c->head = evbuffer_new();
    c->in = evbuffer_new();
    c->pending = o->streamed ? evbuffer_new() : NULL;
    c->fail_ev = event_new(p->base, -1, 0, on_fail, c);
    bool ok = c->head && c->in && (!o->streamed || c->pending) && c->fail_ev && write_head(c, o);
    if (ok && o->deadline_ms > 0) {
        struct timeval tv = {.tv_sec = (time_t)(o->deadline_ms / 1000),
                             .tv_usec = (suseconds_t)(o->deadline_ms % 1000) * 1000};
        c->deadline = evtimer_new(p->base, on_deadline, c);
        ok = c->deadline && evtimer_add(c->deadline, &tv) == 0;
    }
    if (!ok) {
        call_free(c);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    }
    *out = c;
    pool_assign(p, c, false);
    return LQ_OK;
}

/* Sends all there is of the request; on a retry once more, from the caller's body. */
void call_connected(struct http_call *c)
{
    struct wire *w = c->wire;
    struct evbuffer *out = evbuffer_new();
    w->parse.to_head = c->is_head;
    w->parse.limit = c->answer_max ? c->answer_max : UINT64_MAX;
    size_t n = evbuffer_get_length(c->head);
    bool ok = out && evbuffer_add(out, evbuffer_pullup(c->head, -1), n) == 0 &&
              (!c->body || evbuffer_get_length(c->body) == 0 || evbuffer_add_buffer_reference(out, c->body) == 0) &&
              (!c->pending || evbuffer_add_buffer(out, c->pending) == 0);
    if (!c->streamed)
        c->sent_all = true;
    io_low_water(&w->io, c->streamed ? HTTP_LOW_WATER_BYTES : 0);
    if (ok) {
        io_send(&w->io, out);
    } else {
        call_unlink(c, false);
        call_fail_later(c, LQ_NOMEM, "out of memory for a request");
    }
    if (out)
        evbuffer_free(out);
}

bool http_call_send(struct http_call *c, struct evbuffer *data)
{
    size_t n = evbuffer_get_length(data);
    bool on_wire = c->wire && c->wire->state == WIRE_BUSY;
    assert(c->streamed && !c->sent_all);
    if (n > 0) {
        struct evbuffer *out = on_wire ? evbuffer_new() : c->pending;
        bool ok = out && (!c->chunked || evbuffer_add_printf(out, "%zx\r\n", n) > 0) &&
                  evbuffer_add_buffer(out, data) == 0 && (!c->chunked || evbuffer_add(out, "\r\n", 2) == 0);
        if (ok && on_wire)
            io_send(&c->wire->io, out);
        else if (!ok && on_wire)
            io_shut_write(&c->wire->io); /* out of memory: the peer must not take this for the whole */
        if (out && on_wire)
            evbuffer_free(out);
    }
    return (on_wire ? io_output_n(&c->wire->io) : evbuffer_get_length(c->pending)) < HTTP_HIGH_WATER_BYTES;
}

void http_call_send_end(struct http_call *c)
{
    bool on_wire = c->wire && c->wire->state == WIRE_BUSY;
    struct evbuffer *out = on_wire ? evbuffer_new() : c->pending;
    if (c->chunked && out && evbuffer_add(out, "0\r\n\r\n", 5) == 0 && on_wire)
        io_send(&c->wire->io, out);
    if (out && on_wire)
        evbuffer_free(out);
    c->sent_all = true;
}

void call_room(struct http_call *c)
{
    if (c->streamed && !c->sent_all && c->cb.on_room)
        c->cb.on_room(c, c->arg);
}

/* ---- the answer ------------------------------------------------------------------------------- */

static void call_broken(struct http_call *c, enum lq_err rc)
{
    c->fault.code = rc == LQ_NOMEM ? rc : LQ_BAD_ANSWER;
    if (rc == LQ_BIG_BODY)
        (void)lq_fail(&c->fault, LQ_BAD_ANSWER, "its answer is over the limit of %" PRIu64 " bytes", c->answer_max);
    call_end(c, c->fault.code);
}

/* False: no head yet, or the call has ended. */
static bool take_head(struct http_call *c)
{
    struct wire *w = c->wire;
    struct http_parse *p = &w->parse;
    for (;;) {
        enum lq_err rc = http_parse_head(p, io_input(&w->io), &c->fault);
        if (rc) {
            call_broken(c, rc);
            return false;
        }
        if (!p->head_done)
            return false;
        if (p->status / 100 != 1)
            break;
        http_parse_reset(p); /* 1xx: another head follows */
        p->to_head = c->is_head;
        p->limit = c->answer_max ? c->answer_max : UINT64_MAX;
    }
    c->head_seen = true;
    if (p->length != HTTP_LENGTH_UNKNOWN && p->length > p->limit) {
        call_broken(c, LQ_BIG_BODY);
        return false;
    }
    if (c->cb.on_head)
        c->cb.on_head(c, p->status, p->headers, p->length, c->arg);
    return w->call == c;
}

void call_run(struct http_call *c)
{
    struct wire *w = c->wire;
    if (w->running)
        return;
    w->running = true;
    if (evbuffer_get_length(io_input(&w->io)) > 0)
        c->any_byte = true;
    for (bool again = c->head_seen || take_head(c); again && w->call == c;) {
        size_t before = evbuffer_get_length(c->in), room = SIZE_MAX;
        if (c->cb.on_data)
            room = before < HTTP_HIGH_WATER_BYTES ? HTTP_HIGH_WATER_BYTES - before : 0;
        enum lq_err rc = room ? http_parse_body(&w->parse, io_input(&w->io), c->in, room, &c->fault) : LQ_OK;
        again = false;
        if (rc) {
            call_broken(c, rc);
        } else if (w->parse.whole) {
            c->fault = (struct lq_fault){.code = LQ_OK, .at_byte = LQ_NO_BYTE};
            call_end(c, LQ_OK);
        } else if (evbuffer_get_length(c->in) > before && c->cb.on_data && !c->blocked) {
            c->cb.on_data(c, c->in, c->arg);
            if (w->call == c) {
                c->blocked = evbuffer_get_length(c->in) >= HTTP_HIGH_WATER_BYTES;
                again = evbuffer_get_length(io_input(&w->io)) > 0 && !c->blocked;
            }
        }
    }
    w->running = false;
    if (w->call == c && w->eof && !c->blocked)
        call_eof(c, w->eof);
}

void http_call_resume(struct http_call *c)
{
    struct wire *w = c->wire;
    c->blocked = false;
    if (!c->head_seen || !w)
        return;
    if (evbuffer_get_length(c->in) > 0 && c->cb.on_data) {
        c->cb.on_data(c, c->in, c->arg);
        if (w->call != c)
            return;
        c->blocked = evbuffer_get_length(c->in) >= HTTP_HIGH_WATER_BYTES;
    }
    io_kick(&w->io);
}

void call_eof(struct http_call *c, const char *why)
{
    struct wire *w = c->wire;
    w->eof = why;
    if (c->head_seen && evbuffer_get_length(io_input(&w->io)) > 0) {
        if (c->blocked || w->running)
            return; /* call_run() comes back here when the taker has taken */
        w->eof = NULL; /* once more over what is there */
        call_run(c);
        if (w->call != c)
            return;
    }
    if (c->head_seen && http_parse_eof(&w->parse)) {
        call_end(c, LQ_OK);
        return;
    }
    bool stale = w->reused && !c->any_byte && !c->streamed && !c->retried;
    if (stale) { /* the peer had closed it before it could see the request: a pure function may be sent again */
        call_unlink(c, false);
        c->retried = true;
        pool_assign(c->pool, c, true);
        return;
    }
    (void)lq_fail(&c->fault, LQ_SHARD_DOWN, c->any_byte ? "%s in the middle of its answer" : "%s", why);
    call_end(c, LQ_SHARD_DOWN);
}
