/* Exchanges in which one allocation of libevent fails: the 1st, the 2nd, and so on until
 * none does. Each ends, once, as an answer or as an error; nothing leaks; the next works. */
#include "tests/unit/common/http_peer.h"
#include "tests/unit/common/http_site.h"

static long failing; /* the allocation that fails, counted from now; 0: none */
static bool failed;

static bool fails(void)
{
    if (failing == 0 || --failing > 0)
        return false;
    failed = true;
    return true;
}

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

static void start(struct job *j, struct http_pool *p, bool streamed, int nth)
{
    const struct http_call_opts o = {.method = "POST",
                                     .path = streamed ? "/stream" : "/echo",
                                     .body = streamed ? NULL : j->source,
                                     .streamed = streamed,
                                     .stream_length = HTTP_LENGTH_UNKNOWN,
                                     .deadline_ms = 500};
    j->pool = p;
    failed = false;
    failing = nth;
    j->rc = http_call_start(p, &o, streamed ? &job_streams : &job_keeps, j, &j->call, &j->fault);
    if (j->rc != LQ_OK) {
        ck_assert_int_eq(j->rc, LQ_NOMEM);
        j->ends_n = 1;
    } else if (streamed) {
        (void)http_call_send(j->call, j->source);
        http_call_send_end(j->call);
    }
}

START_TEST(an_exchange_without_memory_ends)
{
    struct http_server_opts o = hasty();
    struct site w;
    bool streamed = _i;
    int ok_n = 0, n = 0;
    o.body_timeout_ms = o.header_timeout_ms = o.idle_timeout_ms = 300;
    site_open(&w, &o);
    for (failed = true; failed;) {
        struct http_pool *p = kit_pool(w.base, http_server_url(w.server), NULL);
        struct job j;
        job_init(&j);
        j.source = evbuffer_new();
        evbuffer_add(j.source, "some body", 9);
        start(&j, p, streamed, ++n);
        RUN_UNTIL(w.base, j.ends_n);
        failing = 0;
        ck_assert_int_eq(j.ends_n, 1);
        if (j.rc == LQ_OK && j.status == 200) {
            ck_assert_str_eq(job_text(&j), "some body");
            ok_n++;
        } else {
            ck_assert_msg(failed && (j.rc || j.status == 503), "%d: %d, %d", n, (int)j.rc, j.status);
        }
        job_release(&j);
        job_init(&j); /* and the next one works */
        job_start(&j, p, &(struct http_call_opts){.method = "GET", .path = "/hello", .deadline_ms = 2000});
        RUN_UNTIL(w.base, j.ends_n);
        ck_assert_msg(j.rc == LQ_OK, "%d: %s", n, j.fault.text);
        ck_assert_str_eq(job_text(&j), "hello");
        job_release(&j);
        http_pool_free(p);
    }
    ck_assert_int_gt(n, 10);
    ck_assert_int_ge(ok_n, 1);
    site_close(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_nomem");
    TCase *t = add_case(s, "nomem");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_test(t, an_exchange_without_memory_ends, 0, 2);
    return run_suite(s);
}
