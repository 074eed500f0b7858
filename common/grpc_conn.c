/* grpc_conn: one HTTP/2 connection: the session on its socket, its clocks, and what a peer
 * may do to it.
 *
 *   dialled -> connected -> up -> going -> dying -> dead       (flags; any may jump to dead)
 *
 * All its waits hang on one timer (on_timer): hello, PING, idle, the last bytes. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/grpc_impl.h"

enum {
    OUT_HIGH_BYTES = 128 * 1024, /* of ready frames; more is left in the streams, and the peer is not read */
    OUT_LOW_BYTES = 32 * 1024,
    STREAM_WINDOW_BYTES = 256 * 1024,
    CONNECTION_WINDOW_BYTES = 1024 * 1024,
    RATION_MAX = 500, /* control frames in a burst, and each second */
    RATION_PER_S = 100,
    CONTINUATIONS_MAX = 4,
    ACKS_MAX = 200,
    GOODBYE_MS = 1000,
};

/* ---- life ---------------------------------------------------------------------------- */

static void conn_free(struct grpc_conn *c)
{
    struct grpc_stream *s;
    while ((s = TAILQ_FIRST(&c->streams)))
        h2_stream_free(s);
    if (c->h2)
        nghttp2_session_del(c->h2);
    if (c->timer)
        event_free(c->timer);
    if (c->kick)
        event_free(c->kick);
    free(c);
}

void h2_conn_enter(struct grpc_conn *c)
{
    c->busy++;
}

void h2_conn_leave(struct grpc_conn *c)
{
    if (--c->busy == 0 && c->dead)
        conn_free(c);
}

void h2_conn_close(struct grpc_conn *c, enum grpc_code code, const char *text)
{
    struct grpc_stream *s;
    if (c->dead)
        return;
    h2_conn_enter(c);
    c->dead = true;
    event_del(c->timer);
    event_del(c->kick);
    if (c->is_client)
        h2_channel_dial_end(c);
    if (c->bev) {
        if (c->connected && c->is_tls)
            grpc_tls_goodbye(c->bev);
        bufferevent_setcb(c->bev, NULL, NULL, NULL, NULL);
        bufferevent_free(c->bev);
        c->bev = NULL;
    }
    if (c->server)
        h2_server_forget(c->server, c);
    if (c->channel)
        h2_channel_forget(c->channel, c);
    c->server = NULL;
    c->channel = NULL;
    TAILQ_FOREACH(s, &c->streams, entry) /* none leaves the list before conn_free() */
    h2_stream_closed(s, code, true, text);
    h2_conn_leave(c);
}

void h2_conn_kick(struct grpc_conn *c)
{
    if (!c->dead)
        event_active(c->kick, 0, 0);
}

/* ---- clocks ---------------------------------------------------------------------------- */

static uint64_t after_ms(uint64_t us, uint32_t ms)
{
    return us + (uint64_t)ms * 1000;
}

/* Does it only wait for the peer to read? For that there is as long as for a PING. */
static bool is_unread(const struct grpc_conn *c)
{
    return c->paused || (c->going && c->streams_n == 0);
}

/* When something is to be done next, if nothing comes. */
static uint64_t next_us(const struct grpc_conn *c)
{
    const struct grpc_limits *l = &c->limits;
    if (!c->up)
        return after_ms(c->born_us, l->hello_timeout_ms);
    if (is_unread(c))
        return after_ms(c->wrote_us, l->ping_timeout_ms);
    if (c->streams_n == 0 && !c->ping_us) /* a PING without an answer says the same without streams: nobody is there */
        return after_ms(c->idle_us, l->idle_timeout_ms);
    return c->ping_us ? after_ms(c->ping_us, l->ping_timeout_ms) : after_ms(c->heard_us, l->ping_interval_ms);
}

static void arm_at(struct grpc_conn *c, uint64_t us)
{
    uint64_t now = clock_us(), wait = us > now ? us - now : 0;
    struct timeval tv = {.tv_sec = (time_t)(wait / 1000000), .tv_usec = (suseconds_t)(wait % 1000000)};
    (void)evtimer_add(c->timer, &tv); /* fails for want of memory only when it was never pending */
}

void h2_conn_arm(struct grpc_conn *c)
{
    if (!c->dead && !c->dying)
        arm_at(c, next_us(c));
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct grpc_conn *c = arg;
    char text[120];
    uint64_t now = clock_us();
    if (c->dying) {
        h2_conn_close(c, GRPC_UNAVAILABLE, "connection closed");
        return;
    }
    if (c->ping_us && c->heard_us > c->ping_us)
        c->ping_us = 0; /* any byte is a sign of life */
    if (now >= next_us(c)) {
        if (!c->up) {
            snprintf(text, sizeof text, "no %s within %u ms", c->connected ? "HTTP/2" : "connection",
                     c->limits.hello_timeout_ms);
            h2_conn_close(c, GRPC_UNAVAILABLE, text);
            return;
        }
        if (is_unread(c)) {
            snprintf(text, sizeof text, "nothing was read of it within %u ms", c->limits.ping_timeout_ms);
            h2_conn_close(c, GRPC_UNAVAILABLE, text);
            return;
        }
        if (c->streams_n == 0 && !c->ping_us) {
            h2_conn_drain(c);
            h2_conn_arm(c);
            return;
        }
        if (c->ping_us) {
            snprintf(text, sizeof text, "no answer to a PING within %u ms", c->limits.ping_timeout_ms);
            h2_conn_close(c, GRPC_UNAVAILABLE, text);
            return;
        }
        c->ping_us = now;
        if (nghttp2_submit_ping(c->h2, NGHTTP2_FLAG_NONE, NULL) == 0)
            h2_conn_kick(c);
    }
    h2_conn_arm(c);
}

/* ---- out --------------------------------------------------------------------------------- */

/* Nothing is read any more; what is in the output goes out, for a second at most. */
static void die(struct grpc_conn *c)
{
    if (c->dead || c->dying)
        return;
    c->dying = true;
    (void)bufferevent_disable(c->bev, EV_READ);
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
        h2_conn_close(c, GRPC_UNAVAILABLE, "connection closed");
    else
        arm_at(c, after_ms(clock_us(), GOODBYE_MS));
}

static void flush(struct grpc_conn *c)
{
    if (c->dead || c->dying || !c->connected)
        return;
    struct evbuffer *out = bufferevent_get_output(c->bev);
    const uint8_t *p;
    ssize_t n = 0;
    while (evbuffer_get_length(out) < OUT_HIGH_BYTES && (n = nghttp2_session_mem_send(c->h2, &p)) > 0) {
        if (c->dead)
            return;
        /* The second sees to what the first does not tell: that it had no memory to be woken up. */
        if (bufferevent_write(c->bev, p, (size_t)n) != 0 || bufferevent_enable(c->bev, EV_WRITE) != 0)
            n = NGHTTP2_ERR_NOMEM;
        if (n < 0)
            break;
    }
    if (c->dead)
        return;
    if (n < 0) {
        h2_conn_close(c, GRPC_UNAVAILABLE, "out of memory for a connection");
        return;
    }
    bool full = evbuffer_get_length(out) >= OUT_HIGH_BYTES, was = c->paused;
    if (full && !was)
        (void)bufferevent_disable(c->bev, EV_READ);
    else if (!full && was)
        (void)bufferevent_enable(c->bev, EV_READ);
    c->paused = full;
    if (full && !was) {
        c->wrote_us = clock_us();
        h2_conn_arm(c);
    }
    if (!nghttp2_session_want_read(c->h2) && !nghttp2_session_want_write(c->h2))
        die(c);
    else if (c->going && c->streams_n == 0 && !nghttp2_session_want_write(c->h2))
        die(c);
}

void h2_conn_drain(struct grpc_conn *c)
{
    if (c->dead || c->going)
        return;
    if (!c->up) {
        h2_conn_close(c, GRPC_UNAVAILABLE, "connection closed");
        return;
    }
    c->going = true;
    c->wrote_us = clock_us();
    (void)nghttp2_submit_goaway(c->h2, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(c->h2),
                                NGHTTP2_NO_ERROR, NULL, 0);
    h2_conn_kick(c);
}

/* ---- doors ---------------------------------------------------------------------------------- */

static void on_read(struct bufferevent *bev, void *arg)
{
    struct grpc_conn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    ssize_t used = 0;
    h2_conn_enter(c);
    c->heard_us = clock_us();
    while (!c->dead && !c->dying && evbuffer_get_length(in) > 0) {
        struct evbuffer_iovec v;
        (void)evbuffer_peek(in, -1, NULL, &v, 1);
        used = nghttp2_session_mem_recv(c->h2, v.iov_base, v.iov_len);
        if (used < 0 || c->dead)
            break;
        evbuffer_drain(in, (size_t)used);
        flush(c);
    }
    if (used < 0 && !c->dead) {
        flush(c); /* a GOAWAY that says what was wrong */
        die(c);
    }
    h2_conn_leave(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct grpc_conn *c = arg;
    h2_conn_enter(c);
    if (c->paused)
        c->heard_us = c->wrote_us = clock_us(); /* it is not read, but takes what we send: alive */
    if (!c->dying)
        flush(c);
    else if (evbuffer_get_length(bufferevent_get_output(bev)) == 0)
        h2_conn_close(c, GRPC_UNAVAILABLE, "connection closed");
    h2_conn_leave(c);
}

static void on_kick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct grpc_conn *c = arg;
    h2_conn_enter(c);
    if (c->is_client && !c->bev && !c->lookup)
        h2_channel_dial(c);
    flush(c);
    h2_conn_leave(c);
}

static void connected(struct grpc_conn *c)
{
    int one = 1;
    (void)setsockopt(bufferevent_getfd(c->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->is_client && h2_channel_encrypt(c))
        return;
    c->connected = true;
    c->heard_us = clock_us();
    if (c->is_client)
        h2_channel_dial_end(c);
    if (c->is_tls && !grpc_tls_is_h2(c->bev))
        h2_conn_close(c, GRPC_UNAVAILABLE, "TLS: the peer does not speak HTTP/2 (ALPN h2)");
    else if (bufferevent_enable(c->bev, EV_READ | EV_WRITE) != 0)
        h2_conn_close(c, GRPC_UNAVAILABLE, "out of memory for a connection");
    else
        h2_conn_kick(c);
}

/* It failed while it was being made: another address may do. */
static void not_connected(struct grpc_conn *c, short what, int error)
{
    if (c->is_tls)
        grpc_tls_why(c->bev, what & BEV_EVENT_ERROR ? error : 0, c->dial_error, sizeof c->dial_error);
    else
        snprintf(c->dial_error, sizeof c->dial_error, "%s",
                 what & BEV_EVENT_ERROR && error ? evutil_socket_error_to_string(error) : "connection closed");
    if (!c->is_client || !h2_channel_dial_next(c))
        h2_conn_close(c, GRPC_UNAVAILABLE, c->dial_error);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct grpc_conn *c = arg;
    int error = EVUTIL_SOCKET_ERROR();
    h2_conn_enter(c);
    if (what & BEV_EVENT_CONNECTED) {
        connected(c);
    } else if (!c->connected) {
        not_connected(c, what, error);
    } else {
        on_read(bev, c); /* what the peer said before it left */
        h2_conn_close(c, GRPC_UNAVAILABLE,
                      what & BEV_EVENT_ERROR && error ? evutil_socket_error_to_string(error) : "connection closed");
    }
    h2_conn_leave(c);
}

/* ---- nghttp2's doors ------------------------------------------------------------------------ */

/* A stream's struct, or NULL: it is not one of ours (refused, or over). */
static struct grpc_stream *find(nghttp2_session *h2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(h2, id);
}

/* Frames that cost us work and the peer next to nothing. */
static bool is_rationed(const struct grpc_conn *c, const nghttp2_frame_hd *hd)
{
    switch (hd->type) {
    case NGHTTP2_DATA: /* an empty one stands before a server's trailers */
        return !c->is_client && hd->length == 0 && !(hd->flags & NGHTTP2_FLAG_END_STREAM);
    case NGHTTP2_HEADERS:
    case NGHTTP2_WINDOW_UPDATE:
        return false;
    case NGHTTP2_RST_STREAM: /* a server may end each call with one */
        return !c->is_client;
    case NGHTTP2_PING:
        return !(hd->flags & NGHTTP2_FLAG_ACK) || !c->ping_us;
    default:
        return true; /* SETTINGS, PRIORITY, CONTINUATION, GOAWAY; nghttp2 skips what nobody knows */
    }
}

static int on_begin_frame(nghttp2_session *h2, const nghttp2_frame_hd *hd, void *arg)
{
    struct grpc_conn *c = arg;
    if (c->dead)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (!is_rationed(c, hd))
        return 0;
    c->ration += (double)(c->heard_us - c->ration_us) * 1e-6 * RATION_PER_S;
    c->ration_us = c->heard_us;
    if (c->ration > RATION_MAX)
        c->ration = RATION_MAX;
    if (c->ration >= 1) {
        c->ration -= 1;
        return 0;
    }
    log_debug("grpc_flood peer=%s frame_type=%u", c->peer, hd->type);
    (void)nghttp2_session_terminate_session(h2, NGHTTP2_ENHANCE_YOUR_CALM);
    return NGHTTP2_ERR_CALLBACK_FAILURE;
}

static int on_begin_headers(nghttp2_session *h2, const nghttp2_frame *frame, void *arg)
{
    struct grpc_conn *c = arg;
    if (c->is_client || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    struct grpc_stream *s = h2_stream_new(c);
    if (!s)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    s->id = frame->hd.stream_id;
    h2_stream_set_deadline(s, after_ms(clock_us(), c->limits.hello_timeout_ms));
    return nghttp2_session_set_stream_user_data(h2, s->id, s) == 0 ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
}

static int on_header(nghttp2_session *h2, const nghttp2_frame *frame, const uint8_t *name, size_t name_n,
                     const uint8_t *value, size_t value_n, uint8_t flags, void *arg)
{
    (void)flags, (void)arg;
    struct grpc_stream *s = find(h2, frame->hd.stream_id);
    bool ok = !s || h2_stream_header(s, (const char *)name, name_n, (const char *)value, value_n);
    return ok ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static int on_data(nghttp2_session *h2, uint8_t flags, int32_t id, const uint8_t *p, size_t n, void *arg)
{
    (void)flags;
    struct grpc_conn *c = arg;
    struct grpc_stream *s = find(h2, id);
    if (s)
        h2_stream_data(s, p, n);
    return c->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static void got_headers(struct grpc_conn *c, struct grpc_stream *s)
{
    if (c->is_client)
        h2_stream_answer(s);
    else if (!s->open)
        h2_stream_open(s);
}

static int on_frame(nghttp2_session *h2, const nghttp2_frame *frame, void *arg)
{
    struct grpc_conn *c = arg;
    struct grpc_stream *s;
    switch (frame->hd.type) {
    case NGHTTP2_SETTINGS:
        if (!c->up) {
            c->up = true;
            c->idle_us = clock_us();
            h2_conn_arm(c);
        }
        break;
    case NGHTTP2_PING:
        if (frame->hd.flags & NGHTTP2_FLAG_ACK)
            c->ping_us = 0;
        break;
    case NGHTTP2_GOAWAY:
        c->going = true;
        c->wrote_us = clock_us();
        if (c->channel && frame->goaway.error_code == NGHTTP2_ENHANCE_YOUR_CALM)
            h2_channel_calm(c->channel);
        break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        if (!(s = find(h2, frame->hd.stream_id)))
            break;
        if (frame->hd.type == NGHTTP2_HEADERS)
            got_headers(c, s);
        if (!c->dead && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
            h2_stream_half_closed(s);
        break;
    default:
        break;
    }
    return c->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* A server that has said all does not wait for the client to say all. */
static int on_sent(nghttp2_session *h2, const nghttp2_frame *frame, void *arg)
{
    struct grpc_conn *c = arg;
    struct grpc_stream *s;
    if (!c->is_client && frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) &&
        (s = find(h2, frame->hd.stream_id)) && !s->half_closed)
        (void)nghttp2_submit_rst_stream(h2, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
    return 0;
}

static int on_not_sent(nghttp2_session *h2, const nghttp2_frame *frame, int error, void *arg)
{
    struct grpc_conn *c = arg;
    struct grpc_stream *s = frame->hd.type == NGHTTP2_HEADERS ? find(h2, frame->hd.stream_id) : NULL;
    if (s && c->is_client)
        h2_stream_closed(s, GRPC_UNAVAILABLE, true, nghttp2_strerror(error)); /* GOAWAY came before it */
    return 0;
}

static int on_stream_close(nghttp2_session *h2, int32_t id, uint32_t error, void *arg)
{
    struct grpc_conn *c = arg;
    struct grpc_stream *s = find(h2, id);
    char text[80];
    if (!s)
        return 0;
    (void)nghttp2_session_set_stream_user_data(h2, id, NULL);
    snprintf(text, sizeof text, "the peer reset the call: %s", nghttp2_http2_strerror(error));
    h2_stream_closed(s, c->is_client ? grpc_code_of_h2(error) : GRPC_CANCELLED, false, text);
    if (!c->dead) /* else conn_free() does */
        h2_stream_free(s);
    return c->dead ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* ---- making one ---------------------------------------------------------------------------- */

static nghttp2_session_callbacks *callbacks_new(void)
{
    nghttp2_session_callbacks *cb;
    if (nghttp2_session_callbacks_new(&cb) != 0)
        return NULL;
    nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_sent);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(cb, on_not_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    return cb;
}

static bool session_new(struct grpc_conn *c)
{
    nghttp2_session_callbacks *cb = callbacks_new();
    nghttp2_option *o = NULL;
    bool ok = cb && nghttp2_option_new(&o) == 0;
    if (ok) {
        nghttp2_option_set_no_closed_streams(o, 1);
        nghttp2_option_set_max_outbound_ack(o, ACKS_MAX);
        nghttp2_option_set_max_continuations(o, CONTINUATIONS_MAX);
        nghttp2_option_set_stream_reset_rate_limit(o, RATION_MAX, RATION_PER_S);
        nghttp2_option_set_peer_max_concurrent_streams(o, GRPC_STREAMS_MAX);
        ok = (c->is_client ? nghttp2_session_client_new2(&c->h2, cb, c, o)
                           : nghttp2_session_server_new2(&c->h2, cb, c, o)) == 0;
    }
    nghttp2_session_callbacks_del(cb);
    nghttp2_option_del(o);
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, GRPC_HEADER_BYTES_MAX},
        {c->is_client ? NGHTTP2_SETTINGS_ENABLE_PUSH : NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS,
         c->is_client ? 0 : GRPC_STREAMS_MAX},
    };
    return ok &&
           nghttp2_submit_settings(c->h2, NGHTTP2_FLAG_NONE, settings, sizeof settings / sizeof *settings) == 0 &&
           nghttp2_session_set_local_window_size(c->h2, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW_BYTES) == 0;
}

struct grpc_conn *h2_conn_new(struct event_base *base, bool is_client, const struct grpc_limits *limits)
{
    struct grpc_conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    TAILQ_INIT(&c->streams);
    c->base = base;
    c->is_client = is_client;
    c->limits = *limits;
    c->born_us = c->heard_us = c->ration_us = clock_us();
    c->ration = RATION_MAX;
    c->timer = evtimer_new(base, on_timer, c);
    c->kick = event_new(base, -1, 0, on_kick, c);
    if (c->timer && c->kick && session_new(c)) {
        h2_conn_arm(c);
        return c;
    }
    conn_free(c);
    return NULL;
}

void h2_conn_open(struct grpc_conn *c, struct bufferevent *bev, bool is_tls)
{
    if (c->bev) {
        bufferevent_setcb(c->bev, NULL, NULL, NULL, NULL);
        bufferevent_free(c->bev);
    }
    c->bev = bev;
    c->is_tls = is_tls;
    bufferevent_setcb(bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(bev, EV_WRITE, OUT_LOW_BYTES, 0);
    if (!c->is_client && !is_tls)
        connected(c);
}

void h2_conn_set_peer(struct grpc_conn *c, const struct sockaddr *a, socklen_t a_n)
{
    char name[INET6_ADDRSTRLEN + 1] = "?";
    unsigned port = 0;
    if (a_n <= sizeof c->address)
        memcpy(&c->address, a, a_n);
    if (a->sa_family == AF_INET && a_n >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *in = (const void *)a;
        (void)inet_ntop(AF_INET, &in->sin_addr, name, sizeof name);
        port = ntohs(in->sin_port);
        c->peer_is_loopback = ntohl(in->sin_addr.s_addr) >> 24 == 127;
    } else if (a->sa_family == AF_INET6 && a_n >= sizeof(struct sockaddr_in6)) {
        const struct sockaddr_in6 *in = (const void *)a;
        const uint8_t *b = in->sin6_addr.s6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
        if (mapped)
            (void)inet_ntop(AF_INET, b + 12, name, sizeof name);
        else
            (void)inet_ntop(AF_INET6, b, name, sizeof name);
        port = ntohs(in->sin6_port);
        c->peer_is_loopback = mapped ? b[12] == 127 : IN6_IS_ADDR_LOOPBACK(&in->sin6_addr);
    }
    snprintf(c->peer, sizeof c->peer, strchr(name, ':') ? "[%s]:%u" : "%s:%u", name, port);
}
