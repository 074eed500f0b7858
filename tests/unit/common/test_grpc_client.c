/* gRPC: a channel and servers that are none, or bad ones. */
#include <event2/listener.h>

#include "tests/unit/common/grpc_raw.h"

/* A server by hand: what it will say to the first request it hears. */
struct fake {
    struct event_base *base;
    struct evconnlistener *listener;
    struct grpc_channel *channel;
    struct raw conn[4];
    int conns_n;
    struct said said;
};

static struct bytes out;

static void on_fake_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n, void *arg)
{
    (void)l, (void)a, (void)n;
    struct fake *x = arg;
    ck_assert_int_lt(x->conns_n, 4);
    raw_adopt(&x->conn[x->conns_n++], x->base, (int)fd);
}

static void fake_open(struct fake *x, const struct grpc_channel_opts *o)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    struct grpc_channel_opts d;
    struct lq_fault fault;
    char address[40];
    memset(x, 0, sizeof *x);
    out.n = 0;
    x->base = kit_base();
    x->listener = evconnlistener_new_bind(x->base, on_fake_accept, x, LEV_OPT_CLOSE_ON_FREE, 64,
                                          (struct sockaddr *)&a, sizeof a);
    ck_assert_ptr_nonnull(x->listener);
    ck_assert_int_eq(getsockname((int)evconnlistener_get_fd(x->listener), (struct sockaddr *)&a, &n), 0);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
    grpc_channel_opts_init(&d);
    ck_assert_int_eq(grpc_channel_new(x->base, address, o ? o : &d, &x->channel, &fault), LQ_OK);
}

static void fake_close(struct fake *x)
{
    grpc_channel_free(x->channel);
    for (int i = 0; i < x->conns_n; i++)
        if (x->conn[i].bev)
            raw_close(&x->conn[i]);
    evconnlistener_free(x->listener);
    said_release(&x->said);
    event_base_free(x->base);
}

static void ask(struct fake *x, struct heard *h)
{
    struct grpc_call_opts o = {.path = "/t/Unary"};
    struct lq_fault fault;
    memset(h, 0, sizeof *h);
    ck_assert_int_eq(grpc_unary(x->channel, &o, (const uint8_t *)"x", 1, heard_done, h, &h->stream, &fault), LQ_OK);
}

/* Takes the preface and frames of connection i until a request's end. */
static void hear_request(struct fake *x, int i)
{
    RUN_UNTIL(x->base, x->conns_n > i && raw_n(&x->conn[i]) > NGHTTP2_CLIENT_MAGIC_LEN);
    evbuffer_drain(bufferevent_get_input(x->conn[i].bev), NGHTTP2_CLIENT_MAGIC_LEN);
    said_release(&x->said);
    memset(&x->said, 0, sizeof x->said);
    RUN_UNTIL_SAID(&x->said, &x->conn[i], x->said.ended_id == 1);
}

/* ---- answers -------------------------------------------------------------------------------- */

#define HEAD ":status\000200\0content-type\0application/grpc\0"
#define OK_DATA "\0\0\0\0\2hi"

static const struct {
    const char *head;
    size_t data_n;
    const char *data, *trailers; /* trailers NULL: the data's END_STREAM is the end */
    enum grpc_code code;
    const char *text; /* a part of it */
} answers[] = {
    {HEAD, 7, OK_DATA, "grpc-status\0000\0", GRPC_OK, ""},
    {HEAD, 7, OK_DATA,
     "grpc-status\0"
     "16\0grpc-message\0invalid %67rid key\0",
     GRPC_UNAUTHENTICATED, "invalid grid key"},
    {HEAD, 7, OK_DATA,
     "grpc-status\0"
     "99\0",
     GRPC_UNKNOWN, ""},
    {HEAD, 7, OK_DATA, "grpc-status\0-1\0", GRPC_UNKNOWN, ""},
    {HEAD, 7, OK_DATA, "x\0y\0", GRPC_UNKNOWN, "no grpc-status"},
    {HEAD, 7, OK_DATA, NULL, GRPC_UNKNOWN, "no grpc-status"},
    {HEAD, 0, "", "grpc-status\0000\0", GRPC_INTERNAL, "not one message"},
    {HEAD, 14, OK_DATA OK_DATA, "grpc-status\0000\0", GRPC_INTERNAL, "not one message"},
    {HEAD, 9, OK_DATA "\0\0", "grpc-status\0000\0", GRPC_INTERNAL, "inside a message"},
    {HEAD, 7, "\1\0\0\0\2hi", "grpc-status\0000\0", GRPC_INTERNAL, "compressed"},
    {HEAD, 7, "\0\xff\0\0\2hi", "grpc-status\0000\0", GRPC_RESOURCE_EXHAUSTED, "over the limit"},
    {":status\000503\0", 0, "", NULL, GRPC_UNAVAILABLE, "HTTP status 503"},
    {":status\000404\0content-type\0text/html\0", 4, "<p/>", NULL, GRPC_UNIMPLEMENTED, "HTTP status 404"},
    {":status\000200\0content-type\0text/html\0", 4, "<p/>", NULL, GRPC_UNKNOWN, "not application/grpc"},
};

START_TEST(an_answer_is_judged)
{
    struct fake x;
    struct heard h;
    fake_open(&x, NULL);
    ask(&x, &h);
    hear_request(&x, 0);
    ck_assert_msg(strstr(x.said.lines, "te: trailers\n") && strstr(x.said.lines, ":path: /t/Unary\n"), "%s",
                  x.said.lines);
    put_frame(&out, SETTINGS, 0, 0, NULL, 0);
    put_head(&out, 1, END_HEADERS, answers[_i].head);
    put_frame(&out, DATA, answers[_i].trailers ? 0 : END_STREAM, 1, answers[_i].data, answers[_i].data_n);
    if (answers[_i].trailers)
        put_head(&out, 1, END_HEADERS | END_STREAM, answers[_i].trailers);
    raw_put(&x.conn[0], &out);
    RUN_UNTIL(x.base, h.closed_n);
    ck_assert_msg(h.code == answers[_i].code, "%d %s", h.code, h.text);
    ck_assert_msg(strstr(h.text, answers[_i].text), "%s", h.text);
    ck_assert(!h.lost);
    ck_assert_uint_eq(h.messages_n, h.code == GRPC_OK);
    kit_turns(x.base, 3);
    ck_assert_int_eq(h.closed_n, 1);
    fake_close(&x);
}
END_TEST

START_TEST(a_status_alone_is_an_answer)
{
    struct fake x;
    struct heard h;
    fake_open(&x, NULL);
    ask(&x, &h);
    hear_request(&x, 0);
    put_frame(&out, SETTINGS, 0, 0, NULL, 0);
    put_head(&out, 1, END_HEADERS | END_STREAM, HEAD "grpc-status\0005\0grpc-message\0nothing\0");
    raw_put(&x.conn[0], &out);
    RUN_UNTIL(x.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_NOT_FOUND);
    ck_assert_str_eq(h.text, "nothing");
    fake_close(&x);
}
END_TEST

static const struct {
    uint8_t error;
    enum grpc_code code;
} resets[] = {{NGHTTP2_REFUSED_STREAM, GRPC_UNAVAILABLE},
              {NGHTTP2_CANCEL, GRPC_CANCELLED},
              {NGHTTP2_ENHANCE_YOUR_CALM, GRPC_RESOURCE_EXHAUSTED},
              {NGHTTP2_INTERNAL_ERROR, GRPC_INTERNAL}};

START_TEST(a_reset_has_its_code)
{
    struct fake x;
    struct heard h;
    uint8_t error[4] = {0, 0, 0, resets[_i].error};
    fake_open(&x, NULL);
    ask(&x, &h);
    hear_request(&x, 0);
    put_frame(&out, SETTINGS, 0, 0, NULL, 0);
    put_frame(&out, RST, 0, 1, error, 4);
    raw_put(&x.conn[0], &out);
    RUN_UNTIL(x.base, h.closed_n);
    ck_assert_int_eq(h.code, resets[_i].code);
    ck_assert(!h.lost);
    fake_close(&x);
}
END_TEST

/* ---- connections --------------------------------------------------------------------------------- */

static const char *const not_http2[] = {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "SSH-2.0-x\r\n", ""};

START_TEST(what_does_not_speak_http2_is_unavailable)
{
    struct fake x;
    struct heard h;
    struct grpc_channel_opts o;
    grpc_channel_opts_init(&o);
    o.connect_timeout_ms = not_http2[_i][0] ? 20000 : 30;
    fake_open(&x, &o);
    ask(&x, &h);
    RUN_UNTIL(x.base, x.conns_n == 1);
    raw_text(&x.conn[0], not_http2[_i]);
    RUN_UNTIL(x.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
    ck_assert(h.lost);
    if (!not_http2[_i][0])
        ck_assert_msg(strstr(h.text, "within 30 ms"), "%s", h.text);
    fake_close(&x);
}
END_TEST

START_TEST(a_lost_connection_is_unavailable_and_the_next_call_dials_again)
{
    struct fake x;
    struct heard h;
    fake_open(&x, NULL);
    for (int i = 0; i < 3; i++) {
        ask(&x, &h);
        hear_request(&x, i);
        raw_close(&x.conn[i]);
        RUN_UNTIL(x.base, h.closed_n);
        ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
        ck_assert(h.lost);
    }
    ck_assert_int_eq(x.conns_n, 3);
    fake_close(&x);
}
END_TEST

/* last-stream-id, error */
static const char goaway_all[] = "\0\0\0\1\0\0\0\0", goaway_none[] = "\0\0\0\0\0\0\0\0",
                  goaway_calm[] = "\0\0\0\1\0\0\0\x0btoo_many_pings";

START_TEST(goaway_moves_new_calls_to_a_new_connection)
{
    struct fake x;
    struct heard old, fresh;
    fake_open(&x, NULL);
    ask(&x, &old);
    hear_request(&x, 0);
    put_frame(&out, SETTINGS, 0, 0, NULL, 0);
    put_frame(&out, GOAWAY, 0, 0, _i ? goaway_calm : goaway_all, _i ? sizeof goaway_calm - 1 : 8);
    raw_put(&x.conn[0], &out);
    kit_turns(x.base, 5);
    ck_assert_int_eq(old.closed_n, 0);
    ask(&x, &fresh);
    hear_request(&x, 1);
    put_head(&out, 1, END_HEADERS, HEAD);
    put_frame(&out, DATA, 0, 1, OK_DATA, 7);
    put_head(&out, 1, END_HEADERS | END_STREAM, "grpc-status\0000\0");
    raw_put(&x.conn[0], &out);
    RUN_UNTIL(x.base, old.closed_n);
    ck_assert_msg(old.code == GRPC_OK, "%s", old.text);
    RUN_UNTIL(x.base, x.conn[0].eof); /* nothing keeps it */
    ck_assert_int_eq(fresh.closed_n, 0);
    fake_close(&x);
}
END_TEST

START_TEST(a_call_that_goaway_leaves_out_was_not_served)
{
    struct fake x;
    struct heard h;
    fake_open(&x, NULL);
    ask(&x, &h);
    hear_request(&x, 0);
    put_frame(&out, SETTINGS, 0, 0, NULL, 0);
    put_frame(&out, GOAWAY, 0, 0, goaway_none, 8);
    raw_put(&x.conn[0], &out);
    RUN_UNTIL(x.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
    RUN_UNTIL(x.base, x.conn[0].eof);
    fake_close(&x);
}
END_TEST

START_TEST(calls_over_the_servers_limit_wait)
{
    struct fake x;
    struct heard h[3];
    static const uint8_t one_stream[] = {0, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 0, 0, 0, 1};
    fake_open(&x, NULL);
    ask(&x, &h[0]);
    hear_request(&x, 0);
    put_frame(&out, SETTINGS, 0, 0, one_stream, sizeof one_stream);
    raw_put(&x.conn[0], &out);
    RUN_UNTIL_SAID(&x.said, &x.conn[0], x.said.frames_n[SETTINGS] == 2); /* its own and the ACK */
    ask(&x, &h[1]);
    ask(&x, &h[2]);
    grpc_stream_cancel(h[2].stream); /* never left */
    kit_turns(x.base, 5);
    for (uint32_t id = 1; id <= 3; id += 2) {
        RUN_UNTIL_SAID(&x.said, &x.conn[0], x.said.ended_id == id);
        ck_assert_uint_eq(x.said.frames_n[HEADERS], (id + 1) / 2);
        put_head(&out, id, END_HEADERS | END_STREAM, HEAD "grpc-status\0005\0");
        raw_put(&x.conn[0], &out);
        RUN_UNTIL(x.base, h[id / 2].closed_n);
        ck_assert_int_eq(h[id / 2].code, GRPC_NOT_FOUND);
    }
    fake_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grpc_client");
    TCase *t = tcase_create("grpc_client");
    tcase_set_timeout(t, 20);
    tcase_add_loop_test(t, an_answer_is_judged, 0, sizeof answers / sizeof *answers);
    tcase_add_test(t, a_status_alone_is_an_answer);
    tcase_add_loop_test(t, a_reset_has_its_code, 0, 4);
    tcase_add_loop_test(t, what_does_not_speak_http2_is_unavailable, 0, 3);
    tcase_add_test(t, a_lost_connection_is_unavailable_and_the_next_call_dials_again);
    tcase_add_loop_test(t, goaway_moves_new_calls_to_a_new_connection, 0, 2);
    tcase_add_test(t, a_call_that_goaway_leaves_out_was_not_served);
    tcase_add_test(t, calls_over_the_servers_limit_wait);
    suite_add_tcase(s, t);
    return run_suite(s);
}
