/* http_pool_impl: the client's structs, shared by http_pool.c (one origin, who may use
 * its connections), http_wire.c (one connection) and http_call.c (one exchange).
 * Private to common/http_*. */
#ifndef LQ_COMMON_HTTP_POOL_IMPL_H
#define LQ_COMMON_HTTP_POOL_IMPL_H

#include <event2/util.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "common/http_io.h"
#include "common/http_parse.h"

enum wire_state {
    WIRE_OPENING, /* its name is looked up, or it connects; w->call waits for it */
    WIRE_BUSY,    /* w->call's exchange */
    WIRE_IDLE,    /* kept for the next call; a byte or an end drops it */
    WIRE_DEAD,    /* closed; freed after this turn */
};

struct wire {                /* one connection of a pool */
    struct http_io io;       /* first */
    TAILQ_ENTRY(wire) entry; /* in pool->wires; the idle ones last */
    struct http_pool *pool;
    enum wire_state state;
    struct http_call *call; /* NULL: idle or dead */
    bool reused;            /* it has carried an answer before */
    bool running;           /* call_run() is on the stack */
    bool over;              /* the peer ended it, as `how`; bytes that came before may be unread */
    enum io_end how;
    struct http_parse parse;
    struct resolve_job *lookup;          /* while a name is looked up */
    struct addrinfo *addrs, *addrs_left; /* to try, one after the other */
};

struct http_call {
    TAILQ_ENTRY(http_call) entry; /* in the pool's waiting or failing */
    struct call_list *list;       /* which one, or NULL */
    struct http_pool *pool;
    struct wire *wire;
    struct http_call_cb cb;
    void *arg;
    /* request */
    struct evbuffer *head;    /* request line and headers, kept for a retry */
    struct evbuffer *body;    /* the caller's */
    struct evbuffer *pending; /* streamed bytes, chunk-framed, that wait for a connection */
    uint64_t stream_left;     /* of a streamed body with a length */
    bool streamed, chunked, sent_all, is_head;
    bool wants_room; /* the sender was told to wait */
    uint64_t answer_max;
    /* answer */
    struct evbuffer *in;
    bool head_seen, any_byte, blocked;
    struct event *timer;   /* the deadline; or, once it has failed, the end after this turn */
    struct lq_fault fault; /* code != LQ_OK: it has failed */
};

TAILQ_HEAD(wire_list, wire);
TAILQ_HEAD(call_list, http_call);

struct http_pool {
    struct http_guard guard; /* first */
    struct event_base *base;
    struct http_pool_opts opts;
    struct tls *tls; /* of an https:// URL; NULL: plain */
    char *url, *host, *port, *unix_path, *host_header;
    struct resolve *resolve; /* made when a name must be looked up */
    struct wire_list wires;
    struct call_list waiting, failing;
    _Atomic uint32_t inflight_n; /* wires that have a call */
    uint32_t idle_n;
    bool closed;
};

/* ---- http_pool.c ---- */

/* Gives the call a connection, now or when there is one. Never calls back. */
void pool_assign(struct http_pool *p, struct http_call *c, bool fresh);
/* A slot is free: the oldest that waits takes it. */
void pool_next(struct http_pool *p);

/* ---- http_wire.c ---- */

void wire_open(struct http_pool *p, struct http_call *c); /* a new connection for c */
void wire_reuse(struct wire *w, struct http_call *c);     /* an idle one for c */
/* The wire's call is over; keep: it may carry another. */
void wire_done(struct wire *w, bool keep);
void wire_free(struct wire *w);

/* ---- http_call.c ---- */

void call_connected(struct http_call *c); /* its wire can carry bytes: sends */
void call_run(struct http_call *c);       /* bytes came, or a taker has room again */
void call_over(struct http_call *c);      /* the wire is `over` */
void call_room(struct http_call *c);      /* the wire's output drained */
/* Leaves its wire now; on_end after this turn. */
void call_fail_later(struct http_call *c, enum lq_err rc, const char *fmt, ...) LQ_PRINTF(3, 4);
void call_end(struct http_call *c, enum lq_err rc);
void call_list_move(struct http_call *c, struct call_list *to); /* to NULL: off all lists */

#endif
