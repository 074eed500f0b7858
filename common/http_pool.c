/* http_pool: one origin: its URL, and who may use its connections. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "common/http_pool_impl.h"
#include "common/resolve.h"
#include "common/log.h"

void http_pool_opts_init(struct http_pool_opts *o)
{
    *o = (struct http_pool_opts){
        .connect_timeout_ms = 1000, .idle_timeout_ms = 60000, .inflight_max = 64, .idle_max = 64};
}

/* ---- url ------------------------------------------------------------------------------ */

static enum lq_err bad_url(const struct http_pool *p, struct lq_fault *fault)
{
    return lq_fail(fault, LQ_USAGE,
                   "cannot read URL '%s': expected http://HOST[:PORT], https://HOST[:PORT] or unix:/path", p->url);
}

/* host[:port] or [v6][:port]; no path, no user. */
static enum lq_err read_authority(struct http_pool *p, const char *s, const char *port_otherwise,
                                  struct lq_fault *fault)
{
    const char *close = *s == '[' ? strchr(s, ']') : NULL, *host = close ? s + 1 : s;
    size_t host_n = close ? (size_t)(close - host) : strcspn(s, ":/");
    const char *rest = close ? close + 1 : s + host_n, *port = *rest == ':' ? rest + 1 : port_otherwise;
    size_t port_n = strlen(port);
    if (host_n == 0 || host_n > 255 || (*rest && *rest != ':') || port_n == 0 || port_n > 5 ||
        strspn(port, "0123456789") != port_n || atol(port) < 1 || atol(port) > 65535)
        return bad_url(p, fault);
    for (const char *c = host; c < host + host_n; c++)
        if (*c <= ' ' || strchr("@?#\"<>\\^`{|}", *c))
            return bad_url(p, fault);
    char text[300];
    snprintf(text, sizeof text, close ? "[%.*s]:%s" : "%.*s:%s", (int)host_n, host, port);
    p->host = strndup(host, host_n);
    p->port = strdup(port);
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
    if (strncasecmp(p->url, "https://", 8) == 0) {
        p->tls = p->opts.tls;
        return p->tls ? read_authority(p, p->url + 8, "443", fault)
                      : lq_fail(fault, LQ_USAGE, "URL '%s': TLS is not set up here", p->url);
    }
    return strncasecmp(p->url, "http://", 7) == 0 ? read_authority(p, p->url + 7, "80", fault) : bad_url(p, fault);
}

/* Who listens in between reads the key of each call. */
static void warn_of_key_in_clear(const struct http_pool *p)
{
    unsigned char v4[4];
    bool near = p->unix_path || strcasecmp(p->host, "localhost") == 0 || strcmp(p->host, "::1") == 0 ||
                (inet_pton(AF_INET, p->host, v4) == 1 && v4[0] == 127);
    if (p->opts.keys && !p->tls && !near)
        log_warn("key_in_clear url=%s why=no_tls", log_q(p->url));
}

/* ---- life ------------------------------------------------------------------------------- */

static void pool_release(struct http_guard *g)
{
    struct http_pool *p = (struct http_pool *)g;
    struct wire *w;
    while ((w = TAILQ_FIRST(&p->wires)))
        wire_free(w);
    resolve_free(p->resolve);
    free(p->url);
    free(p->host);
    free(p->port);
    free(p->unix_path);
    free(p->host_header);
    free(p);
}

enum lq_err http_pool_new(struct event_base *base, const char *url, const struct http_pool_opts *o,
                          struct http_pool **out, struct lq_fault *fault)
{
    struct http_pool *p = calloc(1, sizeof *p);
    if (!p)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    p->guard.release = pool_release;
    p->base = base;
    p->opts = *o;
    TAILQ_INIT(&p->wires);
    TAILQ_INIT(&p->waiting);
    TAILQ_INIT(&p->failing);
    enum lq_err rc = read_url(p, url, fault);
    if (rc) {
        http_pool_free(p);
        return rc;
    }
    warn_of_key_in_clear(p);
    *out = p;
    return LQ_OK;
}

const char *http_pool_url(const struct http_pool *p)
{
    return p->url;
}

uint32_t http_pool_inflight_n(const struct http_pool *p)
{
    return p->inflight_n;
}

/* Any call that is still open, or NULL. */
static struct http_call *open_call(struct http_pool *p)
{
    struct wire *w;
    struct http_call *c = TAILQ_FIRST(&p->waiting);
    if (!c)
        c = TAILQ_FIRST(&p->failing);
    if (!c)
        TAILQ_FOREACH(w, &p->wires, entry)
    if ((c = w->call))
        break;
    return c;
}

void http_pool_free(struct http_pool *p)
{
    struct http_call *c;
    if (!p)
        return;
    guard_enter(&p->guard);
    p->closed = true; /* nothing starts any more */
    while ((c = open_call(p))) {
        (void)lq_fail(&c->fault, LQ_CANCELLED, "the pool was closed");
        call_end(c, LQ_CANCELLED);
    }
    guard_leave(&p->guard);
    guard_doom(&p->guard);
}

/* ---- sharing ------------------------------------------------------------------------------ */

void pool_assign(struct http_pool *p, struct http_call *c, bool fresh)
{
    struct wire *w = TAILQ_LAST(&p->wires, wire_list); /* the one that was used last */
    if (p->inflight_n >= p->opts.inflight_max)
        call_list_move(c, &p->waiting);
    else if (!fresh && !c->streamed && w && w->state == WIRE_IDLE)
        wire_reuse(w, c); /* never for a streamed body: lost on a stale connection, it is lost for good */
    else
        wire_open(p, c);
}

void pool_next(struct http_pool *p)
{
    struct http_call *c = TAILQ_FIRST(&p->waiting);
    if (!c || p->closed || p->inflight_n >= p->opts.inflight_max)
        return;
    call_list_move(c, NULL);
    pool_assign(p, c, false);
}
