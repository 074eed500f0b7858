/* http_wire: one connection of a pool: look the name up, connect, carry calls, idle.
 *
 *   WIRE_OPENING -> WIRE_BUSY <-> WIRE_IDLE
 *        `--------------+------------+-----> WIRE_DEAD */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/http_pool_impl.h"
#include "common/resolve.h"
#include "common/tls.h"

/* ---- names --------------------------------------------------------------------------- */

static void connect_next(struct wire *w);

static void on_resolved(const char *error, struct addrinfo *list, void *arg)
{
    struct wire *w = arg;
    struct http_guard *guard = &w->pool->guard;
    guard_enter(guard);
    w->lookup = NULL;
    w->addrs = w->addrs_left = list;
    if (error)
        call_fail_later(w->call, LQ_SHARD_DOWN, "cannot resolve %s: %s", w->pool->host, error);
    else
        connect_next(w);
    guard_leave(guard);
}

static void look_up(struct wire *w)
{
    struct http_pool *p = w->pool;
    struct addrinfo literal = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    if (getaddrinfo(p->host, p->port, &literal, &w->addrs) == 0) { /* an address: nothing to wait for */
        w->addrs_left = w->addrs;
        connect_next(w);
        return;
    }
    if (!p->resolve)
        p->resolve = resolve_new(p->base);
    if (!p->resolve || !(w->lookup = resolve_start(p->resolve, p->host, p->port, on_resolved, w)))
        call_fail_later(w->call, LQ_NOMEM, "out of memory for a resolver");
}

/* ---- life ------------------------------------------------------------------------------- */

/* The last places of the list are for the idle ones. */
static void set_state(struct wire *w, enum wire_state to)
{
    struct http_pool *p = w->pool;
    if (w->state == WIRE_IDLE)
        p->idle_n--;
    w->state = to;
    TAILQ_REMOVE(&p->wires, w, entry);
    if (to == WIRE_IDLE) {
        p->idle_n++;
        TAILQ_INSERT_TAIL(&p->wires, w, entry);
    } else {
        TAILQ_INSERT_HEAD(&p->wires, w, entry);
    }
}

/* Closes now; the memory goes after this turn. */
static void wire_kill(struct wire *w)
{
    if (w->state == WIRE_DEAD)
        return;
    if (w->lookup) {
        resolve_cancel(w->lookup);
        w->lookup = NULL;
    }
    if (w->state == WIRE_IDLE)
        io_say_end(&w->io);
    set_state(w, WIRE_DEAD);
    io_kill(&w->io);
}

void wire_free(struct wire *w)
{
    assert(!w->call && !w->lookup);
    TAILQ_REMOVE(&w->pool->wires, w, entry);
    http_parse_release(&w->parse);
    io_release(&w->io);
    if (w->addrs)
        evutil_freeaddrinfo(w->addrs);
    free(w);
}

void wire_done(struct wire *w, bool keep)
{
    struct http_pool *p = w->pool;
    w->call = NULL;
    p->inflight_n--;
    if (!keep || w->state != WIRE_BUSY || w->over || p->closed || p->idle_n >= p->opts.idle_max ||
        evbuffer_get_length(w->io.in) > 0) {
        wire_kill(w);
        return;
    }
    http_parse_reset(&w->parse);
    w->reused = true;
    set_state(w, WIRE_IDLE);
    io_low_water(&w->io, 0);
    io_arm(&w->io, p->opts.idle_timeout_ms);
}

static void take(struct wire *w, struct http_call *c)
{
    w->pool->inflight_n++;
    w->call = c;
    c->wire = w;
}

void wire_reuse(struct wire *w, struct http_call *c)
{
    take(w, c);
    set_state(w, WIRE_BUSY);
    io_disarm(&w->io);
    call_connected(c);
}

/* ---- doors ------------------------------------------------------------------------------- */

static void on_bytes(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->call)
        call_run(w->call);
    else
        wire_kill(w); /* bytes that nobody asked for */
}

static void on_drained(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->call)
        call_room(w->call);
}

static void on_connected(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    set_state(w, WIRE_BUSY);
    io_disarm(io);
    call_connected(w->call);
}

static void on_end(struct http_io *io, enum io_end how)
{
    struct wire *w = (struct wire *)io;
    if (w->state == WIRE_OPENING) {
        connect_next(w); /* another address may do */
        return;
    }
    w->over = true;
    w->how = how;
    if (w->call) {
        call_over(w->call);
        return;
    }
    bool was_kept = w->state == WIRE_IDLE;
    wire_kill(w);
    if (was_kept && w->pool->opts.on_idle_end)
        w->pool->opts.on_idle_end(w->pool->opts.arg);
}

static void on_timeout(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->call)
        call_fail_later(w->call, LQ_SHARD_DOWN, "no connection within %u ms", w->pool->opts.connect_timeout_ms);
    else
        wire_kill(w);
}

static void on_kick(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->state == WIRE_DEAD) {
        wire_free(w);
    } else if (w->state == WIRE_BUSY) {
        struct http_call *c = w->call;
        call_room(c);
        if (w->call == c)
            call_run(c);
    }
}

/* ---- open --------------------------------------------------------------------------------- */

/* True: connected, or about to be. */
static bool connect_to(struct wire *w, const struct sockaddr *a, socklen_t a_n)
{
    struct tls *tls = w->pool->tls;
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool done = fd >= 0 && connect(fd, a, a_n) == 0;
    SSL *ssl = NULL;
    w->io.why[0] = '\0';
    if (fd < 0 || (!done && errno != EINPROGRESS)) {
        w->io.error = errno;
        if (fd >= 0)
            close(fd);
        return false;
    }
    if (tls && !(ssl = tls_connect(tls, w->pool->host))) {
        w->io.error = ENOMEM;
        close(fd);
        return false;
    }
    io_close(&w->io); /* of an address that did not answer */
    if (io_open(&w->io, fd, ssl, !done, 0) != LQ_OK) {
        w->io.error = ENOMEM;
        return false;
    }
    if (done && !ssl)
        on_connected(&w->io);
    return true;
}

static void connect_next(struct wire *w)
{
    bool ok = false;
    while (w->addrs_left && !ok) {
        struct evutil_addrinfo *a = w->addrs_left;
        w->addrs_left = a->ai_next;
        ok = connect_to(w, a->ai_addr, (socklen_t)a->ai_addrlen);
    }
    if (!ok)
        call_fail_later(w->call, LQ_SHARD_DOWN, "%s", io_error(&w->io));
}

void wire_open(struct http_pool *p, struct http_call *c)
{
    static const struct http_io_ops ops = {.hears_out = true,
                                           .on_bytes = on_bytes,
                                           .on_drained = on_drained,
                                           .on_connected = on_connected,
                                           .on_end = on_end,
                                           .on_timeout = on_timeout,
                                           .on_kick = on_kick};
    struct wire *w = calloc(1, sizeof *w);
    if (!w || io_init(&w->io, p->base, &ops, &p->guard) != LQ_OK) {
        free(w);
        call_fail_later(c, LQ_NOMEM, "out of memory for a connection");
        return;
    }
    w->pool = p;
    http_parse_init(&w->parse, false);
    TAILQ_INSERT_HEAD(&p->wires, w, entry);
    take(w, c);
    io_arm(&w->io, p->opts.connect_timeout_ms);
    if (!p->unix_path) {
        look_up(w);
        return;
    }
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, p->unix_path, strlen(p->unix_path)); /* fits: checked with the URL */
    if (!connect_to(w, (struct sockaddr *)&a, sizeof a))
        call_fail_later(c, LQ_SHARD_DOWN, "%s", io_error(&w->io));
}
