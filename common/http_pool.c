/* http_pool: the connections to one origin: resolve, connect, keep, share out. */
#include <errno.h>
#include <event2/dns.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/http_pool_impl.h"

void http_pool_opts_init(struct http_pool_opts *o)
{
    *o = (struct http_pool_opts){
        .connect_timeout_ms = 1000, .idle_timeout_ms = 60000, .inflight_max = 64, .idle_max = 64};
}

/* ---- url ------------------------------------------------------------------------------ */

/* host[:port] or [v6][:port] after the scheme; no path, no user. */
static enum lq_err read_authority(struct http_pool *p, const char *s, size_t n, struct lq_fault *fault)
{
    const char *close = n && *s == '[' ? memchr(s, ']', n) : NULL, *host = close ? s + 1 : s;
    size_t host_n = close ? (size_t)(close - host) : strcspn(s, ":/");
    const char *rest = close ? close + 1 : s + host_n, *end = s + n;
    const char *port = rest < end && *rest == ':' ? rest + 1 : "80";
    size_t port_n = port == rest + 1 ? (size_t)(end - port) : 2;
    long number = strtol(port, NULL, 10);
    if (host_n == 0 || host_n > 255 || (port != rest + 1 && rest != end) || port_n == 0 || port_n > 5 ||
        strspn(port, "0123456789") < port_n || number < 1 || number > 65535)
        return lq_fail(fault, LQ_USAGE, "cannot read URL '%s': expected http://HOST[:PORT] or unix:/path", p->url);
    char text[600];
    snprintf(text, sizeof text, close ? "[%.*s]:%.*s" : "%.*s:%.*s", (int)host_n, host, (int)port_n, port);
    p->host = strndup(host, host_n);
    p->port = strndup(port, port_n);
    p->host_header = strdup(text);
    return p->host && p->port && p->host_header ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory");
}

static enum lq_err read_url(struct http_pool *p, const char *url, struct lq_fault *fault)
{
    size_t n = strlen(url);
    while (n > 1 && url[n - 1] == '/')
        n--;
    if (!(p->url = strndup(url, n)))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    if (strncasecmp(p->url, "unix:", 5) == 0) {
        struct sockaddr_un a;
        const char *path = p->url + 5;
        if (*path != '/' || strlen(path) >= sizeof a.sun_path)
            return lq_fail(fault, LQ_USAGE, "cannot read URL '%s': expected unix:/path of at most %zu bytes", p->url,
                           sizeof a.sun_path - 1);
        p->unix_path = strdup(path);
        p->host_header = strdup("localhost");
        return p->unix_path && p->host_header ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory");
    }
    if (strncasecmp(p->url, "https:", 6) == 0)
        return lq_fail(fault, LQ_USAGE, "URL '%s': TLS is not built in yet: use http:// inside a trusted network", p->url);
    if (strncasecmp(p->url, "http://", 7) != 0)
        return lq_fail(fault, LQ_USAGE, "cannot read URL '%s': expected http://HOST[:PORT] or unix:/path", p->url);
    return read_authority(p, p->url + 7, n - 7, fault);
}

enum lq_err http_pool_new(struct event_base *base, const char *url, const struct http_pool_opts *o,
                          struct http_pool **out, struct lq_fault *fault)
{
    struct http_pool *p = calloc(1, sizeof *p);
    if (!p)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    p->base = base;
    p->opts = *o;
    TAILQ_INIT(&p->wires);
    TAILQ_INIT(&p->waiting);
    TAILQ_INIT(&p->calls_failing);
    enum lq_err rc = read_url(p, url, fault);
    if (rc)
        http_pool_free(p);
    else
        *out = p;
    return rc;
}

const char *http_pool_url(const struct http_pool *p)
{
    return p->url;
}

uint32_t http_pool_inflight_n(const struct http_pool *p)
{
    return p->inflight_n;
}

/* ---- connections ------------------------------------------------------------------------- */

static void wire_free(struct wire *w)
{
    TAILQ_REMOVE(&w->pool->wires, w, entry);
    http_parse_release(&w->parse);
    io_release(&w->io);
    free(w);
}

/* Closes now; the memory goes after this turn. */
static void wire_kill(struct wire *w)
{
    if (w->state == WIRE_DEAD)
        return;
    if (w->state == WIRE_IDLE)
        w->pool->idle_n--;
    w->state = WIRE_DEAD;
    io_kill(&w->io);
}

void wire_done(struct wire *w, bool keep)
{
    struct http_pool *p = w->pool;
    w->call = NULL;
    p->inflight_n--;
    if (keep && w->state == WIRE_BUSY && p->idle_n < p->opts.idle_max && evbuffer_get_length(io_input(&w->io)) == 0) {
        http_parse_reset(&w->parse);
        w->state = WIRE_IDLE;
        w->reused = true;
        p->idle_n++;
        io_low_water(&w->io, 0);
        io_arm(&w->io, p->opts.idle_timeout_ms);
    } else {
        wire_kill(w);
    }
}

static void on_bytes(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->state == WIRE_BUSY)
        call_run(w->call);
    else
        wire_kill(w); /* bytes that nobody asked for */
}

static void on_drained(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->state == WIRE_BUSY)
        call_room(w->call);
}

static void on_event(struct http_io *io, short what)
{
    struct wire *w = (struct wire *)io;
    const char *why = what & BEV_EVENT_EOF ? "connection closed" : io_error();
    if (what & BEV_EVENT_CONNECTED) {
        w->state = WIRE_BUSY;
        io_disarm(&w->io);
        call_connected(w->call);
    } else if (w->call) {
        call_eof(w->call, why);
    } else {
        wire_kill(w);
    }
}

static void on_timeout(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->call) {
        char why[64];
        snprintf(why, sizeof why, "no connection within %u ms", w->pool->opts.connect_timeout_ms);
        call_eof(w->call, why);
    } else {
        wire_kill(w);
    }
}

static void on_kick(struct http_io *io)
{
    struct wire *w = (struct wire *)io;
    if (w->state == WIRE_DEAD)
        wire_free(w);
    else if (w->state == WIRE_BUSY)
        call_run(w->call);
}

/* Opens a connection for c to one address; a failure at once ends c after this turn. */
static void connect_to(struct http_pool *p, struct http_call *c, const struct sockaddr *a, socklen_t a_n)
{
    static const struct http_io_ops ops = {on_bytes, on_drained, on_event, on_timeout, on_kick};
    struct wire *w = calloc(1, sizeof *w);
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (!w || fd < 0) {
        call_fail_later(c, w ? LQ_SHARD_DOWN : LQ_NOMEM, w ? "no socket: %s" : "out of memory%s", w ? strerror(errno) : "");
        if (fd >= 0)
            close(fd);
        free(w);
        return;
    }
    bool done = connect(fd, a, a_n) == 0;
    if (!done && errno != EINPROGRESS) {
        call_fail_later(c, LQ_SHARD_DOWN, "%s", io_error());
        close(fd);
        free(w);
        return;
    }
    if (io_init(&w->io, p->base, fd, !done, &ops) != LQ_OK) {
        call_fail_later(c, LQ_NOMEM, "out of memory");
        free(w);
        return;
    }
    w->pool = p;
    http_parse_init(&w->parse, false);
    TAILQ_INSERT_TAIL(&p->wires, w, entry);
    w->call = c;
    c->wire = w;
    p->inflight_n++;
    w->state = done ? WIRE_BUSY : WIRE_CONNECTING;
    if (done)
        call_connected(c);
    else
        io_arm(&w->io, p->opts.connect_timeout_ms);
}

static void on_resolved(int err, struct evutil_addrinfo *list, void *arg)
{
    struct http_pool *p = arg;
    /* Calls that wait while nobody is in flight wait for this. */
    struct http_call *c = TAILQ_FIRST(&p->waiting);
    if (c) {
        TAILQ_REMOVE(&p->waiting, c, entry);
        c->waiting = false;
        if (err)
            call_fail_later(c, LQ_SHARD_DOWN, "cannot resolve %s: %s", p->host, evutil_gai_strerror(err));
        else
            connect_to(p, c, list->ai_addr, (socklen_t)list->ai_addrlen);
    }
    if (list)
        evutil_freeaddrinfo(list);
}

static void wait_in_line(struct http_pool *p, struct http_call *c)
{
    TAILQ_INSERT_TAIL(&p->waiting, c, entry);
    c->waiting = true;
}

static void open_for(struct http_pool *p, struct http_call *c)
{
    if (p->unix_path) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        memcpy(a.sun_path, p->unix_path, strlen(p->unix_path)); /* fits: checked with the URL */
        connect_to(p, c, (struct sockaddr *)&a, sizeof a);
        return;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *list = NULL;
    if (getaddrinfo(p->host, p->port, &hints, &list) == 0) { /* an address: no look-up */
        connect_to(p, c, list->ai_addr, list->ai_addrlen);
        freeaddrinfo(list);
        return;
    }
    if (!p->dns)
        p->dns = evdns_base_new(p->base, EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!p->dns && (p->dns = evdns_base_new(p->base, 0))) /* no resolv.conf: the hosts file alone */
        (void)evdns_base_load_hosts(p->dns, NULL);
    if (!p->dns) {
        call_fail_later(c, LQ_NOMEM, "out of memory for a resolver");
        return;
    }
    struct evutil_addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP};
    wait_in_line(p, c);
    (void)evdns_getaddrinfo(p->dns, p->host, p->port, &want, on_resolved, p);
}

void pool_assign(struct http_pool *p, struct http_call *c, bool fresh)
{
    struct wire *w = NULL;
    if (p->inflight_n >= p->opts.inflight_max) {
        wait_in_line(p, c);
        return;
    }
    if (!fresh && p->idle_n > 0)
        TAILQ_FOREACH_REVERSE(w, &p->wires, wire_list, entry)
            if (w->state == WIRE_IDLE)
                break;
    if (!w) {
        open_for(p, c);
        return;
    }
    p->idle_n--;
    p->inflight_n++;
    w->state = WIRE_BUSY;
    w->call = c;
    c->wire = w;
    io_disarm(&w->io);
    call_connected(c);
}

/* A slot is free: the oldest that waits takes it. */
void pool_next(struct http_pool *p)
{
    struct http_call *c = TAILQ_FIRST(&p->waiting);
    if (!c || p->inflight_n >= p->opts.inflight_max)
        return;
    TAILQ_REMOVE(&p->waiting, c, entry);
    c->waiting = false;
    pool_assign(p, c, false);
}

void http_pool_free(struct http_pool *p)
{
    struct http_call *c;
    struct wire *w;
    if (!p)
        return;
    p->opts.inflight_max = 0; /* nothing starts any more */
    while ((c = TAILQ_FIRST(&p->waiting)) || (c = TAILQ_FIRST(&p->calls_failing))) {
        (void)lq_fail(&c->fault, LQ_CANCELLED, "the pool was closed");
        call_end(c, LQ_CANCELLED);
    }
    while ((w = TAILQ_FIRST(&p->wires))) {
        if ((c = w->call)) {
            (void)lq_fail(&c->fault, LQ_CANCELLED, "the pool was closed");
            call_end(c, LQ_CANCELLED);
        }
        wire_free(w);
    }
    if (p->dns)
        evdns_base_free(p->dns, 0);
    free(p->url);
    free(p->host);
    free(p->port);
    free(p->unix_path);
    free(p->host_header);
    free(p);
}
