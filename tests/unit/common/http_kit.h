/* http_kit: a server and raw clients in one loop, for the tests of common/http_*. */
#ifndef LQ_TESTS_UNIT_COMMON_HTTP_KIT_H
#define LQ_TESTS_UNIT_COMMON_HTTP_KIT_H

#include <event2/bufferevent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http_impl.h"
#include "common/log.h"
#include "common/tls.h"
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include "tests/unit/support.h"

/* What servers and raw clients speak in a suite over TLS; NULL: plain. */
static struct tls *kit_listen_tls, *kit_dial_tls;

/* No time is ever waited for: a test that hangs ends by Check's timeout. */
#define RUN_UNTIL(base, condition)                                                                                   \
    while (!(condition))                                                                                             \
    event_base_loop(base, EVLOOP_ONCE)

static inline struct event_base *kit_base(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    struct lq_fault fault;
    ck_assert_int_eq(log_level_set("error", &fault), LQ_OK);
    struct event_config *cfg = event_config_new(); /* as loop.c makes them */
    event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
    event_config_set_flag(cfg, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    struct event_base *base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    ck_assert_ptr_nonnull(base);
    return base;
}

static inline void kit_turns(struct event_base *base, int n)
{
    while (n-- > 0)
        event_base_loop(base, EVLOOP_NONBLOCK);
}

static inline struct http_server *kit_server(struct event_base *base, const struct http_server_opts *o,
                                             http_on_request fn, void *arg)
{
    struct http_server_opts d;
    struct http_server *s = NULL;
    struct lq_fault fault = {0};
    http_server_opts_init(&d);
    if (o)
        d = *o;
    if (!d.tls)
        d.tls = kit_listen_tls;
    ck_assert_msg(http_server_new(base, &d, fn, arg, &s, &fault) == LQ_OK, "%s", fault.text);
    return s;
}

/* ---- a raw client: bytes out, bytes in --------------------------------------------- */

struct raw {
    struct event_base *base;
    struct bufferevent *bev;
    bool eof, reset;
    bool cut; /* under TLS: an end of the socket alone */
};

static inline void raw_on_event(struct bufferevent *bev, short what, void *arg)
{
    struct raw *r = arg;
    bool cut = kit_dial_tls && (what & BEV_EVENT_ERROR) &&
               ERR_GET_REASON(bufferevent_get_openssl_error(bev)) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
    r->eof |= (what & BEV_EVENT_EOF) != 0 || cut;
    r->reset |= (what & BEV_EVENT_ERROR) != 0 && !cut;
    r->cut |= cut;
}

/* Each read ends a turn, so that RUN_UNTIL() sees what came. */
static inline void raw_on_read(struct bufferevent *bev, void *arg)
{
    (void)bev, (void)arg;
}

static inline void raw_take_bev(struct raw *r, struct event_base *base, struct bufferevent *bev)
{
    *r = (struct raw){.base = base, .bev = bev};
    ck_assert_ptr_nonnull(r->bev);
    bufferevent_setcb(r->bev, raw_on_read, NULL, raw_on_event, r);
    bufferevent_enable(r->bev, EV_READ | EV_WRITE);
}

static inline void raw_adopt(struct raw *r, struct event_base *base, int fd)
{
    raw_take_bev(r, base, bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE));
}

/* The client's end of a connection to a server. */
static inline void raw_dial(struct raw *r, struct event_base *base, int fd)
{
    SSL *ssl = kit_dial_tls ? tls_connect(kit_dial_tls, "localhost") : NULL;
    if (ssl)
        raw_take_bev(
            r, base,
            bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE));
    else
        raw_adopt(r, base, fd);
}

/* Over a socket pair: the server's end is taken as accept() would. */
static inline void raw_open(struct raw *r, struct http_server *s)
{
    int fd[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    server_take(s, fd[0]);
    raw_dial(r, s->base, fd[1]);
}

/* Over TCP to s->url. */
static inline void raw_open_tcp(struct raw *r, struct http_server *s)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(getsockname(s->listen_fd, (struct sockaddr *)&a, &n), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, n), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    raw_dial(r, s->base, fd);
}

static inline void raw_send(struct raw *r, const char *bytes, size_t n)
{
    ck_assert_int_eq(bufferevent_write(r->bev, bytes, n), 0);
}

static inline void raw_text(struct raw *r, const char *text)
{
    raw_send(r, text, strlen(text));
}

static inline size_t raw_n(const struct raw *r)
{
    return evbuffer_get_length(bufferevent_get_input(r->bev));
}

/* Says that no more will come; reads on. */
static inline void raw_shut(struct raw *r)
{
    if (kit_dial_tls)
        ck_assert_int_eq(SSL_shutdown(bufferevent_openssl_get_ssl(r->bev)), 0);
    else
        ck_assert_int_eq(shutdown(bufferevent_getfd(r->bev), SHUT_WR), 0);
}

static inline void raw_close(struct raw *r)
{
    bufferevent_free(r->bev);
    r->bev = NULL;
}

/* ---- answers ------------------------------------------------------------------------- */

struct answer {
    int status;
    struct evbuffer *body; /* owned */
    struct http_headers *headers;
};

static inline void answer_release(struct answer *a)
{
    if (a->body)
        evbuffer_free(a->body);
    http_headers_free(a->headers);
    *a = (struct answer){0};
}

static inline const char *answer_text(struct answer *a)
{
    ck_assert_int_eq(evbuffer_add(a->body, "", 1), 0);
    return (const char *)evbuffer_pullup(a->body, -1);
}

/* Takes one whole answer from what r has got. False: not yet. Runs the loop for nobody. */
static inline bool raw_take(struct raw *r, struct answer *a, bool to_head)
{
    struct http_parse p;
    struct lq_fault fault;
    struct evbuffer *in = evbuffer_new(), *from = bufferevent_get_input(r->bev);
    size_t n = evbuffer_get_length(from);
    *a = (struct answer){.body = evbuffer_new()};
    evbuffer_add(in, n ? evbuffer_pullup(from, -1) : (unsigned char *)"", n);
    http_parse_init(&p, false);
    p.to_head = to_head;
    ck_assert_msg(http_parse_head(&p, in, &fault) == LQ_OK, "%s", fault.text);
    if (p.head_done)
        ck_assert_msg(http_parse_body(&p, in, a->body, SIZE_MAX, &fault) == LQ_OK, "%s", fault.text);
    bool whole = p.head_done && (p.whole || (r->eof && http_parse_eof(&p)));
    if (whole) {
        a->status = p.status;
        a->headers = p.headers;
        p.headers = NULL;
        evbuffer_drain(from, n - evbuffer_get_length(in));
    } else {
        answer_release(a);
    }
    http_parse_release(&p);
    evbuffer_free(in);
    return whole;
}

static inline void raw_answer(struct raw *r, struct answer *a)
{
    RUN_UNTIL(r->base, raw_take(r, a, false));
}

#endif
