/* http_impl: the server's two structs, shared by http_server.c (connections) and
 * http_req.c (what handlers call). Private to common/http_*. */
#ifndef LQ_COMMON_HTTP_IMPL_H
#define LQ_COMMON_HTTP_IMPL_H

#include <event2/listener.h>

#include "common/http_io.h"
#include "common/http_parse.h"

enum { HTTP_ID_CHARS = 128 };

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
    uint64_t limit;
    struct evbuffer *in;
    http_req_on_data on_data, on_end;
    void *body_arg;
    /* answer */
    void (*on_gone)(struct http_req *r, void *arg);
    void *gone_arg;
    void (*on_room)(struct http_req *r, void *arg);
    void *room_arg;
    bool started, chunked;
    uint64_t left; /* answer bytes that the head promised and are not sent yet */
};

struct http_server {
    struct event_base *base;
    struct http_server_opts opts;
    char *server_name, *unix_path, url[300];
    struct evconnlistener *listener;
    struct event *resume_ev; /* listens again after it ran out of descriptors */
    http_on_request on_request;
    void *arg;
    struct conn *conns;
    size_t conns_n;
    bool draining;
    uint64_t date_s; /* cache of the Date header */
    char date[40];
};

/* Runs the connection's machine: as many steps as can be taken now. */
void conn_run(struct conn *c);
void conn_close(struct conn *c);
/* The request is answered (or refused): free it, flush, then keep or close. */
void conn_answered(struct conn *c);
void req_free(struct http_req *r);
/* The answer's head into `out`. length HTTP_LENGTH_UNKNOWN and !chunked: until close. */
void req_write_head(struct http_server *s, int status, const struct http_headers *h, uint64_t length, bool chunked,
                    bool keep_alive, bool old, const char *id, struct evbuffer *out);
/* An error before there is a request. */
void conn_refuse(struct conn *c, const struct lq_fault *fault);
void req_make_id(char id[HTTP_ID_CHARS + 1]);

#endif
