/* gRPC: server and client in one process, over loopback. */
#include "tests/unit/common/grpc_kit.h"

/* ---- unary ------------------------------------------------------------------------------------- */

START_TEST(a_unary_call_is_answered)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    unary(&w, "/t/Unary", "hello", 5, 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    ck_assert_uint_eq(h.messages_n, 1);
    ck_assert_uint_eq(h.last_n, 5);
    ck_assert_mem_eq(h.last, "hello", 5);
    ck_assert_uint_eq(grpc_server_connections_n(w.server), 1);
    ck_assert_uint_eq(grpc_server_streams_n(w.server), 0);
    site_close(&w);
}
END_TEST

START_TEST(many_unary_calls_share_a_connection)
{
    enum { CALLS_N = 1000 };
    static struct heard h[CALLS_N];
    struct grpc_site w;
    int done = 0;
    site_open(&w, NULL, NULL);
    for (int i = 0; i < CALLS_N; i++)
        unary(&w, "/t/Unary", &i, i % 2 ? sizeof i : 0, 60000, &h[i]);
    while (done < CALLS_N) {
        event_base_loop(w.base, EVLOOP_ONCE);
        ck_assert_uint_le(grpc_server_streams_n(w.server), GRPC_STREAMS_MAX);
        done = 0;
        for (int i = 0; i < CALLS_N; i++)
            done += h[i].closed_n;
    }
    for (int i = 0; i < CALLS_N; i++) {
        ck_assert_msg(h[i].code == GRPC_OK, "%d: %s", i, h[i].text);
        ck_assert_uint_eq(h[i].last_n, i % 2 ? sizeof i : 0);
        if (i % 2)
            ck_assert_mem_eq(h[i].last, &i, sizeof i);
    }
    ck_assert_uint_eq(grpc_server_connections_n(w.server), 1);
    site_close(&w);
}
END_TEST

START_TEST(an_answer_may_come_late)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    unary(&w, "/t/Late", "x", 1, 0, &h);
    RUN_UNTIL(w.base, w.at_server.stream);
    grpc_stream_reply(w.at_server.stream, (const uint8_t *)"late", 4);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    ck_assert_mem_eq(h.last, "late", 4);
    ck_assert_int_eq(w.at_server.closed_n, 0); /* the server's side ended it itself */
    site_close(&w);
}
END_TEST

START_TEST(a_refusal_comes_with_its_text)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    (void)call(&w, "/t/Refuse", 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAUTHENTICATED);
    ck_assert_str_eq(h.text, REFUSED_TEXT);
    ck_assert(!h.lost);
    site_close(&w);
}
END_TEST

START_TEST(an_unknown_method_is_unimplemented)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    unary(&w, "/t/Nothing", "x", 1, 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNIMPLEMENTED);
    ck_assert(!h.lost);
    site_close(&w);
}
END_TEST

/* ---- streams ------------------------------------------------------------------------------------- */

START_TEST(a_stream_goes_both_ways_until_the_client_has_no_more)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    struct grpc_stream *s = call(&w, "/t/Echo", 0, &h);
    for (size_t i = 0; i < 20; i++) {
        (void)grpc_stream_send(s, (const uint8_t *)"0123456789abcdefghijklmnop", i);
        RUN_UNTIL(w.base, h.messages_n == i + 1);
        ck_assert_uint_eq(h.last_n, i);
        ck_assert_mem_eq(h.last, "0123456789abcdefghijklmnop", i);
    }
    ck_assert_str_eq(w.key, "Bearer sesame");
    ck_assert_msg(strncmp(w.peer, "127.0.0.1:", 10) == 0, "%s", w.peer);
    ck_assert(w.peer_is_loopback);
    ck_assert_str_eq(grpc_stream_metadata(s, "content-type"), "application/grpc");
    grpc_stream_half_close(s);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    ck_assert_int_eq(w.at_server.half_closed_n, 1);
    kit_turns(w.base, 5);
    ck_assert_uint_eq(grpc_server_streams_n(w.server), 0);
    ck_assert_int_eq(h.closed_n, 1);
    site_close(&w);
}
END_TEST

/* Over the windows of HTTP/2 and the frames' 16 KB: sizes around every edge. */
static const size_t sizes[] = {1,     16378,  16379,  16380,   16384,           65530,      65535,
                               65536, 262139, 262144, 1048576, 4 * 1048576 - 1, 4 * 1048576};

START_TEST(a_message_of_any_size_arrives_whole)
{
    size_t n = sizes[_i];
    struct grpc_site w;
    struct heard h = {0};
    uint8_t *p = malloc(n);
    site_open(&w, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 2654435761u >> 13);
    struct grpc_stream *s = call(&w, "/t/Echo", 0, &h);
    for (size_t k = 1; k <= 2; k++) {
        (void)grpc_stream_send(s, p, n);
        RUN_UNTIL(w.base, h.messages_n == k || h.closed_n);
        ck_assert_msg(!h.closed_n, "%s", h.text);
        ck_assert_uint_eq(h.last_n, n);
        ck_assert_mem_eq(h.last, p, n < sizeof h.last ? n : sizeof h.last);
    }
    grpc_stream_cancel(s);
    free(p);
    site_close(&w);
}
END_TEST

START_TEST(a_message_over_the_limit_ends_the_call)
{
    static const uint8_t big[2000];
    struct grpc_site w;
    struct grpc_server_opts so;
    struct heard h = {0};
    grpc_server_opts_init(&so);
    so.message_max = 1000;
    site_open(&w, &so, NULL);
    struct grpc_stream *s = call(&w, "/t/Echo", 0, &h);
    (void)grpc_stream_send(s, big, 1000);
    RUN_UNTIL(w.base, h.messages_n == 1);
    (void)grpc_stream_send(s, big, 1001);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(h.text, "message of 1001 bytes is over the limit of 1000");
    ck_assert_int_eq(w.at_server.closed_n, 1);
    ck_assert_int_eq(w.at_server.code, GRPC_RESOURCE_EXHAUSTED);
    struct heard again = {0};
    unary(&w, "/t/Unary", big, 1000, 0, &again); /* the connection is as good as new */
    RUN_UNTIL(w.base, again.closed_n);
    ck_assert_int_eq(again.code, GRPC_OK);
    ck_assert_uint_eq(grpc_server_connections_n(w.server), 1);
    site_close(&w);
}
END_TEST

START_TEST(an_answer_over_the_clients_limit_ends_the_call)
{
    static const uint8_t big[2000];
    struct grpc_site w;
    struct grpc_channel_opts co;
    struct heard h = {0};
    grpc_channel_opts_init(&co);
    co.message_max = 1000;
    site_open(&w, NULL, &co);
    unary(&w, "/t/Unary", big, 1001, 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_RESOURCE_EXHAUSTED);
    ck_assert_uint_eq(h.messages_n, 0);
    site_close(&w);
}
END_TEST

START_TEST(many_messages_wait_for_room_and_arrive)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    w.spew_n = 20000;
    (void)call(&w, "/t/Spew", 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    ck_assert_str_eq(h.text, "that is all");
    ck_assert_uint_eq(h.messages_n, w.spew_n);
    ck_assert_uint_eq(h.bytes, w.spew_n * 1000);
    ck_assert_int_eq(w.at_server.closed_n, 0);
    site_close(&w);
}
END_TEST

START_TEST(who_queues_without_end_is_cut_off)
{
    static const uint8_t some[65536];
    struct grpc_site w;
    struct heard h = {0};
    bool told_to_wait = false;
    site_open(&w, NULL, NULL);
    struct grpc_stream *s = call(&w, "/t/Sink", 0, &h);
    for (size_t sent = 0; sent < 2 * GRPC_QUEUED_BYTES_MAX; sent += sizeof some) { /* and never lets the loop turn */
        told_to_wait |= !grpc_stream_send(s, some, sizeof some);
        ck_assert_uint_le(grpc_stream_queued_bytes(s), GRPC_QUEUED_BYTES_MAX);
        ck_assert_int_eq(h.closed_n, 0);
    }
    ck_assert(told_to_wait);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_RESOURCE_EXHAUSTED);
    site_close(&w);
}
END_TEST

/* ---- ends --------------------------------------------------------------------------------------------- */

START_TEST(a_deadline_ends_both_sides)
{
    struct grpc_site w;
    struct heard h = {0}, first = {0};
    site_open(&w, NULL, NULL);
    unary(&w, "/t/Unary", "x", 1, 0, &first); /* the connection is there before the clock runs */
    RUN_UNTIL(w.base, first.closed_n);
    if (_i)
        (void)call(&w, "/t/Sink", 50, &h);
    else
        unary(&w, "/t/Late", "x", 1, 50, &h);
    RUN_UNTIL(w.base, h.closed_n && w.at_server.closed_n);
    ck_assert_int_eq(h.code, GRPC_DEADLINE_EXCEEDED);
    ck_assert(w.at_server.code == GRPC_DEADLINE_EXCEEDED || w.at_server.code == GRPC_CANCELLED);
    site_close(&w);
}
END_TEST

START_TEST(a_unary_call_without_a_deadline_gets_one)
{
    struct grpc_site w;
    struct grpc_server_opts so;
    struct heard h = {0};
    grpc_server_opts_init(&so);
    so.unary_timeout_ms = 20;
    site_open(&w, &so, NULL);
    unary(&w, "/t/Late", "x", 1, 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_DEADLINE_EXCEEDED);
    ck_assert_int_eq(w.at_server.code, GRPC_DEADLINE_EXCEEDED);
    site_close(&w);
}
END_TEST

START_TEST(a_client_that_cancels_is_told_to_the_server)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    struct grpc_stream *s = call(&w, "/t/Sink", 0, &h);
    RUN_UNTIL(w.base, w.at_server.stream);
    grpc_stream_cancel(s);
    RUN_UNTIL(w.base, w.at_server.closed_n);
    ck_assert_int_eq(w.at_server.code, GRPC_CANCELLED);
    ck_assert(!w.at_server.lost);
    ck_assert_int_eq(h.closed_n, 0);
    site_close(&w);
}
END_TEST

START_TEST(a_call_cancelled_before_it_left_never_arrives)
{
    struct grpc_site w;
    struct heard h = {0}, other = {0};
    site_open(&w, NULL, NULL);
    grpc_stream_cancel(call(&w, "/t/Sink", 0, &h));
    unary(&w, "/t/Unary", "x", 1, 0, &other);
    RUN_UNTIL(w.base, other.closed_n);
    ck_assert_int_eq(other.code, GRPC_OK);
    ck_assert_int_eq(h.closed_n, 0);
    ck_assert_ptr_null(w.at_server.stream);
    site_close(&w);
}
END_TEST

START_TEST(a_server_that_finishes_first_ends_the_call)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    (void)call(&w, "/t/Sink", 0, &h);
    RUN_UNTIL(w.base, w.at_server.stream);
    (void)grpc_stream_send(w.at_server.stream, (const uint8_t *)"bye", 3);
    grpc_stream_finish(w.at_server.stream, GRPC_ABORTED, "enough");
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_ABORTED);
    ck_assert_str_eq(h.text, "enough");
    ck_assert_mem_eq(h.last, "bye", 3);
    kit_turns(w.base, 5);
    ck_assert_uint_eq(grpc_server_streams_n(w.server), 0);
    ck_assert_int_eq(w.at_server.closed_n, 0);
    site_close(&w);
}
END_TEST

START_TEST(a_server_that_vanishes_loses_the_call_and_the_next_reconnects)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    (void)call(&w, "/t/Sink", 0, &h);
    RUN_UNTIL(w.base, w.at_server.stream);
    struct grpc_server_opts so;
    struct lq_fault fault;
    grpc_server_opts_init(&so);
    so.port = grpc_server_port(w.server);
    grpc_server_free(w.server);
    ck_assert_int_eq(w.at_server.closed_n, 1);
    ck_assert(w.at_server.lost);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
    ck_assert(h.lost);
    ck_assert_int_eq(grpc_server_new(w.base, &so, site_methods, 6, &w, &w.server, &fault), LQ_OK);
    h = (struct heard){0};
    unary(&w, "/t/Unary", "x", 1, 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_msg(h.code == GRPC_OK, "%s", h.text);
    site_close(&w);
}
END_TEST

START_TEST(a_client_that_vanishes_is_lost_to_the_server)
{
    struct grpc_site w;
    struct heard h = {0};
    site_open(&w, NULL, NULL);
    (void)call(&w, "/t/Sink", 0, &h);
    RUN_UNTIL(w.base, w.at_server.stream);
    grpc_channel_free(w.channel);
    w.channel = NULL;
    ck_assert_int_eq(h.closed_n, 1);
    ck_assert_int_eq(h.code, GRPC_CANCELLED);
    RUN_UNTIL(w.base, w.at_server.closed_n);
    ck_assert(w.at_server.lost);
    ck_assert_uint_eq(grpc_server_connections_n(w.server), 0);
    ck_assert_uint_eq(grpc_server_streams_n(w.server), 0);
    site_close(&w);
}
END_TEST

START_TEST(nobody_listening_is_unavailable_and_named)
{
    struct grpc_site w;
    struct heard h = {0}, g = {0};
    site_open(&w, NULL, NULL);
    grpc_server_free(w.server);
    w.server = NULL;
    (void)call(&w, "/t/Sink", 0, &h);
    unary(&w, "/t/Unary", "x", 1, 0, &g);
    ck_assert_int_eq(h.closed_n + g.closed_n, 0); /* not from inside */
    RUN_UNTIL(w.base, h.closed_n && g.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
    ck_assert(h.lost && g.lost);
    ck_assert_msg(strstr(h.text, "refused"), "%s", h.text);
    site_close(&w);
}
END_TEST

START_TEST(names_are_resolved)
{
    struct grpc_site w;
    struct grpc_channel_opts co;
    struct heard h = {0};
    char address[64];
    struct lq_fault fault;
    site_open(&w, NULL, NULL);
    grpc_channel_free(w.channel);
    grpc_channel_opts_init(&co);
    snprintf(address, sizeof address, "localhost:%d", grpc_server_port(w.server));
    ck_assert_int_eq(grpc_channel_new(w.base, address, &co, &w.channel, &fault), LQ_OK);
    unary(&w, "/t/Unary", "x", 1, 0, &h);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_msg(h.code == GRPC_OK, "%s", h.text);
    site_close(&w);
}
END_TEST

START_TEST(a_channel_may_go_while_a_name_is_looked_up)
{
    struct grpc_site w;
    struct grpc_channel_opts co;
    struct heard h = {0};
    struct lq_fault fault;
    site_open(&w, NULL, NULL);
    grpc_channel_free(w.channel);
    grpc_channel_opts_init(&co);
    ck_assert_int_eq(grpc_channel_new(w.base, "no.such.host.invalid:1", &co, &w.channel, &fault), LQ_OK);
    (void)call(&w, "/t/Sink", 0, &h);
    if (_i)
        kit_turns(w.base, _i);
    grpc_channel_free(w.channel);
    w.channel = NULL;
    ck_assert_int_eq(h.closed_n, 1);
    ck_assert(h.lost);
    site_close(&w);
}
END_TEST

static const char *const bad_addresses[] = {"",           "host",   ":1",       "host:",       "host:0",
                                            "host:65536", "host:x", "host:1:2", "::1:80",      "[::1]",
                                            "http://h:1", "a@b:1",  "h h:1",    "host:123456", "host:1/path"};

START_TEST(addresses_are_judged)
{
    struct grpc_channel_opts co;
    struct grpc_channel *c;
    struct lq_fault fault;
    struct event_base *base = kit_base();
    grpc_channel_opts_init(&co);
    for (size_t i = 0; i < sizeof bad_addresses / sizeof *bad_addresses; i++)
        ck_assert_msg(grpc_channel_new(base, bad_addresses[i], &co, &c, &fault) == LQ_USAGE, "%s", bad_addresses[i]);
    ck_assert_int_eq(grpc_channel_new(base, "[::1]:50052", &co, &c, &fault), LQ_OK);
    ck_assert_str_eq(grpc_channel_address(c), "[::1]:50052");
    grpc_channel_free(c);
    event_base_free(base);
}
END_TEST

START_TEST(metadata_that_is_none_is_refused)
{
    static const struct grpc_metadata bad[] = {{"Upper", "x"}, {":path", "x"}, {"a", "x\n"}, {"", "x"}, {"a b", "x"}};
    struct grpc_site w;
    struct grpc_stream *s;
    struct lq_fault fault;
    site_open(&w, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct grpc_call_opts o = {.path = "/t/Echo", .metadata = &bad[i], .metadata_n = 1};
        ck_assert_int_eq(grpc_call(w.channel, &o, NULL, NULL, &s, &fault), LQ_USAGE);
    }
    site_close(&w);
}
END_TEST

/* ---- drain, keep-alive, idle --------------------------------------------------------------------------- */

START_TEST(a_drain_lets_open_streams_end_and_takes_no_new_ones)
{
    struct grpc_site w;
    struct heard h = {0}, late = {0};
    site_open(&w, NULL, NULL);
    struct grpc_stream *s = call(&w, "/t/Echo", 0, &h);
    (void)grpc_stream_send(s, (const uint8_t *)"a", 1);
    RUN_UNTIL(w.base, h.messages_n == 1);
    grpc_server_drain(w.server);
    (void)grpc_stream_send(s, (const uint8_t *)"b", 1);
    RUN_UNTIL(w.base, h.messages_n == 2);
    unary(&w, "/t/Unary", "x", 1, 0, &late);
    RUN_UNTIL(w.base, late.closed_n);
    ck_assert_int_eq(late.code, GRPC_UNAVAILABLE);
    grpc_stream_half_close(s);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    RUN_UNTIL(w.base, grpc_server_connections_n(w.server) == 0);
    site_close(&w);
}
END_TEST

START_TEST(idle_connections_are_closed)
{
    struct grpc_site w;
    struct grpc_server_opts so;
    struct grpc_channel_opts co;
    struct heard h = {0};
    grpc_server_opts_init(&so);
    grpc_channel_opts_init(&co);
    *(_i ? &so.idle_timeout_ms : &co.idle_timeout_ms) = 20;
    site_open(&w, &so, &co);
    for (int i = 0; i < 3; i++) {
        h = (struct heard){0};
        unary(&w, "/t/Unary", "x", 1, 0, &h);
        RUN_UNTIL(w.base, h.closed_n);
        ck_assert_int_eq(h.code, GRPC_OK);
        RUN_UNTIL(w.base, grpc_server_connections_n(w.server) == 0);
        kit_turns(w.base, 5); /* the client hears of it */
    }
    site_close(&w);
}
END_TEST

START_TEST(quiet_streams_live_on_pings)
{
    struct grpc_site w;
    struct grpc_server_opts so;
    struct grpc_channel_opts co;
    struct heard h = {0}, timer = {0};
    grpc_server_opts_init(&so);
    grpc_channel_opts_init(&co);
    so.ping_interval_ms = co.ping_interval_ms = 5;
    so.ping_timeout_ms = co.ping_timeout_ms = 5000;
    site_open(&w, &so, &co);
    (void)call(&w, "/t/Sink", 0, &h);
    (void)call(&w, "/t/Sink", 200, &timer); /* 40 intervals */
    RUN_UNTIL(w.base, timer.closed_n);
    ck_assert_msg(!h.closed_n, "%s", h.text);
    grpc_stream_cancel(h.stream);
    site_close(&w);
}
END_TEST

START_TEST(a_full_server_takes_the_next_connection_when_one_has_left)
{
    struct grpc_site w;
    struct grpc_server_opts so;
    struct grpc_channel_opts co;
    struct grpc_channel *second;
    struct heard h = {0}, g = {0};
    struct lq_fault fault;
    grpc_server_opts_init(&so);
    grpc_channel_opts_init(&co);
    so.connections_max = 1;
    site_open(&w, &so, NULL);
    (void)call(&w, "/t/Sink", 0, &h);
    RUN_UNTIL(w.base, w.at_server.stream);
    ck_assert_int_eq(grpc_channel_new(w.base, grpc_server_address(w.server), &co, &second, &fault), LQ_OK);
    struct grpc_channel *first = w.channel;
    w.channel = second;
    unary(&w, "/t/Unary", "x", 1, 0, &g);
    kit_turns(w.base, 20);
    ck_assert_uint_eq(grpc_server_connections_n(w.server), 1);
    ck_assert_int_eq(g.closed_n, 0);
    grpc_channel_free(first);
    RUN_UNTIL(w.base, g.closed_n);
    ck_assert_int_eq(g.code, GRPC_OK);
    site_close(&w);
}
END_TEST

/* ---- owners that end things inside their own callbacks --------------------------------------------------- */

static void free_channel(struct heard *h)
{
    grpc_channel_free(h->site->channel);
    h->site->channel = NULL;
}

static void free_server(struct heard *h)
{
    grpc_server_free(h->site->server);
    h->site->server = NULL;
}

static void free_both(struct heard *h)
{
    free_channel(h);
    free_server(h);
}

static void cancel_here(struct grpc_stream *s, const uint8_t *p, size_t n, struct heard *h)
{
    (void)p, (void)n;
    h->closed_n++;
    grpc_stream_cancel(s);
}

static void finish_here(struct grpc_stream *s, const uint8_t *p, size_t n, struct heard *h)
{
    (void)p, (void)n;
    h->closed_n++;
    grpc_stream_finish(s, GRPC_OK, NULL);
}

static void free_channel_here(struct grpc_stream *s, const uint8_t *p, size_t n, struct heard *h)
{
    (void)s, (void)p, (void)n;
    free_channel(h);
}

static void free_server_here(struct grpc_stream *s, const uint8_t *p, size_t n, struct heard *h)
{
    (void)s, (void)p, (void)n;
    free_server(h);
}

static void (*const enders[])(struct grpc_stream *s, const uint8_t *p, size_t n,
                              struct heard *h) = {cancel_here, free_channel_here, free_server_here};
static void (*const overs[])(struct heard *h) = {free_channel, free_server, free_both};

START_TEST(things_end_inside_on_message)
{
    struct grpc_site w;
    struct heard h = {.on_each = enders[_i % 3]}, other = {0};
    bool at_server = _i >= 3;
    site_open(&w, NULL, NULL);
    if (at_server) {
        w.at_server.on_each = h.on_each == cancel_here ? finish_here : h.on_each;
        h.on_each = NULL;
    }
    (void)call(&w, "/t/Sink", 0, &other);
    struct grpc_stream *s = call(&w, at_server ? "/t/Sink" : "/t/Echo", 0, &h);
    (void)grpc_stream_send(s, (const uint8_t *)"a", 1);
    (void)grpc_stream_send(s, (const uint8_t *)"b", 1);
    RUN_UNTIL(w.base, h.closed_n);
    ck_assert_int_eq(h.closed_n, 1);
    kit_turns(w.base, 5);
    site_close(&w);
}
END_TEST

START_TEST(things_end_inside_on_closed)
{
    struct grpc_site w;
    struct heard h = {.on_over = overs[_i]}, other = {0}, third = {0};
    site_open(&w, NULL, NULL);
    (void)call(&w, "/t/Sink", 0, &other);
    (void)call(&w, "/t/Refuse", 0, &h);
    unary(&w, "/t/Late", "x", 1, 0, &third);
    RUN_UNTIL(w.base, h.closed_n);
    kit_turns(w.base, 5);
    ck_assert_int_eq(h.closed_n, 1);
    site_close(&w);
}
END_TEST

/* ---- texts --------------------------------------------------------------------------------------------------- */

START_TEST(messages_are_percent_encoded)
{
    char out[64], back[64];
    grpc_text_encode("a %\xc3\xa4\n~", out, sizeof out);
    ck_assert_str_eq(out, "a %25%C3%A4%0A~");
    grpc_text_decode(out, strlen(out), back, sizeof back);
    ck_assert_str_eq(back, "a %\xc3\xa4\n~");
    grpc_text_decode("%zz%4%41%00%", 12, back, sizeof back);
    ck_assert_str_eq(back, "%zz%4A%00%");
    grpc_text_encode("abc\xc3\xa4", out, 9); /* whole characters or nothing */
    ck_assert_str_eq(out, "abc");
    grpc_text_encode("\xc3", out, sizeof out); /* no character, yet a byte */
    ck_assert_str_eq(out, "%C3");
}
END_TEST

START_TEST(timeouts_are_read_as_written)
{
    static const struct {
        const char *text;
        uint64_t us;
    } good[] = {{"1H", 3600000000},
                {"2M", 120000000},
                {"3S", 3000000},
                {"4m", 4000},
                {"5u", 5},
                {"6000n", 6},
                {"99999999H", UINT64_C(359999996400000000)}};
    static const char *const bad[] = {"", "1", "m", "-1m", "123456789m", "1x", "1mm", " 1m", "1.5S"};
    uint64_t us;
    char text[16];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert(grpc_timeout_parse(good[i].text, &us));
        ck_assert_uint_eq(us, good[i].us);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!grpc_timeout_parse(bad[i], &us), "%s", bad[i]);
    grpc_timeout_text(UINT32_MAX, text);
    ck_assert_str_eq(text, "4294967S");
    grpc_timeout_text(99999999, text);
    ck_assert_str_eq(text, "99999999m");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grpc");
    TCase *t = tcase_create("grpc");
    tcase_set_timeout(t, 20);
    tcase_add_test(t, a_unary_call_is_answered);
    tcase_add_test(t, many_unary_calls_share_a_connection);
    tcase_add_test(t, an_answer_may_come_late);
    tcase_add_test(t, a_refusal_comes_with_its_text);
    tcase_add_test(t, an_unknown_method_is_unimplemented);
    tcase_add_test(t, a_stream_goes_both_ways_until_the_client_has_no_more);
    tcase_add_loop_test(t, a_message_of_any_size_arrives_whole, 0, sizeof sizes / sizeof *sizes);
    tcase_add_test(t, a_message_over_the_limit_ends_the_call);
    tcase_add_test(t, an_answer_over_the_clients_limit_ends_the_call);
    tcase_add_test(t, many_messages_wait_for_room_and_arrive);
    tcase_add_test(t, who_queues_without_end_is_cut_off);
    tcase_add_loop_test(t, a_deadline_ends_both_sides, 0, 2);
    tcase_add_test(t, a_unary_call_without_a_deadline_gets_one);
    tcase_add_test(t, a_client_that_cancels_is_told_to_the_server);
    tcase_add_test(t, a_call_cancelled_before_it_left_never_arrives);
    tcase_add_test(t, a_server_that_finishes_first_ends_the_call);
    tcase_add_test(t, a_server_that_vanishes_loses_the_call_and_the_next_reconnects);
    tcase_add_test(t, a_client_that_vanishes_is_lost_to_the_server);
    tcase_add_test(t, nobody_listening_is_unavailable_and_named);
    tcase_add_test(t, names_are_resolved);
    tcase_add_loop_test(t, a_channel_may_go_while_a_name_is_looked_up, 0, 4);
    tcase_add_test(t, addresses_are_judged);
    tcase_add_test(t, metadata_that_is_none_is_refused);
    tcase_add_test(t, a_drain_lets_open_streams_end_and_takes_no_new_ones);
    tcase_add_loop_test(t, idle_connections_are_closed, 0, 2);
    tcase_add_test(t, quiet_streams_live_on_pings);
    tcase_add_test(t, a_full_server_takes_the_next_connection_when_one_has_left);
    tcase_add_loop_test(t, things_end_inside_on_message, 0, 6);
    tcase_add_loop_test(t, things_end_inside_on_closed, 0, 3);
    tcase_add_test(t, messages_are_percent_encoded);
    tcase_add_test(t, timeouts_are_read_as_written);
    suite_add_tcase(s, t);
    return run_suite(s);
}
