/* The client: what one call is told, whatever its peer does. */
#include "tests/unit/common/http_peer.h"
#include "tests/unit/common/http_site.h"

static const struct http_call_opts get_hello = {.method = "GET", .path = "/hello"};

/* ---- url ------------------------------------------------------------------------------ */

static const struct {
    const char *url, *kept, *host; /* kept NULL: refused */
} urls[] = {
    {"http://h:80", "http://h:80", "h:80"},
    {"http://h", "http://h", "h:80"},
    {"http://h:9//", "http://h:9", "h:9"},
    {"HTTP://h:9/", "HTTP://h:9", "h:9"},
    {"http://[::1]:9", "http://[::1]:9", "[::1]:9"},
    {"http://[::1]", "http://[::1]", "[::1]:80"},
    {"unix:/a/b", "unix:/a/b", "localhost"},
    {"https://h:9", NULL, "TLS is not set up here"},
    {"ftp://h", NULL, "expected http://HOST[:PORT], https://HOST[:PORT] or unix:/path"},
    {"", NULL, "expected"},
    {"h:9", NULL, "expected"},
    {"http://", NULL, "expected"},
    {"http://:9", NULL, "expected"},
    {"http://h:", NULL, "expected"},
    {"http://h:0", NULL, "expected"},
    {"http://h:65536", NULL, "expected"},
    {"http://h:99999999999", NULL, "expected"},
    {"http://h:9x", NULL, "expected"},
    {"http://h:+9", NULL, "expected"},
    {"http://h:9/path", NULL, "expected"},
    {"http://h/path", NULL, "expected"},
    {"http://user@h", NULL, "expected"},
    {"http://h\r\nX: y", NULL, "expected"},
    {"http://h h", NULL, "expected"},
    {"http://[::1", NULL, "expected"},
    {"http://[::1]9", NULL, "expected"},
    {"http://[]:9", NULL, "expected"},
    {"unix:a", NULL, "expected unix:/path"},
    {"unix:", NULL, "expected unix:/path"},
};

START_TEST(urls_are_read_or_refused_by_name)
{
    struct http_pool_opts o;
    struct http_pool *p = NULL;
    struct lq_fault fault;
    struct event_base *base = kit_base();
    http_pool_opts_init(&o);
    enum lq_err rc = http_pool_new(base, urls[_i].url, &o, &p, &fault);
    if (urls[_i].kept) {
        ck_assert_int_eq(rc, LQ_OK);
        ck_assert_str_eq(http_pool_url(p), urls[_i].kept);
        ck_assert_str_eq(p->host_header, urls[_i].host);
        http_pool_free(p);
    } else {
        ck_assert_int_eq(rc, LQ_USAGE);
        ck_assert_ptr_nonnull(strstr(fault.text, urls[_i].host));
    }
    http_pool_free(NULL);
    event_base_free(base);
}
END_TEST

/* ---- a real server ---------------------------------------------------------------------- */

static const char *const origins[] = {"tcp", "unix", "name"};

static struct http_pool *reach(struct site *w, const char *how, char path[64])
{
    struct http_server_opts o;
    char url[128];
    http_server_opts_init(&o);
    snprintf(path, 64, P_tmpdir "/lq-http-%d", (int)getpid());
    if (strcmp(how, "unix") == 0)
        o.unix_path = path;
    site_open(w, &o);
    snprintf(url, sizeof url, "%s", http_server_url(w->server));
    if (strcmp(how, "name") ==
        0) /* the server listens on IPv4 alone: another address is tried first, where there is one */
        snprintf(url, sizeof url, "http://localhost%s", strrchr(http_server_url(w->server), ':'));
    return kit_pool(w->base, url, NULL);
}

START_TEST(calls_are_answered_and_connections_kept)
{
    struct site w;
    char path[64];
    struct http_pool *p = reach(&w, origins[_i], path);
    struct evbuffer *body = evbuffer_new();
    struct http_headers *h = http_headers_new();
    ck_assert(http_headers_add(h, "X-Request-Id", "me"));
    evbuffer_add_printf(body, "some body");
    for (int i = 0; i < 3; i++) {
        const struct http_call_opts o = {.method = "POST", .path = "/echo", .headers = h, .body = body};
        struct job j;
        job_init(&j);
        job_start(&j, p, &o);
        ck_assert_uint_eq(http_pool_inflight_n(p), 1);
        RUN_UNTIL(w.base, j.ends_n);
        ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
        ck_assert_int_eq(j.status, 200);
        ck_assert_uint_eq(j.length, 9);
        ck_assert_str_eq(job_text(&j), "some body");
        ck_assert_uint_eq(evbuffer_get_length(body), 9); /* referenced, not drained */
        ck_assert_uint_eq(http_server_connections_n(w.server), 1);
        ck_assert_uint_eq(http_pool_inflight_n(p), 0);
        job_release(&j);
    }
    http_headers_free(h);
    evbuffer_free(body);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

START_TEST(a_body_that_is_itself_a_reference_is_sent)
{
    struct site w;
    char path[64];
    struct http_pool *p = reach(&w, "tcp", path);
    struct evbuffer *origin = evbuffer_new(), *body = evbuffer_new();
    struct job j;
    evbuffer_add_printf(origin, "some body");
    ck_assert_int_eq(evbuffer_add_buffer_reference(body, origin), 0);
    job_init(&j);
    job_start(&j, p, &(struct http_call_opts){.method = "POST", .path = "/echo", .body = body});
    RUN_UNTIL(w.base, j.ends_n);
    ck_assert_str_eq(job_text(&j), "some body");
    job_release(&j);
    evbuffer_free(body);
    evbuffer_free(origin);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

START_TEST(head_has_a_length_and_no_body)
{
    struct site w;
    char path[64];
    struct http_pool *p = reach(&w, "tcp", path);
    for (int i = 0; i < 2; i++) { /* twice: the connection is in step */
        struct job j;
        job_init(&j);
        job_start(&j, p, &(struct http_call_opts){.method = "HEAD", .path = "/hello"});
        RUN_UNTIL(w.base, j.ends_n);
        ck_assert_int_eq(j.rc, LQ_OK);
        ck_assert_int_eq(j.status, 200);
        ck_assert_uint_eq(evbuffer_get_length(j.got), 0);
        job_release(&j);
    }
    ck_assert_uint_eq(http_server_connections_n(w.server), 1);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

static const char *const bad_paths[][2] = {{"GET", ""},          {"GET", "hello"},     {"GET", "/a b"},
                                           {"GET", "/\r\nX: y"}, {"GET", "/\xc3\xa4"}, {"", "/hello"},
                                           {"G T", "/hello"}};

START_TEST(what_would_break_the_request_line_is_refused)
{
    struct event_base *base = kit_base();
    struct http_pool *p = kit_pool(base, "http://127.0.0.1:9", NULL);
    struct http_call *c;
    struct lq_fault fault;
    const struct http_call_opts o = {.method = bad_paths[_i][0], .path = bad_paths[_i][1]};
    ck_assert_int_eq(http_call_start(p, &o, &job_keeps, NULL, &c, &fault), LQ_USAGE);
    ck_assert_uint_eq(http_pool_inflight_n(p), 0);
    http_pool_free(p);
    event_base_free(base);
}
END_TEST

START_TEST(what_is_sent)
{
    struct event_base *base = kit_base();
    struct peer peer;
    struct job j[2];
    char want[200];
    peer_open(&peer, base);
    struct http_pool *p = kit_pool(base, peer.url, NULL);
    job_init(&j[0]);
    job_init(&j[1]);
    job_start(&j[0], p, &get_hello);
    job_start(&j[1], p, &(struct http_call_opts){.method = "POST", .path = "/a?b"});
    RUN_UNTIL(base, peer_has_head(&peer, 0) && peer_has_head(&peer, 1));
    for (int i = 0; i < 2; i++) {
        struct evbuffer *in = bufferevent_get_input(peer.conn[i].bev);
        snprintf(want, sizeof want,
                 i ? "POST /a?b HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n\r\n"
                   : "GET /hello HTTP/1.1\r\nHost: %s\r\n\r\n",
                 peer.url + strlen("http://"));
        ck_assert_uint_eq(evbuffer_get_length(in), strlen(want));
        ck_assert_mem_eq(evbuffer_pullup(in, -1), want, strlen(want));
    }
    http_pool_free(p);
    ck_assert_int_eq(j[0].rc, LQ_CANCELLED);
    job_release(&j[0]);
    job_release(&j[1]);
    peer_close(&peer);
    event_base_free(base);
}
END_TEST

/* ---- answers of any kind ------------------------------------------------------------------ */

enum then { KEEP, CLOSE, RESET };

static const struct {
    const char *name, *bytes;
    enum then then;
    enum lq_err rc;
    const char *text; /* the body, or a part of the fault */
    bool kept;        /* the connection is used again */
    const char *method;
    uint64_t max;
} answers[] = {
    {"length", ANSWER("abc", "3"), KEEP, LQ_OK, "abc", true, "GET", 0},
    {"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\nT: t\r\n\r\n", KEEP,
     LQ_OK, "abc", true, "GET", 0},
    {"1xx", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" ANSWER("abc", "3"), KEEP,
     LQ_OK, "abc", true, "POST", 0},
    {"204", "HTTP/1.1 204 No Content\r\n\r\n", KEEP, LQ_OK, "", true, "GET", 0},
    {"304", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", KEEP, LQ_OK, "", true, "GET", 0},
    {"to head", "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", KEEP, LQ_OK, "", true, "HEAD", 1},
    {"1xx to head", "HTTP/1.1 100 x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", KEEP, LQ_OK, "", true,
     "HEAD", 0},
    {"close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", KEEP, LQ_OK, "x", false, "GET",
     0},
    {"1.0", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", KEEP, LQ_OK, "x", false, "GET", 0},
    {"1.0 kept", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", KEEP, LQ_OK, "x", true,
     "GET", 0},
    {"until close", "HTTP/1.0 200 OK\r\n\r\nabc", CLOSE, LQ_OK, "abc", false, "GET", 0},
    {"until close, empty", "HTTP/1.0 200 OK\r\n\r\n", CLOSE, LQ_OK, "", false, "GET", 0},
    {"until reset", "HTTP/1.0 200 OK\r\n\r\nabc", RESET, LQ_SHARD_DOWN, "connection reset in the middle", false,
     "GET", 0},
    {"500", "HTTP/1.1 500 x\r\nContent-Length: 1\r\n\r\nx", KEEP, LQ_OK, "x", true, "GET", 0},
    {"whole, then closed", ANSWER("abc", "3"), CLOSE, LQ_OK, "abc", false, "GET", 0},
    {"whole, and more", ANSWER("abc", "3") "HTTP/1.1", KEEP, LQ_OK, "abc", false, "GET", 0},
    {"at the limit", ANSWER("abc", "3"), KEEP, LQ_OK, "abc", true, "GET", 3},

    {"cut", ANSWER("ab", "3"), CLOSE, LQ_SHARD_DOWN, "connection closed in the middle of its answer", false, "GET",
     0},
    {"cut head", "HTTP/1.1 200 O", CLOSE, LQ_SHARD_DOWN, "closed in the middle", false, "GET", 0},
    {"cut chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", CLOSE, LQ_SHARD_DOWN,
     "closed in the", false, "GET", 0},
    {"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", CLOSE, LQ_SHARD_DOWN,
     "closed in the", false, "GET", 0},
    {"nothing", "", CLOSE, LQ_SHARD_DOWN, "connection closed", false, "GET", 0},
    {"only 1xx", "HTTP/1.1 100 x\r\n\r\n", CLOSE, LQ_SHARD_DOWN, "closed in the", false, "GET", 0},
    {"no HTTP", "SSH-2.0-x\r\n", KEEP, LQ_BAD_ANSWER, "does not begin with HTTP/", false, "GET", 0},
    {"bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", KEEP, LQ_BAD_ANSWER, "LF without CR", false, "GET", 0},
    {"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", KEEP, LQ_BAD_ANSWER,
     "Content-Length", false, "GET", 0},
    {"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", KEEP, LQ_BAD_ANSWER, "chunk size",
     false, "GET", 0},
    {"over the limit", ANSWER("abcd", "4"), KEEP, LQ_BIG_BODY, "over the limit of 3 bytes", false, "GET", 3},
    {"over the limit, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n", KEEP,
     LQ_BIG_BODY, "over the limit of 3 bytes", false, "GET", 3},
    {"over the limit, until close", "HTTP/1.0 200 OK\r\n\r\nabcd", KEEP, LQ_BIG_BODY, "over the limit of 3 bytes",
     false, "GET", 3},
};

/* Sends answer `n` on connection 0, in one piece or byte by byte, to one call. */
static void exchange(int n, const struct http_call_cb *cb, bool bytewise)
{
    struct event_base *base = kit_base();
    struct peer peer;
    struct job j, again;
    peer_open(&peer, base);
    struct http_pool *p = kit_pool(base, peer.url, NULL);
    job_init(&j);
    job_init(&again);
    job_start_cb(
        &j, p, &(struct http_call_opts){.method = answers[n].method, .path = "/", .answer_max = answers[n].max}, cb);
    peer_take(&peer, 0);
    size_t len = strlen(answers[n].bytes), step = bytewise ? 1 : len ? len : 1;
    for (size_t i = 0; i < len; i += step) {
        raw_send(&peer.conn[0], answers[n].bytes + i, step);
        kit_turns(base, 2);
    }
    if (answers[n].then == RESET) {
        struct linger none = {.l_onoff = 1};
        setsockopt(bufferevent_getfd(peer.conn[0].bev), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    if (answers[n].then != KEEP)
        peer_hang_up(&peer, 0);
    RUN_UNTIL(base, j.ends_n);
    ck_assert_msg(j.rc == answers[n].rc, "%s: %s", answers[n].name, j.rc ? j.fault.text : "accepted");
    if (j.rc == LQ_OK)
        ck_assert_str_eq(job_text(&j), answers[n].text);
    else
        ck_assert_msg(strstr(j.fault.text, answers[n].text) != NULL, "%s: %s", answers[n].name, j.fault.text);
    kit_turns(base, 3);
    job_start(&again, p, &get_hello);
    kit_turns(base, 5);
    if (answers[n].kept) {
        ck_assert_int_eq(peer.conns_n, 1);
        ck_assert(peer_has_head(&peer, 0));
    } else {
        RUN_UNTIL(base, peer_has_head(&peer, 1));
    }
    http_call_cancel(again.call);
    job_release(&again);
    job_release(&j);
    http_pool_free(p);
    peer_close(&peer);
    event_base_free(base);
}

START_TEST(answers_end_calls_as_they_should)
{
    exchange(_i / 4, _i & 1 ? &job_streams : &job_keeps, _i & 2);
}
END_TEST

/* ---- no peer -------------------------------------------------------------------------------- */

static const char *const nobody[][2] = {
    {"http://127.0.0.1:1", "connection refused"},
    {"unix:/nonexistent/socket", "No such file"},
    {"http://[::1]:1", ""}, /* refused, or no IPv6 here */
    {"http://localhost:1", "connection refused"},
};

START_TEST(a_peer_that_is_not_there_is_said_later)
{
    struct event_base *base = kit_base();
    struct http_pool *p = kit_pool(base, nobody[_i][0], NULL);
    struct job j;
    job_init(&j);
    job_start(&j, p, &get_hello); /* asserts that no callback comes inside */
    ck_assert_ptr_nonnull(j.call);
    RUN_UNTIL(base, j.ends_n);
    ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    ck_assert_msg(strstr(j.fault.text, nobody[_i][1]) != NULL, "%s", j.fault.text);
    ck_assert_uint_eq(http_pool_inflight_n(p), 0);
    job_release(&j);
    http_pool_free(p);
    event_base_free(base);
}
END_TEST

START_TEST(connecting_takes_no_longer_than_its_limit)
{
    struct event_base *base = kit_base();
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), full[3];
    struct http_pool_opts o;
    char url[64];
    struct job j;
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, n), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    for (int i = 0; i < 3; i++) { /* the backlog is full: the next SYN gets no answer */
        full[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(full[i], (struct sockaddr *)&a, n);
    }
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(a.sin_port));
    http_pool_opts_init(&o);
    o.connect_timeout_ms = 50;
    struct http_pool *p = kit_pool(base, url, &o);
    job_init(&j);
    job_start(&j, p, &get_hello);
    RUN_UNTIL(base, j.ends_n);
    ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    ck_assert_str_eq(j.fault.text, "no connection within 50 ms");
    job_release(&j);
    http_pool_free(p);
    for (int i = 0; i < 3; i++)
        close(full[i]);
    close(fd);
    event_base_free(base);
}
END_TEST

/* With or without a name server: a name that is none ends as such, never blocks, and
 * may be dropped while it is looked up. */
START_TEST(names_that_are_none)
{
    struct event_base *base = kit_base();
    struct http_pool_opts o;
    struct job j;
    http_pool_opts_init(&o);
    o.connect_timeout_ms = 100;
    struct http_pool *p = kit_pool(base, "http://no-such-host.invalid:9", &o);
    job_init(&j);
    job_start(&j, p, &get_hello);
    if (_i == 0) {
        RUN_UNTIL(base, j.ends_n);
        ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    } else if (_i == 1) {
        http_call_cancel(j.call);
        kit_turns(base, 5);
    } else {
        kit_turns(base, 2);
    }
    http_pool_free(p);
    kit_turns(base, 5); /* libevent ends look-ups only in the loop */
    job_release(&j);
    event_base_free(base);
}
END_TEST

/* ---- deadlines -------------------------------------------------------------------------------- */

START_TEST(a_deadline_covers_everything)
{
    struct event_base *base = kit_base();
    struct http_pool_opts o;
    struct peer peer;
    struct job first, j;
    const struct http_call_opts hurried = {.method = "GET", .path = "/", .deadline_ms = scaled(100)};
    peer_open(&peer, base);
    http_pool_opts_init(&o);
    o.inflight_max = 1;
    struct http_pool *p = kit_pool(base, peer.url, &o);
    job_init(&first);
    job_init(&j);
    if (_i == 0) { /* in line behind another call */
        job_start(&first, p, &get_hello);
        job_start(&j, p, &hurried);
    } else {
        job_start(&j, p, &hurried);
        peer_take(&peer, 0);
        if (_i == 2) /* in the middle of the answer */
            raw_text(&peer.conn[0], ANSWER("ab", "3"));
    }
    RUN_UNTIL(base, j.ends_n);
    ck_assert_int_eq(j.rc, LQ_DEADLINE);
    ck_assert_int_eq(j.heads_n, _i == 2);
    ck_assert_uint_eq(http_pool_inflight_n(p), _i == 0);
    if (_i > 0)
        RUN_UNTIL(base, peer.conn[0].eof); /* its answer would come too late for the next one */
    http_pool_free(p);
    ck_assert_int_eq(first.ends_n, _i == 0);
    job_release(&first);
    job_release(&j);
    peer_close(&peer);
    event_base_free(base);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_client");
    TCase *t = add_case(s, "url");
    tcase_add_loop_test(t, urls_are_read_or_refused_by_name, 0, N(urls));
    t = add_case(s, "calls");
    tcase_add_loop_test(t, calls_are_answered_and_connections_kept, 0, N(origins));
    tcase_add_test(t, a_body_that_is_itself_a_reference_is_sent);
    tcase_add_test(t, head_has_a_length_and_no_body);
    tcase_add_loop_test(t, what_would_break_the_request_line_is_refused, 0, N(bad_paths));
    tcase_add_test(t, what_is_sent);
    tcase_add_loop_test(t, answers_end_calls_as_they_should, 0, 4 * N(answers));
    t = add_case(s, "nobody");
    tcase_add_loop_test(t, a_peer_that_is_not_there_is_said_later, 0, N(nobody));
    tcase_add_test(t, connecting_takes_no_longer_than_its_limit);
    tcase_add_loop_test(t, names_that_are_none, 0, 3);
    t = add_case(s, "deadlines");
    tcase_add_loop_test(t, a_deadline_covers_everything, 0, 3);
    return run_suite(s);
}
