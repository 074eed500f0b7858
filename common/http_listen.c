/* http_listen: a server's listener: an address or a path, a limit of connections, and
 * patience when descriptors run out. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/http_impl.h"

enum { LISTEN_BACKLOG = 1024, EMFILE_PAUSE_MS = 100, SPARE_FILES = 64, LOG_INTERVAL_US = 10 * 1000000 };

/* ---- accept ---------------------------------------------------------------------- */

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int addr_n, void *arg)
{
    (void)addr, (void)addr_n;
    struct http_server *s = arg;
    unsigned long long held;
    server_take(s, (int)fd);
    if (s->conns_n < s->opts.connections_max)
        return;
    if (log_limit_pass(&s->full_log, LOG_INTERVAL_US, &held))
        log_warn("connections_full n=%zu before=%llu", s->conns_n, held);
    evconnlistener_disable(l); /* the rest waits in the backlog */
}

void listen_room(struct http_server *s)
{
    if (s->listener && s->conns_n + 1 == s->opts.connections_max)
        evconnlistener_enable(s->listener);
}

static void on_listen_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_server *s = arg;
    if (s->listener && s->conns_n < s->opts.connections_max)
        evconnlistener_enable(s->listener);
}

/* Out of descriptors, mostly: accepting again at once would spin. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    struct http_server *s = arg;
    int error = EVUTIL_SOCKET_ERROR();
    unsigned long long held;
    if (log_limit_pass(&s->accept_log, LOG_INTERVAL_US, &held))
        log_warn("accept_failed why=%s before=%llu", log_q(strerror(error)), held);
    evconnlistener_disable(l);
    struct timeval tv = {.tv_usec = EMFILE_PAUSE_MS * 1000};
    evtimer_add(s->resume_ev, &tv);
}

/* ---- open ------------------------------------------------------------------------- */

static uint32_t connections_by_files(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur > 1000000)
        return 1000000;
    return lim.rlim_cur > 2 * SPARE_FILES ? (uint32_t)lim.rlim_cur - SPARE_FILES : SPARE_FILES;
}

/* A socket that nobody listens on any more is removed; nothing else ever is. False:
 * the path is taken. */
static bool clear_path(int fd, const struct sockaddr_un *a)
{
    struct stat st;
    if (lstat(a->sun_path, &st) != 0)
        return true;
    if (!S_ISSOCK(st.st_mode) || connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 || errno != ECONNREFUSED) {
        errno = EADDRINUSE;
        return false;
    }
    return unlink(a->sun_path) == 0;
}

static int open_unix(struct http_server *s, const char *path, struct lq_fault *fault)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t path_n = strlen(path);
    if (path_n == 0 || path_n >= sizeof a.sun_path) {
        (void)lq_fail(fault, LQ_USAGE, "unix socket path is empty or over %zu bytes: %s", sizeof a.sun_path - 1,
                      path);
        return -1;
    }
    memcpy(a.sun_path, path, path_n);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && clear_path(fd, &a) && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (bound)
        s->unix_path = strdup(path); /* ours: removed at the end */
    if (!bound || listen(fd, LISTEN_BACKLOG) != 0) {
        (void)lq_fail(fault, LQ_IO, "cannot listen on unix:%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    snprintf(s->url, sizeof s->url, "unix:%s", path);
    return fd;
}

static int open_tcp(struct http_server *s, const char *host, int port, struct lq_fault *fault)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE},
                    *list = NULL;
    char text[16], name[128];
    snprintf(text, sizeof text, "%d", port);
    int e = getaddrinfo(host, text, &hints, &list);
    if (e) {
        (void)lq_fail(fault, LQ_IO, "cannot listen on host %s: %s", host, gai_strerror(e));
        return -1;
    }
    int one = 1, fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
              bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0;
    if (ok) {
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        ok = getsockname(fd, (struct sockaddr *)&a, &n) == 0 &&
             getnameinfo((struct sockaddr *)&a, n, name, sizeof name, text, sizeof text,
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0;
    }
    if (ok)
        snprintf(s->url, sizeof s->url, strchr(name, ':') ? "http://[%s]:%s" : "http://%s:%s", name, text);
    else
        (void)lq_fail(fault, LQ_IO, "cannot listen on %s port %d: %s", host, port, strerror(errno));
    freeaddrinfo(list);
    if (!ok && fd >= 0)
        close(fd);
    return ok ? fd : -1;
}

int listen_open(struct http_server *s, struct lq_fault *fault)
{
    const struct http_server_opts *o = &s->opts;
    return o->unix_path ? open_unix(s, o->unix_path, fault) : open_tcp(s, o->host, o->port, fault);
}

enum lq_err listen_start(struct http_server *s, int fd, struct lq_fault *fault)
{
    if (s->opts.connections_max == 0)
        s->opts.connections_max = connections_by_files();
    s->resume_ev = evtimer_new(s->base, on_listen_again, s);
    s->listener = evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!s->listener)
        close(fd);
    if (!s->listener || !s->resume_ev)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    return LQ_OK;
}

void listen_stop(struct http_server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    s->listener = NULL;
    if (s->unix_path)
        unlink(s->unix_path);
    free(s->unix_path);
    s->unix_path = NULL;
}
