/* http_req: what a handler sees and calls: the request's facts, its body, the answer. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "common/clock.h"
#include "common/http_impl.h"
#include "proto/wire_json.h"

/* ---- life ---------------------------------------------------------------------------- */

/* An id for logs, not a secret: 16 hex digits. */
static void make_id(struct http_server *s, char id[HTTP_ID_CHARS + 1])
{
    enum { RAW_BYTES = 8 };
    if (s->random_left_n < RAW_BYTES) {
        if (getrandom(s->random, sizeof s->random, 0) != sizeof s->random) {
            uint64_t now = clock_us(); /* no entropy: still one of its own for each */
            memcpy(s->random, &now, sizeof now);
            s->random_left_n = RAW_BYTES;
        } else {
            s->random_left_n = sizeof s->random;
        }
    }
    s->random_left_n -= RAW_BYTES;
    for (size_t i = 0; i < RAW_BYTES; i++) {
        id[2 * i] = "0123456789abcdef"[s->random[s->random_left_n + i] >> 4];
        id[2 * i + 1] = "0123456789abcdef"[s->random[s->random_left_n + i] & 15];
    }
    id[2 * RAW_BYTES] = '\0';
}

/* RFC 9112, 3.2.2: a server takes the absolute form too. */
static const char *target_path(const char *target)
{
    const char *scheme = *target != '/' ? strstr(target, "://") : NULL;
    if (!scheme)
        return target;
    const char *slash = strchr(scheme + 3, '/');
    return slash ? slash : "/";
}

enum lq_err req_new(struct conn *c, struct lq_fault *fault)
{
    struct http_parse *p = &c->parse;
    struct http_req *r = calloc(1, sizeof *r);
    if (!r || !(r->in = evbuffer_new()) || !(r->path = strdup(target_path(p->target)))) {
        if (r)
            req_free(r);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a request");
    }
    r->conn = c;
    r->start_us = clock_us();
    r->query = strchr(r->path, '?');
    if (r->query)
        *r->query++ = '\0';
    const char *id = http_headers_get(p->headers, "X-Request-Id");
    size_t n = id ? strlen(id) : 0;
    if (n > 0 && n <= HTTP_ID_CHARS &&
        strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n)
        memcpy(r->id, id, n + 1);
    else
        make_id(c->server, r->id);
    c->req = r;
    return LQ_OK;
}

void req_free(struct http_req *r)
{
    if (r->in)
        evbuffer_free(r->in);
    free(r->path);
    free(r);
}

void req_gone(struct http_req *r)
{
    if (r->on_gone)
        r->on_gone(r, r->gone_arg);
    req_free(r);
}

/* ---- facts --------------------------------------------------------------------------- */

const char *http_req_method(const struct http_req *r)
{
    return llhttp_method_name((llhttp_method_t)r->conn->parse.method);
}

const char *http_req_path(const struct http_req *r)
{
    return r->path;
}

const char *http_req_query(const struct http_req *r)
{
    return r->query ? r->query : "";
}

const struct http_headers *http_req_headers(const struct http_req *r)
{
    return r->conn->parse.headers;
}

uint64_t http_req_length(const struct http_req *r)
{
    return r->conn->parse.length;
}

const char *http_req_id(const struct http_req *r)
{
    return r->id;
}

struct event_base *http_req_base(const struct http_req *r)
{
    return r->conn->server->base;
}

bool http_req_peer(const struct http_req *r, struct sockaddr_storage *a)
{
    socklen_t n = sizeof *a;
    struct bufferevent *bev = r->conn->io.bev;
    return bev && getpeername(bufferevent_getfd(bev), (struct sockaddr *)a, &n) == 0;
}

uint64_t http_req_start_us(const struct http_req *r)
{
    return r->start_us;
}

/* ---- body ------------------------------------------------------------------------------ */

enum lq_err http_req_may_read(const struct http_req *r, uint64_t limit_bytes, struct lq_fault *fault)
{
    const struct http_parse *p = &r->conn->parse;
    char all[128];
    const char *expect = http_headers_get(p->headers, "Expect");
    if (expect && (!http_headers_join(p->headers, "Expect", all, sizeof all) || strcasecmp(all, "100-continue")))
        return lq_fail(fault, LQ_BAD_EXPECT, "Expect '%.100s' is not known here: only 100-continue", expect);
    if (p->kind == HTTP_BODY_LENGTH && p->length > limit_bytes)
        return lq_fail(fault, LQ_BIG_BODY, "body of %" PRIu64 " bytes is over the limit of %" PRIu64, p->length,
                       limit_bytes);
    return LQ_OK;
}

void http_req_read(struct http_req *r, uint64_t limit_bytes, http_req_on_data on_data, http_req_on_data on_end,
                   void *arg)
{
    struct conn *c = r->conn;
    struct lq_fault fault;
    assert(!r->reading);
    r->reading = true;
    r->on_data = on_data;
    r->on_end = on_end;
    r->body_arg = arg;
    c->parse.limit = limit_bytes;
    if (http_req_may_read(r, limit_bytes, &fault) != LQ_OK) {
        conn_refuse_open(c, &fault);
        return;
    }
    if (!c->parse.whole) {
        if (http_headers_get(c->parse.headers, "Expect") && c->parse.minor == 1 && !r->started)
            io_flush(&c->io, evbuffer_add(c->io.out, "HTTP/1.1 100 Continue\r\n\r\n", 25) == 0);
        io_arm(&c->io, c->server->opts.body_timeout_ms);
    }
    if (!c->running)
        io_kick(&c->io);
}

void http_req_resume(struct http_req *r)
{
    struct conn *c = r->conn;
    struct http_guard *guard = &c->server->guard;
    guard_enter(guard);
    r->blocked = false;
    if (r->reading && !r->ended && r->on_data && evbuffer_get_length(r->in) > 0) {
        r->on_data(r, r->in, r->body_arg);
        if (c->req == r)
            r->blocked = evbuffer_get_length(r->in) >= HTTP_HIGH_WATER_BYTES;
    }
    if (c->req == r && !c->running)
        io_kick(&c->io);
    guard_leave(guard);
}

void http_req_on_gone(struct http_req *r, void (*fn)(struct http_req *r, void *arg), void *arg)
{
    r->on_gone = fn;
    r->gone_arg = arg;
}

/* ---- answer -------------------------------------------------------------------------------- */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } known[] = {{200, "OK"},
                 {204, "No Content"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {408, "Request Timeout"},
                 {413, "Content Too Large"},
                 {415, "Unsupported Media Type"},
                 {417, "Expectation Failed"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {502, "Bad Gateway"},
                 {503, "Service Unavailable"},
                 {504, "Gateway Timeout"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status)
            return known[i].text;
    return "Status";
}

static const char *date_now(struct http_server *s)
{
    time_t now = time(NULL);
    if (now != s->date_s) {
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_s = now;
    }
    return s->date;
}

struct head {
    int status;
    const struct http_headers *headers; /* the handler's, or NULL */
    uint64_t length;                    /* HTTP_LENGTH_UNKNOWN and !chunked: until close */
    bool chunked, keep_alive, old;      /* old: HTTP/1.0, where keep-alive must be said */
    const char *id;
};

/* Into c->io.out. False: out of memory. */
static bool write_head(struct conn *c, const struct head *h)
{
    char status[HTTP_DECIMAL_CHARS], length[HTTP_DECIMAL_CHARS];
    const char *connection = !h->keep_alive ? "Connection: close\r\n" : h->old ? "Connection: keep-alive\r\n" : "";
    const char *const begin[] = {"HTTP/1.1 ",
                                 http_decimal((uint64_t)h->status, status),
                                 " ",
                                 reason(h->status),
                                 "\r\nDate: ",
                                 date_now(c->server),
                                 "\r\nServer: ",
                                 c->server->server_name,
                                 "\r\nX-Request-Id: ",
                                 h->id,
                                 "\r\n",
                                 NULL};
    bool sized = h->length != HTTP_LENGTH_UNKNOWN && h->status != 204; /* RFC 9110, 8.6: a 204 has none */
    const char *const chunked_end[] = {"Transfer-Encoding: chunked\r\n", connection, "\r\n", NULL};
    const char *const sized_end[] = {
        "Content-Length: ", http_decimal(h->length, length), "\r\n", connection, "\r\n", NULL};
    const char *const bare_end[] = {connection, "\r\n", NULL};
    return http_head_write(begin, h->headers, h->chunked ? chunked_end : sized ? sized_end : bare_end, c->io.out);
}

static bool is_head(const struct http_req *r)
{
    return r->conn->parse.method == HTTP_HEAD;
}

/* Head and as much of the body as there is, in one write. */
static void begin(struct http_req *r, int status, const struct http_headers *headers, uint64_t length,
                  struct evbuffer *body)
{
    struct conn *c = r->conn;
    bool old = c->parse.minor == 0, unknown = length == HTTP_LENGTH_UNKNOWN;
    assert(!r->started); /* a request is answered once */
    r->started = true;
    r->chunked = unknown && !old;
    r->left = length;
    /* Unread body bytes would be taken for the next request. */
    c->keep_alive &= c->parse.whole && !c->server->draining && !(unknown && old);
    struct head h = {.status = status,
                     .headers = headers,
                     .length = length,
                     .chunked = r->chunked,
                     .keep_alive = c->keep_alive,
                     .old = old,
                     .id = r->id};
    bool ok = write_head(c, &h);
    if (body && is_head(r))
        evbuffer_drain(body, evbuffer_get_length(body));
    else if (body && ok)
        ok = evbuffer_add_buffer(c->io.out, body) == 0;
    io_flush(&c->io, ok);
}

void http_req_reply(struct http_req *r, int status, const struct http_headers *headers, struct evbuffer *body)
{
    r->on_gone = NULL;
    begin(r, status, headers, body ? evbuffer_get_length(body) : 0, body);
    conn_answered(r->conn);
}

void http_req_reply_text(struct http_req *r, int status, const char *content_type, const char *text, size_t n)
{
    struct http_headers *h = http_headers_new();
    struct evbuffer *body = evbuffer_new();
    if (h && body && http_headers_add(h, "Content-Type", content_type) && evbuffer_add(body, text, n) == 0)
        http_req_reply(r, status, h, body);
    else
        http_req_reply(r, 503, NULL, NULL);
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
}

/* What an error says in its headers, besides the text. */
static bool add_fault_headers(struct http_headers *h, enum lq_err code, const char *allow)
{
    int status = lq_err_status(code);
    return http_headers_add(h, "Content-Type", "application/json") && (!allow || http_headers_add(h, "Allow", allow)) &&
           (status != 503 || http_headers_add(h, "Retry-After", "1")) &&
           (status != 429 || http_headers_add(h, "Retry-After", "10")) &&
           (code != LQ_NO_KEY || http_headers_add(h, "WWW-Authenticate", "Bearer realm=\"larql-grid\"")) &&
           (code != LQ_WRONG_KEY ||
            http_headers_add(h, "WWW-Authenticate", "Bearer realm=\"larql-grid\", error=\"invalid_token\""));
}

/* The headers and the body of an error. False: out of memory. */
static bool fault_parts(const struct lq_fault *fault, const char *allow, const char *id, struct http_headers **h,
                        struct evbuffer **body)
{
    size_t n = 0;
    char *text = wire_json_error(fault->text, id, &n);
    *h = http_headers_new();
    *body = evbuffer_new();
    bool ok = text && *h && *body && add_fault_headers(*h, fault->code, allow) && evbuffer_add(*body, text, n) == 0;
    free(text);
    return ok;
}

void http_req_reply_fault(struct http_req *r, const struct lq_fault *fault, const char *allow)
{
    struct http_headers *h;
    struct evbuffer *body;
    bool ok = fault_parts(fault, allow, r->id, &h, &body);
    http_req_reply(r, lq_err_status(fault->code), ok ? h : NULL, ok ? body : NULL);
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
}

static void count_refused(const struct http_server *s, enum lq_err code)
{
    switch (code) {
    case LQ_BAD_FRAMING:
        server_refused(s, HTTP_REFUSED_FRAMING);
        break;
    case LQ_BIG_HEADERS:
        server_refused(s, HTTP_REFUSED_HEADER);
        break;
    case LQ_BIG_BODY:
        server_refused(s, HTTP_REFUSED_BODY);
        break;
    case LQ_SLOW_REQUEST:
        server_refused(s, HTTP_REFUSED_TIMEOUT);
        break;
    default: /* no limit of ours: out of memory, an unknown Expect */
        break;
    }
}

/* r: the request that this ends, or NULL where there was none yet. */
static void refuse(struct conn *c, struct http_req *r, const struct lq_fault *fault)
{
    char made[HTTP_ID_CHARS + 1];
    struct http_headers *h;
    struct evbuffer *body;
    if (!r)
        make_id(c->server, made);
    count_refused(c->server, fault->code);
    log_debug("request_refused req=%s error=%s why=%s", r ? r->id : made, lq_err_word(fault->code),
              log_q(fault->text));
    bool ok = fault_parts(fault, NULL, r ? r->id : made, &h, &body);
    struct head head = {.status = lq_err_status(fault->code),
                        .headers = ok ? h : NULL,
                        .length = ok ? evbuffer_get_length(body) : 0,
                        .id = r ? r->id : made};
    bool whole = write_head(c, &head);
    if (ok && whole && !(r && is_head(r)))
        whole = evbuffer_add_buffer(c->io.out, body) == 0;
    c->keep_alive = false;
    io_flush(&c->io, whole);
    conn_answered(c);
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
}

void conn_refuse(struct conn *c, const struct lq_fault *fault)
{
    refuse(c, NULL, fault);
}

void conn_refuse_open(struct conn *c, const struct lq_fault *fault)
{
    struct http_req *r = c->req;
    struct http_guard *guard = &c->server->guard;
    if (r->started) { /* too late for another answer */
        conn_close(c);
        return;
    }
    guard_enter(guard);
    c->req = NULL;
    refuse(c, r, fault);
    req_gone(r);
    guard_leave(guard);
}

void http_req_reply_start(struct http_req *r, int status, const struct http_headers *headers, uint64_t length)
{
    io_low_water(&r->conn->io, HTTP_LOW_WATER_BYTES);
    begin(r, status, headers, length, NULL);
}

bool http_req_reply_data(struct http_req *r, struct evbuffer *data)
{
    struct conn *c = r->conn;
    size_t n = evbuffer_get_length(data);
    assert(r->started && (r->left == HTTP_LENGTH_UNKNOWN || n <= r->left));
    if (r->left != HTTP_LENGTH_UNKNOWN)
        r->left -= n;
    if (is_head(r)) {
        evbuffer_drain(data, n);
        return true;
    }
    if (n > 0) {
        bool ok = !r->chunked || evbuffer_add_printf(c->io.out, "%zx\r\n", n) > 0;
        ok = ok && evbuffer_add_buffer(c->io.out, data) == 0;
        ok = ok && (!r->chunked || evbuffer_add(c->io.out, "\r\n", 2) == 0);
        io_flush(&c->io, ok);
        evbuffer_drain(data, evbuffer_get_length(data)); /* of a broken connection */
    }
    r->wants_room = io_output_n(&c->io) >= HTTP_HIGH_WATER_BYTES;
    return !r->wants_room;
}

void http_req_on_room(struct http_req *r, void (*fn)(struct http_req *r, void *arg), void *arg)
{
    r->on_room = fn;
    r->room_arg = arg;
}

void http_req_reply_end(struct http_req *r)
{
    struct conn *c = r->conn;
    assert(r->started);
    if (!is_head(r) && r->left != HTTP_LENGTH_UNKNOWN && r->left > 0) {
        http_req_abort(r); /* less than the head promised */
        return;
    }
    r->on_gone = NULL;
    if (r->chunked && !is_head(r))
        io_flush(&c->io, evbuffer_add(c->io.out, "0\r\n\r\n", 5) == 0);
    conn_answered(c);
}

void http_req_abort(struct http_req *r)
{
    r->on_gone = NULL;
    if (r->started && !r->chunked && r->left == HTTP_LENGTH_UNKNOWN)
        io_reset_on_close(&r->conn->io); /* an end would look like the body's */
    conn_close(r->conn);
}
