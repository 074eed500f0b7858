/* http_call: one exchange of a client, from http_call_start() to on_end. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/http_pool_impl.h"
#include "common/keys.h"

/* ---- the end ------------------------------------------------------------------------------ */

void call_list_move(struct http_call *c, struct call_list *to)
{
    if (c->list)
        TAILQ_REMOVE(c->list, c, entry);
    c->list = to;
    if (to)
        TAILQ_INSERT_TAIL(to, c, entry);
}

static void call_free(struct http_call *c)
{
    if (c->timer)
        event_free(c->timer);
    struct evbuffer *bufs[] = {c->head, c->pending, c->in};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        if (bufs[i])
            evbuffer_free(bufs[i]);
    free(c);
}

/* Takes the call off its wire and every list. keep: the wire may carry another. */
static void call_unlink(struct http_call *c, bool keep)
{
    call_list_move(c, NULL);
    if (c->wire)
        wire_done(c->wire, keep);
    c->wire = NULL;
}

void call_end(struct http_call *c, enum lq_err rc)
{
    struct http_pool *p = c->pool;
    bool keep = rc == LQ_OK && c->wire && c->wire->parse.keep_alive && c->sent_all && io_output_n(&c->wire->io) == 0;
    guard_enter(&p->guard);
    call_unlink(c, keep);
    c->cb.on_end(c, rc, c->in, &c->fault, c->arg);
    call_free(c);
    pool_next(p);
    guard_leave(&p->guard);
}

void http_call_cancel(struct http_call *c)
{
    struct http_pool *p = c->pool;
    call_unlink(c, false);
    call_free(c);
    pool_next(p);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_call *c = arg;
    if (c->fault.code == LQ_OK)
        (void)lq_fail(&c->fault, LQ_DEADLINE, "no answer within the deadline");
    call_end(c, c->fault.code);
}

void call_fail_later(struct http_call *c, enum lq_err rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(c->fault.text, sizeof c->fault.text, fmt, ap);
    va_end(ap);
    c->fault.code = rc;
    c->fault.at_byte = LQ_NO_BYTE;
    call_unlink(c, false);
    call_list_move(c, &c->pool->failing);
    event_active(c->timer, 0, 0);
}

/* ---- the request --------------------------------------------------------------------------- */

/* What would break the request line; paths come from URLs that people wrote. */
static bool is_line_part(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 0x7f)
            return false;
    return true;
}

static bool write_head(struct http_call *c, const struct http_call_opts *o)
{
    const struct keys *keys = c->pool->opts.keys;
    char text[HTTP_DECIMAL_CHARS], bearer[KEY_BEARER_CHARS + 1] = "";
    uint64_t length = o->streamed ? o->stream_length : o->body ? evbuffer_get_length(o->body) : 0;
    bool sized = o->body || o->streamed || strcmp(o->method, "POST") == 0;
    c->chunked = o->streamed && length == HTTP_LENGTH_UNKNOWN;
    c->stream_left = length;
    const char *const begin[] = {o->method,
                                 " ",
                                 o->path,
                                 " HTTP/1.1\r\nHost: ",
                                 c->pool->host_header,
                                 "\r\n",
                                 keys ? "Authorization: " : "",
                                 bearer,
                                 keys ? "\r\n" : "",
                                 NULL};
    if (keys)
        keys_bearer(keys, bearer);
    const char *const chunked_end[] = {"Transfer-Encoding: chunked\r\n\r\n", NULL};
    const char *const sized_end[] = {"Content-Length: ", http_decimal(length, text), "\r\n\r\n", NULL};
    const char *const bare_end[] = {"\r\n", NULL};
    return http_head_write(begin, o->headers, c->chunked ? chunked_end : sized ? sized_end : bare_end, c->head);
}

static bool arm_deadline(struct http_call *c, uint64_t ms)
{
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    return ms == 0 || evtimer_add(c->timer, &tv) == 0;
}

enum lq_err http_call_start(struct http_pool *p, const struct http_call_opts *o, const struct http_call_cb *cb,
                            void *arg, struct http_call **out, struct lq_fault *fault)
{
    if (p->closed)
        return lq_fail(fault, LQ_CANCELLED, "the pool was closed");
    if (!is_line_part(o->method) || !is_line_part(o->path) || o->path[0] != '/')
        return lq_fail(fault, LQ_USAGE, "cannot send a request for '%.200s': not a path", o->path);
    struct http_call *c = calloc(1, sizeof *c);
    if (!c)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    c->pool = p;
    c->cb = *cb;
    c->arg = arg;
    c->body = o->streamed ? NULL : o->body;
    c->streamed = o->streamed;
    c->answer_max = o->answer_max;
    c->is_head = strcmp(o->method, "HEAD") == 0;
    c->head = evbuffer_new();
    c->in = evbuffer_new();
    c->pending = o->streamed ? evbuffer_new() : NULL;
    c->timer = evtimer_new(p->base, on_timer, c);
    if (!c->head || !c->in || (o->streamed && !c->pending) || !c->timer || !write_head(c, o)) {
        call_free(c);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    }
    pool_assign(p, c, false); /* which ends nothing at once; the peer works while the rest is done */
    if (!arm_deadline(c, o->deadline_ms)) {
        http_call_cancel(c);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    }
    *out = c;
    return LQ_OK;
}

/* Adds the caller's body, so that it can be added again. By reference, but for a body
 * that itself refers to another buffer: libevent copies no reference. */
static bool add_body(struct evbuffer *out, struct evbuffer *body)
{
    struct evbuffer_iovec v;
    size_t n = evbuffer_get_length(body), whole_n = evbuffer_get_length(out) + n;
    if (n == 0)
        return true;
    if (evbuffer_add_buffer_reference(out, body) == 0)
        return evbuffer_get_length(out) == whole_n; /* out of memory, libevent warns and leaves chains out */
    if (evbuffer_reserve_space(out, (ev_ssize_t)n, &v, 1) != 1 ||
        evbuffer_copyout(body, v.iov_base, n) != (ev_ssize_t)n)
        return false;
    v.iov_len = n;
    return evbuffer_commit_space(out, &v, 1) == 0;
}

static void expect_answer(struct http_call *c)
{
    c->wire->parse.to_head = c->is_head;
    c->wire->parse.limit = c->answer_max ? c->answer_max : UINT64_MAX;
}

/* Sends all there is of the request; on a retry once more, from the caller's body. */
void call_connected(struct http_call *c)
{
    struct wire *w = c->wire;
    struct evbuffer *out = w->io.out;
    expect_answer(c);
    size_t n = evbuffer_get_length(c->head);
    bool ok = evbuffer_add(out, evbuffer_pullup(c->head, -1), n) == 0 && (!c->body || add_body(out, c->body)) &&
              (!c->pending || evbuffer_add_buffer(out, c->pending) == 0);
    if (!ok) {
        call_fail_later(c, LQ_NOMEM, "out of memory for a request");
        return;
    }
    if (!c->streamed)
        c->sent_all = true;
    io_low_water(&w->io, c->streamed ? HTTP_LOW_WATER_BYTES : 0);
    io_flush(&w->io, true);
    if (c->wants_room)
        io_kick(&w->io); /* all of it may have left at once: then nothing else tells the sender */
}

/* True: data went to the wire's scratch and must be flushed. */
static bool on_wire(const struct http_call *c)
{
    return c->wire && c->wire->state == WIRE_BUSY;
}

bool http_call_send(struct http_call *c, struct evbuffer *data)
{
    size_t n = evbuffer_get_length(data), left;
    bool wired = on_wire(c);
    assert(c->streamed && !c->sent_all && (c->chunked || n <= c->stream_left));
    if (n > 0) {
        struct evbuffer *out = wired ? c->wire->io.out : c->pending;
        bool ok = !c->chunked || evbuffer_add_printf(out, "%zx\r\n", n) > 0;
        ok = ok && evbuffer_add_buffer(out, data) == 0;
        ok = ok && (!c->chunked || evbuffer_add(out, "\r\n", 2) == 0);
        if (wired)
            io_flush(&c->wire->io, ok);
        else if (!ok && c->fault.code == LQ_OK)
            call_fail_later(c, LQ_NOMEM, "out of memory for a request");
        evbuffer_drain(data, evbuffer_get_length(data));
        if (!c->chunked)
            c->stream_left -= n;
    }
    left = wired ? io_output_n(&c->wire->io) : evbuffer_get_length(c->pending);
    c->wants_room = left >= HTTP_HIGH_WATER_BYTES;
    return !c->wants_room;
}

void http_call_send_end(struct http_call *c)
{
    assert(c->streamed && !c->sent_all && (c->chunked || c->stream_left == 0));
    c->sent_all = true;
    c->wants_room = false;
    if (!c->chunked)
        return;
    bool wired = on_wire(c), ok = evbuffer_add(wired ? c->wire->io.out : c->pending, "0\r\n\r\n", 5) == 0;
    if (wired)
        io_flush(&c->wire->io, ok);
    else if (!ok && c->fault.code == LQ_OK)
        call_fail_later(c, LQ_NOMEM, "out of memory for a request");
}

void call_room(struct http_call *c)
{
    if (!c->wants_room || io_output_n(&c->wire->io) > HTTP_LOW_WATER_BYTES)
        return;
    c->wants_room = false;
    if (c->cb.on_room)
        c->cb.on_room(c, c->arg);
}

/* ---- the answer ------------------------------------------------------------------------------- */

static void call_broken(struct http_call *c, enum lq_err rc)
{
    if (rc == LQ_BIG_BODY)
        (void)lq_fail(&c->fault, rc, "its answer is over the limit of %" PRIu64 " bytes", c->answer_max);
    c->fault.code = rc == LQ_NOMEM || rc == LQ_BIG_BODY ? rc : LQ_BAD_ANSWER;
    call_end(c, c->fault.code);
}

/* False: no head yet, or the call has ended. */
static bool take_head(struct http_call *c)
{
    struct wire *w = c->wire;
    struct http_parse *p = &w->parse;
    for (;;) {
        struct lq_fault fault;
        enum lq_err rc = http_parse_head(p, w->io.in, &fault);
        if (rc) {
            c->fault = fault;
            call_broken(c, rc);
            return false;
        }
        if (!p->head_done)
            return false;
        if (p->status / 100 != 1)
            break;
        http_parse_reset(p); /* 1xx: another head follows */
        expect_answer(c);
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

/* Moves body bytes to the taker. True: there may be more to move. */
static bool step_body(struct http_call *c)
{
    struct wire *w = c->wire;
    struct lq_fault fault;
    size_t before = evbuffer_get_length(c->in), room = SIZE_MAX;
    if (c->cb.on_data)
        room = before < HTTP_HIGH_WATER_BYTES ? HTTP_HIGH_WATER_BYTES - before : 0;
    enum lq_err rc = room ? http_parse_body(&w->parse, w->io.in, c->in, room, &fault) : LQ_OK;
    if (rc) {
        c->fault = fault;
        call_broken(c, rc);
        return false;
    }
    if (w->parse.whole) {
        call_end(c, LQ_OK);
        return false;
    }
    if (evbuffer_get_length(c->in) == before)
        return false;
    if (c->cb.on_data && !c->blocked) {
        c->cb.on_data(c, c->in, c->arg);
        if (w->call != c)
            return false;
        c->blocked = evbuffer_get_length(c->in) >= HTTP_HIGH_WATER_BYTES;
    }
    return true;
}

/* All that came before the wire was over is taken: is that a whole answer? */
static void settle_over(struct http_call *c)
{
    struct wire *w = c->wire;
    const char *why = io_error(&w->io);
    if (w->how == IO_CLOSED && http_parse_eof(&w->parse)) {
        call_end(c, LQ_OK);
        return;
    }
    if (w->reused && !c->any_byte) {
        /* The peer had closed it before it could see the request, which may be sent again (a
         * streamed one never gets here); once: the next connection is a fresh one. */
        call_unlink(c, false);
        pool_assign(c->pool, c, true);
        return;
    }
    (void)lq_fail(&c->fault, LQ_SHARD_DOWN, c->any_byte ? "%s in the middle of its answer" : "%s", why);
    call_end(c, LQ_SHARD_DOWN);
}

void call_run(struct http_call *c)
{
    struct wire *w = c->wire;
    if (w->running)
        return;
    w->running = true;
    c->any_byte |= evbuffer_get_length(w->io.in) > 0;
    bool more = c->head_seen || take_head(c);
    while (more)
        more = step_body(c);
    w->running = false;
    if (w->call != c)
        return;
    io_read_on(&w->io);
    if (w->over && !c->blocked)
        settle_over(c);
}

void call_over(struct http_call *c)
{
    call_run(c); /* which settles it, now or when the taker has taken */
}

void http_call_resume(struct http_call *c)
{
    struct wire *w = c->wire;
    struct http_pool *p = c->pool;
    c->blocked = false;
    if (!w || !c->head_seen)
        return;
    guard_enter(&p->guard);
    if (evbuffer_get_length(c->in) > 0 && c->cb.on_data) {
        c->cb.on_data(c, c->in, c->arg);
        if (w->call == c)
            c->blocked = evbuffer_get_length(c->in) >= HTTP_HIGH_WATER_BYTES;
    }
    if (w->call == c)
        io_kick(&w->io);
    guard_leave(&p->guard);
}
