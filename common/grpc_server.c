/* grpc_server: a listener and its methods. */
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/grpc_impl.h"

enum { BACKLOG = 1024, PAUSE_MS = 100, LOG_INTERVAL_US = 10 * 1000000 };

struct grpc_server {
    struct event_base *base;
    struct ssl_ctx_st *tls;
    struct grpc_limits limits;
    const struct grpc_method *methods;
    size_t methods_n;
    void *arg;
    struct evconnlistener *listener; /* NULL: draining */
    struct event *resume;            /* accepts again after descriptors had run out */
    struct grpc_conns conns;
    size_t conns_n, conns_max, streams_n;
    struct log_limit full_log, accept_log;
    int port;
    char address[300];
};

void grpc_server_opts_init(struct grpc_server_opts *o)
{
    *o = (struct grpc_server_opts){.host = "127.0.0.1",
                                   .connections_max = 16384,
                                   .message_max = 4 * 1024 * 1024,
                                   .unary_timeout_ms = 30000,
                                   .ping_interval_ms = 10000,
                                   .ping_timeout_ms = 20000,
                                   .hello_timeout_ms = 10000,
                                   .idle_timeout_ms = 300000};
}

/* ---- what connections and streams ask ----------------------------------------------------- */

const struct grpc_method *server_method(const struct grpc_server *s, const char *path, void **arg)
{
    for (size_t i = 0; i < s->methods_n; i++)
        if (strcmp(s->methods[i].path, path) == 0) {
            *arg = s->arg;
            return &s->methods[i];
        }
    return NULL;
}

void server_forget(struct grpc_server *s, struct grpc_conn *c)
{
    TAILQ_REMOVE(&s->conns, c, entry);
    s->streams_n -= c->streams_n; /* what they say of themselves later finds no server */
    if (s->conns_n-- == s->conns_max && s->listener)
        (void)evconnlistener_enable(s->listener);
}

void server_count_streams(struct grpc_server *s, int more)
{
    s->streams_n += (size_t)more;
}

/* ---- accept -------------------------------------------------------------------------------- */

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *a, int a_n, void *arg)
{
    struct grpc_server *s = arg;
    unsigned long long held;
    struct grpc_conn *c = conn_new(s->base, false, &s->limits);
    struct bufferevent *bev =
        !c       ? NULL
        : s->tls ? grpc_tls_accept(s->base, s->tls, (int)fd)
                 : bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!bev) {
        if (c)
            grpc_conn_close(c, GRPC_UNAVAILABLE, "out of memory");
        (void)close((int)fd);
        return;
    }
    c->server = s;
    TAILQ_INSERT_TAIL(&s->conns, c, entry);
    if (++s->conns_n == s->conns_max) {
        if (log_limit_pass(&s->full_log, LOG_INTERVAL_US, &held))
            log_warn("grpc_connections_full n=%zu before=%llu", s->conns_n, held);
        (void)evconnlistener_disable(listener); /* the rest waits in the backlog */
    }
    conn_set_peer(c, a, (socklen_t)a_n);
    conn_open(c, bev, s->tls != NULL);
}

/* Out of descriptors, mostly: accepting again at once would spin. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct grpc_server *s = arg;
    static const struct timeval pause = {.tv_usec = PAUSE_MS * 1000};
    unsigned long long held;
    if (log_limit_pass(&s->accept_log, LOG_INTERVAL_US, &held))
        log_warn("grpc_accept_failed why=%s before=%llu", log_q(strerror(errno)), held);
    (void)evconnlistener_disable(listener);
    (void)evtimer_add(s->resume, &pause);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct grpc_server *s = arg;
    if (s->listener && s->conns_n < s->conns_max)
        (void)evconnlistener_enable(s->listener);
}

/* ---- life ----------------------------------------------------------------------------------- */

/* A bound socket, -1: fault says why. */
static int bind_tcp(struct grpc_server *s, const char *host, int port, struct lq_fault *fault)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE},
                    *list = NULL;
    struct sockaddr_storage a;
    socklen_t a_n = sizeof a;
    char text[16], name[128];
    snprintf(text, sizeof text, "%d", port);
    int one = 1, fd, e = getaddrinfo(host, text, &hints, &list);
    if (e) {
        (void)lq_fail(fault, LQ_IO, "cannot listen on host %s: %s", host, gai_strerror(e));
        return -1;
    }
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
              bind(fd, list->ai_addr, list->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&a, &a_n) == 0 &&
              getnameinfo((struct sockaddr *)&a, a_n, name, sizeof name, text, sizeof text,
                          NI_NUMERICHOST | NI_NUMERICSERV) == 0;
    if (!ok)
        (void)lq_fail(fault, LQ_IO, "cannot listen on %s port %d: %s", host, port, strerror(errno));
    freeaddrinfo(list);
    if (!ok && fd >= 0)
        (void)close(fd);
    if (!ok)
        return -1;
    s->port = atoi(text);
    snprintf(s->address, sizeof s->address, strchr(name, ':') ? "[%s]:%s" : "%s:%s", name, text);
    return fd;
}

static size_t conns_limit(uint32_t wanted)
{
    struct rlimit lim;
    size_t files = getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < SIZE_MAX ? (size_t)lim.rlim_cur : SIZE_MAX;
    size_t n = wanted < files / 2 ? wanted : files / 2;
    return n ? n : 1;
}

enum lq_err grpc_server_new(struct event_base *base, const struct grpc_server_opts *o,
                            const struct grpc_method *methods, size_t methods_n, void *arg, struct grpc_server **out,
                            struct lq_fault *fault)
{
    struct lq_fault here;
    struct grpc_server *s = calloc(1, sizeof *s);
    if (!fault)
        fault = &here;
    if (!s)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    TAILQ_INIT(&s->conns);
    s->base = base;
    s->methods = methods;
    s->methods_n = methods_n;
    s->arg = arg;
    s->conns_max = conns_limit(o->connections_max);
    s->limits = (struct grpc_limits){.message_max = o->message_max,
                                     .unary_timeout_ms = o->unary_timeout_ms,
                                     .ping_interval_ms = o->ping_interval_ms,
                                     .ping_timeout_ms = o->ping_timeout_ms,
                                     .hello_timeout_ms = o->hello_timeout_ms,
                                     .idle_timeout_ms = o->idle_timeout_ms};
    if (o->tls) {
        grpc_tls_ctx_ref(s->tls = o->tls);
        grpc_tls_choose_h2(s->tls);
    }
    enum lq_err rc = LQ_OK;
    int fd = bind_tcp(s, o->host, o->port, fault);
    if (fd < 0) {
        rc = fault->code;
    } else if (!(s->listener = evconnlistener_new(base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC,
                                                  BACKLOG, fd))) {
        (void)close(fd);
        rc = lq_fail(fault, LQ_IO, "cannot listen on %s: %s", s->address, strerror(errno));
    } else if (!(s->resume = evtimer_new(base, on_resume, s))) {
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    }
    if (rc) {
        grpc_server_free(s);
        return rc;
    }
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    *out = s;
    return LQ_OK;
}

int grpc_server_port(const struct grpc_server *s)
{
    return s->port;
}

const char *grpc_server_address(const struct grpc_server *s)
{
    return s->address;
}

size_t grpc_server_connections_n(const struct grpc_server *s)
{
    return s->conns_n;
}

size_t grpc_server_streams_n(const struct grpc_server *s)
{
    return s->streams_n;
}

static void stop_listening(struct grpc_server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    s->listener = NULL;
}

void grpc_server_drain(struct grpc_server *s)
{
    struct grpc_conn *c, *next;
    stop_listening(s);
    for (c = TAILQ_FIRST(&s->conns); c;
         c = next) { /* those that are not up yet leave the list; they have no streams */
        next = TAILQ_NEXT(c, entry);
        conn_drain(c);
    }
}

void grpc_server_free(struct grpc_server *s)
{
    struct grpc_conn *c;
    if (!s)
        return;
    stop_listening(s);
    while ((c = TAILQ_FIRST(&s->conns))) /* a callback may open nothing new here */
        grpc_conn_close(c, GRPC_UNAVAILABLE, "the server stops");
    if (s->resume)
        event_free(s->resume);
    grpc_tls_ctx_unref(s->tls);
    free(s);
}
