/* http_pool_impl: the client's structs, shared by http_pool.c (connections of one
 * origin) and http_call.c (one exchange). Private to common/http_*. */
#ifndef LQ_COMMON_HTTP_POOL_IMPL_H
#define LQ_COMMON_HTTP_POOL_IMPL_H

#include <sys/queue.h>
#include <sys/socket.h>

#include "common/http_io.h"
#include "common/http_parse.h"

enum wire_state { WIRE_CONNECTING, WIRE_BUSY, WIRE_IDLE, WIRE_DEAD };

struct wire { /* one connection of a pool */
    struct http_io io; /* first */
    TAILQ_ENTRY(wire) entry; /* in pool->wires */
    struct http_pool *pool;
    enum wire_state state;
    struct http_call *call; /* NULL: idle or dead */
    bool reused;            /* it has carried an answer before */
    bool running;
    const char *eof; /* the peer closed, why; bytes that came before may still be unread */
    struct http_parse parse;
};

struct http_call {
    TAILQ_ENTRY(http_call) entry; /* in pool->waiting, while wire is NULL and !failed */
    struct http_pool *pool;
    struct wire *wire;
    struct http_call_cb cb;
    void *arg;
    /* request */
    struct evbuffer *head;    /* request line and headers, kept for a retry */
    struct evbuffer *body;    /* the caller's */
    struct evbuffer *pending; /* streamed bytes, chunk-framed, that wait for a connection */
    bool streamed, chunked, sent_all, is_head;
    uint64_t answer_max;
    /* answer */
    struct evbuffer *in;
    bool head_seen, any_byte, blocked, retried, waiting;
    struct event *deadline, *fail_ev; /* fail_ev: ends the call after this turn */
    enum lq_err failed;
    struct lq_fault fault;
};

TAILQ_HEAD(wire_list, wire);
TAILQ_HEAD(call_list, http_call);

struct http_pool {
    struct event_base *base;
    struct http_pool_opts opts;
    char *url, *host, *port, *unix_path, *host_header;
    struct evdns_base *dns; /* made when a name must be resolved */
    struct wire_list wires;
    struct call_list waiting, calls_failing;
    uint32_t inflight_n, idle_n;
};

/* http_pool.c: gives the call a connection, now or when one is free. Never calls back. */
void pool_assign(struct http_pool *p, struct http_call *c, bool fresh);
/* The wire's call is over; keep: it may carry another. */
void wire_done(struct wire *w, bool keep);
void pool_next(struct http_pool *p);

/* http_call.c: what the pool tells a call. */
void call_connected(struct http_call *c);               /* its wire can carry bytes: sends */
void call_run(struct http_call *c);                     /* bytes came */
void call_eof(struct http_call *c, const char *why);    /* the wire ended */
void call_room(struct http_call *c);                    /* the wire's output drained */
void call_fail_later(struct http_call *c, enum lq_err rc, const char *fmt, ...) LQ_PRINTF(3, 4);
void call_end(struct http_call *c, enum lq_err rc);

#endif
