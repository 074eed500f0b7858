/* http_peer: calls under test, and a peer that answers them with what a test says. */
#ifndef LQ_TESTS_UNIT_COMMON_HTTP_PEER_H
#define LQ_TESTS_UNIT_COMMON_HTTP_PEER_H

#include <arpa/inet.h>

#include "common/http_pool_impl.h"
#include <event2/listener.h>

#include "tests/unit/common/http_kit.h"

/* ---- a scripted peer ------------------------------------------------------------------ */

enum { PEER_CONNS_MAX = 16 };

struct peer {
    struct event_base *base;
    struct evconnlistener *listener;
    struct raw conn[PEER_CONNS_MAX]; /* in the order of their accept */
    int conns_n;
    char url[64];
};

static inline void peer_on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
    (void)l, (void)a, (void)n;
    struct peer *p = arg;
    ck_assert_int_lt(p->conns_n, PEER_CONNS_MAX);
    raw_adopt(&p->conn[p->conns_n++], p->base, (int)fd);
}

static inline void peer_open(struct peer *p, struct event_base *base)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    *p = (struct peer){.base = base};
    p->listener =
        evconnlistener_new_bind(base, peer_on_accept, p, LEV_OPT_CLOSE_ON_FREE, 64, (struct sockaddr *)&a, sizeof a);
    ck_assert_ptr_nonnull(p->listener);
    ck_assert_int_eq(getsockname((int)evconnlistener_get_fd(p->listener), (struct sockaddr *)&a, &n), 0);
    snprintf(p->url, sizeof p->url, "http://127.0.0.1:%d", ntohs(a.sin_port));
}

static inline void peer_hang_up(struct peer *p, int i)
{
    if (p->conn[i].bev)
        raw_close(&p->conn[i]);
}

static inline void peer_close(struct peer *p)
{
    for (int i = 0; i < p->conns_n; i++)
        peer_hang_up(p, i);
    if (p->listener)
        evconnlistener_free(p->listener);
}

/* A whole head has come on connection i (a body may follow). */
static inline bool peer_has_head(struct peer *p, int i)
{
    return i < p->conns_n && evbuffer_search(bufferevent_get_input(p->conn[i].bev), "\r\n\r\n", 4, NULL).pos >= 0;
}

/* Waits for a request on connection i and drops it. */
static inline void peer_take(struct peer *p, int i)
{
    RUN_UNTIL(p->base, peer_has_head(p, i));
    evbuffer_drain(bufferevent_get_input(p->conn[i].bev), raw_n(&p->conn[i]));
}

#define ANSWER(text, length) "HTTP/1.1 200 OK\r\nContent-Length: " length "\r\n\r\n" text

/* ---- a call ---------------------------------------------------------------------------- */

struct job {
    struct http_pool *pool;
    struct http_call *call; /* NULL: ended */
    int heads_n, ends_n, rooms_n, status;
    uint64_t length;
    enum lq_err rc;
    struct lq_fault fault;
    struct evbuffer *got;
    size_t data_max, take_n; /* most bytes that were there at once; what on_data takes */
    bool inside;             /* http_call_start() is on the stack */
    struct job *next;        /* started when this one ends */
    const char *step;        /* "verb/where": what happens inside a callback */
    struct evbuffer *source; /* a streamed body */
    size_t source_n;
};

static inline void job_start(struct job *j, struct http_pool *p, const struct http_call_opts *o);

/* Does what j->step says when its time has come. True: the call is gone. */
static inline bool job_act(struct job *j, const char *where)
{
    if (!j->step || strcmp(strchr(j->step, '/') + 1, where) != 0)
        return false;
    bool cancel = strncmp(j->step, "cancel", 6) == 0;
    j->step = NULL;
    if (cancel) {
        http_call_cancel(j->call);
        j->call = NULL;
    } else {
        struct http_pool *p = j->pool;
        j->pool = NULL;
        http_pool_free(p);
    }
    return true;
}

static inline void job_on_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length,
                               void *arg)
{
    (void)c, (void)h;
    struct job *j = arg;
    ck_assert(!j->inside);
    j->heads_n++;
    j->status = status;
    j->length = length;
    (void)job_act(j, "head");
}

static inline void job_on_data(struct http_call *c, struct evbuffer *in, void *arg)
{
    (void)c;
    struct job *j = arg;
    size_t n = evbuffer_get_length(in);
    ck_assert_int_eq(j->heads_n, 1);
    ck_assert_int_eq(j->ends_n, 0);
    j->data_max = j->data_max > n ? j->data_max : n;
    if (job_act(j, "data"))
        return;
    n = n < j->take_n ? n : j->take_n;
    j->take_n -= n;
    evbuffer_remove_buffer(in, j->got, n);
}

static inline void job_on_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault,
                              void *arg)
{
    (void)c;
    struct job *j = arg;
    ck_assert(!j->inside);
    ck_assert_int_eq(++j->ends_n, 1);
    j->call = NULL;
    j->rc = rc;
    if (rc)
        j->fault = *fault;
    evbuffer_add_buffer(j->got, in);
    (void)job_act(j, "end");
    if (j->next)
        job_start(j->next, j->pool, &(struct http_call_opts){.method = "GET", .path = "/hello"});
}

static inline void job_pump(struct job *j)
{
    struct evbuffer *piece = evbuffer_new();
    bool room = true;
    while (room && evbuffer_get_length(j->source) > 0) {
        evbuffer_remove_buffer(j->source, piece, 50000);
        room = http_call_send(j->call, piece);
        ck_assert_uint_eq(evbuffer_get_length(piece), 0);
    }
    evbuffer_free(piece);
    if (evbuffer_get_length(j->source) == 0 && !j->call->sent_all)
        http_call_send_end(j->call);
}

static inline void job_on_room(struct http_call *c, void *arg)
{
    (void)c;
    struct job *j = arg;
    j->rooms_n++;
    if (!job_act(j, "room"))
        job_pump(j);
}

static const struct http_call_cb job_keeps = {.on_head = job_on_head, .on_end = job_on_end, .on_room = job_on_room};
static const struct http_call_cb job_streams = {
    .on_head = job_on_head, .on_data = job_on_data, .on_end = job_on_end, .on_room = job_on_room};

static inline void job_init(struct job *j)
{
    *j = (struct job){.got = evbuffer_new(), .take_n = SIZE_MAX};
}

static inline void job_release(struct job *j)
{
    evbuffer_free(j->got);
    if (j->source)
        evbuffer_free(j->source);
}

static inline void job_start_cb(struct job *j, struct http_pool *p, const struct http_call_opts *o,
                                const struct http_call_cb *cb)
{
    j->pool = p;
    j->inside = true;
    ck_assert_msg(http_call_start(p, o, cb, j, &j->call, &j->fault) == LQ_OK, "%s", j->fault.text);
    j->inside = false;
}

static inline void job_start(struct job *j, struct http_pool *p, const struct http_call_opts *o)
{
    job_start_cb(j, p, o, &job_keeps);
}

static inline const char *job_text(struct job *j)
{
    evbuffer_add(j->got, "", 1);
    return (const char *)evbuffer_pullup(j->got, -1);
}

static inline struct http_pool *kit_pool(struct event_base *base, const char *url, const struct http_pool_opts *o)
{
    struct http_pool_opts d;
    struct http_pool *p = NULL;
    struct lq_fault fault = {0};
    http_pool_opts_init(&d);
    ck_assert_msg(http_pool_new(base, url, o ? o : &d, &p, &fault) == LQ_OK, "%s", fault.text);
    return p;
}

#endif
