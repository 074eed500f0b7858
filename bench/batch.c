/* Clients of one layer through one shard with one compute thread: rows a second with 16
 * closed loops beside those with one, rounds of both interleaved in one run; and whether
 * the 16 are served alike. One f16 row of 5,120 values a request. The clients are one
 * thread with epoll, so that they cost the machine little. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/quantile.h"
#include "bench/support/report.h"
#include "bench/support/shard.h"
#include "common/clock.h"

enum {
    CLIENTS = 16,
    HIDDEN = 5120,
    ROW_BYTES = 2 * HIDDEN,
    BODY_BYTES = 16 + ROW_BYTES,
    ANSWER_BYTES = 12 + ROW_BYTES,
    ROUNDS = 8,
    ROUND_US = 1500000,
    SAMPLES_MAX = 100000,
};
#define BAR_RATIO 4.0

struct client {
    int fd;
    char request[256 + BODY_BYTES];
    size_t request_n, got_n;
    char answer[1024 + ANSWER_BYTES];
    uint64_t sent_us;
    double *took_us; /* of the rounds with all clients */
    size_t took_n;
};

static uint16_t half_of(unsigned i)
{
    return (uint16_t)((i * 37 & 0x83ff) | 0x3400); /* +-0.25 to 0.5 */
}

static bool client_open(struct client *c, const struct sockaddr_in *to, unsigned number)
{
    int n = snprintf(c->request, sizeof c->request,
                     "POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn-f16\r\n"
                     "Accept: application/x-larql-ffn-f16\r\nContent-Length: %d\r\n\r\n",
                     BODY_BYTES);
    static const uint32_t head[4] = {0, 1, 1, 0}; /* layer, rows, full output, top_k */
    memcpy(c->request + n, head, sizeof head);
    for (unsigned i = 0; i < HIDDEN; i++) {
        uint16_t half = half_of(i + number);
        memcpy(c->request + n + 16 + 2 * i, &half, sizeof half);
    }
    c->request_n = (size_t)n + BODY_BYTES;
    c->took_us = malloc(SAMPLES_MAX * sizeof *c->took_us);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    return c->took_us && c->fd >= 0 && connect(c->fd, (const struct sockaddr *)to, sizeof *to) == 0;
}

static bool client_send(struct client *c)
{
    c->got_n = 0;
    c->sent_us = clock_us();
    return send(c->fd, c->request, c->request_n, MSG_NOSIGNAL) == (ssize_t)c->request_n;
}

/* Reads what has come: 1 the answer is whole, 0 not yet, -1 broken. */
static int client_read(struct client *c)
{
    ssize_t n = recv(c->fd, c->answer + c->got_n, sizeof c->answer - 1 - c->got_n, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN ? 0 : -1;
    if (n == 0)
        return -1;
    c->got_n += (size_t)n;
    c->answer[c->got_n] = 0;
    const char *end = memmem(c->answer, c->got_n, "\r\n\r\n", 4);
    if (!end)
        return 0;
    if (strncmp(c->answer, "HTTP/1.1 200 ", 13) != 0)
        return -1;
    return c->got_n >= (size_t)(end + 4 - c->answer) + ANSWER_BYTES;
}

/* n clients in closed loops for ROUND_US; rows a second, 0 when something broke. */
static double round_run(int epoll, struct client *clients, size_t n, bool keep)
{
    uint64_t begin_us = clock_us(), now_us = begin_us;
    size_t rows_n = 0, open_n = n;
    for (size_t i = 0; i < n; i++)
        if (!client_send(&clients[i]))
            return 0;
    while (open_n > 0) { /* to the last answer, so that rounds do not touch */
        struct epoll_event ev[CLIENTS];
        int ready = epoll_wait(epoll, ev, CLIENTS, 10000);
        if (ready <= 0)
            return 0;
        for (int i = 0; i < ready; i++) {
            struct client *c = ev[i].data.ptr;
            int whole = client_read(c);
            if (whole < 0)
                return 0;
            if (!whole)
                continue;
            now_us = clock_us();
            rows_n++;
            if (keep && c->took_n < SAMPLES_MAX)
                c->took_us[c->took_n++] = (double)(now_us - c->sent_us);
            if (now_us - begin_us >= ROUND_US)
                open_n--;
            else if (!client_send(c))
                return 0;
        }
    }
    return (double)rows_n * 1e6 / (double)(now_us - begin_us);
}

static void measure(int epoll, struct client *clients, const char *activations)
{
    char what[80];
    double one[ROUNDS], all[ROUNDS], ratio[ROUNDS], least = 0, most = 0;
    if (round_run(epoll, clients, CLIENTS, false) == 0) /* warm */
        goto broken;
    for (int r = 0; r < ROUNDS; r++) {
        one[r] = round_run(epoll, clients, 1, false);
        all[r] = round_run(epoll, clients, CLIENTS, true);
        if (one[r] == 0 || all[r] == 0)
            goto broken;
        ratio[r] = all[r] / one[r];
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        struct client *c = &clients[i];
        double p99 = quantile(c->took_us, c->took_n, 0.99);
        least = i == 0 || p99 < least ? p99 : least;
        most = p99 > most ? p99 : most;
    }
    double middle = quantile(ratio, ROUNDS, 0.5);
    snprintf(what, sizeof what, "%s: rows/s of 16 clients, times one client's", activations);
    report_row(what, middle, BAR_RATIO, REPORT_HIGHER, "ratio",
               "%.1f rows/s, one client %.1f; worst and best round %.2f, %.2f", quantile(all, ROUNDS, 0.5),
               quantile(one, ROUNDS, 0.5), ratio[0], ratio[ROUNDS - 1]);
    snprintf(what, sizeof what, "%s: p99 of the worst client, times the best's", activations);
    report_row(what, most / least, REPORT_NO_BAR, REPORT_LOWER, "ratio", "%.1f and %.1f ms", most / 1e3, least / 1e3);
    return;
broken:
    report_fail("a client lost its connection, or got another answer than 200");
}

/* One shard that takes activations so. */
static void run(const char *argv0, const char *model, const char *activations)
{
    static struct client clients[CLIENTS];
    const char *args[] = {"--threads", "1", "--pin", "--activations", activations, NULL};
    struct bench_shard shard = {0};
    int epoll = epoll_create1(0), port = 0;
    memset(clients, 0, sizeof clients);
    if (epoll < 0 || !bench_shard_start(&shard, argv0, model, args) ||
        sscanf(shard.url, "http://127.0.0.1:%d", &port) != 1) {
        report_fail("no shard to measure");
        goto out;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (unsigned i = 0; i < CLIENTS; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &clients[i]};
        if (!client_open(&clients[i], &to, i) || epoll_ctl(epoll, EPOLL_CTL_ADD, clients[i].fd, &ev) != 0) {
            report_fail("cannot connect to %s: %s", shard.url, strerror(errno));
            goto out;
        }
    }
    measure(epoll, clients, activations);
out:
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (clients[i].fd > 0)
            close(clients[i].fd);
        free(clients[i].took_us);
    }
    if (epoll >= 0)
        close(epoll);
    bench_shard_stop(&shard);
}

int main(int argc, char **argv)
{
    static const char *const shape[] = {"--layers", "1",          "--hidden", "5120",   "--ffn", "13824", "--heads",
                                        "40",       "--kv-heads", "8",        "--type", "Q4_K",  NULL};
    char model[600];
    report_begin("batch", argc, argv);
    if (!bench_model(argv[0], "bench-wide", shape, model, sizeof model)) {
        report_fail("no model to measure");
        return report_end();
    }
    run(argv[0], model, "16");
    run(argv[0], model, "8");
    return report_end();
}
