/* The client: who gets which connection, what is sent twice, bodies that stream, and
 * calls and pools that end inside their own callbacks. */
#include "tests/unit/common/http_peer.h"
#include "tests/unit/common/http_site.h"

static const struct http_call_opts get_hello = {.method = "GET", .path = "/hello"};

/* A pool to a scripted peer. */
struct lab {
    struct event_base *base;
    struct peer peer;
    struct http_pool *pool;
    struct job job[4];
};

static void lab_open(struct lab *l, const struct http_pool_opts *o)
{
    *l = (struct lab){.base = kit_base()};
    peer_open(&l->peer, l->base);
    l->pool = kit_pool(l->base, l->peer.url, o);
    for (int i = 0; i < N(l->job); i++)
        job_init(&l->job[i]);
}

static void lab_close(struct lab *l)
{
    http_pool_free(l->pool);
    for (int i = 0; i < N(l->job); i++)
        job_release(&l->job[i]);
    peer_close(&l->peer);
    event_base_free(l->base);
}

/* One call, answered, so that connection 0 is kept. */
static void warm(struct lab *l)
{
    struct job j;
    job_init(&j);
    job_start(&j, l->pool, &get_hello);
    peer_take(&l->peer, 0);
    raw_text(&l->peer.conn[0], ANSWER("x", "1"));
    RUN_UNTIL(l->base, j.ends_n);
    ck_assert_int_eq(j.rc, LQ_OK);
    ck_assert_uint_eq(l->pool->idle_n, 1);
    job_release(&j);
}

/* ---- pooled connections ------------------------------------------------------------------ */

START_TEST(a_connection_that_was_closed_under_a_call_is_replaced_once)
{
    struct lab l;
    struct evbuffer *body = evbuffer_new();
    struct job *j = &l.job[0];
    evbuffer_add_printf(body, "body");
    lab_open(&l, NULL);
    warm(&l);
    job_start(j, l.pool, &(struct http_call_opts){.method = "POST", .path = "/", .body = body});
    peer_take(&l.peer, 0);
    peer_hang_up(&l.peer, 0);
    RUN_UNTIL(l.base, peer_has_head(&l.peer, 1)); /* the same, whole, on a fresh one */
    ck_assert_ptr_nonnull(strstr((char *)evbuffer_pullup(bufferevent_get_input(l.peer.conn[1].bev), -1), "body"));
    if (_i == 0) {
        raw_text(&l.peer.conn[1], ANSWER("yes", "3"));
        RUN_UNTIL(l.base, j->ends_n);
        ck_assert_int_eq(j->rc, LQ_OK);
        ck_assert_str_eq(job_text(j), "yes");
    } else { /* and not a third time */
        peer_hang_up(&l.peer, 1);
        RUN_UNTIL(l.base, j->ends_n);
        ck_assert_int_eq(j->rc, LQ_SHARD_DOWN);
        ck_assert_int_eq(l.peer.conns_n, 2);
    }
    ck_assert_uint_eq(evbuffer_get_length(body), 4);
    lab_close(&l);
    evbuffer_free(body);
}
END_TEST

START_TEST(what_may_not_be_sent_twice_is_not)
{
    struct lab l;
    struct job *j = &l.job[0];
    int conn = _i == 1; /* a streamed body takes no pooled connection: a stale one would lose it */
    lab_open(&l, NULL);
    if (_i > 0) /* 0: a fresh connection */
        warm(&l);
    if (_i == 1) { /* a streamed body */
        j->source = evbuffer_new();
        job_start(j, l.pool,
                  &(struct http_call_opts){.method = "POST", .path = "/", .streamed = true, .stream_length = 0});
        http_call_send_end(j->call);
    } else {
        job_start(j, l.pool, &get_hello);
    }
    peer_take(&l.peer, conn);
    if (_i == 2) { /* a byte of the answer */
        raw_text(&l.peer.conn[0], "H");
        kit_turns(l.base, 3);
    }
    peer_hang_up(&l.peer, conn);
    RUN_UNTIL(l.base, j->ends_n);
    ck_assert_int_eq(j->rc, LQ_SHARD_DOWN);
    ck_assert_int_eq(l.peer.conns_n, conn + 1);
    lab_close(&l);
}
END_TEST

static void count_end(void *n)
{
    ++*(int *)n;
}

START_TEST(an_idle_connection_is_watched)
{
    struct lab l;
    struct http_pool_opts o;
    int ends_n = 0;
    http_pool_opts_init(&o);
    o.on_idle_end = count_end;
    o.arg = &ends_n;
    lab_open(&l, &o);
    warm(&l);
    if (_i)
        raw_text(&l.peer.conn[0], "x"); /* a byte that nobody asked for */
    else
        peer_hang_up(&l.peer, 0);
    RUN_UNTIL(l.base, l.pool->idle_n == 0);
    ck_assert_int_eq(ends_n, _i ? 0 : 1); /* told of the peer's doing alone */
    job_start(&l.job[0], l.pool, &get_hello);
    peer_take(&l.peer, 1);
    raw_text(&l.peer.conn[1], ANSWER("x", "1"));
    RUN_UNTIL(l.base, l.job[0].ends_n);
    ck_assert_int_eq(l.job[0].rc, LQ_OK);
    lab_close(&l);
}
END_TEST

START_TEST(an_idle_connection_is_not_kept_for_ever)
{
    struct http_pool_opts o;
    struct lab l;
    http_pool_opts_init(&o);
    int ends_n = 0;
    o.idle_timeout_ms = 30;
    o.on_idle_end = count_end;
    o.arg = &ends_n;
    lab_open(&l, &o);
    warm(&l);
    RUN_UNTIL(l.base, l.peer.conn[0].eof);
    ck_assert_int_eq(ends_n, 0);
    ck_assert_uint_eq(l.pool->idle_n, 0);
    lab_close(&l);
}
END_TEST

START_TEST(no_more_are_kept_than_allowed)
{
    struct http_pool_opts o;
    struct lab l;
    http_pool_opts_init(&o);
    o.idle_max = 1;
    lab_open(&l, &o);
    for (int i = 0; i < 3; i++)
        job_start(&l.job[i], l.pool, &get_hello);
    for (int i = 0; i < 3; i++)
        peer_take(&l.peer, i);
    for (int i = 0; i < 3; i++)
        raw_text(&l.peer.conn[i], ANSWER("x", "1"));
    RUN_UNTIL(l.base, l.job[0].ends_n && l.job[1].ends_n && l.job[2].ends_n);
    ck_assert_uint_eq(l.pool->idle_n, 1);
    RUN_UNTIL(l.base, l.peer.conn[0].eof + l.peer.conn[1].eof + l.peer.conn[2].eof == 2);
    lab_close(&l);
}
END_TEST

START_TEST(calls_over_the_cap_wait_in_order)
{
    struct http_pool_opts o;
    struct lab l;
    static const char *const paths[] = {"/0", "/1", "/2", "/3"};
    http_pool_opts_init(&o);
    o.inflight_max = 1;
    lab_open(&l, &o);
    for (int i = 0; i < 4; i++)
        job_start(&l.job[i], l.pool, &(struct http_call_opts){.method = "GET", .path = paths[i]});
    http_call_cancel(l.job[2].call); /* one that waits may leave */
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        RUN_UNTIL(l.base, peer_has_head(&l.peer, 0));
        struct evbuffer *in = bufferevent_get_input(l.peer.conn[0].bev);
        ck_assert_mem_eq(evbuffer_pullup(in, 6), i == 0 ? "GET /0" : i == 1 ? "GET /1" : "GET /3", 6);
        evbuffer_drain(in, evbuffer_get_length(in));
        ck_assert_uint_eq(http_pool_inflight_n(l.pool), 1);
        raw_text(&l.peer.conn[0], ANSWER("x", "1"));
        RUN_UNTIL(l.base, l.job[i].ends_n);
    }
    ck_assert_int_eq(l.peer.conns_n, 1);
    ck_assert_int_eq(l.job[2].ends_n, 0);
    lab_close(&l);
}
END_TEST

START_TEST(one_that_fails_makes_room_for_the_next)
{
    struct http_pool_opts o;
    struct lab l;
    http_pool_opts_init(&o);
    o.inflight_max = 1;
    lab_open(&l, &o);
    evconnlistener_free(l.peer.listener); /* nobody there any more */
    l.peer.listener = NULL;
    for (int i = 0; i < 4; i++)
        job_start(&l.job[i], l.pool, &get_hello);
    for (int i = 0; i < 4; i++) {
        RUN_UNTIL(l.base, l.job[i].ends_n);
        ck_assert_int_eq(l.job[i].rc, LQ_SHARD_DOWN);
    }
    ck_assert_uint_eq(http_pool_inflight_n(l.pool), 0);
    lab_close(&l);
}
END_TEST

/* ---- streams -------------------------------------------------------------------------------- */

enum { STREAM_BYTES = 3 << 20 };

static void fill(struct evbuffer *to, size_t n)
{
    struct evbuffer_iovec v;
    ck_assert_int_eq(evbuffer_reserve_space(to, (ev_ssize_t)n, &v, 1), 1);
    for (size_t i = 0; i < n; i++)
        ((char *)v.iov_base)[i] = (char)(i * 2654435761u >> 24);
    v.iov_len = n;
    evbuffer_commit_space(to, &v, 1);
}

static void stream_start(struct job *j, struct http_pool *p, const char *path, bool chunked)
{
    j->source = evbuffer_new();
    fill(j->source, STREAM_BYTES);
    const struct http_call_opts o = {.method = "POST",
                                     .path = path,
                                     .streamed = true,
                                     .stream_length = chunked ? HTTP_LENGTH_UNKNOWN : STREAM_BYTES};
    job_start_cb(j, p, &o, &job_streams);
    job_pump(j); /* before there is a connection: up to the high-water mark */
    ck_assert_uint_le(evbuffer_get_length(j->call->pending), HTTP_HIGH_WATER_BYTES + 50100);
}

START_TEST(bodies_stream_both_ways)
{
    struct site w;
    struct job j;
    struct evbuffer *want = evbuffer_new();
    fill(want, STREAM_BYTES);
    site_open(&w, NULL);
    struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
    job_init(&j);
    stream_start(&j, p, _i & 2 ? "/echo" : "/stream", _i & 1);
    RUN_UNTIL(w.base, j.ends_n);
    ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
    ck_assert_int_gt(j.rooms_n, 0);
    ck_assert_uint_le(j.data_max, HTTP_HIGH_WATER_BYTES);
    ck_assert_uint_eq(evbuffer_get_length(j.got), STREAM_BYTES);
    ck_assert_mem_eq(evbuffer_pullup(j.got, -1), evbuffer_pullup(want, -1), STREAM_BYTES);
    if (!(_i & 2)) /* /stream answers before it has read all, and so closes */
        ck_assert_uint_eq(p->idle_n, 0);
    else
        ck_assert_uint_eq(p->idle_n, 1);
    job_release(&j);
    evbuffer_free(want);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

START_TEST(a_slow_server_stops_the_stream)
{
    struct site w;
    struct job j;
    struct http_server_opts o;
    char path[64];
    http_server_opts_init(&o);
    snprintf(path, sizeof path, P_tmpdir "/lq-http-%d", (int)getpid());
    o.unix_path = path; /* whose buffers are small */
    site_open(&w, &o);
    struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
    job_init(&j);
    stream_start(&j, p, "/sip", false);
    RUN_UNTIL(w.base, w.held);
    kit_turns(w.base, 300);
    ck_assert_uint_gt(evbuffer_get_length(j.source), 0);
    ck_assert_uint_le(io_output_n(&j.call->wire->io), HTTP_HIGH_WATER_BYTES + 50100);
    while (w.held) {
        w.take_n = 100000;
        http_req_resume(w.held);
        kit_turns(w.base, 3);
    }
    RUN_UNTIL(w.base, j.ends_n);
    ck_assert_int_eq(j.rc, LQ_OK);
    ck_assert_uint_eq(w.seen_n, STREAM_BYTES);
    job_release(&j);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

START_TEST(a_slow_taker_stops_the_server)
{
    struct site w;
    struct job j;
    site_open(&w, NULL);
    w.answer_n = 16 << 20;
    struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
    job_init(&j);
    j.take_n = 0;
    job_start_cb(&j, p, &(struct http_call_opts){.method = "GET", .path = "/big"}, &job_streams);
    RUN_UNTIL(w.base, j.data_max == HTTP_HIGH_WATER_BYTES);
    kit_turns(w.base, 100);
    ck_assert_uint_eq(evbuffer_get_length(j.call->in), HTTP_HIGH_WATER_BYTES);
    ck_assert_uint_le(evbuffer_get_length(j.call->wire->io.in), HTTP_HIGH_WATER_BYTES);
    ck_assert_uint_gt(io_output_n(&w.server->conns->io), 1 << 20); /* the rest is still with the server */
    while (!j.ends_n) {
        j.take_n = 300000;
        http_call_resume(j.call);
        kit_turns(w.base, 3);
    }
    ck_assert_int_eq(j.rc, LQ_OK);
    ck_assert_uint_eq(evbuffer_get_length(j.got), w.answer_n);
    ck_assert_uint_eq(j.data_max, HTTP_HIGH_WATER_BYTES);
    job_release(&j);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

/* The peer ended while a slow taker held its answer: whole or cut, nothing is lost. */
static const struct {
    const char *head;
    enum lq_err rc;
} behind[] = {
    {"HTTP/1.0 200 OK\r\n\r\n", LQ_OK},
    {"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n", LQ_OK},
    {"HTTP/1.1 200 OK\r\nContent-Length: 400001\r\n\r\n", LQ_SHARD_DOWN},
};

START_TEST(an_end_behind_a_slow_taker)
{
    struct lab l;
    struct job *j = &l.job[0];
    enum { BYTES = 400000 };
    char *junk = calloc(1, BYTES);
    lab_open(&l, NULL);
    j->take_n = 0;
    job_start_cb(j, l.pool, &get_hello, &job_streams);
    peer_take(&l.peer, 0);
    raw_text(&l.peer.conn[0], behind[_i].head);
    raw_send(&l.peer.conn[0], junk, BYTES);
    RUN_UNTIL(l.base, evbuffer_get_length(bufferevent_get_output(l.peer.conn[0].bev)) == 0);
    peer_hang_up(&l.peer, 0);
    kit_turns(l.base, 20);
    ck_assert_int_eq(j->ends_n, 0);
    for (int i = 0; !j->ends_n; i++) {
        j->take_n = 100000;
        http_call_resume(j->call);
        kit_turns(l.base, 3);
    }
    ck_assert_int_eq(j->rc, behind[_i].rc);
    ck_assert_uint_eq(l.pool->idle_n, 0);
    ck_assert_uint_eq(evbuffer_get_length(j->got), BYTES);
    free(junk);
    lab_close(&l);
}
END_TEST

START_TEST(an_early_answer_ends_a_stream)
{
    struct site w;
    struct job j;
    site_open(&w, NULL);
    struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
    job_init(&j);
    stream_start(&j, p, "/small", _i);
    RUN_UNTIL(w.base, j.ends_n);
    ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
    ck_assert_int_eq(j.status, _i ? 400 : 413); /* one chunk alone is over the limit */
    ck_assert_uint_eq(p->idle_n, 0);
    job_release(&j);
    http_pool_free(p);
    site_close(&w);
}
END_TEST

START_TEST(a_stream_may_be_shorter_than_the_first_write)
{
    struct lab l;
    struct job *j = &l.job[0];
    struct evbuffer *piece = evbuffer_new();
    lab_open(&l, NULL);
    job_start(j, l.pool,
              &(struct http_call_opts){
                  .method = "POST", .path = "/", .streamed = true, .stream_length = HTTP_LENGTH_UNKNOWN});
    evbuffer_add_printf(piece, "0123456789abcdefg");
    ck_assert(http_call_send(j->call, piece));
    ck_assert(http_call_send(j->call, piece)); /* nothing: no chunk, which would be the last */
    http_call_send_end(j->call);
    RUN_UNTIL(l.base, peer_has_head(&l.peer, 0));
    kit_turns(l.base, 3);
    const char *got = (const char *)evbuffer_pullup(bufferevent_get_input(l.peer.conn[0].bev), -1);
    const char *body = strstr(got, "\r\n\r\n");
    ck_assert_mem_eq(body, "\r\n\r\n11\r\n0123456789abcdefg\r\n0\r\n\r\n", 4 + 4 + 17 + 2 + 5);
    raw_text(&l.peer.conn[0], ANSWER("x", "1"));
    RUN_UNTIL(l.base, j->ends_n);
    ck_assert_uint_eq(l.pool->idle_n, 1);
    evbuffer_free(piece);
    lab_close(&l);
}
END_TEST

/* ---- ends inside callbacks -------------------------------------------------------------------- */

static const char *const steps[] = {"cancel/head", "cancel/data", "cancel/room", "free/head",
                                    "free/data",   "free/room",   "free/end"};

START_TEST(calls_and_pools_may_end_inside_their_callbacks)
{
    struct site w;
    struct job j, other;
    site_open(&w, NULL);
    struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
    bool freed = strncmp(steps[_i], "free", 4) == 0,
         ended = strcmp(steps[_i], "free/end") == 0 || strcmp(steps[_i], "cancel/end") == 0;
    job_init(&j);
    job_init(&other);
    job_start(&other, p, &(struct http_call_opts){.method = "GET", .path = "/hold"});
    j.step = steps[_i];
    stream_start(&j, p, "/stream", false);
    RUN_UNTIL(w.base, !j.step);
    kit_turns(w.base, 20);
    ck_assert_int_eq(j.ends_n, freed); /* a cancelled call hears nothing more; a freed pool's ends */
    if (freed && !ended)
        ck_assert_int_eq(j.rc, LQ_CANCELLED);
    ck_assert_int_eq(other.ends_n, freed);
    if (!freed) {
        ck_assert_uint_eq(http_pool_inflight_n(p), 1);
        http_pool_free(p);
    }
    ck_assert_int_eq(other.rc, LQ_CANCELLED);
    job_release(&j);
    job_release(&other);
    site_close(&w);
}
END_TEST

START_TEST(a_call_may_follow_inside_on_end)
{
    struct site w;
    struct job j[3];
    site_open(&w, NULL);
    struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
    for (int i = 0; i < 3; i++)
        job_init(&j[i]);
    j[0].next = &j[1];
    j[1].next = &j[2];
    job_start(&j[0], p, &get_hello);
    RUN_UNTIL(w.base, j[2].ends_n);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(j[i].rc, LQ_OK);
        ck_assert_str_eq(job_text(&j[i]), "hello");
        job_release(&j[i]);
    }
    ck_assert_uint_eq(http_server_connections_n(w.server), 1); /* the same connection */
    http_pool_free(p);
    site_close(&w);
}
END_TEST

static void on_end_restart(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault,
                           void *arg)
{
    (void)c, (void)in, (void)fault;
    struct job *j = arg;
    struct http_call *again;
    struct lq_fault f;
    j->ends_n++;
    j->rc = rc;
    ck_assert_int_eq(http_call_start(j->pool, &get_hello, &job_keeps, NULL, &again, &f), LQ_CANCELLED);
}

START_TEST(a_pool_ends_every_open_call)
{
    static const struct http_call_cb cb = {.on_end = on_end_restart};
    struct http_pool_opts o;
    struct lab l;
    http_pool_opts_init(&o);
    o.inflight_max = 2;
    lab_open(&l, &o);
    for (int i = 0; i < 3; i++) /* one in flight, one that connects, one in line */ {
        job_start_cb(&l.job[i], l.pool, &get_hello, &cb);
        if (i == 0)
            peer_take(&l.peer, 0);
    }
    http_pool_free(l.pool);
    l.pool = NULL;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(l.job[i].ends_n, 1);
        ck_assert_int_eq(l.job[i].rc, LQ_CANCELLED);
    }
    lab_close(&l);
}
END_TEST

START_TEST(a_pool_ends_calls_that_have_failed_already)
{
    struct event_base *base = kit_base();
    struct http_pool *p = kit_pool(base, "unix:/nonexistent/socket", NULL);
    struct job j[2];
    job_init(&j[0]);
    job_init(&j[1]);
    job_start(&j[0], p, &get_hello);
    job_start(&j[1], p, &get_hello);
    http_call_cancel(j[0].call);
    http_pool_free(p);
    ck_assert_int_eq(j[0].ends_n, 0);
    ck_assert_int_eq(j[1].ends_n, 1);
    kit_turns(base, 3);
    job_release(&j[0]);
    job_release(&j[1]);
    event_base_free(base);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_pool");
    TCase *t = add_case(s, "connections");
    tcase_add_loop_test(t, a_connection_that_was_closed_under_a_call_is_replaced_once, 0, 2);
    tcase_add_loop_test(t, what_may_not_be_sent_twice_is_not, 0, 3);
    tcase_add_loop_test(t, an_idle_connection_is_watched, 0, 2);
    tcase_add_test(t, an_idle_connection_is_not_kept_for_ever);
    tcase_add_test(t, no_more_are_kept_than_allowed);
    tcase_add_test(t, calls_over_the_cap_wait_in_order);
    tcase_add_test(t, one_that_fails_makes_room_for_the_next);
    t = add_case(s, "streams");
    tcase_add_loop_test(t, bodies_stream_both_ways, 0, 4);
    tcase_add_test(t, a_slow_server_stops_the_stream);
    tcase_add_test(t, a_slow_taker_stops_the_server);
    tcase_add_loop_test(t, an_end_behind_a_slow_taker, 0, N(behind));
    tcase_add_loop_test(t, an_early_answer_ends_a_stream, 0, 2);
    tcase_add_test(t, a_stream_may_be_shorter_than_the_first_write);
    t = add_case(s, "ends");
    tcase_add_loop_test(t, calls_and_pools_may_end_inside_their_callbacks, 0, N(steps));
    tcase_add_test(t, a_call_may_follow_inside_on_end);
    tcase_add_test(t, a_pool_ends_every_open_call);
    tcase_add_test(t, a_pool_ends_calls_that_have_failed_already);
    return run_suite(s);
}
