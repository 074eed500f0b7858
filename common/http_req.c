/* http_req: what a handler sees and calls: the request's facts, its body, the answer. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "common/clock.h"
#include "common/http_impl.h"
#include "proto/wire_json.h"

void req_free(struct http_req *r)
{
    if (r->in)
        evbuffer_free(r->in);
    free(r->path);
    free(r);
}

void req_make_id(char id[HTTP_ID_CHARS + 1])
{
    unsigned char raw[8];
    if (getrandom(raw, sizeof raw, 0) != sizeof raw) {
        uint64_t now = clock_us(); /* an id for logs, not a secret */
        memcpy(raw, &now, sizeof raw);
    }
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(id + 2 * i, 3, "%02x", raw[i]);
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

uint64_t http_req_start_us(const struct http_req *r)
{
    return r->start_us;
}

/* ---- body ------------------------------------------------------------------------------ */

static void send_text(struct conn *c, const char *text)
{
    struct evbuffer *out = evbuffer_new();
    if (out && evbuffer_add(out, text, strlen(text)) == 0)
        io_send(&c->io, out);
    if (out)
        evbuffer_free(out);
}

/* Answers in the handler's place, before its body callbacks ever ran. */
static void refuse_unread(struct http_req *r, const struct lq_fault *fault)
{
    void (*gone)(struct http_req *, void *) = r->on_gone;
    void *arg = r->gone_arg;
    r->on_gone = NULL;
    if (gone)
        gone(r, arg);
    http_req_reply_fault(r, fault, NULL);
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
    const char *expect = http_headers_get(c->parse.headers, "Expect");
    if (expect && strcasecmp(expect, "100-continue") != 0) {
        (void)lq_fail(&fault, LQ_BAD_EXPECT, "Expect '%.100s' is not known here: only 100-continue", expect);
        refuse_unread(r, &fault);
        return;
    }
    if (c->parse.kind == HTTP_BODY_LENGTH && c->parse.length > limit_bytes) {
        (void)lq_fail(&fault, LQ_BIG_BODY, "body of %llu bytes is over the limit of %llu",
                      (unsigned long long)c->parse.length, (unsigned long long)limit_bytes);
        refuse_unread(r, &fault);
        return;
    }
    if (expect && c->parse.minor == 1 && !c->parse.whole)
        send_text(c, "HTTP/1.1 100 Continue\r\n\r\n");
    io_arm(&c->io, c->server->opts.body_timeout_ms);
    if (!c->running)
        io_kick(&c->io);
}

void http_req_resume(struct http_req *r)
{
    struct conn *c = r->conn;
    r->blocked = false;
    if (r->reading && !r->ended && r->on_data && evbuffer_get_length(r->in) > 0) {
        r->on_data(r, r->in, r->body_arg);
        if (c->req != r)
            return;
        r->blocked = evbuffer_get_length(r->in) >= HTTP_HIGH_WATER_BYTES;
    }
    if (!c->running)
        io_kick(&c->io);
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
    } known[] = {{200, "OK"}, {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
                 {405, "Method Not Allowed"}, {408, "Request Timeout"}, {413, "Content Too Large"},
                 {415, "Unsupported Media Type"}, {417, "Expectation Failed"},
                 {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"}, {502, "Bad Gateway"},
                 {503, "Service Unavailable"}, {504, "Gateway Timeout"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status)
            return known[i].text;
    return "Status";
}

static const char *date_now(struct http_server *s)
{
    time_t now = time(NULL);
    if ((uint64_t)now != s->date_s) {
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_s = (uint64_t)now;
    }
    return s->date;
}

void req_write_head(struct http_server *s, int status, const struct http_headers *h, uint64_t length, bool chunked,
                    bool keep_alive, bool old, const char *id, struct evbuffer *out)
{
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: %s\r\nX-Request-Id: %s\r\n", status, reason(status),
                        date_now(s), s->server_name, id);
    for (size_t i = 0; h && i < http_headers_n(h); i++) {
        const char *name, *value;
        http_headers_at(h, i, &name, &value);
        evbuffer_add_printf(out, "%s: %s\r\n", name, value);
    }
    if (chunked)
        evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    else if (length != HTTP_LENGTH_UNKNOWN)
        evbuffer_add_printf(out, "Content-Length: %llu\r\n", (unsigned long long)length);
    if (!keep_alive)
        evbuffer_add_printf(out, "Connection: close\r\n");
    else if (old)
        evbuffer_add_printf(out, "Connection: keep-alive\r\n");
    evbuffer_add(out, "\r\n", 2);
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
    struct evbuffer *out = evbuffer_new();
    bool old = c->parse.minor == 0;
    assert(!r->started);
    r->started = true;
    r->chunked = length == HTTP_LENGTH_UNKNOWN && !old;
    r->left = length;
    c->keep_alive &= c->parse.whole && !c->server->draining && !(length == HTTP_LENGTH_UNKNOWN && old);
    if (!out) {
        conn_close(c); /* nothing can be said; the client sees a closed connection */
        return;
    }
    req_write_head(c->server, status, headers, length, r->chunked, c->keep_alive, old, r->id, out);
    if (body && !is_head(r))
        evbuffer_add_buffer(out, body);
    else if (body)
        evbuffer_drain(body, evbuffer_get_length(body));
    io_send(&c->io, out);
    evbuffer_free(out);
}

void http_req_reply(struct http_req *r, int status, const struct http_headers *headers, struct evbuffer *body)
{
    struct conn *c = r->conn;
    r->on_gone = NULL;
    begin(r, status, headers, body ? evbuffer_get_length(body) : 0, body);
    if (c->state != CONN_DEAD)
        conn_answered(c);
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

void http_req_reply_fault(struct http_req *r, const struct lq_fault *fault, const char *allow)
{
    size_t n = 0;
    int status = lq_err_status(fault->code);
    char *text = wire_json_error(fault->text, r->id, &n);
    struct http_headers *h = http_headers_new();
    struct evbuffer *body = evbuffer_new();
    bool ok = text && h && body && http_headers_add(h, "Content-Type", "application/json") &&
              evbuffer_add(body, text, n) == 0 && (!allow || http_headers_add(h, "Allow", allow)) &&
              (status != 503 || http_headers_add(h, "Retry-After", "1"));
    http_req_reply(r, status, ok ? h : NULL, ok ? body : NULL);
    free(text);
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
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
    if (is_head(r)) {
        evbuffer_drain(data, n);
        return true;
    }
    if (n > 0 && r->chunked) {
        struct evbuffer *out = evbuffer_new();
        if (!out) {
            io_shut_write(&c->io); /* the last chunk never comes: seen as cut */
            evbuffer_drain(data, n);
            return true;
        }
        evbuffer_add_printf(out, "%zx\r\n", n);
        evbuffer_add_buffer(out, data);
        evbuffer_add(out, "\r\n", 2);
        io_send(&c->io, out);
        evbuffer_free(out);
    } else if (n > 0) {
        if (r->left != HTTP_LENGTH_UNKNOWN)
            r->left -= n;
        io_send(&c->io, data);
    }
    bool room = io_output_n(&c->io) < HTTP_HIGH_WATER_BYTES;
    if (!room)
        io_arm(&c->io, c->server->opts.body_timeout_ms); /* the client must read on */
    return room;
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
        http_req_abort(r);
        return;
    }
    r->on_gone = NULL;
    if (r->chunked && !is_head(r))
        send_text(c, "0\r\n\r\n");
    conn_answered(c);
}

void http_req_abort(struct http_req *r)
{
    r->on_gone = NULL;
    conn_close(r->conn);
}
