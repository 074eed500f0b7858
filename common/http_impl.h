/* http_impl: the server's structs, shared by http_listen.c (accepts), http_server.c
 * (connections) and http_req.c (what handlers call). Private to common/http_*. */
#ifndef LQ_COMMON_HTTP_IMPL_H
#define LQ_COMMON_HTTP_IMPL_H

#include <stdatomic.h>

#include "common/http_io.h"
#include "common/http_parse.h"
#include "common/log.h"

enum { HTTP_ID_CHARS = 128, TLS_LOG_INTERVAL_US = 1000000 };

enum conn_state {
    CONN_IDLE,   /* keep-alive, no byte of a request; idle timeout */
    CONN_HEAD,   /* part of a head; header timeout, from its first byte */
    CONN_OPEN,   /* c->req lives: body, handler, answer */
    CONN_FLUSH,  /* answered; what is left in the output goes out */
    CONN_LINGER, /* our side is shut; read and drop for a while, so that no reset eats the answer */
    CONN_DEAD,   /* closed; freed after this turn */
};

struct conn {
    struct http_io io; /* first */
    struct http_server *server;
    struct conn *prev, *next;
    enum conn_state state;
    bool running;    /* conn_run() is on the stack */
    bool keep_alive; /* of the answer that is in flight */
    struct http_parse parse;
    struct http_req *req;
};

struct http_req {
    struct conn *conn;
    char id[HTTP_ID_CHARS + 1];
    char *path, *query; /* query points into path's allocation */
    uint64_t start_us;
    /* body */
    bool reading, ended, blocked; /* http_req_read() was called; on_end was; the taker is full */
    struct evbuffer *in;
    http_req_on_data on_data, on_end;
    void *body_arg;
    /* answer */
    void (*on_gone)(struct http_req *r, void *arg);
    void *gone_arg;
    void (*on_room)(struct http_req *r, void *arg);
    void *room_arg;
    bool wants_room; /* it was told to wait */
    bool started, chunked;
    uint64_t left; /* answer bytes that the head promised and are not sent yet */
};

struct http_server {
    struct http_guard guard; /* first */
    struct event_base *base;
    struct http_server_opts opts;
    char *server_name, *unix_path, url[300];
    int listen_fd, share_fd; /* -1: none; share_fd: the epoll through which several loops wait for listen_fd */
    struct event *accept_ev; /* NULL: not listening any more */
    struct event *resume_ev; /* listens again after it ran out of descriptors */
    struct log_limit full_log, accept_log, tls_log;
    struct tls *tls; /* NULL: plain */
    http_on_request on_request;
    void *arg;
    struct metric *const *refused; /* [HTTP_REFUSED_N], or NULL: not counted */
    struct conn *conns;
    _Atomic size_t conns_n;
    bool draining;
    time_t date_s; /* cache of the Date header */
    char date[40];
    unsigned char random[512]; /* for request ids: one getrandom() for many */
    size_t random_left_n;
};

/* ---- http_listen.c ---- */

/* The socket that s shall accept from; fills s->url. -1: fault says why. */
int listen_open(struct http_server *s, struct lq_fault *fault);
enum lq_err listen_start(struct http_server *s, int fd, struct lq_fault *fault) LQ_MUST_CHECK;
void listen_stop(struct http_server *s);
/* A connection ended: there is room for another. */
void listen_room(struct http_server *s);

/* ---- http_server.c ---- */

void server_refused(const struct http_server *s, enum http_refused why);
/* A connected socket becomes a connection of s; closed when out of memory. */
void server_take(struct http_server *s, int fd);
/* Runs the connection's machine: as many steps as can be taken now. */
void conn_run(struct conn *c);
/* Closes now; the memory goes after this turn. An open request learns that it is gone. */
void conn_close(struct conn *c);
/* The request is answered (or refused): free it, flush, then keep or close. */
void conn_answered(struct conn *c);

/* ---- http_req.c ---- */

enum lq_err req_new(struct conn *c, struct lq_fault *fault) LQ_MUST_CHECK;
void req_free(struct http_req *r);
/* Tells the handler that r is gone, and frees it. */
void req_gone(struct http_req *r);
/* Answers the error and closes gently. conn_refuse(): before there is a request;
 * conn_refuse_open(): in the handler's place, which learns that its request is gone. */
void conn_refuse(struct conn *c, const struct lq_fault *fault);
void conn_refuse_open(struct conn *c, const struct lq_fault *fault);

#endif
