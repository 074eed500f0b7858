/* http_io: see http_io.h. */
#include "common/http_io.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"

enum {
    CHAIN_BYTES = 64,                     /* what evbuffer adds, before it rounds up to a power of 2 */
    READ_BYTES = 64 * 1024 - CHAIN_BYTES, /* head and body of most messages, in one read */
};

/* ---- guard ------------------------------------------------------------------------- */

void guard_enter(struct http_guard *g)
{
    g->depth++;
}

void guard_leave(struct http_guard *g)
{
    assert(g->depth > 0);
    if (--g->depth == 0 && g->doomed)
        g->release(g);
}

void guard_doom(struct http_guard *g)
{
    g->doomed = true;
    if (g->depth == 0)
        g->release(g);
}

/* ---- doors ------------------------------------------------------------------------- */

void io_end(struct http_io *io, enum io_end how, int error)
{
    if (!io->bev)
        return;
    if (how == IO_CLOSED && io->write_error) { /* the write has heard the reset, and the read only an end */
        how = IO_BROKEN;
        error = io->write_error;
    }
    io->ended = true;
    io->error = error;
    event_del(io->reader);
    io->ops->on_end(io, how);
}

/* One read into io->in. > 0: bytes; 0: nothing there now, or no room; < 0: an end, in
 * *error (0: the peer closed). */
static ssize_t read_some(struct http_io *io, size_t want, int *error)
{
    struct evbuffer_iovec v[2];
    size_t left = want;
    int v_n = evbuffer_reserve_space(io->in, (ev_ssize_t)want, v, 2);
    *error = ENOMEM;
    if (v_n < 1)
        return -1;
    for (int i = 0; i < v_n; i++) { /* what is reserved may be more than what was asked for */
        v[i].iov_len = v[i].iov_len < left ? v[i].iov_len : left;
        left -= v[i].iov_len;
    }
    ssize_t n = readv(bufferevent_getfd(io->bev), (struct iovec *)v, v_n);
    if (n <= 0) {
        *error = n < 0 ? errno : 0;
        return *error == EAGAIN || *error == EINTR ? 0 : -1;
    }
    left = (size_t)n;
    for (int i = 0; i < v_n; i++) {
        v[i].iov_len = v[i].iov_len < left ? v[i].iov_len : left;
        left -= v[i].iov_len;
    }
    return evbuffer_commit_space(io->in, v, v_n) == 0 ? n : -1;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    size_t had = evbuffer_get_length(io->in), have = had;
    int error = ENOMEM;
    ssize_t n = io->broken ? -1 : 1;
    while (n > 0) {
        size_t room = have < HTTP_HIGH_WATER_BYTES ? HTTP_HIGH_WATER_BYTES - have : 0;
        if (room == 0) {
            io->paused = true; /* memory is bounded, whatever the peer sends */
            event_del(io->reader);
            break;
        }
        size_t want = READ_BYTES < room ? READ_BYTES : room;
        n = read_some(io, want, &error);
        have = evbuffer_get_length(io->in);
        if (n >= 0 && (size_t)n < want) /* the socket is empty, most likely: no read just to hear EAGAIN */
            break;
    }
    guard_enter(guard);
    if (have > had)
        io->ops->on_bytes(io);
    if (n < 0)
        io_end(io, error ? IO_BROKEN : IO_CLOSED, error);
    guard_leave(guard);
}

void io_on_write(struct bufferevent *bev, void *arg)
{
    (void)bev;
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    guard_enter(guard);
    if (io->connected)
        io->ops->on_drained(io);
    guard_leave(guard);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    int error = EVUTIL_SOCKET_ERROR();
    guard_enter(guard);
    if (what & BEV_EVENT_CONNECTED) {
        io->connected = true;
        if (event_add(io->reader, NULL) == 0)
            io->ops->on_connected(io);
        else
            io_end(io, IO_BROKEN, ENOMEM);
    } else if (what & BEV_EVENT_TIMEOUT) {
        io_end(io, IO_STALLED, ETIMEDOUT);
    } else {
        io->write_error = error ? error : EPIPE;
        if (!io->connected || io->paused || io->ended || !io->ops->hears_out)
            io_end(io, IO_BROKEN, io->write_error);
        /* else the read side finds the same end */
    }
    guard_leave(guard);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    uint64_t deadline_us = io->deadline_us;
    io->wake_us = 0;
    if (deadline_us == 0)
        return;
    uint64_t now = clock_us();
    if (now < deadline_us) { /* it was moved: the timer follows only now */
        io_arm(io, (uint32_t)((deadline_us - now + 999) / 1000));
        return;
    }
    guard_enter(guard);
    io->deadline_us = 0;
    io->ops->on_timeout(io);
    guard_leave(guard);
}

static void on_kick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    guard_enter(guard);
    io->ops->on_kick(io);
    guard_leave(guard);
}

/* ---- life -------------------------------------------------------------------------- */

enum lq_err io_init(struct http_io *io, struct event_base *base, const struct http_io_ops *ops,
                    struct http_guard *guard)
{
    *io = (struct http_io){.ops = ops, .guard = guard, .base = base};
    io->timer = evtimer_new(base, on_timer, io);
    io->kick = event_new(base, -1, 0, on_kick, io);
    io->in = evbuffer_new();
    io->out = evbuffer_new();
    if (io->timer && io->kick && io->in && io->out)
        return LQ_OK;
    io_release(io);
    return LQ_NOMEM;
}

static bool plain_open(struct http_io *io, int fd)
{
    io->bev = bufferevent_socket_new(io->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!io->bev)
        return false;
    bufferevent_setcb(io->bev, NULL, io_on_write, on_event, io);
    io->reader = event_new(io->base, fd, EV_READ | EV_PERSIST, on_readable, io);
    return io->reader;
}

/* Waits for the other side: for its connection, or for its bytes. A TLS one does already. */
static bool begin(struct http_io *io, bool connecting)
{
    if (io->tls)
        return true;
    return connecting ? bufferevent_socket_connect(io->bev, NULL, 0) == 0 : event_add(io->reader, NULL) == 0;
}

enum lq_err io_open(struct http_io *io, int fd, SSL *ssl, bool connecting, uint32_t write_timeout_ms)
{
    int one = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) {
        /* A unix socket has none to set. */
    }
    io->tls = ssl != NULL;
    io->connected = !connecting && !ssl;
    io->ended = io->paused = io->broken = io->spoke_http = false;
    io->write_error = 0;
    io->why[0] = '\0';
    bool ok = ssl ? io_tls_open(io, fd, ssl) : plain_open(io, fd);
    if (!io->bev)
        close(fd);
    struct timeval tv = {.tv_sec = write_timeout_ms / 1000, .tv_usec = (suseconds_t)(write_timeout_ms % 1000) * 1000};
    if (ok) {
        (void)bufferevent_set_max_single_write(io->bev, HTTP_HIGH_WATER_BYTES);
        ok = (write_timeout_ms == 0 || bufferevent_set_timeouts(io->bev, NULL, &tv) == 0) && begin(io, connecting);
    }
    if (!ok)
        io_close(io);
    return ok ? LQ_OK : LQ_NOMEM;
}

void io_close(struct http_io *io)
{
    if (io->reader)
        event_free(io->reader); /* before its descriptor is closed */
    if (io->bev) {
        bufferevent_setcb(io->bev, NULL, NULL, NULL, NULL);
        bufferevent_free(io->bev);
    }
    io->reader = NULL;
    io->bev = NULL;
}

void io_kill(struct http_io *io)
{
    io_close(io);
    io_disarm(io);
    io_kick(io);
}

void io_release(struct http_io *io)
{
    io_close(io);
    if (io->timer)
        event_free(io->timer);
    if (io->kick)
        event_free(io->kick);
    if (io->in)
        evbuffer_free(io->in);
    if (io->out)
        evbuffer_free(io->out);
    *io = (struct http_io){0};
}

/* ---- deadline ---------------------------------------------------------------------- */

/* The timer is moved only when it would fire too late: with several deadlines in each
 * exchange, most of them met, it is touched once in many exchanges. */
void io_arm(struct http_io *io, uint32_t ms)
{
    io->deadline_us = clock_us() + (uint64_t)ms * 1000;
    if (io->wake_us != 0 && io->wake_us <= io->deadline_us)
        return;
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    if (evtimer_add(io->timer, &tv) == 0)
        io->wake_us = io->deadline_us;
}

void io_disarm(struct http_io *io)
{
    io->deadline_us = 0; /* the timer may fire once for nothing */
}

void io_kick(struct http_io *io)
{
    event_active(io->kick, 0, 0);
}

/* ---- bytes ------------------------------------------------------------------------- */

/* Ends it soon, from the loop, never under the caller. */
static void io_break(struct http_io *io)
{
    io->broken = true;
    event_active(io->reader, EV_READ, 0);
}

void io_read_on(struct http_io *io)
{
    if (!io->paused || !io->bev || io->ended || evbuffer_get_length(io->in) >= HTTP_HIGH_WATER_BYTES)
        return;
    io->paused = false;
    if (io->tls)
        io_tls_read_on(io);
    else if (event_add(io->reader, NULL) != 0)
        io_break(io);
}

size_t io_output_n(const struct http_io *io)
{
    return io->bev ? evbuffer_get_length(bufferevent_get_output(io->bev)) : 0;
}

void io_flush(struct http_io *io, bool whole)
{
    if (io->bev && whole && !io->broken) {
        /* Most messages fit the socket's buffer: one write now saves a turn of the loop. */
        if (io->tls)
            io_tls_join(io);
        else if (io->connected && io_output_n(io) == 0)
            (void)evbuffer_write(io->out, bufferevent_getfd(io->bev));
        if (evbuffer_get_length(io->out) > 0 && bufferevent_write_buffer(io->bev, io->out) != 0)
            whole = false;
    }
    if (io->bev && !whole)
        io_break(io);
    evbuffer_drain(io->out, evbuffer_get_length(io->out));
}

void io_low_water(struct http_io *io, size_t low)
{
    if (io->bev)
        bufferevent_setwatermark(io->bev, EV_WRITE, low, 0);
}

void io_shut_write(struct http_io *io)
{
    if (io->bev && io->tls)
        io_tls_shut(io);
    if (io->bev)
        (void)shutdown(bufferevent_getfd(io->bev), SHUT_WR);
}

void io_say_end(struct http_io *io)
{
    if (io->bev && io->tls && !io->ended)
        io_tls_shut(io);
}

void io_reset_on_close(struct http_io *io)
{
    struct linger none = {.l_onoff = 1, .l_linger = 0};
    if (io->bev)
        (void)setsockopt(bufferevent_getfd(io->bev), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

const char *io_error(const struct http_io *io)
{
    return io->why[0]                                      ? io->why
           : io->error == ECONNREFUSED                     ? "connection refused"
           : io->error == ECONNRESET || io->error == EPIPE ? "connection reset"
           : io->error                                     ? strerror(io->error)
                                                           : "connection closed";
}
