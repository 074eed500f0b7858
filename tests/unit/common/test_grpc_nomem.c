/* gRPC calls in which one allocation fails: the 1st, the 2nd, and so on until none does. Each
 * call ends, once; nothing leaks; the next one works. Without sanitizers every allocation of
 * the process counts, nghttp2's and ours too; with them, or under valgrind, libevent's. */
#include "tests/unit/common/grpc_kit.h"

static long failing; /* the allocation that fails, counted from now; 0: none */
static bool failed;

static bool fails(void)
{
    if (failing == 0 || --failing > 0)
        return false;
    failed = true;
    return true;
}

#ifdef __has_feature
#define HAS_ASAN __has_feature(address_sanitizer)
#else
#define HAS_ASAN 0
#endif

#if !HAS_ASAN && !defined(__SANITIZE_ADDRESS__)
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
#endif

/* libevent's, for where the above has no effect. */
static void *nomem_malloc(size_t n)
{
    return fails() ? NULL : malloc(n);
}

static void *nomem_realloc(void *p, size_t n)
{
    return fails() ? NULL : realloc(p, n);
}

static void say_nothing(int severity, const char *text)
{
    (void)severity, (void)text;
}

static void setup(void)
{
    event_set_log_callback(say_nothing); /* libevent warns of what we do to it */
    event_set_mem_functions(nomem_malloc, nomem_realloc, free);
}

enum { DEADLINE_MS = 1000 };

/* One call that may fail; LQ_OK: h hears its end. */
static enum lq_err start(struct grpc_channel *c, bool unary_one, uint32_t deadline_ms, struct heard *h)
{
    const struct grpc_metadata key = {"authorization", "Bearer sesame"};
    struct grpc_call_opts o = {
        .path = unary_one ? "/t/Unary" : "/t/Echo", .metadata = &key, .metadata_n = 1, .deadline_ms = deadline_ms};
    struct lq_fault fault;
    if (unary_one)
        return grpc_unary(c, &o, (const uint8_t *)"hello", 5, heard_done, h, &h->stream, &fault);
    enum lq_err rc = grpc_call(c, &o, &heard_cb, h, &h->stream, &fault);
    if (rc)
        return rc;
    (void)grpc_stream_send(h->stream, (const uint8_t *)"hello", 5);
    grpc_stream_half_close(h->stream);
    return LQ_OK;
}

START_TEST(a_call_without_memory_ends)
{
    struct grpc_server_opts so;
    struct grpc_channel_opts co;
    struct grpc_site w;
    int ok_n = 0, n = 0;
    grpc_server_opts_init(&so);
    grpc_channel_opts_init(&co);
    so.hello_timeout_ms = co.connect_timeout_ms = DEADLINE_MS;
    site_open(&w, &so, &co);
    for (failed = true; failed;) {
        struct grpc_channel *c = NULL;
        struct heard h = {0}, next = {0};
        struct lq_fault fault;
        failed = false;
        failing = ++n;
        enum lq_err rc = grpc_channel_new(w.base, grpc_server_address(w.server), &co, &c, &fault);
        if (!rc)
            rc = start(c, _i, DEADLINE_MS, &h);
        if (rc)
            ck_assert_int_eq(rc, LQ_NOMEM);
        else
            RUN_UNTIL(w.base, h.closed_n);
        failing = 0;
        ck_assert_msg(failed || (!rc && h.code == GRPC_OK), "%d: %d %s", n, h.code, h.text);
        if (!rc && h.code == GRPC_OK) {
            ck_assert_uint_eq(h.messages_n, 1);
            ck_assert_mem_eq(h.last, "hello", 5);
            ok_n++;
        }
        if (c) { /* and the next one works */
            ck_assert_int_eq(start(c, _i, 20 * DEADLINE_MS, &next), LQ_OK);
            RUN_UNTIL(w.base, next.closed_n);
            ck_assert_msg(next.code == GRPC_OK || next.code == GRPC_UNAVAILABLE, "%d: %d %s", n, next.code,
                          next.text);
        }
        grpc_channel_free(c);
        RUN_UNTIL(w.base, grpc_server_connections_n(w.server) == 0);
        ck_assert_uint_eq(grpc_server_streams_n(w.server), 0);
    }
    ck_assert_int_gt(n, 10);
    ck_assert_int_ge(ok_n, 1);
    site_close(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grpc_nomem");
    TCase *t = tcase_create("grpc_nomem");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, a_call_without_memory_ends, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
