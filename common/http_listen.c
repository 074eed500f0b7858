/* http_listen: a server's listener: an address or a path, a limit of connections, and
 * patience when descriptors run out. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/http_impl.h"

enum { LISTEN_BACKLOG = 1024, EMFILE_PAUSE_MS = 100, SPARE_FILES = 64, LOG_INTERVAL_US = 10 * 1000000 };

/* ---- accept ---------------------------------------------------------------------- */

static bool has_room(const struct http_server *s)
{
    return s->conns_n < s->opts.connections_max;
}

/* The loop that took a connection goes to the end of those that wait for the next. */
static void let_others_go_first(const struct http_server *s)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE};
    (void)epoll_ctl(s->share_fd, EPOLL_CTL_DEL, s->listen_fd, &e);
    if (epoll_ctl(s->share_fd, EPOLL_CTL_ADD, s->listen_fd, &e) != 0)
        log_error("listen_lost why=%s", log_q(strerror(errno)));
}

static void pause_after_error(struct http_server *s, int error)
{
    unsigned long long held;
    server_refused(s, HTTP_REFUSED_CONNECTIONS);
    if (log_limit_pass(&s->accept_log, LOG_INTERVAL_US, &held))
        log_warn("accept_failed why=%s before=%llu", log_q(strerror(error)), held);
    event_del(s->accept_ev); /* out of descriptors, mostly: accepting again at once would spin */
    struct timeval tv = {.tv_usec = EMFILE_PAUSE_MS * 1000};
    evtimer_add(s->resume_ev, &tv);
}

/* All that wait; of a shared listener one, the rest is for the other loops too. */
static void on_acceptable(evutil_socket_t ready, short what, void *arg)
{
    (void)ready, (void)what;
    struct http_server *s = arg;
    unsigned long long held;
    do {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            return;
        if (fd < 0) {
            pause_after_error(s, errno);
            return;
        }
        server_take(s, fd);
    } while (s->share_fd < 0 && has_room(s));
    if (s->share_fd >= 0)
        let_others_go_first(s);
    if (has_room(s))
        return;
    server_refused(s, HTTP_REFUSED_CONNECTIONS);
    if (log_limit_pass(&s->full_log, LOG_INTERVAL_US, &held))
        log_warn("connections_full n=%zu before=%llu", s->conns_n, held);
    event_del(s->accept_ev); /* the rest waits in the backlog */
}

static void listen_again(struct http_server *s)
{
    if (s->accept_ev && has_room(s) && event_add(s->accept_ev, NULL) != 0)
        pause_after_error(s, ENOMEM);
}

void listen_room(struct http_server *s)
{
    if (s->conns_n + 1 == s->opts.connections_max)
        listen_again(s);
}

static void on_listen_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    listen_again(arg);
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
        snprintf(s->url, sizeof s->url, strchr(name, ':') ? "%s://[%s]:%s" : "%s://%s:%s", s->tls ? "https" : "http",
                 name, text);
    else
        (void)lq_fail(fault, LQ_IO, "cannot listen on %s port %d: %s", host, port, strerror(errno));
    freeaddrinfo(list);
    if (!ok && fd >= 0)
        close(fd);
    return ok ? fd : -1;
}

/* A descriptor of our own for the socket of another loop's server. */
static int open_shared(struct http_server *s, struct lq_fault *fault)
{
    int fd = fcntl(s->opts.shared->listen_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        (void)lq_fail(fault, LQ_IO, "cannot listen on %s: %s", s->opts.shared->url, strerror(errno));
    snprintf(s->url, sizeof s->url, "%s", s->opts.shared->url);
    return fd;
}

int listen_open(struct http_server *s, struct lq_fault *fault)
{
    const struct http_server_opts *o = &s->opts;
    return o->shared      ? open_shared(s, fault)
           : o->unix_path ? open_unix(s, o->unix_path, fault)
                          : open_tcp(s, o->host, o->port, fault);
}

enum lq_err listen_start(struct http_server *s, int fd, struct lq_fault *fault)
{
    uint32_t loops_n = s->opts.loops_n ? s->opts.loops_n : 1;
    s->listen_fd = fd;
    if (s->opts.connections_max == 0)
        s->opts.connections_max = connections_by_files();
    s->opts.connections_max /= loops_n;
    if (s->opts.connections_max == 0)
        s->opts.connections_max = 1;
    if (loops_n > 1) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE};
        s->share_fd = epoll_create1(EPOLL_CLOEXEC);
        if (s->share_fd < 0 || epoll_ctl(s->share_fd, EPOLL_CTL_ADD, fd, &e) != 0)
            return lq_fail(fault, LQ_IO, "cannot share the listener %s: %s", s->url, strerror(errno));
    }
    s->resume_ev = evtimer_new(s->base, on_listen_again, s);
    s->accept_ev = event_new(s->base, loops_n > 1 ? s->share_fd : fd, EV_READ | EV_PERSIST, on_acceptable, s);
    if (!s->resume_ev || !s->accept_ev || event_add(s->accept_ev, NULL) != 0)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    return LQ_OK;
}

void listen_stop(struct http_server *s)
{
    if (s->accept_ev)
        event_free(s->accept_ev);
    s->accept_ev = NULL;
    if (s->share_fd >= 0)
        close(s->share_fd);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    s->listen_fd = s->share_fd = -1;
    if (s->unix_path)
        unlink(s->unix_path);
    free(s->unix_path);
    s->unix_path = NULL;
}
