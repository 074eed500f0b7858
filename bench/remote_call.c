/* What a remote call costs above its computation: lq_ffn_forward() against a real shard
 * with a small layer, over TCP and over a unix socket, sleeping and with --busy-poll on both
 * sides, interleaved in one run.
 * The computation is what the answer says itself (latency_ms: decode, layer, encode). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/quantile.h"
#include "bench/support/report.h"
#include "bench/support/shard.h"
#include "client/larql_ffn.h"
#include "common/clock.h"

enum { ROUNDS = 20, CALLS = 150, WARM_UP = 200, SIDES_N = 4, BUSY_POLL_US = 500, BAR_TCP_US = 40, BAR_UNIX_US = 25 };

struct side {
    const char *name;
    double bar_us;
    bool is_unix, busy;
    struct bench_shard shard;
    struct lq_ffn *ffn;
    double cost_us[ROUNDS * CALLS], compute_us[ROUNDS * CALLS];
    size_t n;
};

static bool call(struct side *s, bool count)
{
    static float x[4096], out[4096];
    char why[LQ_WHY_BYTES];
    struct lq_ffn_stats before, after;
    for (size_t i = 0; i < lq_ffn_hidden(s->ffn) && i < 4096; i++)
        x[i] = (float)(i % 23) / 16.0f - 0.6f;
    lq_ffn_stats(s->ffn, &before);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    enum lq_ffn_rc rc = lq_ffn_forward(s->ffn, 0, x, 1, out, why);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    lq_ffn_stats(s->ffn, &after);
    if (rc != LQ_FFN_OK) {
        report_fail("%s: %s", s->name, why);
        return false;
    }
    if (!count)
        return true;
    double took_us = (double)(t1.tv_sec - t0.tv_sec) * 1e6 + (double)(t1.tv_nsec - t0.tv_nsec) / 1e3;
    s->compute_us[s->n] = (after.server_ms - before.server_ms) * 1e3;
    s->cost_us[s->n] = took_us - s->compute_us[s->n];
    s->n++;
    return true;
}

static void measure(struct side *sides)
{
    for (int round = -1; round < ROUNDS; round++)
        for (int k = 0; k < SIDES_N; k++)
            for (int i = 0; i < (round < 0 ? WARM_UP : CALLS); i++)
                if (!call(&sides[k], round >= 0))
                    return;
    for (int k = 0; k < SIDES_N; k++) {
        struct side *s = &sides[k];
        char what[64];
        snprintf(what, sizeof what, "above compute, p50, %s", s->name);
        double p99 = quantile(s->cost_us, s->n, 0.99);
        report_row(what, quantile(s->cost_us, s->n, 0.5), s->bar_us, REPORT_LOWER, "us",
                   "p10 %.0f, p99 %.0f, compute %.0f us", quantile(s->cost_us, s->n, 0.1), p99,
                   quantile(s->compute_us, s->n, 0.5));
    }
}

int main(int argc, char **argv)
{
    static struct side sides[SIDES_N] = {
        {.name = "tcp", .bar_us = BAR_TCP_US},
        {.name = "unix", .bar_us = BAR_UNIX_US, .is_unix = true},
        {.name = "tcp, busy-poll", .bar_us = BAR_TCP_US, .busy = true},
        {.name = "unix, busy-poll", .bar_us = BAR_UNIX_US, .is_unix = true, .busy = true},
    };
    static const char *const shape[] = {"--layers", "1",          "--hidden", "640",    "--ffn", "2048", "--heads",
                                        "8",        "--kv-heads", "8",        "--type", "Q4_0",  NULL};
    char model[600], socket_path[SIDES_N][64], poll_us[16], why[LQ_WHY_BYTES];
    report_begin("remote_call", argc, argv);
    snprintf(poll_us, sizeof poll_us, "%d", BUSY_POLL_US);
    bool ok = bench_model(argv[0], "bench-small", shape, model, sizeof model);
    for (int k = 0; k < SIDES_N && ok; k++) {
        struct side *s = &sides[k];
        struct lq_ffn_opts o;
        const char *args[8] = {"--threads", "1", "--busy-poll", s->busy ? poll_us : "0"};
        snprintf(socket_path[k], sizeof socket_path[k], "/tmp/lq-bench-%d-%d.sock", (int)getpid(), k);
        if (s->is_unix) {
            args[4] = "--unix";
            args[5] = socket_path[k];
        }
        lq_ffn_opts_init(&o);
        o.busy_poll_us = s->busy ? BUSY_POLL_US : 0;
        ok = bench_shard_start(&s->shard, argv[0], model, args);
        if (ok && lq_ffn_connect(s->shard.url, &o, &s->ffn, why) != LQ_FFN_OK) {
            report_fail("%s", why);
            ok = false;
        }
    }
    if (ok)
        measure(sides);
    else
        report_fail("no shard to measure");
    for (int k = 0; k < SIDES_N; k++) {
        if (sides[k].ffn)
            lq_ffn_close(sides[k].ffn);
        bench_shard_stop(&sides[k].shard);
    }
    return report_end();
}
