/* http_io: one socket: buffered both ways, one lazy deadline, and a kick (run me
 * again after this turn). What server and client connections share; knows no HTTP.
 * Writing and connecting are a bufferevent's. Reading is not: libevent 2.1 reads at
 * most 4 KB a turn, each after an ioctl, which makes six turns of a 20 KB body.
 * Under TLS reading is a bufferevent's too (http_io_tls.c), a record of 16 KB a turn.
 * Private to common/http_*. Never freed under its own callbacks: io_kill() now, the
 * owner's on_kick frees. */
#ifndef LQ_COMMON_HTTP_IO_H
#define LQ_COMMON_HTTP_IO_H

#include <event2/bufferevent.h>
#include <openssl/types.h>

#include "common/http.h"

enum { HTTP_LINGER_MS = 1000, HTTP_LOW_WATER_BYTES = 64 * 1024 };

/* Lets an owner of sockets (a server, a pool) be freed inside a callback that it
 * runs: whoever may run callbacks enters and leaves; the last to leave releases. */
struct http_guard {
    unsigned depth;
    bool doomed;
    void (*release)(struct http_guard *g);
};
void guard_enter(struct http_guard *g);
void guard_leave(struct http_guard *g); /* the owner may be gone after this */
void guard_doom(struct http_guard *g);  /* release now, or when the last has left */

struct http_io;

enum io_end {
    IO_CLOSED,  /* the peer closed its side; all that it had sent was given to on_bytes */
    IO_BROKEN,  /* reset, refused, out of memory: io_error() says why */
    IO_STALLED, /* the output did not move for write_timeout_ms */
};

struct http_io_ops {
    /* The socket takes no more: true, and what the peer had said before it left is read first (a
     * client's side: an answer that refuses a body); false, and that is the end at once. */
    bool hears_out;
    void (*on_bytes)(struct http_io *io);   /* io->in has more */
    void (*on_drained)(struct http_io *io); /* the output fell to the low-water mark */
    void (*on_connected)(struct http_io *io);
    void (*on_end)(struct http_io *io, enum io_end how);
    void (*on_timeout)(struct http_io *io);
    void (*on_kick)(struct http_io *io);
};

struct http_io {
    const struct http_io_ops *ops;
    struct http_guard *guard;
    struct event_base *base;
    struct bufferevent *bev; /* NULL: no socket */
    struct event *reader, *timer, *kick;
    struct evbuffer *in;  /* at most HTTP_HIGH_WATER_BYTES: then the socket is not read */
    struct evbuffer *out; /* scratch for io_flush(), empty in between */
    uint64_t deadline_us; /* 0: none */
    uint64_t wake_us;     /* when the timer fires; 0: not pending */
    bool connected, ended, paused, broken;
    bool tls;
    bool spoke_http; /* the peer sent a plain request where TLS was to begin */
    int write_error; /* errno of a write that failed; 0: none. Nothing is written any more */
    int error;       /* errno of IO_BROKEN */
    char why[128];   /* of the TLS layer, in place of error; "": it has none */
};

enum lq_err io_init(struct http_io *io, struct event_base *base, const struct http_io_ops *ops,
                    struct http_guard *guard) LQ_MUST_CHECK; /* releases what it made when it fails */
/* Takes fd and ssl (NULL: plain), on failure too. connecting: a connect() is under way.
 * Under TLS on_connected comes when the handshake is done, of a server's too. */
enum lq_err io_open(struct http_io *io, int fd, SSL *ssl, bool connecting, uint32_t write_timeout_ms) LQ_MUST_CHECK;
void io_close(struct http_io *io);   /* the socket; another may be opened */
void io_kill(struct http_io *io);    /* closes for good: no more callbacks but on_kick */
void io_release(struct http_io *io); /* frees all */

void io_arm(struct http_io *io, uint32_t ms); /* one deadline; cheap to move */
void io_disarm(struct http_io *io);
void io_kick(struct http_io *io);

/* Reads on where a full `in` had stopped it: after bytes were taken out. */
void io_read_on(struct http_io *io);

size_t io_output_n(const struct http_io *io);
/* Sends and drains io->out, which the caller has filled: to the socket at once as far
 * as that takes it, the rest to the output buffer. !whole: filling it failed, and the
 * connection breaks so that the peer cannot take the rest for complete. */
void io_flush(struct http_io *io, bool whole);
/* on_drained at <= low bytes of output. */
void io_low_water(struct http_io *io, size_t low);
void io_shut_write(struct http_io *io); /* the output is out; under TLS a close_notify goes first */
/* Before io_kill() of one that is between messages: says under TLS that nothing was cut. */
void io_say_end(struct http_io *io);
void io_reset_on_close(struct http_io *io); /* the peer gets a reset, not an end */

/* Why it ended, for people. */
const char *io_error(const struct http_io *io);

/* ---- between http_io.c and http_io_tls.c ---- */

/* Makes io->bev and io->reader of the socket; takes ssl. False: out of memory. */
bool io_tls_open(struct http_io *io, int fd, SSL *ssl);
void io_tls_read_on(struct http_io *io);
void io_tls_shut(struct http_io *io);
void io_tls_join(struct http_io *io); /* io->out, where that saves records */
void io_on_write(struct bufferevent *bev, void *io);
void io_end(struct http_io *io, enum io_end how, int error);

#endif
