/* What heartbeats tell: layer latencies, requests in flight and per second, CPU, memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/clock.h"
#include "shard/layer_stats.h"
#include "shard/load.h"
#include "tests/unit/support.h"

#define SECOND_US 1000000ull

START_TEST(layers_never_computed_are_left_out)
{
    struct layer_stats *s = layer_stats_new(4, 9);
    struct layer_latency out[6];
    ck_assert_uint_eq(layer_stats_snapshot(s, out, 6), 0);
    layer_stats_note(s, 9, 2000);
    layer_stats_note(s, 4, 1500);
    ck_assert_uint_eq(layer_stats_snapshot(s, out, 6), 2);
    ck_assert_uint_eq(out[0].layer, 4);
    ck_assert_uint_eq(out[1].layer, 9);
    ck_assert_float_eq_tol(out[0].avg_ms, 1.5f, 1e-6f);
    ck_assert_float_eq_tol(out[0].p99_ms, 1.5f, 1e-6f);
    ck_assert_uint_eq(layer_stats_snapshot(s, out, 1), 1);
    layer_stats_free(s);
}
END_TEST

START_TEST(average_is_exponential)
{
    struct layer_stats *s = layer_stats_new(0, 0);
    struct layer_latency out;
    double want = 0;
    for (uint64_t i = 0; i < 250; i++) {
        uint64_t us = (i * 7919) % 5000;
        layer_stats_note(s, 0, us);
        want = i == 0 ? (double)us : want + 0.1 * ((double)us - want);
    }
    ck_assert_uint_eq(layer_stats_snapshot(s, &out, 1), 1);
    ck_assert_double_eq_tol((double)out.avg_ms, want / 1000, 1e-4);
    layer_stats_free(s);
}
END_TEST

static const struct {
    uint64_t first_us, n; /* notes first_us, first_us + 1, ... */
    double p99_us;
} runs[] = {
    {1, 1, 1}, {1, 2, 2}, {1, 99, 99}, {1, 100, 99}, {1, 101, 100}, {1, 1000, 999}, {5000000000ull, 3, 4294967295.0},
};

START_TEST(p99_is_the_nearest_rank_of_the_last_hundred)
{
    struct layer_stats *s = layer_stats_new(0, 0);
    struct layer_latency out;
    for (uint64_t i = 0; i < runs[_i].n; i++)
        layer_stats_note(s, 0, runs[_i].first_us + i);
    ck_assert_uint_eq(layer_stats_snapshot(s, &out, 1), 1);
    ck_assert_double_eq_tol((double)out.p99_ms * 1000, runs[_i].p99_us, runs[_i].p99_us * 1e-6);
    layer_stats_free(s);
}
END_TEST

START_TEST(rate_follows_what_comes_and_fades)
{
    struct load_meter m = {0};
    struct shard_load load;
    uint64_t now_us = 5 * SECOND_US;
    load_begin(&m, now_us);
    load_read(&m, now_us, &load);
    ck_assert_float_eq(load.requests_per_s, 0.0f);
    for (int i = 0; i < 6000; i++, now_us += SECOND_US / 100) { /* 100 a second, for a minute */
        load_enter(&m, now_us);
        load_leave(&m);
    }
    load_read(&m, now_us, &load);
    ck_assert_float_eq_tol(load.requests_per_s, 100.0f, 1.0f);
    ck_assert_uint_eq(load.in_flight, 0);
    load_read(&m, now_us + 10 * SECOND_US, &load);
    ck_assert_float_eq_tol(load.requests_per_s, 36.7f, 1.0f);
    load_read(&m, now_us + 3600 * SECOND_US, &load);
    ck_assert_float_eq_tol(load.requests_per_s, 0.0f, 1e-6f);
    load_enter(&m, now_us);
    load_enter(&m, now_us - 1); /* no order needed among those of one turn */
    load_read(&m, now_us, &load);
    ck_assert_uint_eq(load.in_flight, 2);
}
END_TEST

/* CPU time is what the process really used; the clock is ours, so a "second" passes at once. */
START_TEST(cpu_is_a_share_of_the_time_passed)
{
    struct load_meter m = {0};
    struct shard_load load;
    struct rusage a, b;
    load_begin(&m, SECOND_US);
    load_read(&m, SECOND_US + SECOND_US / 2, &load); /* too soon for a figure */
    ck_assert_float_eq(load.cpu_pct, 0.0f);
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &a), 0);
    volatile double x = 1;
    do {
        for (int i = 0; i < 1000000; i++)
            x = x * 1.0000001;
        ck_assert_int_eq(getrusage(RUSAGE_SELF, &b), 0);
    } while (b.ru_utime.tv_sec * 1000000 + b.ru_utime.tv_usec - a.ru_utime.tv_sec * 1000000 - a.ru_utime.tv_usec <
             50000);
    load_read(&m, 2 * SECOND_US, &load);
    ck_assert_float_ge(load.cpu_pct, 5.0f); /* 50 ms of 1 s */
    float said = load.cpu_pct;
    load_read(&m, 2 * SECOND_US + 1, &load);
    ck_assert_float_eq(load.cpu_pct, said);
}
END_TEST

START_TEST(resident_memory_is_counted)
{
    enum { BYTES = 32 << 20 };
    struct load_meter m = {0};
    struct shard_load before, after;
    load_begin(&m, clock_us());
    load_read(&m, clock_us(), &before);
    ck_assert_uint_gt(before.ram_used_bytes, 100 << 10);
    char *p = malloc(BYTES);
    ck_assert_ptr_nonnull(p);
    memset(p, 1, BYTES);
    load_read(&m, clock_us(), &after);
    ck_assert_uint_ge(after.ram_used_bytes, before.ram_used_bytes + BYTES / 2 + (uint64_t)p[5]);
    free(p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("load");
    TCase *t = tcase_create("load");
    tcase_add_test(t, layers_never_computed_are_left_out);
    tcase_add_test(t, average_is_exponential);
    tcase_add_loop_test(t, p99_is_the_nearest_rank_of_the_last_hundred, 0, sizeof runs / sizeof *runs);
    tcase_add_test(t, rate_follows_what_comes_and_fades);
    tcase_add_test(t, cpu_is_a_share_of_the_time_passed);
    tcase_add_test(t, resident_memory_is_counted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
