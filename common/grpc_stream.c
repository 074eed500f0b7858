/* grpc_stream: one call. Messages are five bytes (flag, length) and their bytes, cut into
 * DATA frames anywhere; a server ends with trailers, a client by END_STREAM.
 *
 *   server: h2_stream_new -> headers -> h2_stream_open -> data* -> h2_stream_half_closed
 *           answer:  [head] message* trailers          (no message: all in one head)
 *   client: h2_stream_new, h2_stream_request -> h2_stream_answer -> data* -> h2_stream_answer (trailers) */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/grpc_impl.h"

enum {
    UNREAD_MS = 30000, /* for a peer to read an answer that is complete */
    HEADER_FLOOD_BYTES = 4 * GRPC_HEADER_BYTES_MAX,
    HEADER_LINE_BYTES = 32, /* HTTP/2 counts each line as so many more */
    HELD_MESSAGES = 4,      /* of the greatest size, that one connection may have sent in part */
    PATH_BYTES_MAX = 256,
    FIRST_BYTES = 4096,
    KEPT_BYTES = 64 * 1024,
    LOW_WATER_BYTES = GRPC_HIGH_WATER_BYTES / 2,
};

#define NV(name, value, value_n)                                                                                     \
    {                                                                                                                \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), strlen(name), value_n, NGHTTP2_NV_FLAG_NONE     \
    }

/* ---- life ------------------------------------------------------------------------------ */

static void on_timer(evutil_socket_t fd, short what, void *arg);

struct grpc_stream *h2_stream_new(struct grpc_conn *c)
{
    struct grpc_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->conn = c;
    s->status = -1;
    s->timer = evtimer_new(c->base, on_timer, s);
    s->headers = http_headers_new();
    s->out = evbuffer_new();
    TAILQ_INSERT_TAIL(&c->streams, s, entry);
    c->streams_n++;
    if (c->server)
        h2_server_count_streams(c->server, 1);
    if (!s->timer || !s->headers || !s->out) {
        h2_stream_free(s);
        return NULL;
    }
    if (c->streams_n == 1)
        h2_conn_arm(c); /* from idle to PING */
    return s;
}

static void message_drop(struct grpc_stream *s)
{
    s->conn->held_bytes -= s->message_cap;
    free(s->message);
    s->message = NULL;
    s->message_cap = s->message_have = 0;
}

void h2_stream_free(struct grpc_stream *s)
{
    struct grpc_conn *c = s->conn;
    TAILQ_REMOVE(&c->streams, s, entry);
    if (--c->streams_n == 0 && !c->dead) {
        c->idle_us = c->wrote_us = clock_us();
        h2_conn_arm(c);
        h2_conn_kick(c); /* one that is going may close now */
    }
    if (c->server)
        h2_server_count_streams(c->server, -1);
    message_drop(s);
    if (s->timer)
        event_free(s->timer);
    if (s->out)
        evbuffer_free(s->out);
    http_headers_free(s->headers);
    free(s->path);
    free(s->text);
    h2_unary_free(s->unary);
    free(s);
}

void h2_stream_set_deadline(struct grpc_stream *s, uint64_t us)
{
    uint64_t now = clock_us(), wait = us > now ? us - now : 0;
    struct timeval tv = {.tv_sec = (time_t)(wait / 1000000), .tv_usec = (suseconds_t)(wait % 1000000)};
    s->deadline_us = us;
    (void)evtimer_add(s->timer, &tv);
}

static void no_deadline(struct grpc_stream *s)
{
    s->deadline_us = 0;
    event_del(s->timer);
}

void h2_stream_closed(struct grpc_stream *s, enum grpc_code code, bool lost, const char *text)
{
    struct grpc_end end = {.code = code, .lost = lost, .text = text ? text : ""};
    if (!s->held)
        return;
    s->held = false;
    if (s->cb.on_closed)
        s->cb.on_closed(s, &end, s->arg);
}

/* RST_STREAM: nothing more goes out. */
static void reset(struct grpc_stream *s, uint32_t error)
{
    struct grpc_conn *c = s->conn;
    no_deadline(s);
    s->last = true;
    evbuffer_drain(s->out, evbuffer_get_length(s->out));
    if (!c->dead && nghttp2_submit_rst_stream(c->h2, NGHTTP2_FLAG_NONE, s->id, error) == 0)
        h2_conn_kick(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct grpc_stream *s = arg;
    struct grpc_conn *c = s->conn;
    h2_conn_enter(c);
    if (s->over) {
        reset(s, NGHTTP2_ENHANCE_YOUR_CALM);
        h2_stream_closed(s, GRPC_RESOURCE_EXHAUSTED, false, "the peer does not read: too much is queued for it");
    } else if (!c->is_client && !s->open) {
        h2_conn_close(c, GRPC_UNAVAILABLE, "half a request");
    } else if (s->held) {
        h2_stream_fail(s, GRPC_DEADLINE_EXCEEDED, "deadline exceeded");
    } else {
        reset(s, NGHTTP2_CANCEL); /* an answer that nobody reads */
    }
    h2_conn_leave(c);
}

/* ---- out ---------------------------------------------------------------------------------- */

static ssize_t on_want_data(nghttp2_session *h2, int32_t id, uint8_t *buf, size_t buf_n, uint32_t *flags,
                            nghttp2_data_source *source, void *arg);

static nghttp2_data_provider provider(struct grpc_stream *s)
{
    return (nghttp2_data_provider){.source.ptr = s, .read_callback = on_want_data};
}

/* status, content-type, grpc-status, grpc-message: those that are given. */
static int submit_head(struct grpc_stream *s, int http_status, bool with_status, bool with_data)
{
    char http[12], code[12], text[3 * GRPC_TEXT_BYTES_MAX + 1];
    nghttp2_nv nv[4];
    size_t n = 0;
    nghttp2_data_provider data = provider(s);
    if (http_status) {
        snprintf(http, sizeof http, "%d", http_status);
        nv[n++] = (nghttp2_nv)NV(":status", http, strlen(http));
        nv[n++] = (nghttp2_nv)NV("content-type", "application/grpc", 16);
    }
    if (with_status) {
        snprintf(code, sizeof code, "%d", (int)s->code);
        nv[n++] = (nghttp2_nv)NV("grpc-status", code, strlen(code));
        grpc_text_encode(s->text ? s->text : "", text, sizeof text);
        if (text[0])
            nv[n++] = (nghttp2_nv)NV("grpc-message", text, strlen(text));
    }
    s->answered = true;
    return http_status ? nghttp2_submit_response(s->conn->h2, s->id, nv, n, with_data ? &data : NULL)
                       : nghttp2_submit_trailer(s->conn->h2, s->id, nv, n);
}

static void wake(struct grpc_stream *s)
{
    if (s->parked) {
        s->parked = false;
        (void)nghttp2_session_resume_data(s->conn->h2, s->id);
    }
    h2_conn_kick(s->conn);
}

/* A server's end: the status is queued behind what is queued already. */
static void end_with(struct grpc_stream *s, int http_status, enum grpc_code code, const char *text)
{
    if (s->last)
        return;
    s->last = true;
    s->code = code;
    free(s->text);
    s->text = text && text[0] ? strndup(text, GRPC_TEXT_BYTES_MAX) : NULL;
    h2_stream_set_deadline(s, clock_us() + UNREAD_MS * UINT64_C(1000));
    bool only = evbuffer_get_length(s->out) == 0;
    if (!s->answered && submit_head(s, http_status, only, !only) != 0)
        reset(s, NGHTTP2_INTERNAL_ERROR);
    wake(s);
}

static ssize_t on_want_data(nghttp2_session *h2, int32_t id, uint8_t *buf, size_t buf_n, uint32_t *flags,
                            nghttp2_data_source *source, void *arg)
{
    (void)h2, (void)id;
    struct grpc_stream *s = source->ptr;
    struct grpc_conn *c = arg;
    int n = evbuffer_remove(s->out, buf, buf_n);
    size_t left = evbuffer_get_length(s->out);
    if (n < 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (left == 0 && s->last) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (!c->is_client) {
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
            if (submit_head(s, 0, true, false) != 0)
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
    } else if (n == 0) {
        s->parked = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    if (s->wants_room && left <= LOW_WATER_BYTES) {
        s->wants_room = false;
        if (s->held && !s->last && s->cb.on_room)
            s->cb.on_room(s, s->arg);
    }
    return n;
}

/* ---- out: what owners call --------------------------------------------------------------------- */

void grpc_stream_handle(struct grpc_stream *s, const struct grpc_stream_cb *cb, void *arg)
{
    assert(s->held);
    s->handled = true;
    s->cb = *cb;
    s->arg = arg;
}

bool grpc_stream_send(struct grpc_stream *s, const uint8_t *p, size_t n)
{
    uint8_t prefix[GRPC_PREFIX_BYTES] = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    assert(s->held && n <= UINT32_MAX);
    assert(!s->last);
    if (s->over)
        return false;
    if (!p || evbuffer_get_length(s->out) + n > GRPC_QUEUED_BYTES_MAX ||
        evbuffer_add(s->out, prefix, sizeof prefix) != 0 || evbuffer_add(s->out, p, n) != 0) {
        s->over = true;
        event_active(s->timer, 0, 0);
        return false;
    }
    wake(s);
    s->wants_room = evbuffer_get_length(s->out) > GRPC_HIGH_WATER_BYTES;
    return !s->wants_room;
}

size_t grpc_stream_queued_bytes(const struct grpc_stream *s)
{
    return evbuffer_get_length(s->out);
}

void grpc_stream_finish(struct grpc_stream *s, enum grpc_code code, const char *text)
{
    assert(s->held && !s->conn->is_client);
    s->held = false;
    if (s->over) /* something of what was sent is not there: it cannot end well */
        reset(s, NGHTTP2_ENHANCE_YOUR_CALM);
    else
        end_with(s, 200, code, text);
}

void grpc_stream_reply(struct grpc_stream *s, const uint8_t *p, size_t n)
{
    assert(s->held && !s->conn->is_client && s->method->on_request && !s->answered);
    (void)grpc_stream_send(s, p, n);
    s->held = false;
    bool whole = !s->over;
    s->over = false;
    if (!whole)
        evbuffer_drain(s->out, evbuffer_get_length(s->out));
    end_with(s, 200, whole ? GRPC_OK : GRPC_RESOURCE_EXHAUSTED, whole ? NULL : "the answer is too big");
}

void grpc_stream_half_close(struct grpc_stream *s)
{
    assert(s->held && s->conn->is_client);
    s->last = true;
    wake(s);
}

void grpc_stream_cancel(struct grpc_stream *s)
{
    assert(s->held);
    s->held = false;
    reset(s, NGHTTP2_CANCEL);
}

const char *grpc_stream_peer(const struct grpc_stream *s)
{
    return s->conn->peer;
}

bool grpc_stream_peer_is_loopback(const struct grpc_stream *s)
{
    return s->conn->peer_is_loopback;
}

const struct sockaddr *grpc_stream_peer_address(const struct grpc_stream *s)
{
    return s->conn->address.ss_family ? (const struct sockaddr *)&s->conn->address : NULL;
}

const char *grpc_stream_metadata(const struct grpc_stream *s, const char *name)
{
    return http_headers_get(s->headers, name);
}

void h2_stream_fail(struct grpc_stream *s, enum grpc_code code, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (s->conn->is_client)
        reset(s, NGHTTP2_CANCEL);
    else
        end_with(s, 200, code, text);
    h2_stream_closed(s, code, false, text);
}

/* ---- in: messages -------------------------------------------------------------------------------- */

static bool is_unary(const struct grpc_stream *s)
{
    return s->method && s->method->on_request;
}

static bool hears(const struct grpc_stream *s)
{
    return s->held && !s->conn->dead;
}

/* Room for all of a message that has come, and not much more. */
static bool message_add(struct grpc_stream *s, const uint8_t *p, size_t n)
{
    struct grpc_conn *c = s->conn;
    size_t need = s->message_have + n, cap = s->message_cap ? s->message_cap : FIRST_BYTES;
    while (cap < need)
        cap *= 2;
    if (cap > s->message_n)
        cap = s->message_n;
    if (cap > s->message_cap) {
        if (c->held_bytes + cap - s->message_cap > (size_t)HELD_MESSAGES * c->limits.message_max)
            return false;
        uint8_t *grown = realloc(s->message, cap);
        if (!grown)
            return false;
        c->held_bytes += cap - s->message_cap;
        s->message = grown;
        s->message_cap = cap;
    }
    memcpy(s->message + s->message_have, p, n);
    s->message_have = need;
    return true;
}

static bool prefix_ok(struct grpc_stream *s)
{
    const uint8_t *b = s->prefix;
    s->message_n = (size_t)b[1] << 24 | (size_t)b[2] << 16 | (size_t)b[3] << 8 | b[4];
    if (b[0] != 0)
        h2_stream_fail(s, s->conn->is_client ? GRPC_INTERNAL : GRPC_UNIMPLEMENTED,
                       "a compressed message; nothing but identity was agreed on");
    else if (s->message_n > s->conn->limits.message_max)
        h2_stream_fail(s, GRPC_RESOURCE_EXHAUSTED, "message of %zu bytes is over the limit of %u", s->message_n,
                       s->conn->limits.message_max);
    else if (is_unary(s) && s->messages_n > 0)
        h2_stream_fail(s, GRPC_INTERNAL, "more than one message in a unary call");
    else
        return true;
    return false;
}

/* A whole message; a unary call's waits for the half-close in s->message. */
static void deliver(struct grpc_stream *s, const uint8_t *p)
{
    s->messages_n++;
    s->prefix_n = 0;
    if (is_unary(s))
        return;
    if (s->cb.on_message)
        s->cb.on_message(s, p, s->message_n, s->arg);
    if (s->message_cap > KEPT_BYTES || !hears(s))
        message_drop(s);
    s->message_have = 0;
}

void h2_stream_data(struct grpc_stream *s, const uint8_t *p, size_t n)
{
    static const uint8_t none[1];
    while (hears(s)) {
        if (s->prefix_n < sizeof s->prefix) {
            size_t take = sizeof s->prefix - s->prefix_n;
            if (take > n)
                take = n;
            if (take > 0)
                memcpy(s->prefix + s->prefix_n, p, take);
            s->prefix_n += take;
            p += take;
            n -= take;
            if (s->prefix_n < sizeof s->prefix || !prefix_ok(s))
                return;
        }
        size_t want = s->message_n - s->message_have, take = want < n ? want : n;
        if (take < want || s->message_have > 0 || is_unary(s)) { /* else it lies whole where it came */
            if (take > 0 && !message_add(s, p, take)) {
                h2_stream_fail(s, GRPC_RESOURCE_EXHAUSTED, "too much of too many messages at once");
                return;
            }
            if (take < want)
                return;
            deliver(s, s->message_n ? s->message : none);
        } else {
            deliver(s, take ? p : none);
        }
        p += take;
        n -= take;
    }
}

static void deliver_unary(struct grpc_stream *s)
{
    static const uint8_t none[1];
    if (s->messages_n == 0) {
        h2_stream_fail(s, GRPC_INTERNAL, "a unary call without a message");
        return;
    }
    s->method->on_request(s, s->message_have ? s->message : none, s->message_have, s->arg);
    assert(s->handled || !s->held);
    message_drop(s);
}

/* What a client's call came to. */
static void answer_ended(struct grpc_stream *s)
{
    no_deadline(s);
    if (nghttp2_session_get_stream_local_close(s->conn->h2, s->id) == 0) /* we have more to say: nobody listens */
        reset(s, NGHTTP2_NO_ERROR);
    if (s->status < 0)
        h2_stream_closed(s, s->http_status == 200 ? GRPC_UNKNOWN : grpc_code_of_http(s->http_status), false,
                         s->http_status == 200 ? "the answer has no grpc-status" : s->text);
    else if (s->status == GRPC_OK && s->prefix_n > 0)
        h2_stream_closed(s, GRPC_INTERNAL, false, "the answer ended inside a message");
    else
        h2_stream_closed(s, (enum grpc_code)s->status, false, s->text);
}

void h2_stream_half_closed(struct grpc_stream *s)
{
    s->half_closed = true;
    if (s->conn->is_client) {
        answer_ended(s);
        return;
    }
    if (!hears(s))
        return;
    if (s->prefix_n > 0)
        h2_stream_fail(s, GRPC_INTERNAL, "the call ended inside a message");
    else if (is_unary(s))
        deliver_unary(s);
    else if (s->cb.on_half_closed)
        s->cb.on_half_closed(s, s->arg);
}

/* ---- in: heads ------------------------------------------------------------------------------------ */

static bool is(const char *name, size_t name_n, const char *want)
{
    return name_n == strlen(want) && memcmp(name, want, name_n) == 0;
}

/* The status of an answer; what nobody knows is UNKNOWN. */
static int status_of(const char *value)
{
    char *end;
    long v = strtol(value, &end, 10);
    return value[0] >= '0' && value[0] <= '9' && !*end && v <= GRPC_UNAUTHENTICATED ? (int)v : GRPC_UNKNOWN;
}

static bool answer_header(struct grpc_stream *s, const char *name, size_t name_n, const char *value, size_t value_n)
{
    char text[GRPC_TEXT_BYTES_MAX + 1];
    if (is(name, name_n, ":status")) {
        s->http_status = atoi(value);
    } else if (is(name, name_n, "grpc-status")) {
        s->status = status_of(value);
    } else if (is(name, name_n, "grpc-message")) {
        grpc_text_decode(value, value_n, text, sizeof text);
        free(s->text);
        s->text = strdup(text);
        return s->text;
    }
    return true;
}

static bool request_header(struct grpc_stream *s, const char *name, size_t name_n, const char *value, size_t value_n)
{
    if (is(name, name_n, ":method"))
        s->is_post = is(value, value_n, "POST");
    else if (is(name, name_n, ":path"))
        return (s->path = strndup(value, PATH_BYTES_MAX));
    return true;
}

bool h2_stream_header(struct grpc_stream *s, const char *name, size_t name_n, const char *value, size_t value_n)
{
    s->header_bytes += name_n + value_n + HEADER_LINE_BYTES;
    if (s->header_bytes > HEADER_FLOOD_BYTES)
        (void)nghttp2_session_terminate_session(s->conn->h2, NGHTTP2_ENHANCE_YOUR_CALM);
    if (s->header_bytes > GRPC_HEADER_BYTES_MAX)
        return true; /* refused when the head is whole */
    if (s->conn->is_client && !answer_header(s, name, name_n, value, value_n))
        return false;
    if (s->open) /* a request's trailers: nobody asks for them */
        return true;
    if (name[0] == ':')
        return s->conn->is_client || request_header(s, name, name_n, value, value_n);
    if (!http_headers_add(s->headers, name, value)) {
        /* Odd bytes: as if that line were not there. */
    }
    return true;
}

static bool is_grpc(const struct grpc_stream *s)
{
    static const char want[] = "application/grpc";
    const char *type = http_headers_get(s->headers, "content-type");
    return type && strncasecmp(type, want, sizeof want - 1) == 0 && strchr("+; ", type[sizeof want - 1]);
}

/* NULL: this is a call of a method we have. Otherwise the reason, with its statuses. */
static const char *refusal(struct grpc_stream *s, int *http_status, enum grpc_code *code, uint64_t *timeout_us)
{
    const char *timeout = http_headers_get(s->headers, "grpc-timeout");
    *http_status = 200;
    if (s->header_bytes > GRPC_HEADER_BYTES_MAX) {
        *code = GRPC_RESOURCE_EXHAUSTED;
        return "the headers are too big";
    }
    if (!s->is_post || !is_grpc(s)) {
        *http_status = s->is_post ? 415 : 405;
        *code = GRPC_INTERNAL;
        return s->is_post ? "content-type is not application/grpc" : "the method is not POST";
    }
    *code = GRPC_UNIMPLEMENTED;
    if (!s->path || !s->conn->server || !(s->method = h2_server_method(s->conn->server, s->path, &s->arg)))
        return "unknown method";
    *code = GRPC_INVALID_ARGUMENT;
    return !timeout || grpc_timeout_parse(timeout, timeout_us) ? NULL : "grpc-timeout is none";
}

void h2_stream_open(struct grpc_stream *s)
{
    int http_status;
    enum grpc_code code;
    uint64_t timeout_us = UINT64_MAX;
    const char *why = refusal(s, &http_status, &code, &timeout_us);
    s->open = true;
    no_deadline(s);
    if (why) {
        end_with(s, http_status, code, why);
        return;
    }
    s->held = true;
    if (timeout_us == UINT64_MAX && is_unary(s))
        timeout_us = s->conn->limits.unary_timeout_ms * UINT64_C(1000);
    if (timeout_us != UINT64_MAX)
        h2_stream_set_deadline(s, clock_us() + timeout_us);
    if (is_unary(s))
        return;
    s->method->on_open(s, s->arg);
    assert(s->handled || !s->held);
    if (s->held && !s->conn->dead && submit_head(s, 200, false, true) != 0) /* clients wait for the head */
        h2_stream_fail(s, GRPC_RESOURCE_EXHAUSTED, "out of memory");
}

void h2_stream_answer(struct grpc_stream *s)
{
    bool interim = s->http_status / 100 == 1;
    if (interim)
        s->http_status = 0;
    else if (s->header_bytes > GRPC_HEADER_BYTES_MAX)
        h2_stream_fail(s, GRPC_INTERNAL, "the answer's headers are too big");
    else if (s->http_status != 200 && s->status < 0)
        h2_stream_fail(s, grpc_code_of_http(s->http_status), "HTTP status %d", s->http_status);
    else if (s->status < 0 && !is_grpc(s))
        h2_stream_fail(s, GRPC_UNKNOWN, "the answer is not application/grpc");
}

bool h2_stream_request(struct grpc_stream *s, const nghttp2_nv *nv, size_t nv_n)
{
    nghttp2_data_provider data = provider(s);
    s->id = nghttp2_submit_request(s->conn->h2, NULL, nv, nv_n, &data, s);
    return s->id > 0;
}
