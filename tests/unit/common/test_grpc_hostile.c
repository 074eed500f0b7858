/* gRPC: peers that break, stretch or flood the protocol; each costs its own connection or
 * call and nobody else's. */
#include "tests/unit/common/grpc_raw.h"

static struct bytes out;

struct scene {
    struct grpc_site w;
    struct raw r;
    struct said said;
    bool hasty; /* its server's timers are too short to ask it anything more */
};

static void scene_open(struct scene *x, const struct grpc_server_opts *o)
{
    memset(&x->said, 0, sizeof x->said);
    out.n = 0;
    x->hasty = o && (o->hello_timeout_ms < 1000 || o->ping_timeout_ms < 1000);
    site_open(&x->w, o, NULL);
    dial_server(&x->r, &x->w);
}

/* The server is as good as new. */
static void scene_close(struct scene *x)
{
    struct heard h = {0};
    raw_close(&x->r);
    said_release(&x->said);
    if (!x->hasty) {
        unary(&x->w, "/t/Unary", "x", 1, 0, &h);
        RUN_UNTIL(x->w.base, h.closed_n);
        ck_assert_msg(h.code == GRPC_OK, "%s", h.text);
    }
    RUN_UNTIL(x->w.base, grpc_server_connections_n(x->w.server) == !x->hasty);
    ck_assert_uint_eq(grpc_server_streams_n(x->w.server), 0);
    site_close(&x->w);
}

/* ---- connections ----------------------------------------------------------------------------- */

static const char *const no_http2[] = {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "\x16\x03\x01\x02\x00\x01",
                                       "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
                                       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nabcdefghijklmnopqrstuvwxyz"};

START_TEST(what_is_not_http2_is_closed)
{
    struct scene x;
    scene_open(&x, NULL);
    raw_text(&x.r, no_http2[_i]);
    RUN_UNTIL(x.w.base, x.r.eof || x.r.reset);
    scene_close(&x);
}
END_TEST

static const char *const silences[] = {"", "PRI * HTT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};

START_TEST(who_says_nothing_is_closed)
{
    struct scene x;
    struct grpc_server_opts o;
    grpc_server_opts_init(&o);
    o.hello_timeout_ms = 20;
    scene_open(&x, &o);
    raw_text(&x.r, silences[_i]);
    RUN_UNTIL(x.w.base, x.r.eof || x.r.reset);
    scene_close(&x);
}
END_TEST

START_TEST(half_a_request_is_closed)
{
    struct scene x;
    struct grpc_server_opts o;
    grpc_server_opts_init(&o);
    o.hello_timeout_ms = 20;
    scene_open(&x, &o);
    put_hello(&out);
    put_head(&out, 1, 0, REQUEST("/t/Echo"));
    raw_put(&x.r, &out);
    RUN_UNTIL(x.w.base, x.r.eof || x.r.reset);
    scene_close(&x);
}
END_TEST

START_TEST(who_answers_no_ping_is_dead)
{
    struct scene x;
    struct grpc_server_opts o;
    grpc_server_opts_init(&o);
    o.ping_interval_ms = 10;
    o.ping_timeout_ms = 20;
    scene_open(&x, &o);
    put_hello(&out);
    put_head(&out, 1, END_HEADERS, REQUEST("/t/Sink") GRPC_TYPE);
    raw_put(&x.r, &out);
    RUN_UNTIL(x.w.base, x.w.at_server.closed_n);
    ck_assert_int_eq(x.w.at_server.code, GRPC_UNAVAILABLE);
    ck_assert(x.w.at_server.lost);
    ck_assert_str_eq(x.w.at_server.text, "no answer to a PING within 20 ms");
    RUN_UNTIL_SAID(&x.said, &x.r, x.r.eof || x.r.reset);
    ck_assert_uint_ge(x.said.frames_n[PING], 1);
    scene_close(&x);
}
END_TEST

/* A client that opens every window and then does not read. */
START_TEST(who_does_not_read_holds_little_and_dies)
{
    struct scene x;
    struct grpc_server_opts o;
    static const uint8_t windows[] = {0, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7f, 0xff, 0xff, 0xff};
    static const uint8_t more[] = {0x7f, 0xf0, 0, 0};
    grpc_server_opts_init(&o);
    o.ping_interval_ms = 100;
    o.ping_timeout_ms = 200;
    scene_open(&x, &o);
    x.w.spew_n = 200000; /* 200 MB */
    ck_assert_int_eq(bufferevent_disable(x.r.bev, EV_READ), 0);
    put(&out, NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
    put_frame(&out, SETTINGS, 0, 0, windows, sizeof windows);
    put_frame(&out, WINDOW, 0, 0, more, sizeof more);
    put_head(&out, 1, END_HEADERS, REQUEST("/t/Spew") GRPC_TYPE);
    raw_put(&x.r, &out);
    RUN_UNTIL(x.w.base, x.w.at_server.closed_n);
    ck_assert_uint_gt(x.w.spew_left, x.w.spew_n - 20000); /* what the sockets took, at most */
    ck_assert(x.w.at_server.lost);
    scene_close(&x);
}
END_TEST

/* Its call ends meanwhile, by its deadline: that is no sign of life. */
START_TEST(who_answers_no_ping_is_dead_without_a_call_too)
{
    struct scene x;
    struct grpc_server_opts o;
    grpc_server_opts_init(&o);
    o.ping_interval_ms = 10;
    o.ping_timeout_ms = 200;
    scene_open(&x, &o);
    put_hello(&out);
    put_head(&out, 1, END_HEADERS, REQUEST("/t/Sink") GRPC_TYPE "grpc-timeout\00050m\0");
    raw_put(&x.r, &out);
    RUN_UNTIL(x.w.base, x.w.at_server.closed_n);
    RUN_UNTIL(x.w.base, grpc_server_connections_n(x.w.server) == 0);
    scene_close(&x);
}
END_TEST

/* Calls that are refused at once leave no stream, only answers, which it does not read. */
START_TEST(who_reads_no_refusal_is_closed)
{
    struct scene x;
    struct grpc_server_opts o;
    grpc_server_opts_init(&o);
    o.ping_timeout_ms = 200;
    scene_open(&x, &o);
    ck_assert_int_eq(bufferevent_disable(x.r.bev, EV_READ), 0);
    put_hello(&out);
    raw_put(&x.r, &out);
    for (uint32_t id = 1, round = 0; round < 400 && grpc_server_connections_n(x.w.server) == 1; round++) {
        out.n = 0;
        for (int i = 0; i < 200; i++, id += 2)
            put_head(&out, id, END_HEADERS | END_STREAM, REQUEST("/t/None") GRPC_TYPE);
        if (evbuffer_get_length(bufferevent_get_output(x.r.bev)) < 1 << 20)
            raw_put(&x.r, &out);
        else
            id -= 400;
        event_base_loop(x.w.base, EVLOOP_NONBLOCK);
    }
    RUN_UNTIL(x.w.base, grpc_server_connections_n(x.w.server) == 0);
    scene_close(&x);
}
END_TEST

/* ---- floods ------------------------------------------------------------------------------------ */

static const char some_bytes[16384];

static void flood_ping(struct bytes *b, uint32_t i)
{
    (void)i;
    put_frame(b, PING, 0, 0, some_bytes, 8);
}

static void flood_ping_ack(struct bytes *b, uint32_t i)
{
    (void)i;
    put_frame(b, PING, ACK, 0, some_bytes, 8);
}

static void flood_settings(struct bytes *b, uint32_t i)
{
    (void)i;
    put_frame(b, SETTINGS, 0, 0, NULL, 0);
}

static void flood_priority(struct bytes *b, uint32_t i)
{
    put_frame(b, PRIORITY, 0, 2 * i + 101, "\0\0\0\0\7", 5);
}

static void flood_reset(struct bytes *b, uint32_t i)
{
    put_head(b, 2 * i + 101, END_HEADERS, REQUEST("/t/Sink") GRPC_TYPE);
    put_frame(b, RST, 0, 2 * i + 101, "\0\0\0\x8", 4);
}

static void flood_empty_data(struct bytes *b, uint32_t i)
{
    if (i == 0)
        put_head(b, 101, END_HEADERS, REQUEST("/t/Sink") GRPC_TYPE);
    put_frame(b, DATA, 0, 101, NULL, 0);
}

static void flood_continuation(struct bytes *b, uint32_t i)
{
    if (i == 0)
        put_head(b, 101, 0, REQUEST("/t/Sink") GRPC_TYPE);
    put_frame(b, CONTINUATION, 0, 101, NULL, 0);
}

/* One line of 4 KB in the table, then a byte for each further 4 KB. */
static void flood_hpack(struct bytes *b, uint32_t i)
{
    struct bytes *block = calloc(1, sizeof *block);
    if (i == 0) {
        put_lines(block, REQUEST("/t/Sink") GRPC_TYPE);
        put(block, "\x40\x01z\x7f\xa1\x1e", 6); /* with index; a value of 4000 bytes */
        for (int k = 0; k < 4000; k++)
            put(block, "v", 1);
    }
    for (int k = 0; k < 2000; k++)
        put(block, "\xbe", 1); /* the newest line again */
    put_frame(b, i ? CONTINUATION : HEADERS, 0, 101, block->p, block->n);
    free(block);
}

static void (*const floods[])(struct bytes *b, uint32_t i) = {flood_ping,         flood_ping_ack, flood_settings,
                                                              flood_priority,     flood_reset,    flood_empty_data,
                                                              flood_continuation, flood_hpack};

START_TEST(a_flood_ends_its_connection)
{
    struct scene x;
    uint32_t i = 0;
    scene_open(&x, NULL);
    put_hello(&out);
    while (!x.r.eof && !x.r.reset) {
        ck_assert_uint_lt(i, 20000);
        for (int k = 0; k < 50; k++)
            floods[_i](&out, i++);
        raw_put(&x.r, &out);
        event_base_loop(x.w.base, EVLOOP_ONCE);
        said_take(&x.said, &x.r);
    }
    scene_close(&x);
}
END_TEST

START_TEST(more_streams_than_agreed_are_refused)
{
    struct scene x;
    scene_open(&x, NULL);
    put_hello(&out);
    for (uint32_t i = 0; i < GRPC_STREAMS_MAX + 20; i++)
        put_head(&out, 2 * i + 1, END_HEADERS, REQUEST("/t/Sink") GRPC_TYPE);
    raw_put(&x.r, &out);
    RUN_UNTIL_SAID(&x.said, &x.r, x.said.frames_n[RST] == 20);
    ck_assert_uint_eq(grpc_server_streams_n(x.w.server), GRPC_STREAMS_MAX);
    scene_close(&x);
}
END_TEST

/* ---- requests ------------------------------------------------------------------------------------ */

static const struct {
    const char *lines, *want;
} heads[] = {
    {REQUEST("/t/Echo"), ":status: 415\n"},
    {REQUEST("/t/Echo") "content-type\0application/json\0", ":status: 415\n"},
    {REQUEST("/t/Echo") "content-type\0application/grpc-web\0", ":status: 415\n"},
    {":method\0GET\0:scheme\0http\0:path\0/t/Echo\0:authority\0h\0" GRPC_TYPE, ":status: 405\n"},
    {REQUEST("/t/Nothing") GRPC_TYPE, "grpc-status: 12\n"},
    {REQUEST("/t/Echo/") GRPC_TYPE, "grpc-status: 12\n"},
    {REQUEST("/") GRPC_TYPE, "grpc-status: 12\n"},
    {REQUEST("/t/Echo") GRPC_TYPE "grpc-timeout\0soon\0", "grpc-status: 3\n"},
    {REQUEST("/t/Echo") GRPC_TYPE "grpc-timeout\0001m\0", "grpc-status: 4\n"},
    {REQUEST("/t/Refuse") GRPC_TYPE, "grpc-message: invalid grid key: 100 %25 f%C3%A4lsch%0A\n"},
    {REQUEST("/t/Refuse") "content-type\0application/grpc+proto\0", "grpc-status: 16\n"},
    {REQUEST("/t/Refuse") "content-type\0application/grpc;x=y\0", "grpc-status: 16\n"},
};

START_TEST(a_head_gets_the_answer_it_deserves)
{
    struct scene x;
    scene_open(&x, NULL);
    put_hello(&out);
    put_head(&out, 1, END_HEADERS, heads[_i].lines);
    raw_put(&x.r, &out);
    RUN_UNTIL_SAID(&x.said, &x.r, x.said.ended_id == 1);
    ck_assert_msg(strstr(x.said.lines, heads[_i].want), "%s", x.said.lines);
    scene_close(&x);
}
END_TEST

/* In heads of `n` lines of 1000 bytes. */
START_TEST(big_heads_are_refused)
{
    static const struct {
        int lines_n;
        const char *want; /* NULL: the connection ends */
    } cases[] = {{14, "grpc-status: 16\n"}, {17, "grpc-status: 8\n"}, {60, "grpc-status: 8\n"}, {70, NULL}};
    struct scene x;
    static struct bytes block;
    char value[1001];
    scene_open(&x, NULL);
    put_hello(&out);
    memset(value, 'v', 1000);
    value[1000] = '\0';
    block.n = 0;
    put_lines(&block, REQUEST("/t/Refuse") GRPC_TYPE);
    for (int i = 0; i < cases[_i].lines_n; i++) {
        put(&block, "", 1);
        put_text(&block, "x");
        put_text(&block, value);
    }
    for (size_t at = 0, take; at < block.n; at += take) {
        take = block.n - at < 16384 ? block.n - at : 16384;
        put_frame(&out, at ? CONTINUATION : HEADERS, at + take == block.n ? END_HEADERS : 0, 1, block.p + at, take);
    }
    raw_put(&x.r, &out);
    RUN_UNTIL_SAID(&x.said, &x.r, x.said.ended_id == 1 || x.r.eof || x.r.reset);
    if (cases[_i].want)
        ck_assert_msg(strstr(x.said.lines, cases[_i].want), "%s", x.said.lines);
    else
        ck_assert(x.r.eof || x.r.reset);
    scene_close(&x);
}
END_TEST

/* ---- messages -------------------------------------------------------------------------------------- */

static const struct {
    const char *path;
    size_t n;
    const char *bytes; /* of DATA, with END_STREAM */
    const char *want;
} bodies[] = {
    {"/t/Echo", 6, "\1\0\0\0\1x", "grpc-status: 12\n"},
    {"/t/Echo", 6, "\2\0\0\0\1x", "grpc-status: 12\n"},
    {"/t/Echo", 6, "\0\xff\xff\xff\xffx", "grpc-status: 8\n"},
    {"/t/Echo", 6, "\0\0\0\0\2x", "grpc-status: 13\n"},
    {"/t/Echo", 3, "\0\0\0", "grpc-status: 13\n"},
    {"/t/Echo", 0, "", "grpc-status: 0\n"},
    {"/t/Echo", 5, "\0\0\0\0\0", "grpc-status: 0\n"},
    {"/t/Echo", 16, "\0\0\0\0\1x\0\0\0\0\0\0\0\0\0\0", "grpc-status: 0\n"},
    {"/t/Unary", 6, "\0\0\0\0\1x", "grpc-status: 0\n"},
    {"/t/Unary", 5, "\0\0\0\0\0", "grpc-status: 0\n"},
    {"/t/Unary", 0, "", "grpc-status: 13\n"},
    {"/t/Unary", 12, "\0\0\0\0\1x\0\0\0\0\1y", "grpc-status: 13\n"},
    {"/t/Unary", 4, "\0\0\0\0", "grpc-status: 13\n"},
};

/* Whole, and one byte a frame. */
START_TEST(a_body_gets_the_answer_it_deserves)
{
    for (int bytewise = 0; bytewise < 2; bytewise++) {
        struct scene x;
        size_t n = bodies[_i].n;
        scene_open(&x, NULL);
        put_hello(&out);
        put_head(&out, 1, END_HEADERS,
                 strcmp(bodies[_i].path, "/t/Unary") == 0 ? REQUEST("/t/Unary") GRPC_TYPE
                                                          : REQUEST("/t/Echo") GRPC_TYPE);
        for (size_t i = 0; bytewise && i + 1 < n; i++)
            put_frame(&out, DATA, 0, 1, bodies[_i].bytes + i, 1);
        size_t at = bytewise && n ? n - 1 : 0;
        put_frame(&out, DATA, END_STREAM, 1, bodies[_i].bytes + at, n - at);
        raw_put(&x.r, &out);
        RUN_UNTIL_SAID(&x.said, &x.r, x.said.ended_id == 1);
        ck_assert_msg(strstr(x.said.lines, bodies[_i].want), "%s", x.said.lines);
        scene_close(&x);
    }
}
END_TEST

START_TEST(many_unfinished_messages_are_bounded)
{
    struct scene x;
    struct grpc_server_opts o;
    grpc_server_opts_init(&o);
    o.message_max = 10000;
    scene_open(&x, &o);
    put_hello(&out);
    for (uint32_t i = 0; i < 6; i++) {
        put_head(&out, 2 * i + 1, END_HEADERS, REQUEST("/t/Sink") GRPC_TYPE);
        put_frame(&out, DATA, 0, 2 * i + 1, "\0\0\0\x27\x10", 5);
        put_frame(&out, DATA, 0, 2 * i + 1, some_bytes, 9999);
    }
    raw_put(&x.r, &out);
    RUN_UNTIL(x.w.base, x.w.at_server.closed_n == 2);
    ck_assert_int_eq(x.w.at_server.code, GRPC_RESOURCE_EXHAUSTED);
    RUN_UNTIL(x.w.base, grpc_server_streams_n(x.w.server) == 4);
    scene_close(&x);
}
END_TEST

START_TEST(trailers_of_a_request_are_nothing)
{
    struct scene x;
    scene_open(&x, NULL);
    put_hello(&out);
    put_head(&out, 1, END_HEADERS, REQUEST("/t/Unary") GRPC_TYPE);
    put_frame(&out, DATA, 0, 1, "\0\0\0\0\1x", 6);
    put_head(&out, 1, END_HEADERS | END_STREAM, "x-odd\0y\0");
    raw_put(&x.r, &out);
    RUN_UNTIL_SAID(&x.said, &x.r, x.said.ended_id == 1);
    ck_assert_msg(strstr(x.said.lines, "grpc-status: 0\n"), "%s", x.said.lines);
    scene_close(&x);
}
END_TEST

START_TEST(metadata_from_a_head_of_a_client_is_heard)
{
    struct scene x;
    scene_open(&x, NULL);
    put_hello(&out);
    put_head(&out, 1, END_HEADERS, REQUEST("/t/Echo") GRPC_TYPE "authorization\0Bearer open\0");
    raw_put(&x.r, &out);
    RUN_UNTIL(x.w.base, x.w.at_server.stream);
    ck_assert_str_eq(x.w.key, "Bearer open");
    RUN_UNTIL_SAID(&x.said, &x.r, x.said.frames_n[HEADERS] == 1); /* clients wait for the head before they send */
    scene_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grpc_hostile");
    TCase *t = tcase_create("grpc_hostile");
    tcase_set_timeout(t, 20);
    tcase_add_loop_test(t, what_is_not_http2_is_closed, 0, 4);
    tcase_add_loop_test(t, who_says_nothing_is_closed, 0, 3);
    tcase_add_test(t, half_a_request_is_closed);
    tcase_add_test(t, who_answers_no_ping_is_dead);
    tcase_add_test(t, who_does_not_read_holds_little_and_dies);
    tcase_add_test(t, who_answers_no_ping_is_dead_without_a_call_too);
    tcase_add_test(t, who_reads_no_refusal_is_closed);
    tcase_add_loop_test(t, a_flood_ends_its_connection, 0, sizeof floods / sizeof *floods);
    tcase_add_test(t, more_streams_than_agreed_are_refused);
    tcase_add_loop_test(t, a_head_gets_the_answer_it_deserves, 0, sizeof heads / sizeof *heads);
    tcase_add_loop_test(t, big_heads_are_refused, 0, 4);
    tcase_add_loop_test(t, a_body_gets_the_answer_it_deserves, 0, sizeof bodies / sizeof *bodies);
    tcase_add_test(t, many_unfinished_messages_are_bounded);
    tcase_add_test(t, trailers_of_a_request_are_nothing);
    tcase_add_test(t, metadata_from_a_head_of_a_client_is_heard);
    suite_add_tcase(s, t);
    return run_suite(s);
}
