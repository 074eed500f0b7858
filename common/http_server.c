/* http_server: the listener and its connections; what handlers call is in http_req.c.
 *
 *   CONN_IDLE -> CONN_HEAD -> CONN_OPEN -> CONN_FLUSH -> CONN_IDLE        keep-alive
 *        |            |           |            `------> CONN_LINGER -> CONN_DEAD
 *        `------------+-----------+--------------------------------------^  (EOF, errors)
 *
 * conn_run() is the machine; everything else only changes what it looks at. */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http_impl.h"
#include "common/log.h"
#include "proto/wire_json.h"

enum { LISTEN_BACKLOG = 1024, EMFILE_PAUSE_MS = 100, SPARE_FILES = 64 };

/* ---- a connection's life ------------------------------------------------------- */

static void conn_free(struct conn *c)
{
    struct http_server *s = c->server;
    assert(!c->req);
    if (c->prev)
        c->prev->next = c->next;
    else
        s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->conns_n--;
    http_parse_release(&c->parse);
    io_release(&c->io);
    free(c);
    if (s->listener && !s->draining && s->conns_n == s->opts.connections_max - 1u)
        evconnlistener_enable(s->listener);
}

/* Closes now; the memory goes after this turn. An open request learns that it is gone. */
void conn_close(struct conn *c)
{
    struct http_req *r = c->req;
    if (c->state == CONN_DEAD)
        return;
    c->state = CONN_DEAD;
    c->req = NULL;
    if (r) {
        if (r->on_gone)
            r->on_gone(r, r->gone_arg);
        req_free(r);
    }
    io_kill(&c->io);
}

static void linger(struct conn *c)
{
    c->state = CONN_LINGER;
    io_shut_write(&c->io);
    io_arm(&c->io, HTTP_LINGER_MS);
}

void conn_answered(struct conn *c)
{
    struct http_req *r = c->req;
    if (r) {
        c->keep_alive &= c->parse.whole; /* unread body bytes would be taken for the next request */
        c->req = NULL;
        req_free(r);
    }
    c->state = CONN_FLUSH;
    io_low_water(&c->io, 0);
    if (io_output_n(&c->io) > 0)
        io_arm(&c->io, c->server->opts.body_timeout_ms);
    if (!c->running)
        io_kick(&c->io);
}

void conn_refuse(struct conn *c, const struct lq_fault *fault)
{
    char id[HTTP_ID_CHARS + 1];
    size_t n = 0;
    req_make_id(id);
    struct evbuffer *out = evbuffer_new();
    struct http_headers *h = http_headers_new();
    char *text = wire_json_error(fault->text, id, &n);
    if (out && h && text && http_headers_add(h, "Content-Type", "application/json")) {
        req_write_head(c->server, lq_err_status(fault->code), h, n, false, false, false, id, out);
        evbuffer_add(out, text, n);
        io_send(&c->io, out);
    }
    free(text);
    http_headers_free(h);
    if (out)
        evbuffer_free(out);
    c->keep_alive = false;
    conn_answered(c);
}

/* ---- the machine ------------------------------------------------------------------ */

static enum lq_err req_new(struct conn *c, struct lq_fault *fault)
{
    struct http_parse *p = &c->parse;
    struct http_req *r = calloc(1, sizeof *r);
    if (!r || !(r->in = evbuffer_new()))
        goto nomem;
    r->conn = c;
    r->start_us = clock_us();
    r->limit = UINT64_MAX;
    /* RFC 9112, 3.2.2: a server takes the absolute form too. */
    const char *target = p->target ? p->target : "", *scheme = strstr(target, "://"), *slash = target;
    if (*target != '/' && scheme)
        slash = strchr(scheme + 3, '/') ? strchr(scheme + 3, '/') : "/";
    if (!(r->path = strdup(slash)))
        goto nomem;
    r->query = strchr(r->path, '?');
    if (r->query)
        *r->query++ = '\0';
    const char *id = http_headers_get(p->headers, "X-Request-Id");
    size_t n = id ? strlen(id) : 0;
    if (n > 0 && n <= HTTP_ID_CHARS &&
        strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n)
        memcpy(r->id, id, n + 1);
    else
        req_make_id(r->id);
    c->req = r;
    return LQ_OK;
nomem:
    if (r)
        req_free(r);
    return lq_fail(fault, LQ_NOMEM, "out of memory for a request");
}

/* True: a request was begun, or refused. */
static bool step_head(struct conn *c)
{
    struct lq_fault fault;
    struct http_server *s = c->server;
    if (c->state == CONN_IDLE) {
        if (evbuffer_get_length(io_input(&c->io)) == 0)
            return false;
        c->state = CONN_HEAD;
        io_arm(&c->io, s->opts.header_timeout_ms);
    }
    enum lq_err rc = http_parse_head(&c->parse, io_input(&c->io), &fault);
    if (!rc && !c->parse.head_done)
        return false;
    if (!rc)
        rc = req_new(c, &fault);
    if (rc) {
        conn_refuse(c, &fault);
        return true;
    }
    c->state = CONN_OPEN;
    c->keep_alive = c->parse.keep_alive;
    io_disarm(&c->io);
    s->on_request(c->req, s->arg);
    return true;
}

/* The server answers in the handler's place, which learns that its request is gone. */
static void req_refuse(struct conn *c, const struct lq_fault *fault)
{
    struct http_req *r = c->req;
    if (r->started) { /* too late for another answer */
        conn_close(c);
        return;
    }
    c->req = NULL;
    if (r->on_gone)
        r->on_gone(r, r->gone_arg);
    req_free(r);
    conn_refuse(c, fault);
}

/* Moves body bytes to the handler. True: something moved. */
static bool step_body(struct conn *c)
{
    struct http_req *r = c->req;
    struct lq_fault fault;
    size_t before = evbuffer_get_length(r->in), room = SIZE_MAX;
    if (!r->reading || r->ended)
        return false;
    if (r->on_data)
        room = before < HTTP_HIGH_WATER_BYTES ? HTTP_HIGH_WATER_BYTES - before : 0;
    uint64_t had = c->parse.body_n;
    enum lq_err rc = room ? http_parse_body(&c->parse, io_input(&c->io), r->in, room, &fault) : LQ_OK;
    bool moved = c->parse.body_n != had;
    if (rc) {
        req_refuse(c, &fault);
        return true;
    }
    if (c->parse.whole) {
        r->ended = true;
        io_disarm(&c->io);
        r->on_end(r, r->in, r->body_arg);
        return true;
    }
    if (moved || room == 0)
        io_arm(&c->io, c->server->opts.body_timeout_ms);
    if (room == 0)
        io_disarm(&c->io); /* it is the taker who is slow */
    if (moved && r->on_data && !r->blocked) {
        r->on_data(r, r->in, r->body_arg);
        if (c->req == r)
            r->blocked = evbuffer_get_length(r->in) >= HTTP_HIGH_WATER_BYTES;
    }
    return moved;
}

/* The answer is out. True: on to the next request. */
static bool step_flush(struct conn *c)
{
    if (io_output_n(&c->io) > 0)
        return false;
    if (!c->keep_alive || c->server->draining) {
        linger(c);
        return true;
    }
    http_parse_reset(&c->parse);
    c->state = CONN_IDLE;
    io_arm(&c->io, c->server->opts.idle_timeout_ms);
    return true;
}

void conn_run(struct conn *c)
{
    if (c->running)
        return;
    c->running = true;
    for (bool again = true; again;) {
        switch (c->state) {
        case CONN_IDLE:
        case CONN_HEAD:
            again = step_head(c);
            break;
        case CONN_OPEN:
            again = step_body(c);
            break;
        case CONN_FLUSH:
            again = step_flush(c);
            break;
        case CONN_LINGER:
            evbuffer_drain(io_input(&c->io), evbuffer_get_length(io_input(&c->io)));
            again = false;
            break;
        case CONN_DEAD:
            again = false;
            break;
        }
    }
    c->running = false;
}

/* ---- doors ---------------------------------------------------------------------------- */

static void on_bytes(struct http_io *io)
{
    conn_run((struct conn *)io);
}

static void on_drained(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    if (c->state == CONN_OPEN && c->req->started && c->req->on_room) {
        io_disarm(&c->io);
        c->req->on_room(c->req, c->req->room_arg);
    }
    conn_run(c);
}

static void on_event(struct http_io *io, short what)
{
    (void)what; /* EOF or error: with a request open it is gone; a half-close counts as one */
    conn_close((struct conn *)io);
}

static void on_timeout(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    struct lq_fault fault;
    struct http_req *r = c->req;
    if (c->state == CONN_HEAD) {
        (void)lq_fail(&fault, LQ_SLOW_REQUEST, "the header was not whole after %u ms", c->server->opts.header_timeout_ms);
        conn_refuse(c, &fault);
    } else if (c->state == CONN_OPEN && r->reading && !r->ended && !r->started) {
        (void)lq_fail(&fault, LQ_SLOW_REQUEST, "no byte of the body for %u ms", c->server->opts.body_timeout_ms);
        req_refuse(c, &fault);
    } else {
        conn_close(c); /* idle, an answer that nobody reads, or the end of lingering */
    }
}

static void on_kick(struct http_io *io)
{
    struct conn *c = (struct conn *)io;
    if (c->state == CONN_DEAD)
        conn_free(c);
    else
        conn_run(c);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int addr_n, void *arg)
{
    static const struct http_io_ops ops = {on_bytes, on_drained, on_event, on_timeout, on_kick};
    (void)addr, (void)addr_n;
    struct http_server *s = arg;
    struct conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->server = s;
    http_parse_init(&c->parse, true);
    if (io_init(&c->io, s->base, fd, false, &ops) != LQ_OK) {
        free(c);
        return;
    }
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    if (++s->conns_n >= s->opts.connections_max) {
        log_warn("connections_full n=%zu", s->conns_n);
        evconnlistener_disable(l); /* the rest waits in the backlog */
    }
    io_arm(&c->io, s->opts.idle_timeout_ms);
}

static void on_listen_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_server *s = arg;
    if (s->listener && !s->draining && s->conns_n < s->opts.connections_max)
        evconnlistener_enable(s->listener);
}

/* Out of descriptors, mostly: accepting again at once would spin. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    struct http_server *s = arg;
    log_warn("accept_failed why=%s", log_q(io_error()));
    evconnlistener_disable(l);
    struct timeval tv = {.tv_usec = EMFILE_PAUSE_MS * 1000};
    evtimer_add(s->resume_ev, &tv);
}

/* ---- the listener ------------------------------------------------------------------------ */

void http_server_opts_init(struct http_server_opts *o)
{
    *o = (struct http_server_opts){.host = "127.0.0.1",
                                   .header_timeout_ms = 10000,
                                   .body_timeout_ms = 30000,
                                   .idle_timeout_ms = 75000,
                                   .server_name = "larql"};
}

static uint32_t connections_by_files(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur > 1000000)
        return 1000000;
    return lim.rlim_cur > 2 * SPARE_FILES ? (uint32_t)lim.rlim_cur - SPARE_FILES : SPARE_FILES;
}

static int listen_unix(struct http_server *s, const char *path, struct lq_fault *fault)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path) {
        (void)lq_fail(fault, LQ_USAGE, "unix socket path is over %zu bytes: %s", sizeof a.sun_path - 1, path);
        return -1;
    }
    strcpy(a.sun_path, path); /* fits: checked above */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) != 0 && errno == ECONNREFUSED)
        unlink(path); /* left by one that died; a live one would have answered */
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        (void)lq_fail(fault, LQ_IO, "cannot listen on unix:%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    s->unix_path = strdup(path);
    snprintf(s->url, sizeof s->url, "unix:%s", path);
    return fd;
}

static int listen_tcp(struct http_server *s, const char *host, int port, struct lq_fault *fault)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
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

enum lq_err http_server_new(struct event_base *base, const struct http_server_opts *o, http_on_request on_request,
                            void *arg, struct http_server **out, struct lq_fault *fault)
{
    struct http_server *s = calloc(1, sizeof *s);
    if (!s)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a server");
    s->base = base;
    s->opts = *o;
    s->on_request = on_request;
    s->arg = arg;
    s->server_name = strdup(o->server_name);
    s->resume_ev = evtimer_new(base, on_listen_again, s);
    if (s->opts.connections_max == 0)
        s->opts.connections_max = connections_by_files();
    int fd = o->unix_path ? listen_unix(s, o->unix_path, fault) : listen_tcp(s, o->host, o->port, fault);
    enum lq_err rc = fd < 0 ? (fault ? fault->code : LQ_IO) : LQ_OK;
    if (!rc) {
        s->listener = evconnlistener_new(base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
        if (!s->listener || !s->server_name || !s->resume_ev) {
            if (!s->listener)
                close(fd);
            rc = lq_fail(fault, LQ_NOMEM, "out of memory for a server");
        } else {
            evconnlistener_set_error_cb(s->listener, on_accept_error);
        }
    }
    if (rc) {
        http_server_free(s);
        return rc;
    }
    *out = s;
    return LQ_OK;
}

const char *http_server_url(const struct http_server *s)
{
    return s->url;
}

size_t http_server_connections_n(const struct http_server *s)
{
    return s->conns_n;
}

static void stop_listening(struct http_server *s)
{
    if (s->listener)
        evconnlistener_free(s->listener);
    s->listener = NULL;
    if (s->unix_path)
        unlink(s->unix_path);
}

void http_server_drain(struct http_server *s)
{
    s->draining = true;
    stop_listening(s);
    for (struct conn *c = s->conns; c; c = c->next) /* closing only marks: the list stays */
        if (c->state == CONN_IDLE)
            conn_close(c);
}

void http_server_free(struct http_server *s)
{
    if (!s)
        return;
    s->draining = true;
    stop_listening(s);
    while (s->conns) {
        conn_close(s->conns);
        conn_free(s->conns);
    }
    if (s->resume_ev)
        event_free(s->resume_ev);
    free(s->unix_path);
    free(s->server_name);
    free(s);
}
