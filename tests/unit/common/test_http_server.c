/* The server: one exchange after another, clients that leave, owners that end things
 * inside their own callbacks. */
#include "tests/unit/common/http_site.h"

/* ---- one exchange ------------------------------------------------------------------------ */

static const struct {
    const char *sent;
    bool kept;
} ids[] = {
    {"abc", true},
    {"A-Z.a_z-0.9", true},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
     "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
     true},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
     "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0",
     false},
    {"", false},
    {"a b", false},
    {"a/b", false},
    {"\xc3\xa4", false},
};

START_TEST(request_ids_are_kept_when_valid_and_in_every_answer_once)
{
    static const char *const paths[] = {"/hello", "/fault", "/empty", "/parts"};
    struct site w;
    struct raw r;
    struct answer a;
    char text[400];
    site_open(&w, NULL);
    raw_open(&r, w.server);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: h\r\nX-Request-Id: %s\r\n\r\n", paths[i], ids[_i].sent);
        ask(&r, &a, text);
        const char *id = http_headers_get(a.headers, "X-Request-Id");
        ck_assert_uint_eq(count(&a, "X-Request-Id"), 1);
        ck_assert_uint_eq(count(&a, "Date"), 1);
        ck_assert_uint_eq(count(&a, "Server"), 1);
        if (ids[_i].kept)
            ck_assert_str_eq(id, ids[_i].sent);
        else
            ck_assert_msg(strlen(id) == 16 && strspn(id, "0123456789abcdef") == 16, "%s", id);
        answer_release(&a);
    }
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(made_ids_differ)
{
    struct site w;
    struct raw r;
    struct answer a;
    char before[20] = "";
    site_open(&w, NULL);
    raw_open(&r, w.server);
    for (int i = 0; i < 200; i++) {
        ask(&r, &a, GET("/hello"));
        ck_assert_str_ne(http_headers_get(a.headers, "X-Request-Id"), before);
        snprintf(before, sizeof before, "%s", http_headers_get(a.headers, "X-Request-Id"));
        answer_release(&a);
    }
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_fault_is_json_with_its_status)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    ask(&r, &a, "GET /fault HTTP/1.1\r\nHost: h\r\nX-Request-Id: me\r\n\r\n");
    ck_assert_int_eq(a.status, 503);
    ck_assert_str_eq(http_headers_get(a.headers, "Retry-After"), "1");
    ck_assert_str_eq(http_headers_get(a.headers, "Allow"), "POST");
    ck_assert_str_eq(answer_text(&a), "{\"error\":\"full\",\"request_id\":\"me\"}");
    answer_release(&a);
    ask(&r, &a, GET("/empty"));
    ck_assert_int_eq(a.status, 204);
    ck_assert_uint_eq(count(&a, "Content-Length"), 0);
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

static const struct {
    const char *path, *length;
} heads[] = {{"/hello", "5"}, {"/fault", NULL}, {"/parts", NULL}, {"/big", "100000"}};

START_TEST(head_answers_carry_no_body)
{
    struct site w;
    struct raw r;
    struct answer a;
    char text[100];
    site_open(&w, NULL);
    w.answer_n = 100000;
    raw_open(&r, w.server);
    snprintf(text, sizeof text, "HEAD %s HTTP/1.1\r\nHost: h\r\n\r\n", heads[_i].path);
    raw_text(&r, text);
    RUN_UNTIL(w.base, raw_take(&r, &a, true));
    if (heads[_i].length)
        ck_assert_str_eq(http_headers_get(a.headers, "Content-Length"), heads[_i].length);
    answer_release(&a);
    ask(&r, &a, GET("/hello")); /* nothing stands before its answer */
    ck_assert_str_eq(answer_text(&a), "hello");
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(head_and_body_leave_in_one_write)
{
    struct site w;
    int fd[2];
    char got[4096];
    site_open(&w, NULL);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fd), 0); /* keeps writes apart */
    server_take(w.server, fd[0]);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_gt(write(fd[1], POST("/echo", "3") "abc", strlen(POST("/echo", "3") "abc")), 0);
        ssize_t n = -1;
        RUN_UNTIL(w.base, (n = read(fd[1], got, sizeof got)) > 0);
        ck_assert_msg(n > 7 && memcmp(got + n - 7, "\r\n\r\nabc", 7) == 0, "%.*s", (int)n, got);
    }
    close(fd[1]);
    site_close(&w);
}
END_TEST

START_TEST(pipelined_requests_wait_for_the_answer_before_them)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    raw_text(&r, GET("/hold") GET("/hold") GET("/hello"));
    for (int i = 1; i <= 2; i++) {
        RUN_UNTIL(w.base, w.held);
        kit_turns(w.base, 3);
        ck_assert_int_eq(w.requests_n, i);
        struct http_req *held = w.held;
        w.held = NULL;
        http_req_reply_text(held, 200, "text/plain", i == 1 ? "one" : "two", 3);
        raw_answer(&r, &a);
        ck_assert_str_eq(answer_text(&a), i == 1 ? "one" : "two");
        answer_release(&a);
    }
    raw_answer(&r, &a);
    ck_assert_str_eq(answer_text(&a), "hello");
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_flood_behind_a_pending_request_is_not_kept)
{
    struct site w;
    struct raw r;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    raw_text(&r, GET("/hold"));
    for (int i = 0; i < 100000; i++)
        raw_text(&r, GET("/hello"));
    RUN_UNTIL(w.base, w.held && w.held->conn->io.paused);
    kit_turns(w.base, 20);
    ck_assert_uint_le(evbuffer_get_length(w.held->conn->io.in), HTTP_HIGH_WATER_BYTES);
    struct http_req *held = w.held;
    w.held = NULL;
    http_req_reply_text(held, 200, "text/plain", "one", 3);
    size_t got_n = 0;
    while (w.requests_n <= 100000) { /* and yet each is answered */
        event_base_loop(w.base, EVLOOP_ONCE);
        got_n += raw_n(&r);
        evbuffer_drain(bufferevent_get_input(r.bev), raw_n(&r));
    }
    ck_assert_uint_gt(got_n, 0);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(facts_of_a_request)
{
    struct site w;
    struct raw r;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    raw_text(&r, "POST /hold?a=b?c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    RUN_UNTIL(w.base, w.held);
    ck_assert_str_eq(http_req_method(w.held), "POST");
    ck_assert_str_eq(http_req_path(w.held), "/hold");
    ck_assert_str_eq(http_req_query(w.held), "a=b?c");
    ck_assert_uint_eq(http_req_length(w.held), HTTP_LENGTH_UNKNOWN);
    ck_assert_str_eq(http_headers_get(http_req_headers(w.held), "host"), "h");
    ck_assert_ptr_eq(http_req_base(w.held), w.base);
    ck_assert_uint_gt(http_req_start_us(w.held), 0);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_second_answer_is_a_bug)
{
    struct site w;
    struct raw r;
    site_open(&w, NULL);
    raw_open(&r, w.server);
    raw_text(&r, GET("/twice"));
    (void)!freopen("/dev/null", "w", stderr); /* the assertion's text */
    kit_turns(w.base, 3);
}
END_TEST

/* ---- leaving ------------------------------------------------------------------------------ */

START_TEST(a_client_that_leaves_is_noticed)
{
    static const char *const before[] = {GET("/hold"), GET("/hold") "G", POST("/small", "5") "ab"};
    struct site w;
    struct raw r;
    for (int half = 0; half < 2; half++) {
        site_open(&w, NULL);
        raw_open_tcp(&r, w.server);
        raw_text(&r, before[_i]);
        RUN_UNTIL(w.base, w.requests_n == 1);
        if (half)
            raw_shut(&r);
        else
            raw_close(&r);
        RUN_UNTIL(w.base, w.gone_n == 1);
        RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
        if (half)
            raw_close(&r);
        site_close(&w);
    }
}
END_TEST

START_TEST(a_client_may_shut_its_side_and_read_on)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open(&w, NULL);
    w.answer_n = 8 << 20; /* more than the sockets hold */
    raw_open_tcp(&r, w.server);
    bufferevent_disable(r.bev, EV_READ);
    raw_text(&r, GET("/big"));
    RUN_UNTIL(w.base, w.requests_n == 1);
    raw_shut(&r);
    kit_turns(w.base, 5);
    if (_i) { /* or leave after all */
        raw_close(&r);
        RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
        site_close(&w);
        return;
    }
    bufferevent_enable(r.bev, EV_READ);
    RUN_UNTIL(w.base, r.eof);
    raw_answer(&r, &a);
    ck_assert_uint_eq(evbuffer_get_length(a.body), w.answer_n);
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(an_answer_to_nobody_is_harmless)
{
    struct site w;
    struct raw r;
    site_open(&w, NULL);
    raw_open_tcp(&r, w.server);
    raw_text(&r, GET("/hold"));
    RUN_UNTIL(w.base, w.held);
    raw_close(&r);
    http_req_reply_text(w.held, 200, "text/plain", "late", 4); /* before its end was seen */
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    ck_assert_int_eq(w.gone_n, 0);
    site_close(&w);
}
END_TEST

/* ---- ends inside callbacks ------------------------------------------------------------------------ */

static const char *const steps[] = {"free/request",  "free/data",  "free/end",      "free/gone",  "abort/request",
                                    "abort/data",    "abort/end",  "reply/request", "reply/data", "reply/end",
                                    "drain/request", "drain/data", "drain/end"};

START_TEST(things_may_end_inside_their_own_callbacks)
{
    struct site w;
    struct raw r, other;
    struct answer a;
    site_open(&w, NULL);
    w.step = steps[_i];
    raw_open(&other, w.server);
    raw_open(&r, w.server);
    raw_text(&r, POST("/act", "10") "12345");
    kit_turns(w.base, 3);
    if (strstr(steps[_i], "gone"))
        raw_shut(&r);
    else
        raw_text(&r, "67890" GET("/hello"));
    if (strncmp(steps[_i], "reply", 5) == 0 || strcmp(steps[_i], "drain/end") == 0) {
        raw_answer(&r, &a);
        ck_assert_str_eq(answer_text(&a), *steps[_i] == 'r' ? "early" : "done");
        answer_release(&a);
    }
    if (strcmp(steps[_i], "reply/end") == 0) {
        raw_answer(&r, &a);
        ck_assert_str_eq(answer_text(&a), "hello");
        answer_release(&a);
    } else if (strncmp(steps[_i], "drain", 5) != 0 || strcmp(steps[_i], "drain/end") == 0) {
        RUN_UNTIL(w.base, r.eof);
    }
    if (*steps[_i] == 'f' || *steps[_i] == 'd')
        RUN_UNTIL(w.base, other.eof);
    ck_assert_ptr_null(w.step);
    raw_close(&r);
    raw_close(&other);
    site_close(&w);
}
END_TEST

START_TEST(a_server_ends_with_requests_open)
{
    struct site w;
    struct raw r[4];
    site_open(&w, NULL);
    static const char *const sent[4] = {GET("/hold"), POST("/small", "5"), "GET /he", ""};
    for (int i = 0; i < 4; i++) {
        raw_open(&r[i], w.server);
        raw_text(&r[i], sent[i]);
    }
    kit_turns(w.base, 5);
    ck_assert_uint_eq(http_server_connections_n(w.server), 4);
    http_server_free(w.server);
    ck_assert_int_eq(w.gone_n, 2);
    w.server = NULL;
    for (int i = 0; i < 4; i++) {
        RUN_UNTIL(w.base, r[i].eof || r[i].reset);
        raw_close(&r[i]);
    }
    site_close(&w);
}
END_TEST

START_TEST(draining_finishes_what_was_begun)
{
    struct site w;
    struct raw idle, busy, late, slow;
    struct answer a;
    site_open(&w, NULL);
    raw_open_tcp(&idle, w.server);
    raw_open_tcp(&busy, w.server);
    raw_open_tcp(&late, w.server);
    ask(&idle, &a, GET("/hello"));
    answer_release(&a);
    raw_text(&busy, GET("/hold"));
    raw_text(&late, "GET /hello HTTP/1.1\r\n");
    RUN_UNTIL(w.base, w.held && http_server_connections_n(w.server) == 3);
    kit_turns(w.base, 3);
    w.answer_n = 8 << 20;
    raw_open_tcp(&slow, w.server);
    bufferevent_disable(slow.bev, EV_READ);
    raw_text(&slow, GET("/big"));
    RUN_UNTIL(w.base, w.requests_n == 3);
    kit_turns(w.base, 3);
    http_server_drain(w.server);
    RUN_UNTIL(w.base, idle.eof);
    bufferevent_enable(slow.bev, EV_READ); /* its answer's head said keep-alive */
    RUN_UNTIL(w.base, slow.eof);
    ck_assert_uint_gt(raw_n(&slow), w.answer_n);
    raw_text(&late, "Host: h\r\n\r\n"); /* its head had begun */
    raw_answer(&late, &a);
    ck_assert_str_eq(http_headers_get(a.headers, "Connection"), "close");
    answer_release(&a);
    http_req_reply_text(w.held, 200, "text/plain", "late", 4);
    raw_answer(&busy, &a);
    ck_assert_str_eq(http_headers_get(a.headers, "Connection"), "close");
    answer_release(&a);
    RUN_UNTIL(w.base, busy.eof && late.eof);
    raw_close(&idle);
    raw_close(&busy);
    raw_close(&late);
    raw_close(&slow);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    site_close(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_server");
    TCase *t;

    t = add_case(s, "exchange");
    tcase_add_loop_test(t, request_ids_are_kept_when_valid_and_in_every_answer_once, 0, N(ids));
    tcase_add_test(t, made_ids_differ);
    tcase_add_test(t, a_fault_is_json_with_its_status);
    tcase_add_loop_test(t, head_answers_carry_no_body, 0, N(heads));
    if (!kit_dial_tls) /* records are no writes */
        tcase_add_test(t, head_and_body_leave_in_one_write);
    tcase_add_test(t, pipelined_requests_wait_for_the_answer_before_them);
    tcase_add_test(t, a_flood_behind_a_pending_request_is_not_kept);
    tcase_add_test(t, facts_of_a_request);
    tcase_add_test_raise_signal(t, a_second_answer_is_a_bug, SIGABRT);

    t = add_case(s, "leaving");
    tcase_add_loop_test(t, a_client_that_leaves_is_noticed, 0, 3);
    tcase_add_loop_test(t, a_client_may_shut_its_side_and_read_on, 0, 2);
    tcase_add_test(t, an_answer_to_nobody_is_harmless);

    t = add_case(s, "ends");
    tcase_add_loop_test(t, things_may_end_inside_their_own_callbacks, 0, N(steps));
    tcase_add_test(t, a_server_ends_with_requests_open);
    tcase_add_test(t, draining_finishes_what_was_begun);
    return run_suite(s);
}
