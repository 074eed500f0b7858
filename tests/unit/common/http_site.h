/* http_site: a server whose pages do what the tests of the server look at. */
#ifndef LQ_TESTS_UNIT_COMMON_HTTP_SITE_H
#define LQ_TESTS_UNIT_COMMON_HTTP_SITE_H

#include "tests/unit/common/http_kit.h"

/* What a handler of these tests looks at and leaves behind. */
struct site {
    struct event_base *base;
    struct http_server *server;
    struct http_req *held; /* by handle_hold() */
    int requests_n, gone_n, ended_n, room_n;
    size_t seen_n, in_max;   /* body bytes; the most that were there at once */
    size_t take_n;           /* what the next on_data takes */
    size_t answer_n;         /* of handle_big() */
    const char *step;        /* where handle_free() and handle_end() act */
    struct evbuffer *source; /* of handle_produce() */
};

#define GET(path) "GET " path " HTTP/1.1\r\nHost: h\r\n\r\n"
#define POST(path, length) "POST " path " HTTP/1.1\r\nHost: h\r\nContent-Length: " length "\r\n\r\n"

static inline uint32_t scaled(uint32_t ms)
{
    const char *x = getenv("LQ_TEST_TIMEOUT_X");
    return x && atoi(x) > 1 ? ms * (uint32_t)atoi(x) : ms;
}

static void on_gone(struct http_req *r, void *arg)
{
    (void)r;
    struct site *w = arg;
    w->gone_n++;
    w->held = NULL;
}

/* ---- handlers, by path --------------------------------------------------------------- */

static void handle_hello(struct http_req *r, struct site *w)
{
    (void)w;
    http_req_reply_text(r, 200, "text/plain", "hello", 5);
}

static void handle_hold(struct http_req *r, struct site *w)
{
    ck_assert_ptr_null(w->held);
    w->held = r;
    http_req_on_gone(r, on_gone, w);
}

static void handle_fault(struct http_req *r, struct site *w)
{
    (void)w;
    struct lq_fault f;
    (void)lq_fail(&f, LQ_QUEUE_FULL, "full");
    http_req_reply_fault(r, &f, "POST");
}

static void handle_empty(struct http_req *r, struct site *w)
{
    (void)w;
    http_req_reply(r, 204, NULL, NULL);
}

static void echo_whole(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct site *w = arg;
    w->seen_n = evbuffer_get_length(in);
    http_req_reply(r, 200, NULL, in);
}

static void handle_echo(struct http_req *r, struct site *w)
{
    http_req_on_gone(r, on_gone, w);
    http_req_read(r, 1 << 30, NULL, echo_whole, w);
}

static void handle_small(struct http_req *r, struct site *w)
{
    http_req_on_gone(r, on_gone, w);
    http_req_read(r, 1000, NULL, echo_whole, w);
}

/* Echo as it comes, with both brakes. */
static void stream_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct site *w = arg;
    size_t n = evbuffer_get_length(in);
    w->in_max = w->in_max > n ? w->in_max : n;
    if (io_output_n(&r->conn->io) < HTTP_HIGH_WATER_BYTES) {
        w->seen_n += n;
        (void)http_req_reply_data(r, in);
    }
    ck_assert_uint_le(io_output_n(&r->conn->io), 2 * HTTP_HIGH_WATER_BYTES + 64);
    ck_assert_uint_le(evbuffer_get_length(r->conn->io.in), HTTP_HIGH_WATER_BYTES);
}

static void stream_end(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct site *w = arg;
    w->seen_n += evbuffer_get_length(in);
    w->ended_n++;
    (void)http_req_reply_data(r, in);
    http_req_reply_end(r);
}

static void stream_room(struct http_req *r, void *arg)
{
    struct site *w = arg;
    w->room_n++;
    http_req_resume(r);
}

static void handle_stream(struct http_req *r, struct site *w)
{
    http_req_on_gone(r, on_gone, w);
    http_req_on_room(r, stream_room, w);
    http_req_reply_start(r, 200, NULL, http_req_length(r));
    http_req_read(r, 1 << 30, stream_data, stream_end, w);
}

/* An answer that is there at once. */
static void handle_big(struct http_req *r, struct site *w)
{
    struct evbuffer *body = evbuffer_new();
    struct evbuffer_iovec v;
    ck_assert_int_eq(evbuffer_reserve_space(body, (ev_ssize_t)w->answer_n, &v, 1), 1);
    memset(v.iov_base, 'x', w->answer_n);
    v.iov_len = w->answer_n;
    evbuffer_commit_space(body, &v, 1);
    http_req_reply(r, 200, NULL, body);
    ck_assert_uint_eq(evbuffer_get_length(body), 0);
    evbuffer_free(body);
}

static void early_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)in;
    handle_big(r, arg);
}

static void handle_early(struct http_req *r, struct site *w)
{
    http_req_read(r, 1000, early_data, echo_whole, w);
}

/* Takes w->take_n bytes a time, or nothing until it is resumed. */
static void sip_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)r;
    struct site *w = arg;
    size_t n = evbuffer_get_length(in);
    w->in_max = w->in_max > n ? w->in_max : n;
    n = n < w->take_n ? n : w->take_n;
    w->take_n -= n;
    w->seen_n += n;
    evbuffer_drain(in, n);
}

static void sip_end(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct site *w = arg;
    w->seen_n += evbuffer_get_length(in);
    w->held = NULL;
    http_req_reply_text(r, 200, "text/plain", "all", 3);
}

static void handle_sip(struct http_req *r, struct site *w)
{
    w->held = r;
    http_req_on_gone(r, on_gone, w);
    http_req_read(r, 1 << 30, sip_data, sip_end, w);
}

/* Does what the path says, where it says: /free/data frees the server in on_data, ... */
static void act(struct http_req *r, struct site *w, const char *step)
{
    char verb[16];
    if (!w->step || strcmp(strrchr(w->step, '/') + 1, step) != 0)
        return;
    snprintf(verb, sizeof verb, "%.*s", (int)(strrchr(w->step, '/') - w->step), w->step);
    w->step = NULL;
    if (strcmp(verb, "free") == 0) {
        http_server_free(w->server);
        w->server = NULL;
    } else if (strcmp(verb, "abort") == 0) {
        http_req_abort(r);
    } else if (strcmp(verb, "reply") == 0) {
        http_req_reply_text(r, 200, "text/plain", "early", 5);
    } else if (strcmp(verb, "drain") == 0) {
        http_server_drain(w->server);
    }
}

static void act_gone(struct http_req *r, void *arg)
{
    struct site *w = arg;
    w->gone_n++;
    act(r, w, "gone");
}

static void act_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)in;
    act(r, arg, "data");
}

static void act_end(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)in;
    struct site *w = arg;
    bool acts = w->step != NULL;
    act(r, w, "end");
    if (!acts || (w->server && !w->server->draining))
        return;
    if (w->server)
        http_req_reply_text(r, 200, "text/plain", "done", 4);
}

static void handle_act(struct http_req *r, struct site *w)
{
    bool acts = strcmp(strrchr(w->step, '/') + 1, "request") == 0;
    http_req_on_gone(r, act_gone, w);
    act(r, w, "request");
    if (!acts)
        http_req_read(r, 1000, act_data, act_end, w);
}

static void handle_twice(struct http_req *r, struct site *w)
{
    (void)w;
    http_req_reply_start(r, 200, NULL, HTTP_LENGTH_UNKNOWN);
    http_req_reply_start(r, 200, NULL, HTTP_LENGTH_UNKNOWN);
}

static void handle_short(struct http_req *r, struct site *w)
{
    (void)w;
    struct evbuffer *part = evbuffer_new();
    http_req_reply_start(r, 200, NULL, 10);
    evbuffer_add(part, "12345", 5);
    (void)http_req_reply_data(r, part);
    http_req_reply_end(r);
    evbuffer_free(part);
}

static void handle_cut(struct http_req *r, struct site *w)
{
    (void)w;
    struct evbuffer *part = evbuffer_new();
    http_req_reply_start(r, 200, NULL, HTTP_LENGTH_UNKNOWN);
    evbuffer_add(part, "12345", 5);
    (void)http_req_reply_data(r, part);
    http_req_abort(r);
    evbuffer_free(part);
}

static void handle_unknown_length(struct http_req *r, struct site *w)
{
    (void)w;
    struct evbuffer *part = evbuffer_new();
    http_req_reply_start(r, 200, NULL, HTTP_LENGTH_UNKNOWN);
    for (int i = 0; i < 3; i++) {
        evbuffer_add_printf(part, "part %d,", i);
        (void)http_req_reply_data(r, part);
    }
    http_req_reply_end(r);
    evbuffer_free(part);
}

static const struct {
    const char *path;
    void (*fn)(struct http_req *r, struct site *w);
} pages[] = {
    {"/hello", handle_hello},   {"/hold", handle_hold}, {"/fault", handle_fault},
    {"/empty", handle_empty},   {"/echo", handle_echo}, {"/small", handle_small},
    {"/stream", handle_stream}, {"/big", handle_big},   {"/early", handle_early},
    {"/sip", handle_sip},       {"/act", handle_act},   {"/twice", handle_twice},
    {"/short", handle_short},   {"/cut", handle_cut},   {"/parts", handle_unknown_length},
};

static void on_request(struct http_req *r, void *arg)
{
    struct site *w = arg;
    w->requests_n++;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(http_req_path(r), pages[i].path) == 0) {
            pages[i].fn(r, w);
            return;
        }
    ck_abort_msg("no page %s", http_req_path(r));
}

static inline void site_open(struct site *w, const struct http_server_opts *o)
{
    *w = (struct site){.base = kit_base()};
    w->server = kit_server(w->base, o, on_request, w);
}

static inline void site_close(struct site *w)
{
    http_server_free(w->server);
    event_base_free(w->base);
}

static inline struct http_server_opts hasty(void)
{
    struct http_server_opts o;
    http_server_opts_init(&o);
    o.header_timeout_ms = o.body_timeout_ms = o.idle_timeout_ms = scaled(100);
    return o;
}

static inline void ask(struct raw *r, struct answer *a, const char *text)
{
    raw_text(r, text);
    raw_answer(r, a);
}

/* ---- shared by the suites ------------------------------------------------------------ */

static inline size_t count(const struct answer *a, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < http_headers_n(a->headers); i++) {
        const char *k, *v;
        http_headers_at(a->headers, i, &k, &v);
        n += strcasecmp(k, name) == 0;
    }
    return n;
}

#define N(a) ((int)(sizeof(a) / sizeof *(a)))

static inline TCase *add_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 20);
    suite_add_tcase(s, t);
    return t;
}

#endif
