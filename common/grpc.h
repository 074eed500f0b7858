/* grpc: gRPC over HTTP/2 for servers and clients, on nghttp2 and libevent's
 * bufferevents (ADR 0013: why not grpc-core). Knows no message: bytes in, bytes out;
 * what the grid says is in common/grid_msg.h.
 * Owner : everything belongs to the thread of its event_base; no locks.
 * Ends  : a stream ends exactly once. Either you end it (grpc_stream_finish(),
 *         grpc_stream_cancel()): it is gone when the call returns and no callback
 *         follows; or it ends by itself (the peer, a deadline, the connection):
 *         on_closed() says how, and it is gone when that returns. Every object may
 *         be ended or freed inside any callback, its own too.
 * Bounds: each peer can hold so much memory and no more: streams, header bytes,
 *         message bytes (checked before they are allocated), queued answers; control
 *         frames are rationed. Silent peers are found by HTTP/2 PING.
 * TCP_NODELAY is set. Never blocks. */
#ifndef LQ_COMMON_GRPC_H
#define LQ_COMMON_GRPC_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

struct tls; /* common/tls.h, made with protocols {"h2", NULL}; outlives who uses it */

enum grpc_code {
    GRPC_OK = 0,
    GRPC_CANCELLED = 1,
    GRPC_UNKNOWN = 2,
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_ALREADY_EXISTS = 6,
    GRPC_PERMISSION_DENIED = 7,
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_ABORTED = 10,
    GRPC_OUT_OF_RANGE = 11,
    GRPC_UNIMPLEMENTED = 12,
    GRPC_INTERNAL = 13,
    GRPC_UNAVAILABLE = 14,
    GRPC_DATA_LOSS = 15,
    GRPC_UNAUTHENTICATED = 16,
};
const char *grpc_code_word(enum grpc_code code); /* "UNAVAILABLE"; "UNKNOWN" for others */

enum {
    GRPC_HEADER_BYTES_MAX = 16384,        /* of one request or answer, as HTTP/2 counts them */
    GRPC_STREAMS_MAX = 128,               /* open at once on one connection */
    GRPC_HIGH_WATER_BYTES = 256 * 1024,   /* queued to send: grpc_stream_send() says "wait" */
    GRPC_QUEUED_BYTES_MAX = 16 * 1048576, /* queued to send: the stream is ended */
    GRPC_TEXT_BYTES_MAX = 1024,           /* of a grpc-message; cut beyond */
};

/* ---- a stream: one call, seen from either side ----------------------------------------- */

struct grpc_stream;

struct grpc_end {
    enum grpc_code code;
    bool lost;        /* the connection failed, or there never was one: the peer did not say this */
    const char *text; /* for people, never NULL; for the call only */
};

/* All may be NULL. arg is that of grpc_stream_handle() or grpc_call(). */
struct grpc_stream_cb {
    /* One whole message; p is good for the call only. */
    void (*on_message)(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg);
    /* Server: the client will send no more. The answer may go on. */
    void (*on_half_closed)(struct grpc_stream *s, void *arg);
    /* After grpc_stream_send() said "wait": there is room again. */
    void (*on_room)(struct grpc_stream *s, void *arg);
    /* It ended by itself; s is gone when this returns. Client: GRPC_OK with lost = false is
     * the server's regular end. Server: CANCELLED (the client reset the call), UNAVAILABLE
     * (lost: its connection ended), DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED (it does not read,
     * or sent too much), ... */
    void (*on_closed)(struct grpc_stream *s, const struct grpc_end *end, void *arg);
};

/* Queues one message (copied; p NULL: as if out of memory). False: over GRPC_HIGH_WATER_BYTES; it was taken all the
 * same, but wait for on_room. Over GRPC_QUEUED_BYTES_MAX the stream ends by itself, after
 * this turn, with RESOURCE_EXHAUSTED. n <= UINT32_MAX. */
bool grpc_stream_send(struct grpc_stream *s, const uint8_t *p, size_t n);
size_t grpc_stream_queued_bytes(const struct grpc_stream *s);
/* Ends it abruptly (RST_STREAM CANCEL); s is gone. */
void grpc_stream_cancel(struct grpc_stream *s);
/* "10.0.0.1:50052", "[::1]:50052"; and is that this machine (127/8, ::1)? */
const char *grpc_stream_peer(const struct grpc_stream *s);
bool grpc_stream_peer_is_loopback(const struct grpc_stream *s);
/* NULL: a Unix socket's; lives as long as s. */
const struct sockaddr *grpc_stream_peer_address(const struct grpc_stream *s);
/* A header of the request (server) or of the answer (client, once a message came), or
 * NULL; lives as long as s. */
const char *grpc_stream_metadata(const struct grpc_stream *s, const char *name);

/* ---- server ------------------------------------------------------------------------------ */

struct grpc_server;

struct grpc_server_opts {
    const char *host;          /* name or address, "127.0.0.1" */
    int port;                  /* 0: a free one */
    struct tls *tls;           /* NULL: cleartext (h2c, prior knowledge) */
    uint32_t connections_max;  /* 16384, and never more than half of the open-file limit; beyond: closed at once */
    uint32_t message_max;      /* bytes of a received message, 4 MiB: RESOURCE_EXHAUSTED beyond */
    uint32_t unary_timeout_ms; /* 30000: for unary calls that bring no deadline */
    uint32_t ping_interval_ms; /* 10000 without a byte from the peer: PING */
    uint32_t ping_timeout_ms;  /* 20000 after a PING still no byte: the connection is dead */
    uint32_t hello_timeout_ms; /* 10000: connection accepted, TLS and HTTP/2 not agreed; half a request */
    uint32_t idle_timeout_ms;  /* 300000 without a stream: GOAWAY */
};
void grpc_server_opts_init(struct grpc_server_opts *o); /* the values above */

/* Exactly one of the two is set. */
struct grpc_method {
    const char *path; /* "/larql.grid.v1.GridService/Join" */
    /* Streaming: a call was opened. Call grpc_stream_handle() or grpc_stream_finish(), now. */
    void (*on_open)(struct grpc_stream *s, void *arg);
    /* Unary: its one message came. grpc_stream_reply() or _finish() now, or
     * grpc_stream_handle() now (for on_closed) and the answer later. */
    void (*on_request)(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg);
};

/* Binds and listens. methods and what it points to must outlive the server; arg is given
 * to both callbacks of all methods. LQ_IO names host, port and cause. */
enum lq_err grpc_server_new(struct event_base *base, const struct grpc_server_opts *o,
                            const struct grpc_method *methods, size_t methods_n, void *arg, struct grpc_server **out,
                            struct lq_fault *fault) LQ_MUST_CHECK;
int grpc_server_port(const struct grpc_server *s);
const char *grpc_server_address(const struct grpc_server *s); /* "127.0.0.1:50052", with the real port */
size_t grpc_server_connections_n(const struct grpc_server *s);
size_t grpc_server_streams_n(const struct grpc_server *s);
/* Stops accepting and sends GOAWAY: open streams may end in their own time, a connection
 * without streams is closed, new calls go elsewhere. */
void grpc_server_drain(struct grpc_server *s);
/* Closes everything; open streams get on_closed (UNAVAILABLE, lost). */
void grpc_server_free(struct grpc_server *s);

/* Who hears of s from now on. Legal again: the callbacks are replaced. */
void grpc_stream_handle(struct grpc_stream *s, const struct grpc_stream_cb *cb, void *arg);
/* Ends it with a status, after all that was sent before; s is gone. The text is for the
 * peer's people: cut at GRPC_TEXT_BYTES_MAX, NULL as "". A peer that does not read it
 * within 30 s is cut off. */
void grpc_stream_finish(struct grpc_stream *s, enum grpc_code code, const char *text);
/* Unary: the one message and OK; s is gone. */
void grpc_stream_reply(struct grpc_stream *s, const uint8_t *p, size_t n);

/* ---- client: a channel is one connection to one server ------------------------------------ */

struct grpc_channel;

struct grpc_channel_opts {
    struct tls *tls;             /* NULL: cleartext */
    uint32_t connect_timeout_ms; /* 5000: name, TCP, TLS and HTTP/2 together */
    uint32_t message_max;        /* 4 MiB */
    uint32_t ping_interval_ms;   /* 10000, as the server's; doubled when a server finds them too many */
    uint32_t ping_timeout_ms;    /* 20000 */
    uint32_t idle_timeout_ms;    /* 60000 without a call: closed */
};
void grpc_channel_opts_init(struct grpc_channel_opts *o);

/* address: "HOST:PORT", "[IPv6]:PORT"; LQ_USAGE names what is wrong with it. Connects when
 * a call needs it, and again for the next call after a failure; never tries a call twice:
 * back-off is the caller's matter. */
enum lq_err grpc_channel_new(struct event_base *base, const char *address, const struct grpc_channel_opts *o,
                             struct grpc_channel **out, struct lq_fault *fault) LQ_MUST_CHECK;
const char *grpc_channel_address(const struct grpc_channel *c);
/* Open calls get on_closed (CANCELLED, lost). */
void grpc_channel_free(struct grpc_channel *c);

struct grpc_metadata {
    const char *name, *value; /* name in lower case; a value is never logged */
};
struct grpc_call_opts {
    const char *path;
    const struct grpc_metadata *metadata; /* copied; {"authorization", "Bearer KEY"} */
    size_t metadata_n;
    uint32_t deadline_ms; /* from now, everything included, told to the server too; 0: none */
};

/* Opens a call. Messages may be sent at once, they wait for the connection. No callback
 * from inside this function. LQ_NOMEM, LQ_USAGE (metadata that is none): none ever. */
enum lq_err grpc_call(struct grpc_channel *c, const struct grpc_call_opts *o, const struct grpc_stream_cb *cb,
                      void *arg, struct grpc_stream **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* Client: no more messages will be sent; the server ends the call. */
void grpc_stream_half_close(struct grpc_stream *s);

/* One message there, one back. on_done exactly once unless *out (NULL: not wanted) is
 * cancelled before: p is NULL unless end->code is GRPC_OK. */
typedef void (*grpc_on_done)(const struct grpc_end *end, const uint8_t *p, size_t n, void *arg);
enum lq_err grpc_unary(struct grpc_channel *c, const struct grpc_call_opts *o, const uint8_t *p, size_t n,
                       grpc_on_done on_done, void *arg, struct grpc_stream **out,
                       struct lq_fault *fault) LQ_MUST_CHECK;

#endif
