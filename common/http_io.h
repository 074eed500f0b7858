/* http_io: one socket: a bufferevent, a lazy timer, and a kick (run me again after
 * this turn). What server and client connections share. Private to common/http_*.
 * Never freed under its own callbacks: io_kill() now, the owner's on_kick frees. */
#ifndef LQ_COMMON_HTTP_IO_H
#define LQ_COMMON_HTTP_IO_H

#include <event2/bufferevent.h>

#include "common/http.h"

enum { HTTP_LINGER_MS = 1000, HTTP_LOW_WATER_BYTES = 64 * 1024 };

struct http_io;

struct http_io_ops {
    void (*on_bytes)(struct http_io *io);              /* something was read, or may now be */
    void (*on_drained)(struct http_io *io);            /* output fell to the low-water mark */
    void (*on_event)(struct http_io *io, short what);  /* BEV_EVENT_CONNECTED, _EOF, _ERROR */
    void (*on_timeout)(struct http_io *io);
    void (*on_kick)(struct http_io *io);
};

struct http_io {
    const struct http_io_ops *ops;
    struct event_base *base;
    struct bufferevent *bev; /* NULL: killed */
    struct event *timer, *kick;
    uint64_t deadline_us; /* 0: none */
    bool connected;
};

/* Takes fd, on failure too. connecting: a connect() is under way. */
enum lq_err io_init(struct http_io *io, struct event_base *base, int fd, bool connecting,
                    const struct http_io_ops *ops) LQ_MUST_CHECK;
void io_kill(struct http_io *io);    /* closes the socket; no more callbacks but on_kick */
void io_release(struct http_io *io); /* frees all */

void io_arm(struct http_io *io, uint32_t ms); /* one deadline; cheap to move */
void io_disarm(struct http_io *io);
void io_kick(struct http_io *io);

struct evbuffer *io_input(struct http_io *io);
size_t io_output_n(const struct http_io *io);
/* Drains data: to the socket at once as far as that takes it, the rest to the output
 * buffer. Errors come later through on_event. */
void io_send(struct http_io *io, struct evbuffer *data);
/* on_drained at <= low bytes of output. */
void io_low_water(struct http_io *io, size_t low);
void io_shut_write(struct http_io *io);

/* The text of the socket's last error. */
const char *io_error(void);

#endif
