/* grpc_channel: a client's connection to one server, made when a call needs it. A server
 * that says GOAWAY keeps the old one for the calls that are open on it; the next call gets
 * a new one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/grpc_impl.h"
#include "common/resolve.h"

enum { PING_INTERVAL_MAX_MS = 600000 };

struct grpc_channel {
    struct event_base *base;
    struct ssl_ctx_st *tls;
    struct grpc_limits limits;
    struct grpc_conns conns;
    struct grpc_conn *now; /* takes new calls; NULL: none does */
    struct resolve *resolve;
    char *address, *host, *tls_name;
    char port[8];
};

void grpc_channel_opts_init(struct grpc_channel_opts *o)
{
    *o = (struct grpc_channel_opts){.connect_timeout_ms = 5000,
                                    .message_max = 4 * 1024 * 1024,
                                    .ping_interval_ms = 10000,
                                    .ping_timeout_ms = 20000,
                                    .idle_timeout_ms = 60000};
}

/* ---- dialling ------------------------------------------------------------------------------- */

void channel_dial_end(struct grpc_conn *c)
{
    resolve_cancel(c->lookup);
    c->lookup = NULL;
    if (c->addrs)
        evutil_freeaddrinfo(c->addrs);
    c->addrs = c->addrs_left = NULL;
}

/* False: it failed at once. What had been tried before is closed. */
static bool dial_one(struct grpc_conn *c, const struct addrinfo *a)
{
    struct grpc_channel *ch = c->channel;
    struct bufferevent *bev =
        ch->tls ? grpc_tls_connect(ch->base, ch->tls, ch->tls_name)
                : bufferevent_socket_new(ch->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!bev) {
        snprintf(c->dial_error, sizeof c->dial_error, "out of memory for a connection");
        return false;
    }
    conn_set_peer(c, a->ai_addr, (socklen_t)a->ai_addrlen);
    conn_open(c, bev, ch->tls != NULL);
    bool ok = bufferevent_socket_connect(bev, a->ai_addr, (int)a->ai_addrlen) == 0;
    if (!ok)
        snprintf(c->dial_error, sizeof c->dial_error, "%s", strerror(errno));
    else
        (void)evutil_make_socket_closeonexec(bufferevent_getfd(bev));
    return ok;
}

bool channel_dial_next(struct grpc_conn *c)
{
    bool ok = false;
    while (c->addrs_left && !ok) {
        struct addrinfo *a = c->addrs_left;
        c->addrs_left = a->ai_next;
        ok = dial_one(c, a);
    }
    return ok;
}

static void dial_all(struct grpc_conn *c)
{
    char text[320];
    if (channel_dial_next(c))
        return;
    snprintf(text, sizeof text, "cannot connect to %s: %s", c->channel->address, c->dial_error);
    grpc_conn_close(c, GRPC_UNAVAILABLE, text);
}

static void on_resolved(const char *error, struct addrinfo *list, void *arg)
{
    struct grpc_conn *c = arg;
    char text[320];
    conn_enter(c);
    c->lookup = NULL;
    c->addrs = c->addrs_left = list;
    if (error) {
        snprintf(text, sizeof text, "cannot resolve %s: %s", c->channel->host, error);
        grpc_conn_close(c, GRPC_UNAVAILABLE, text);
    } else {
        dial_all(c);
    }
    conn_leave(c);
}

void channel_dial(struct grpc_conn *c)
{
    struct grpc_channel *ch = c->channel;
    struct addrinfo literal = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    if (getaddrinfo(ch->host, ch->port, &literal, &c->addrs) == 0) { /* an address: nothing to wait for */
        c->addrs_left = c->addrs;
        dial_all(c);
        return;
    }
    c->addrs = NULL;
    if (!ch->resolve)
        ch->resolve = resolve_new(ch->base);
    if (!ch->resolve || !(c->lookup = resolve_start(ch->resolve, ch->host, ch->port, on_resolved, c)))
        grpc_conn_close(c, GRPC_UNAVAILABLE, "out of memory for a resolver");
}

/* ---- what connections say --------------------------------------------------------------------- */

void channel_forget(struct grpc_channel *ch, struct grpc_conn *c)
{
    TAILQ_REMOVE(&ch->conns, c, entry);
    if (ch->now == c)
        ch->now = NULL;
}

void channel_calm(struct grpc_channel *ch)
{
    struct grpc_conn *c;
    uint32_t ms = ch->limits.ping_interval_ms;
    ch->limits.ping_interval_ms = ms < PING_INTERVAL_MAX_MS / 2 ? 2 * ms : PING_INTERVAL_MAX_MS;
    TAILQ_FOREACH(c, &ch->conns, entry)
    c->limits.ping_interval_ms = ch->limits.ping_interval_ms;
    log_info("grpc_ping_slower server=%s interval_ms=%u", log_q(ch->address), ch->limits.ping_interval_ms);
}

/* ---- life ---------------------------------------------------------------------------------------- */

/* "HOST:PORT" or "[HOST]:PORT" into ch->host and ch->port. */
static enum lq_err split(struct grpc_channel *ch, const char *address, struct lq_fault *fault)
{
    const char *colon = strrchr(address, ':'), *host = address;
    size_t host_n = colon ? (size_t)(colon - address) : 0, port_n = colon ? strlen(colon + 1) : 0;
    bool bracketed = host_n >= 2 && host[0] == '[' && host[host_n - 1] == ']';
    if (bracketed) {
        host++;
        host_n -= 2;
    }
    if (host_n == 0 || port_n == 0 || port_n > 5 || strspn(colon + 1, "0123456789") != port_n ||
        atoi(colon + 1) < 1 || atoi(colon + 1) > 65535 || (!bracketed && memchr(host, ':', host_n)) ||
        strcspn(address, "/@?# \t\r\n") != strlen(address))
        return lq_fail(fault, LQ_USAGE, "not a HOST:PORT: %s", address);
    memcpy(ch->port, colon + 1, port_n + 1);
    ch->host = strndup(host, host_n);
    return ch->host ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory for a channel");
}

enum lq_err grpc_channel_new(struct event_base *base, const char *address, const struct grpc_channel_opts *o,
                             struct grpc_channel **out, struct lq_fault *fault)
{
    struct grpc_channel *ch = calloc(1, sizeof *ch);
    if (!ch)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a channel");
    TAILQ_INIT(&ch->conns);
    ch->base = base;
    ch->limits = (struct grpc_limits){.message_max = o->message_max,
                                      .ping_interval_ms = o->ping_interval_ms,
                                      .ping_timeout_ms = o->ping_timeout_ms,
                                      .hello_timeout_ms = o->connect_timeout_ms,
                                      .idle_timeout_ms = o->idle_timeout_ms};
    if (o->tls)
        grpc_tls_ctx_ref(ch->tls = o->tls);
    enum lq_err rc = split(ch, address, fault);
    if (!rc && (!(ch->address = strdup(address)) || !(ch->tls_name = strdup(o->tls_name ? o->tls_name : ch->host))))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for a channel");
    if (rc)
        grpc_channel_free(ch);
    else
        *out = ch;
    return rc;
}

const char *grpc_channel_address(const struct grpc_channel *ch)
{
    return ch->address;
}

void grpc_channel_free(struct grpc_channel *ch)
{
    struct grpc_conn *c;
    if (!ch)
        return;
    while ((c = TAILQ_FIRST(&ch->conns)))
        grpc_conn_close(c, GRPC_CANCELLED, "the channel was closed");
    resolve_free(ch->resolve);
    grpc_tls_ctx_unref(ch->tls);
    free(ch->address);
    free(ch->host);
    free(ch->tls_name);
    free(ch);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* The connection that takes a call; NULL: out of memory. */
static struct grpc_conn *conn_of(struct grpc_channel *ch)
{
    struct grpc_conn *c = ch->now;
    if (c && !c->going && !c->dying && nghttp2_session_check_request_allowed(c->h2))
        return c;
    c = conn_new(ch->base, true, &ch->limits);
    if (!c)
        return NULL;
    snprintf(c->peer, sizeof c->peer, "%s", ch->address);
    c->channel = ch;
    TAILQ_INSERT_TAIL(&ch->conns, c, entry);
    ch->now = c;
    return c;
}

static nghttp2_nv nv_of(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), strlen(value),
                        NGHTTP2_NV_FLAG_NONE};
}

/* Values of metadata never reach an index that another request could probe. */
static bool add_metadata(nghttp2_nv *nv, size_t *n, const struct grpc_call_opts *o)
{
    size_t bytes = 0;
    for (size_t i = 0; i < o->metadata_n; i++) {
        nghttp2_nv x = nv_of(o->metadata[i].name, o->metadata[i].value);
        bytes += x.namelen + x.valuelen + 32;
        if (!nghttp2_check_header_name(x.name, x.namelen) || x.name[0] == ':' ||
            !nghttp2_check_header_value(x.value, x.valuelen) || bytes > GRPC_HEADER_BYTES_MAX / 2)
            return false;
        x.flags = NGHTTP2_NV_FLAG_NO_INDEX;
        nv[(*n)++] = x;
    }
    return true;
}

enum { METADATA_MAX = 16, FIXED_HEADERS = 8 };

enum lq_err grpc_call(struct grpc_channel *ch, const struct grpc_call_opts *o, const struct grpc_stream_cb *cb,
                      void *arg, struct grpc_stream **out, struct lq_fault *fault)
{
    nghttp2_nv nv[FIXED_HEADERS + METADATA_MAX];
    size_t n = 0;
    char timeout[16];
    nv[n++] = nv_of(":method", "POST");
    nv[n++] = nv_of(":scheme", ch->tls ? "https" : "http");
    nv[n++] = nv_of(":path", o->path);
    nv[n++] = nv_of(":authority", ch->address);
    nv[n++] = nv_of("te", "trailers");
    nv[n++] = nv_of("content-type", "application/grpc");
    nv[n++] = nv_of("user-agent", "larql-grid/" LQ_VERSION);
    if (o->deadline_ms) {
        grpc_timeout_text(o->deadline_ms, timeout);
        nv[n++] = nv_of("grpc-timeout", timeout);
    }
    if (o->path[0] != '/' || o->metadata_n > METADATA_MAX || !add_metadata(nv, &n, o))
        return lq_fail(fault, LQ_USAGE, "a path or metadata that no call can have");
    struct grpc_conn *c = conn_of(ch);
    struct grpc_stream *s = c ? stream_new(c) : NULL;
    if (!s || !stream_request(s, nv, n)) {
        if (s)
            stream_free(s);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    }
    s->held = true;
    if (cb)
        s->cb = *cb;
    s->arg = arg;
    if (o->deadline_ms)
        stream_set_deadline(s, clock_us() + (uint64_t)o->deadline_ms * 1000);
    conn_kick(c);
    *out = s;
    return LQ_OK;
}

/* ---- unary ------------------------------------------------------------------------------------------- */

struct unary {
    grpc_on_done on_done;
    void *arg;
    size_t messages_n, n;
    uint8_t *p;
};

static void on_unary_message(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    (void)s;
    struct unary *u = arg;
    if (u->messages_n++ > 0)
        return; /* said in on_unary_closed() */
    u->p = malloc(n ? n : 1);
    u->n = n;
    if (u->p && n)
        memcpy(u->p, p, n);
}

static void on_unary_closed(struct grpc_stream *s, const struct grpc_end *end, void *arg)
{
    (void)s;
    struct unary *u = arg;
    struct grpc_end e = *end;
    if (e.code == GRPC_OK && (u->messages_n != 1 || !u->p)) {
        e.code = u->messages_n == 1 ? GRPC_RESOURCE_EXHAUSTED : GRPC_INTERNAL;
        e.text = u->messages_n == 1 ? "out of memory" : "not one message in the answer of a unary call";
    }
    u->on_done(&e, e.code == GRPC_OK ? u->p : NULL, e.code == GRPC_OK ? u->n : 0, u->arg);
}

void unary_free(struct unary *u)
{
    if (u)
        free(u->p);
    free(u);
}

enum lq_err grpc_unary(struct grpc_channel *ch, const struct grpc_call_opts *o, const uint8_t *p, size_t n,
                       grpc_on_done on_done, void *arg, struct grpc_stream **out, struct lq_fault *fault)
{
    static const struct grpc_stream_cb cb = {.on_message = on_unary_message, .on_closed = on_unary_closed};
    struct grpc_stream *s;
    struct unary *u = calloc(1, sizeof *u);
    if (!u)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a call");
    u->on_done = on_done;
    u->arg = arg;
    enum lq_err rc = grpc_call(ch, o, &cb, u, &s, fault);
    if (rc) {
        unary_free(u);
        return rc;
    }
    s->unary = u;
    (void)grpc_stream_send(s, p, n);
    grpc_stream_half_close(s);
    if (out)
        *out = s;
    return LQ_OK;
}
