/* The server: bodies that stream both ways, clients that are slow, silent or refused. */
#include "tests/unit/common/http_site.h"

/* ---- streaming ------------------------------------------------------------------------------ */

enum { STREAM_BYTES = 3 << 20 };

static void fill(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(i * 2654435761u >> 24);
}

/* Sends what `body` says as one chunked or measured request. */
static void send_stream(struct raw *r, const char *body, size_t n, bool chunked)
{
    char text[128];
    snprintf(text, sizeof text, "POST /stream HTTP/1.1\r\nHost: h\r\n%s%zu\r\n\r\n",
             chunked ? "Transfer-Encoding: chunked\r\nX: " : "Content-Length: ", n);
    raw_text(r, text);
    for (size_t at = 0, piece = 1; chunked && at < n; at += piece, piece = piece * 3 % 70000 + 1) {
        piece = piece < n - at ? piece : n - at;
        snprintf(text, sizeof text, "%zx\r\n", piece);
        raw_text(r, text);
        raw_send(r, body + at, piece);
        raw_text(r, "\r\n");
    }
    if (chunked)
        raw_text(r, "0\r\n\r\n");
    else
        raw_send(r, body, n);
}

START_TEST(bodies_stream_both_ways_and_a_slow_reader_bounds_memory)
{
    bool chunked = _i & 1, slow = _i & 2;
    struct site w;
    struct raw r;
    struct answer a = {0};
    char *body = malloc(STREAM_BYTES);
    fill(body, STREAM_BYTES);
    site_open(&w, NULL);
    raw_open(&r, w.server);
    if (slow)
        bufferevent_disable(r.bev, EV_READ);
    send_stream(&r, body, STREAM_BYTES, chunked);
    if (slow) {
        kit_turns(w.base, 200);
        ck_assert_uint_lt(w.seen_n, 1500000); /* both brakes and the sockets hold no more */
        ck_assert_uint_gt(evbuffer_get_length(bufferevent_get_output(r.bev)), 1000000);
        bufferevent_enable(r.bev, EV_READ);
    }
    RUN_UNTIL(w.base, w.ended_n == 1);
    RUN_UNTIL(w.base, raw_take(&r, &a, false) || r.eof);
    ck_assert_uint_eq(w.seen_n, STREAM_BYTES);
    ck_assert_uint_le(w.in_max, HTTP_HIGH_WATER_BYTES);
    ck_assert_uint_eq(evbuffer_get_length(a.body), STREAM_BYTES);
    ck_assert_mem_eq(evbuffer_pullup(a.body, -1), body, STREAM_BYTES);
    ck_assert_uint_eq(count(&a, "Transfer-Encoding"), chunked);
    if (slow)
        ck_assert_int_gt(w.room_n, 0);
    answer_release(&a);
    free(body);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_slow_taker_stops_the_sender)
{
    struct site w;
    struct raw r;
    struct answer a;
    char *body = calloc(1, STREAM_BYTES);
    site_open(&w, NULL);
    raw_open(&r, w.server);
    raw_text(&r, POST("/sip", "3145728"));
    raw_send(&r, body, STREAM_BYTES);
    kit_turns(w.base, 200);
    ck_assert_uint_eq(w.seen_n, 0);
    ck_assert_uint_eq(w.in_max, HTTP_HIGH_WATER_BYTES);
    ck_assert_uint_gt(evbuffer_get_length(bufferevent_get_output(r.bev)), STREAM_BYTES - 1000000);
    while (w.held) { /* sips */
        w.take_n = 100000;
        http_req_resume(w.held);
        kit_turns(w.base, 3);
    }
    raw_answer(&r, &a);
    ck_assert_str_eq(answer_text(&a), "all");
    ck_assert_uint_eq(w.seen_n, STREAM_BYTES);
    answer_release(&a);
    free(body);
    raw_close(&r);
    site_close(&w);
}
END_TEST

static const struct {
    const char *request, *body;
    bool close;
} parts[] = {
    {GET("/parts"), "part 0,part 1,part 2,", false},
    {"GET /parts HTTP/1.0\r\n\r\n", "part 0,part 1,part 2,", true},
    {"GET /parts HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "part 0,part 1,part 2,", true},
};

START_TEST(unknown_lengths_are_chunked_or_end_with_the_connection)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    raw_open_tcp(&r, w.server);
    ask(&r, &a, parts[_i].request);
    ck_assert_str_eq(answer_text(&a), parts[_i].body);
    ck_assert_int_eq(r.eof, parts[_i].close);
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

static const struct {
    const char *request;
    bool reset;
} cuts[] = {{GET("/short"), false}, {GET("/cut"), false}, {"GET /cut HTTP/1.0\r\n\r\n", true}};

START_TEST(a_cut_answer_never_looks_complete)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    raw_open_tcp(&r, w.server);
    raw_text(&r, cuts[_i].request);
    RUN_UNTIL(w.base, r.eof || r.reset);
    if (cuts[_i].reset)
        ck_assert(r.reset);
    else
        ck_assert(!raw_take(&r, &a, false));
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(no_continue_stands_inside_an_answer)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    ask(&r, &a, "POST /stream HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc");
    ck_assert_int_eq(a.status, 200);
    ck_assert_str_eq(answer_text(&a), "abc");
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

/* ---- refusals --------------------------------------------------------------------------------- */

START_TEST(a_refusal_is_readable_while_the_client_still_sends)
{
    static const char *const heads_[] = {
        POST("/small", "100000000"),
        "POST /small HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e0\r\n",
        POST("/fault", "100000000"),
    };
    struct site w;
    struct raw r;
    struct answer a;
    char *junk = calloc(1, 8 << 20);
    memcpy(junk + 0x3e0, "\r\n20\r\n", 6); /* the chunk that is too much */
    site_open(&w, NULL);
    raw_open_tcp(&r, w.server);
    raw_text(&r, heads_[_i]);
    raw_send(&r, junk, 8 << 20);
    raw_answer(&r, &a);
    ck_assert_int_eq(a.status, _i == 2 ? 503 : 413);
    ck_assert_str_eq(http_headers_get(a.headers, "Connection"), "close");
    ck_assert(!r.reset);
    ck_assert_int_eq(w.gone_n, _i < 2);
    answer_release(&a);
    RUN_UNTIL(w.base, r.eof); /* our side is shut at once; the other is read on */
    if (!kit_dial_tls)        /* there this client stops writing at a close_notify */
        RUN_UNTIL(w.base, evbuffer_get_length(bufferevent_get_output(r.bev)) == 0 || r.reset);
    ck_assert(!r.reset); /* not even after the answer: a client that writes on may see that first */
    raw_close(&r);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    free(junk);
    site_close(&w);
}
END_TEST

START_TEST(a_refused_request_keeps_its_id)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    ask(&r, &a, "POST /small HTTP/1.1\r\nHost: h\r\nX-Request-Id: me\r\nContent-Length: 1001\r\n\r\n");
    ck_assert_str_eq(http_headers_get(a.headers, "X-Request-Id"), "me");
    ck_assert_str_eq(answer_text(&a),
                     "{\"error\":\"body of 1001 bytes is over the limit of 1000\",\"request_id\":\"me\"}");
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(lingering_ends)
{
    struct site w;
    struct raw r;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    raw_text(&r, "nonsense");
    RUN_UNTIL(w.base, r.eof);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0); /* though the client stays */
    raw_close(&r);
    site_close(&w);
}
END_TEST

/* ---- patience ---------------------------------------------------------------------------------- */

struct drip {
    struct raw *raw;
    const char *byte;
    struct event *ev;
};

static void on_drip(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct drip *d = arg;
    raw_send(d->raw, d->byte, 1);
}

static void drip_start(struct drip *d, struct raw *r, const char *byte, uint32_t ms)
{
    struct timeval tv = {.tv_usec = (suseconds_t)ms * 1000};
    *d = (struct drip){.raw = r, .byte = byte};
    d->ev = event_new(r->base, -1, EV_PERSIST, on_drip, d);
    event_add(d->ev, &tv);
}

START_TEST(a_slow_head_gets_408_however_it_drips)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r;
    struct answer a;
    struct drip d;
    site_open(&w, &o);
    raw_open(&r, w.server);
    if (_i) { /* on a kept connection */
        ask(&r, &a, GET("/hello"));
        answer_release(&a);
    }
    raw_text(&r, "GET /hello HTTP/1.1\r\nHost: h\r\nX: ");
    drip_start(&d, &r, "x", 2);
    raw_answer(&r, &a);
    event_free(d.ev);
    ck_assert_int_eq(a.status, 408);
    answer_release(&a);
    RUN_UNTIL(w.base, r.eof);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_body_that_stops_gets_408_and_keeps_its_id)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, &o);
    raw_open(&r, w.server);
    ask(&r, &a, "POST /small HTTP/1.1\r\nHost: h\r\nX-Request-Id: me\r\nContent-Length: 5\r\n\r\nab");
    ck_assert_int_eq(a.status, 408);
    ck_assert_str_eq(http_headers_get(a.headers, "X-Request-Id"), "me");
    ck_assert_int_eq(w.gone_n, 1);
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_body_that_drips_is_read)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r;
    struct answer a;
    struct drip d;
    o.body_timeout_ms = scaled(400);
    site_open(&w, &o);
    raw_open(&r, w.server);
    raw_text(&r, POST("/echo", "120"));
    drip_start(&d, &r, "x", scaled(5)); /* longer, in all, than the body's timeout */
    raw_answer(&r, &a);
    event_free(d.ev);
    ck_assert_int_eq(a.status, 200);
    ck_assert_uint_eq(evbuffer_get_length(a.body), 120);
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

/* The taker is slow, not the client: no timeout; once it has taken, the client's runs again. */
START_TEST(a_full_taker_stops_the_clock)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r, other;
    char *junk = calloc(1, 300000);
    site_open(&w, &o);
    raw_open(&r, w.server);
    raw_open(&other, w.server);
    raw_text(&r, POST("/sip", "300001"));
    raw_send(&r, junk, 300000); /* one byte is missing */
    RUN_UNTIL(w.base, w.in_max == HTTP_HIGH_WATER_BYTES);
    RUN_UNTIL(w.base, other.eof); /* so the body's timeout has passed, too */
    kit_turns(w.base, 3);
    ck_assert_int_eq(w.gone_n, 0);
    w.take_n = 1 << 20;
    http_req_resume(w.held);
    RUN_UNTIL(w.base, w.gone_n == 1);
    RUN_UNTIL(w.base, r.eof);
    free(junk);
    raw_close(&r);
    raw_close(&other);
    site_close(&w);
}
END_TEST

START_TEST(an_idle_connection_is_closed_without_a_word)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, &o);
    raw_open(&r, w.server);
    if (_i) {
        ask(&r, &a, GET("/hello"));
        answer_release(&a);
    }
    RUN_UNTIL(w.base, r.eof);
    ck_assert_uint_eq(raw_n(&r), 0);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_pending_handler_is_not_timed)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r, other;
    struct answer a;
    site_open(&w, &o);
    raw_open(&r, w.server);
    raw_open(&other, w.server);
    raw_text(&r, GET("/hold"));
    RUN_UNTIL(w.base, other.eof); /* every timeout of r has passed, too */
    ck_assert_ptr_nonnull(w.held);
    kit_turns(w.base, 3);
    http_req_reply_text(w.held, 200, "text/plain", "late", 4);
    raw_answer(&r, &a);
    ck_assert_str_eq(answer_text(&a), "late");
    answer_release(&a);
    raw_close(&r);
    raw_close(&other);
    site_close(&w);
}
END_TEST

START_TEST(an_answer_that_nobody_reads_ends)
{
    static const char *const requests[] = {GET("/big"), GET("/big") GET("/big"), POST("/stream", "30000000")};
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r;
    char *junk = calloc(1, 30000000);
    site_open(&w, &o);
    w.answer_n = 8 << 20;
    raw_open_tcp(&r, w.server);
    bufferevent_disable(r.bev, EV_READ);
    raw_text(&r, requests[_i]);
    if (_i == 2) /* and while the client goes on sending */
        raw_send(&r, junk, 30000000);
    RUN_UNTIL(w.base, w.requests_n == 1);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    ck_assert_int_eq(w.gone_n, _i == 2);
    raw_close(&r);
    free(junk);
    site_close(&w);
}
END_TEST

/* The reset meets the write first, which leaves the read side nothing but an end of the stream. */
START_TEST(an_answer_whose_reader_resets_ends)
{
    static const char *const requests[] = {GET("/big"), GET("/big") GET("/big"), "GET /big HTTP/1.0\r\n\r\n"};
    struct linger none = {.l_onoff = 1, .l_linger = 0};
    struct site w;
    struct raw r;
    site_open(&w, NULL); /* patient: no timeout of it ends this */
    w.answer_n = 8 << 20;
    for (int i = 0; i < 20; i++) {
        raw_open_tcp(&r, w.server);
        bufferevent_disable(r.bev, EV_READ);
        raw_text(&r, requests[_i]);
        RUN_UNTIL(w.base, w.requests_n == i + 1);
        kit_turns(w.base, 20);
        ck_assert_int_eq(setsockopt(bufferevent_getfd(r.bev), SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
        raw_close(&r);
        RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    }
    site_close(&w);
}
END_TEST

struct gulps {
    int fd;
    size_t n;
    bool eof;
};

static void on_gulp(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct gulps *g = arg;
    static char gulp[65536];
    ssize_t n = read(g->fd, gulp, sizeof gulp);
    g->n += n > 0 ? (size_t)n : 0;
    g->eof |= n == 0;
}

START_TEST(an_answer_that_is_read_slowly_is_not_cut)
{
    struct http_server_opts o = hasty();
    struct site w;
    struct raw r;
    struct timeval tv = {.tv_usec = (suseconds_t)scaled(4) * 1000};
    o.body_timeout_ms = scaled(250);
    site_open(&w, &o);
    w.answer_n = 8 << 20; /* 128 gulps and more: longer, in all, than the timeout */
    raw_open(&r, w.server);
    bufferevent_disable(r.bev, EV_READ);
    if (_i) /* an answer that did not wait for the body, whose timeout must not end it */
        raw_text(&r, POST("/early", "10") "12345");
    else
        raw_text(&r, "GET /big HTTP/1.0\r\n\r\n"); /* so that it ends with the connection */
    struct gulps g = {.fd = bufferevent_getfd(r.bev)};
    struct event *ev = event_new(w.base, -1, EV_PERSIST, on_gulp, &g);
    event_add(ev, &tv);
    RUN_UNTIL(w.base, g.eof);
    event_free(ev);
    ck_assert_uint_gt(g.n, w.answer_n); /* body and head */
    raw_close(&r);
    site_close(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_stream");
    TCase *t;

    t = add_case(s, "streams");
    tcase_add_loop_test(t, bodies_stream_both_ways_and_a_slow_reader_bounds_memory, 0, 4);
    tcase_add_test(t, a_slow_taker_stops_the_sender);
    tcase_add_test(t, no_continue_stands_inside_an_answer);
    tcase_add_loop_test(t, unknown_lengths_are_chunked_or_end_with_the_connection, 0, N(parts));
    tcase_add_loop_test(t, a_cut_answer_never_looks_complete, 0, N(cuts));

    t = add_case(s, "refusals");
    tcase_add_loop_test(t, a_refusal_is_readable_while_the_client_still_sends, 0, 3);
    tcase_add_test(t, a_refused_request_keeps_its_id);
    tcase_add_test(t, lingering_ends);

    t = add_case(s, "patience");
    tcase_add_loop_test(t, a_slow_head_gets_408_however_it_drips, 0, 2);
    tcase_add_test(t, a_body_that_stops_gets_408_and_keeps_its_id);
    tcase_add_test(t, a_body_that_drips_is_read);
    tcase_add_test(t, a_full_taker_stops_the_clock);
    tcase_add_loop_test(t, an_idle_connection_is_closed_without_a_word, 0, 2);
    tcase_add_test(t, a_pending_handler_is_not_timed);
    tcase_add_loop_test(t, an_answer_that_nobody_reads_ends, 0, 3);
    tcase_add_loop_test(t, an_answer_whose_reader_resets_ends, 0, 3);
    if (!kit_dial_tls) /* its client is a bare socket */
        tcase_add_loop_test(t, an_answer_that_is_read_slowly_is_not_cut, 0, 2);
    return run_suite(s);
}
