/* http_server: a server's connections; its listener is in http_listen.c, what handlers
 * call in http_req.c.
 *
 *   CONN_IDLE -> CONN_HEAD -> CONN_OPEN -> CONN_FLUSH -> CONN_IDLE        keep-alive
 *        |            |           |            `------> CONN_LINGER -> CONN_DEAD
 *        `------------+-----------+--------------------------------------^  (EOF, errors)
 *
 * conn_run() is the machine; everything else only changes what it looks at. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/http_impl.h"
#include "common/metrics.h"
#include "common/tls.h"

/* ---- a connection's life ------------------------------------------------------- */

static void conn_free(struct conn *c)
{
    struct http_server *s = c->server;
    assert(!c->req);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->conns_n--;
    http_parse_release(&c->parse);
    io_release(&c->io);
    free(c);
    listen_room(s);
}

void conn_close(struct conn *c)
{
    struct http_req *r = c->req;
    if (c->state == CONN_DEAD)
        return;
    c->state = CONN_DEAD;
    c->req = NULL;
    io_kill(&c->io);
    if (r)
        req_gone(r);
}

/* The gentle close: our side is shut, and for a second what still comes is dropped. A
 * socket closed with unread bytes sends a reset, which would eat the answer. */
static void linger(struct conn *c)
{
    c->state = CONN_LINGER;
    io_shut_write(&c->io);
    io_arm(&c->io, HTTP_LINGER_MS);
}

void conn_answered(struct conn *c)
{
    struct http_req *r = c->req;
    if (r) {
        c->req = NULL;
        req_free(r);
    }
    c->state = CONN_FLUSH; /* the output's own timeout ends a client that does not read */
    io_disarm(&c->io);
    io_low_water(&c->io, 0);
    if (!c->running)
        io_kick(&c->io);
}

/* ---- the machine ------------------------------------------------------------------ */

/* True: a request was begun, or refused. */
static bool step_head(struct conn *c)
{
    struct lq_fault fault;
    struct http_server *s = c->server;
    enum lq_err rc = http_parse_head(&c->parse, c->io.in, &fault);
    if (!rc && !c->parse.head_done) {
        if (c->state == CONN_IDLE && evbuffer_get_length(c->io.in) > 0) {
            c->state = CONN_HEAD;
            io_arm(&c->io, s->opts.header_timeout_ms);
        }
        return false;
    }
    if (!rc)
        rc = req_new(c, &fault);
    if (rc) {
        conn_refuse(c, &fault);
        return true;
    }
    c->state = CONN_OPEN;
    c->keep_alive = c->parse.keep_alive;
    io_disarm(&c->io);
    s->on_request(c->req, s->arg);
    return true;
}

/* Moves body bytes to the handler. True: something moved. */
static bool step_body(struct conn *c)
{
    struct http_req *r = c->req;
    struct lq_fault fault;
    size_t before = evbuffer_get_length(r->in), room = SIZE_MAX;
    if (!r->reading || r->ended)
        return false;
    if (r->on_data)
        room = before < HTTP_HIGH_WATER_BYTES ? HTTP_HIGH_WATER_BYTES - before : 0;
    enum lq_err rc = room ? http_parse_body(&c->parse, c->io.in, r->in, room, &fault) : LQ_OK;
    bool moved = evbuffer_get_length(r->in) > before;
    if (rc) {
        conn_refuse_open(c, &fault);
        return true;
    }
    if (c->parse.whole) {
        r->ended = true;
        io_disarm(&c->io);
        r->on_end(r, r->in, r->body_arg);
        return true;
    }
    if (moved && r->on_data && !r->blocked) {
        r->on_data(r, r->in, r->body_arg);
        if (c->req != r)
            return true;
        r->blocked = evbuffer_get_length(r->in) >= HTTP_HIGH_WATER_BYTES;
    }
    if (r->blocked)
        io_disarm(&c->io); /* it is the taker who is slow */
    else if (moved || c->io.deadline_us == 0)
        io_arm(&c->io, c->server->opts.body_timeout_ms);
    return moved;
}

/* The answer is out. True: on to the next request. */
static bool step_flush(struct conn *c)
{
    if (io_output_n(&c->io) > 0)
        return false;
    if (c->io.ended || c->io.broken) { /* nothing can come, or go, any more */
        conn_close(c);
    } else if (!c->keep_alive || c->server->draining) {
        linger(c);
    } else {
        http_parse_reset(&c->parse);
        c->state = CONN_IDLE;
        io_arm(&c->io, c->server->opts.idle_timeout_ms);
    }
    return true;
}

void conn_run(struct conn *c)
{
    if (c->running)
        return;
    c->running = true;
    for (bool again = true; again;) {
        switch (c->state) {
        case CONN_IDLE:
        case CONN_HEAD:
            again = step_head(c);
            break;
        case CONN_OPEN:
            again = step_body(c);
            break;
        case CONN_FLUSH:
            again = step_flush(c);
            break;
        case CONN_LINGER:
            evbuffer_drain(c->io.in, evbuffer_get_length(c->io.in));
            again = false;
            break;
        case CONN_DEAD:
            again = false;
            break;
        }
    }
    c->running = false;
    io_read_on(&c->io);
}

/* ---- doors ---------------------------------------------------------------------------- */

static void on_bytes(struct http_io *io)
{
    conn_run((struct conn *)io);
}

static void on_drained(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    struct http_req *r = c->req;
    if (r && r->wants_room) {
        r->wants_room = false;
        if (r->on_room)
            r->on_room(r, r->room_arg);
    }
    conn_run(c);
}

static void on_connected(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    io_arm(io, c->server->opts.idle_timeout_ms); /* as a plain one from its accept */
}

/* Who speaks plain HTTP here is told so in plain HTTP, as far as one write gets it. */
static void refuse_plain(const struct http_io *io)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 45\r\n"
                                 "Connection: close\r\n\r\n{\"error\":\"this port speaks TLS: use https://\"}";
    char unread[4096];
    int fd = bufferevent_getfd(io->bev);
    while (recv(fd, unread, sizeof unread, MSG_DONTWAIT) == sizeof unread) {
    } /* what stays unread would become a reset, which eats the answer */
    (void)!send(fd, answer, sizeof answer - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void handshake_failed(struct conn *c)
{
    struct http_server *s = c->server;
    unsigned long long held;
    if (c->io.spoke_http)
        refuse_plain(&c->io);
    if (log_limit_pass(&s->tls_log, TLS_LOG_INTERVAL_US, &held))
        log_warn("tls_handshake_failed why=%s before=%llu", log_q(io_error(&c->io)), held);
}

static void on_end(struct http_io *io, enum io_end how)
{
    struct conn *c = (struct conn *)io;
    if (how == IO_STALLED)
        server_refused(c->server, HTTP_REFUSED_TIMEOUT);
    if (io->tls && !io->connected)
        handshake_failed(c);
    if (c->state == CONN_FLUSH && how == IO_CLOSED && io_output_n(io) > 0)
        return;    /* a client may shut its side and read on: step_flush() closes */
    conn_close(c); /* an open request is gone; a half-close counts as leaving */
}

static void on_timeout(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    struct lq_fault fault;
    struct http_req *r = c->req;
    if (c->state == CONN_HEAD) {
        (void)lq_fail(&fault, LQ_SLOW_REQUEST, "the header was not whole after %u ms",
                      c->server->opts.header_timeout_ms);
        conn_refuse(c, &fault);
    } else if (c->state == CONN_OPEN && r->reading && !r->ended) {
        (void)lq_fail(&fault, LQ_SLOW_REQUEST, "no byte of the body for %u ms", c->server->opts.body_timeout_ms);
        conn_refuse_open(c, &fault);
    } else {
        if (c->state == CONN_OPEN)
            server_refused(c->server, HTTP_REFUSED_TIMEOUT);
        conn_close(c); /* idle, a body that stopped under its answer, or the end of lingering */
    }
}

static void on_kick(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    if (c->state == CONN_DEAD)
        conn_free(c);
    else
        conn_run(c);
}

void server_take(struct http_server *s, int fd)
{
    static const struct http_io_ops ops = {.on_bytes = on_bytes,
                                           .on_drained = on_drained,
                                           .on_connected = on_connected,
                                           .on_end = on_end,
                                           .on_timeout = on_timeout,
                                           .on_kick = on_kick};
    SSL *ssl = s->tls ? tls_accept(s->tls) : NULL;
    struct conn *c = calloc(1, sizeof *c);
    if (!c || (s->tls && !ssl)) {
        SSL_free(ssl);
        free(c);
        close(fd);
        return;
    }
    c->server = s;
    http_parse_init(&c->parse, true);
    if (io_init(&c->io, s->base, &ops, &s->guard) != LQ_OK) {
        SSL_free(ssl);
        close(fd);
        free(c);
        return;
    }
    if (io_open(&c->io, fd, ssl, false, s->opts.body_timeout_ms) != LQ_OK) {
        io_release(&c->io);
        free(c);
        return;
    }
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->conns_n++;
    io_arm(&c->io, ssl ? s->opts.header_timeout_ms : s->opts.idle_timeout_ms);
}

/* ---- life -------------------------------------------------------------------------------- */

void http_server_opts_init(struct http_server_opts *o)
{
    *o = (struct http_server_opts){.host = "127.0.0.1",
                                   .header_timeout_ms = 10000,
                                   .body_timeout_ms = 30000,
                                   .idle_timeout_ms = 75000,
                                   .server_name = "larql"};
}

static void server_release(struct http_guard *g)
{
    struct http_server *s = (struct http_server *)g;
    while (s->conns)
        conn_free(s->conns);
    if (s->resume_ev)
        event_free(s->resume_ev);
    free(s->unix_path);
    free(s->server_name);
    free(s);
}

enum lq_err http_server_new(struct event_base *base, const struct http_server_opts *o, http_on_request on_request,
                            void *arg, struct http_server **out, struct lq_fault *fault)
{
    struct lq_fault here;
    struct http_server *s = calloc(1, sizeof *s);
    if (!fault)
        fault = &here;
    if (!s)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    s->guard.release = server_release;
    s->listen_fd = s->share_fd = -1;
    s->base = base;
    s->opts = *o;
    s->tls = o->unix_path ? NULL : o->tls;
    s->on_request = on_request;
    s->arg = arg;
    enum lq_err rc = LQ_OK;
    int fd = -1;
    if (!(s->server_name = strdup(o->server_name)))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    else if ((fd = listen_open(s, fault)) < 0)
        rc = fault->code;
    else
        rc = listen_start(s, fd, fault);
    if (rc)
        http_server_free(s);
    else
        *out = s;
    return rc;
}

const char *http_server_url(const struct http_server *s)
{
    return s->url;
}

size_t http_server_connections_n(const struct http_server *s)
{
    return s->conns_n;
}

void http_server_count_refused(struct http_server *s, struct metric *const *counters)
{
    s->refused = counters;
}

void server_refused(const struct http_server *s, enum http_refused why)
{
    if (s->refused)
        metric_add(s->refused[why], 1);
}

void http_server_drain(struct http_server *s)
{
    s->draining = true;
    listen_stop(s);
    for (struct conn *c = s->conns; c; c = c->next) /* closing only marks: the list stays */
        if (c->state == CONN_IDLE)
            conn_close(c);
}

void http_server_free(struct http_server *s)
{
    if (!s)
        return;
    s->draining = true;
    listen_stop(s);
    for (struct conn *c = s->conns; c; c = c->next)
        conn_close(c);
    guard_doom(&s->guard);
}
