/* What larql-router adds to a direct call, beside nginx, HAProxy and a bare byte
 * forwarder, in one run: contestants take turns in short blocks, so that what else the
 * machine does hits all alike. Latency on one keep-alive connection, throughput on 16,
 * the tail at sizes around the sockets' buffers, memory of idle connections. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/quantile.h"
#include "bench/support/proxies.h"

enum {
    ROUNDS = 16,
    BLOCK = 150, /* requests a contestant sends before the next one's turn */
    WARM_UP = 10,
    BUSY_US = 2000,
    RATE_CONNS = 16,
    RATE_REQUESTS = 2000,
    IDLE_CONNS = 2000,
};

enum who { DIRECT, FORWARDER, NGINX, HAPROXY, LARQL, LARQL_UNIX, BUSY_FORWARDER, LARQL_BUSY, WHO_N };
static const char *const name[WHO_N] = {"direct", "forwarder",   "nginx",          "haproxy",
                                        "larql",  "larql, unix", "busy forwarder", "larql, busy"};

static bool json;
static unsigned results_n;

/* bar 0: none. */
static void result(const char *what, double value, double bar, bool lower, const char *unit, const char *note)
{
    bool ok = bar == 0 || (lower ? value <= bar : value >= bar);
    char bar_text[32] = "null";
    if (bar != 0)
        snprintf(bar_text, sizeof bar_text, "%g", bar);
    if (json)
        printf("%s{\"bench\":\"router\",\"case\":\"%s\",\"value\":%.4g,\"bar\":%s,\"better\":\"%s\",\"unit\":\"%s\","
               "\"ok\":%s,\"note\":\"%s\"}",
               results_n++ ? ",\n" : "[", what, value, bar_text, lower ? "lower" : "higher", unit,
               ok ? "true" : "false", note);
    else if (bar != 0)
        printf("  %-44s %8.2f %-6s bar %-5s %s %s\n", what, value, unit, bar_text, ok ? "ok" : "MISSED", note);
    else
        printf("  %-44s %8.2f %-6s %s\n", what, value, unit, note);
}

/* ---- latency -------------------------------------------------------------------------------- */

struct lane { /* one contestant's connection, and what it measured */
    int fd;
    double *us; /* ROUNDS * BLOCK */
    double p50[ROUNDS];
};

static void run_block(struct lane *l, unsigned round, const struct load_request *q)
{
    double *us = l->us + (size_t)round * BLOCK, sorted[BLOCK];
    for (int i = 0; i < WARM_UP; i++)
        (void)load_once_us(l->fd, q);
    for (int i = 0; i < BLOCK; i++)
        us[i] = load_once_us(l->fd, q);
    memcpy(sorted, us, sizeof sorted);
    l->p50[round] = quantile(sorted, BLOCK, 0.5);
}

static void bench_latency(const struct load_addr *to, size_t body_n)
{
    struct lane lane[WHO_N];
    struct load_request q = load_request_new(body_n);
    double p50[WHO_N], p99[WHO_N];
    char what[80], note[120];
    for (int w = 0; w < WHO_N; w++)
        lane[w] = (struct lane){.fd = load_open(&to[w]), .us = malloc(sizeof(double) * ROUNDS * BLOCK)};
    for (unsigned r = 0; r < ROUNDS; r++)
        for (unsigned w = 0; w < WHO_N; w++)
            run_block(&lane[(w + r) % WHO_N], r, &q);
    for (int w = 0; w < WHO_N; w++) {
        p50[w] = quantile(lane[w].p50, ROUNDS, 0.5);
        p99[w] = quantile(lane[w].us, (size_t)ROUNDS * BLOCK, 0.99);
        close(lane[w].fd);
        free(lane[w].us);
    }
    free(q.bytes);
    double kb = (double)body_n / 1024, nginx = p50[NGINX] - p50[DIRECT];
    if (!json) {
        printf("\n%g KB both ways   %8s %8s %8s %12s\n", kb, "p50 us", "added", "p99 us", "added/nginx");
        for (int w = 0; w < WHO_N; w++)
            printf("  %-17s %8.1f %8.1f %8.1f %12.2f\n", name[w], p50[w], p50[w] - p50[DIRECT], p99[w],
                   (p50[w] - p50[DIRECT]) / nginx);
    }
    for (int w = 0; w < WHO_N; w++) {
        double bar = w == LARQL || w == LARQL_UNIX ? 0.95 : w == LARQL_BUSY ? 0.3 : 0;
        snprintf(what, sizeof what, "p50 added, %g KB, %s", kb, name[w]);
        snprintf(note, sizeof note, "p50 %.1f us, +%.1f us; nginx +%.1f us", p50[w], p50[w] - p50[DIRECT], nginx);
        if (bar != 0 || (json && w != DIRECT && w != NGINX))
            result(what, (p50[w] - p50[DIRECT]) / nginx, bar, true, "ratio", note);
    }
    snprintf(what, sizeof what, "p99, %g KB", kb);
    snprintf(note, sizeof note, "p99 %.1f us, nginx %.1f us, haproxy %.1f us", p99[LARQL], p99[NGINX], p99[HAPROXY]);
    result(what, p99[LARQL] / p99[NGINX], 1.0, true, "ratio", note);
}

/* Sizes at which a delayed ACK would show: 40 ms. The bare forwarder, which runs on
 * the same CPU, shows in between what of the tail is the machine's. */
static void bench_tail(const struct load_addr *at, const struct load_addr *bare, size_t body_n)
{
    enum { N = 2000, TURN = 100 };
    static double us[N], bare_us[N];
    char what[80], note[80];
    struct load_request q = load_request_new(body_n);
    int fd = load_open(at), bare_fd = load_open(bare);
    for (int i = 0; i < N; i += TURN) {
        for (int k = i; k < i + TURN; k++)
            us[k] = load_once_us(fd, &q);
        for (int k = i; k < i + TURN; k++)
            bare_us[k] = load_once_us(bare_fd, &q);
    }
    close(fd);
    close(bare_fd);
    free(q.bytes);
    double p99 = quantile(us, N, 0.99), bare_p99 = quantile(bare_us, N, 0.99);
    snprintf(what, sizeof what, "p99, %zu bytes both ways", body_n);
    snprintf(note, sizeof note, "largest of %d: %.0f us; forwarder's p99 %.0f us", N, us[N - 1], bare_p99);
    result(what, p99, 1000, true, "us", note);
}

/* ---- throughput ------------------------------------------------------------------------------- */

static void bench_rate(int backend_port, const char *backend_url)
{
    enum { KINDS = 2, THREADS_MAX = 2, LANES = KINDS * THREADS_MAX, RATE_ROUNDS = 12 };
    static const size_t body_n = 10 * 1024;
    int fds[LANES][RATE_CONNS];
    double rate[LANES][RATE_ROUNDS];
    char what[80], note[80];
    struct load_request q = load_request_new(body_n);
    for (int l = 0; l < LANES; l++) {
        unsigned threads = (unsigned)(l / KINDS) + 1;
        struct proxy p = l % KINDS ? proxy_nginx(backend_port, threads) : proxy_larql(backend_url, threads, 0);
        for (int i = 0; i < RATE_CONNS; i++)
            fds[l][i] = load_open(&p.at);
        (void)load_rate(fds[l], RATE_CONNS, &q, 500);
    }
    for (int r = 0; r < RATE_ROUNDS; r++)
        for (int l = 0; l < LANES; l++)
            rate[(l + r) % LANES][r] = load_rate(fds[(l + r) % LANES], RATE_CONNS, &q, RATE_REQUESTS);
    if (!json)
        printf("\n10 KB, %d connections\n", RATE_CONNS);
    for (int t = 0; t < THREADS_MAX; t++) {
        double ours = quantile(rate[t * KINDS], RATE_ROUNDS, 0.5),
               theirs = quantile(rate[t * KINDS + 1], RATE_ROUNDS, 0.5);
        snprintf(what, sizeof what, "throughput, %d connections, %d thread%s", RATE_CONNS, t + 1, t ? "s" : "");
        snprintf(note, sizeof note, "%.0f requests/s, nginx %.0f", ours, theirs);
        result(what, ours / theirs, 1.1, false, "ratio", note);
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < RATE_CONNS; i++)
            close(fds[l][i]);
    free(q.bytes);
}

/* ---- memory ------------------------------------------------------------------------------------- */

static double idle_kb(const struct proxy *p)
{
    static int fds[IDLE_CONNS];
    struct load_request q = load_request_new(10 * 1024);
    int first = load_open(&p->at);
    for (int i = 0; i < 100; i++)
        (void)load_once_us(first, &q);
    size_t before = peer_rss_bytes(p->pid);
    for (int i = 0; i < IDLE_CONNS; i++) {
        fds[i] = load_open(&p->at);
        (void)load_once_us(fds[i], &q);
    }
    size_t after = peer_rss_bytes(p->pid);
    for (int i = 0; i < IDLE_CONNS; i++)
        close(fds[i]);
    close(first);
    free(q.bytes);
    return ((double)after - (double)before) / 1024 / IDLE_CONNS;
}

int main(int argc, char **argv)
{
    struct load_addr to[WHO_N], unix_at;
    char path[120], tcp_url[80], unix_url[140], note[80];
    json = argc > 1 && strcmp(argv[1], "--json") == 0;
    proxies_init();
    (void)atexit(proxies_release);

    /* The client and the back end on one CPU, as they would be alone in the direct case; the
     * proxies on another. Left to the scheduler, each lands where it does, and the cost of
     * a wake-up between two CPUs (30 us) comes and goes by chance. */
    peer_pin(0);
    snprintf(path, sizeof path, "%s/shard", proxies_dir());
    (void)peer_backend(path, &unix_at);
    (void)peer_backend(NULL, &to[DIRECT]);
    int port = peer_port(&to[DIRECT]);
    snprintf(tcp_url, sizeof tcp_url, "http://127.0.0.1:%d", port);
    snprintf(unix_url, sizeof unix_url, "unix:%s", path);

    peer_pin(1);
    (void)peer_forwarder(&to[DIRECT], 0, &to[FORWARDER]);
    (void)peer_forwarder(&to[DIRECT], BUSY_US, &to[BUSY_FORWARDER]);
    struct proxy nginx = proxy_nginx(port, 1), larql = proxy_larql(tcp_url, 1, 0);
    to[NGINX] = nginx.at;
    to[LARQL] = larql.at;
    to[HAPROXY] = proxy_haproxy(port).at;
    to[LARQL_UNIX] = proxy_larql(unix_url, 1, 0).at;
    to[LARQL_BUSY] = proxy_larql(tcp_url, 1, BUSY_US).at;

    peer_pin(0);
    static const size_t kb[] = {5, 10, 20, 160}, tail_n[] = {16200, 16300, 20496, 163856};
    for (size_t i = 0; i < sizeof kb / sizeof *kb; i++)
        bench_latency(to, kb[i] * 1024);
    for (size_t i = 0; i < sizeof tail_n / sizeof *tail_n; i++)
        bench_tail(&larql.at, &to[FORWARDER], tail_n[i]);
    peer_pin(-1);
    (void)peer_backend(NULL, &to[DIRECT]); /* which may run anywhere */
    port = peer_port(&to[DIRECT]);
    snprintf(tcp_url, sizeof tcp_url, "http://127.0.0.1:%d", port);
    bench_rate(port, tcp_url);
    double ours = idle_kb(&larql), theirs = idle_kb(&nginx);
    snprintf(note, sizeof note, "nginx %.1f KB", theirs);
    result("resident memory of an idle connection", ours, 8, true, "KB", note);
    if (json)
        puts("]");
    return 0;
}
