/* http_io: see http_io.h. */
#include "common/http_io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    struct http_io *io = arg;
    io->ops->on_bytes(io);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    (void)bev;
    struct http_io *io = arg;
    if (io->connected)
        io->ops->on_drained(io);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    struct http_io *io = arg;
    if (what & BEV_EVENT_CONNECTED)
        io->connected = true;
    io->ops->on_event(io, what);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_io *io = arg;
    uint64_t now = clock_us();
    if (!io->bev || io->deadline_us == 0)
        return;
    if (now < io->deadline_us) { /* it was moved: the timer follows only now */
        uint64_t left = io->deadline_us - now;
        struct timeval tv = {.tv_sec = (time_t)(left / 1000000), .tv_usec = (suseconds_t)(left % 1000000)};
        evtimer_add(io->timer, &tv);
        return;
    }
    io->deadline_us = 0;
    io->ops->on_timeout(io);
}

static void on_kick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_io *io = arg;
    io->ops->on_kick(io);
}

enum lq_err io_init(struct http_io *io, struct event_base *base, int fd, bool connecting, const struct http_io_ops *ops)
{
    *io = (struct http_io){.ops = ops, .base = base, .connected = !connecting};
    int one = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) {
        /* A unix socket has none to set. */
    }
    io->bev = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!io->bev) {
        close(fd);
        return LQ_NOMEM;
    }
    io->timer = evtimer_new(base, on_timer, io);
    io->kick = event_new(base, -1, 0, on_kick, io);
    if (!io->timer || !io->kick) {
        io_release(io);
        return LQ_NOMEM;
    }
    bufferevent_setcb(io->bev, on_read, on_write, on_event, io);
    /* Above this the socket is not read: memory is bounded whatever the peer sends. */
    bufferevent_setwatermark(io->bev, EV_READ, 0, HTTP_HIGH_WATER_BYTES);
    (void)bufferevent_set_max_single_read(io->bev, HTTP_HIGH_WATER_BYTES);
    (void)bufferevent_set_max_single_write(io->bev, HTTP_HIGH_WATER_BYTES);
    if (connecting && bufferevent_socket_connect(io->bev, NULL, 0) != 0) {
        io_release(io);
        return LQ_NOMEM;
    }
    bufferevent_enable(io->bev, EV_READ | EV_WRITE);
    return LQ_OK;
}

void io_kill(struct http_io *io)
{
    if (!io->bev)
        return;
    bufferevent_setcb(io->bev, NULL, NULL, NULL, NULL);
    bufferevent_free(io->bev);
    io->bev = NULL;
    io_disarm(io);
    io_kick(io);
}

void io_release(struct http_io *io)
{
    if (io->bev)
        bufferevent_free(io->bev);
    if (io->timer)
        event_free(io->timer);
    if (io->kick)
        event_free(io->kick);
    *io = (struct http_io){0};
}

void io_arm(struct http_io *io, uint32_t ms)
{
    uint64_t was = io->deadline_us;
    io->deadline_us = clock_us() + (uint64_t)ms * 1000;
    if (was != 0 && was <= io->deadline_us && evtimer_pending(io->timer, NULL))
        return; /* it will wake early and move on */
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    evtimer_add(io->timer, &tv);
}

void io_disarm(struct http_io *io)
{
    io->deadline_us = 0; /* the timer may fire once for nothing */
}

void io_kick(struct http_io *io)
{
    event_active(io->kick, 0, 0);
}

struct evbuffer *io_input(struct http_io *io)
{
    return bufferevent_get_input(io->bev);
}

size_t io_output_n(const struct http_io *io)
{
    return io->bev ? evbuffer_get_length(bufferevent_get_output(io->bev)) : 0;
}

void io_send(struct http_io *io, struct evbuffer *data)
{
    if (!io->bev) {
        evbuffer_drain(data, evbuffer_get_length(data));
        return;
    }
    /* Most messages fit the socket's buffer: one write now saves a turn of the loop. */
    if (io->connected && io_output_n(io) == 0)
        (void)evbuffer_write(data, bufferevent_getfd(io->bev));
    if (evbuffer_get_length(data) > 0 && bufferevent_write_buffer(io->bev, data) != 0) {
        evbuffer_drain(data, evbuffer_get_length(data));
        io_shut_write(io); /* out of memory: the peer must not take the rest for whole */
    }
}

void io_low_water(struct http_io *io, size_t low)
{
    if (io->bev)
        bufferevent_setwatermark(io->bev, EV_WRITE, low, 0);
}

void io_shut_write(struct http_io *io)
{
    if (io->bev)
        (void)shutdown(bufferevent_getfd(io->bev), SHUT_WR);
}

const char *io_error(void)
{
    int e = EVUTIL_SOCKET_ERROR();
    return e == ECONNREFUSED ? "connection refused" : e == ECONNRESET ? "connection reset" : strerror(e);
}
