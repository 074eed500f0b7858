/* chaos_load URL CLIENTS LAYERS HIDDEN [--outage MS]: CLIENTS threads, each on one keep-alive
 * connection, ask a grid all kinds of questions until standard input ends. Every answer must
 * be, bit for bit but for the shard's time, the one that was given at the start.
 *
 * Prints "ready" when the first answers are there, then "asked N" for each line that it reads,
 * and at the end one JSON object; exit status 1 when an answer was wrong or missing. A lost
 * connection is a missing answer.
 *   --outage MS  the requests' deadline; 502, 503 and 504 that come within it, with an error
 *                text, are counted apart and are not failures. */
#include <arpa/inet.h>
#include <assert.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "proto/wire.h"

enum {
    ANSWER_MOST = 1 << 20,
    ROWS = 40,
    PATIENCE_S = 120,   /* an answer that takes longer will not come */
    SLACK_MS = 5000,    /* of a busy machine, after a deadline */
    SAID_MOST = 20,
    CLIENTS_MOST = 64,
};

struct question {
    char *bytes; /* head and body */
    size_t bytes_n;
    char *answer; /* the reference, without the shard's time */
    size_t answer_n;
};

struct client {
    pthread_t thread;
    int fd; /* -1: not connected */
    uint64_t random;
    char *in; /* ANSWER_MOST */
};

static struct sockaddr_in where;
static struct question *questions;
static size_t questions_n;
static uint32_t hidden;
static long outage_ms; /* 0: none is allowed */
static atomic_bool over;
static atomic_ulong asked_n, failed_n, wrong_n, refused_n, late_n, said_n;
static _Atomic uint64_t slowest_us;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void say(atomic_ulong *count, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(atomic_ulong *count, const char *fmt, ...)
{
    va_list ap;
    atomic_fetch_add(count, 1);
    if (atomic_fetch_add(&said_n, 1) >= SAID_MOST)
        return;
    va_start(ap, fmt);
    char text[600];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "chaos_load: %s\n", text);
}

/* ---- questions ------------------------------------------------------------------- */

static float value(uint32_t i)
{
    return (float)((i * 37u) % 101u) / 16 - 3;
}

static void add_question(const char *type, const void *body, size_t body_n)
{
    char head[400];
    int n = snprintf(head, sizeof head,
                     "POST /v1/walk-ffn HTTP/1.1\r\nHost: grid\r\nContent-Type: %s\r\nContent-Length: %zu\r\n", type,
                     body_n);
    if (outage_ms)
        n += snprintf(head + n, sizeof head - (size_t)n, "X-Larql-Deadline-Ms: %ld\r\n", outage_ms);
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    struct question *q = &questions[questions_n++];
    q->bytes_n = (size_t)n + body_n;
    q->bytes = malloc(q->bytes_n);
    assert(q->bytes);
    memcpy(q->bytes, head, (size_t)n);
    memcpy(q->bytes + n, body, body_n);
}

static void add_binary(const uint32_t *layers, uint32_t layers_n, uint32_t rows_n)
{
    size_t head_n = wire_request_head_bytes(layers_n > 1, layers_n), row_n = (size_t)rows_n * hidden;
    uint8_t *body = malloc(head_n + row_n * sizeof(float));
    assert(body);
    wire_request_head_encode(layers_n > 1, layers, layers_n, rows_n, 0, body);
    for (uint32_t i = 0; i < row_n; i++) {
        float v = value(i + layers[0]);
        memcpy(body + head_n + i * sizeof v, &v, sizeof v);
    }
    add_question("application/x-larql-ffn", body, head_n + row_n * sizeof(float));
    free(body);
}

static void add_json(uint32_t first, uint32_t last)
{
    size_t most = 200 + (size_t)hidden * 24 + (last - first + 1) * 12, n = 0;
    char *body = malloc(most);
    assert(body);
    n += (size_t)snprintf(body, most, "{\"full_output\":true,\"layers\":[");
    for (uint32_t l = first; l <= last; l++)
        n += (size_t)snprintf(body + n, most - n, "%s%u", l > first ? "," : "", l);
    n += (size_t)snprintf(body + n, most - n, "],\"residual\":[");
    for (uint32_t i = 0; i < hidden; i++)
        n += (size_t)snprintf(body + n, most - n, "%s%.6f", i ? "," : "", (double)value(i + first));
    n += (size_t)snprintf(body + n, most - n, "]}");
    add_question("application/json", body, n);
    free(body);
}

/* Single rows most of all, as a decoder asks; prompts; two layers of one shard; JSON to one
 * shard, and to all of them at once. */
static void make_questions(uint32_t layers_n)
{
    questions = calloc((size_t)layers_n * 6 + 1, sizeof *questions);
    assert(questions);
    for (uint32_t l = 0; l < layers_n; l++) {
        const uint32_t pair[2] = {l & ~1u, l | 1u};
        add_binary(&l, 1, 1);
        add_binary(&l, 1, 1);
        add_binary(&l, 1, 2);
        add_binary(&l, 1, ROWS);
        if (pair[1] < layers_n)
            add_binary(pair, 2, 1);
        add_json(l, l);
    }
    add_json(0, layers_n - 1);
}

/* ---- one exchange ------------------------------------------------------------------ */

static bool reach(struct client *c)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const int on = 1;
    if (c->fd >= 0)
        return true;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&where, sizeof where) != 0)
        return false;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return true;
}

static void hang_up(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* What c->in holds of a header, or NULL. */
static const char *header(const char *head, const char *name)
{
    const char *p = strcasestr(head, name);
    return p ? p + strlen(name) : NULL;
}

/* The status; *body and *body_n are in c->in. 0: no whole answer came; why says it. */
static int exchange(struct client *c, const struct question *q, char **body, size_t *body_n, const char **why)
{
    size_t have = 0, head_n = 0, length = 0;
    *why = "cannot connect";
    if (!reach(c))
        return 0;
    *why = "the connection was lost";
    for (size_t sent = 0; sent < q->bytes_n;) {
        ssize_t n = send(c->fd, q->bytes + sent, q->bytes_n - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return 0;
        sent += (size_t)n;
    }
    while (head_n == 0 || have < head_n + length) {
        ssize_t n = recv(c->fd, c->in + have, ANSWER_MOST - 1 - have, 0);
        if (n <= 0) {
            *why = have ? "the connection was lost in the middle of an answer" : "the connection was lost";
            return 0;
        }
        have += (size_t)n;
        c->in[have] = '\0';
        char *end = head_n == 0 ? strstr(c->in, "\r\n\r\n") : NULL;
        if (!end)
            continue;
        head_n = (size_t)(end - c->in) + 4;
        end[2] = '\0'; /* the head alone is text */
        const char *text = header(c->in, "\nContent-Length:");
        *why = "an answer without a length";
        if (!text || (length = strtoul(text, NULL, 10)) >= ANSWER_MOST - head_n)
            return 0;
    }
    *why = "more than an answer came";
    if (have > head_n + length)
        return 0;
    *body = c->in + head_n;
    *body_n = length;
    const char *connection = header(c->in, "\nConnection:");
    if (connection && strncasecmp(connection + strspn(connection, " "), "close", 5) == 0)
        hang_up(c);
    return atoi(c->in + strlen("HTTP/1.1 "));
}

/* Without the shard's time: bytes 8 to 11 of a binary answer, latency_ms of JSON. */
static size_t without_time(char *body, size_t n)
{
    if (n > 0 && body[0] == '{') {
        char *p = memmem(body, n, "\"latency_ms\":", 13), *end = p;
        while (end && end < body + n && *end != ',' && *end != '}')
            end++;
        if (p)
            memmove(p, end, (size_t)(body + n - end));
        return p ? n - (size_t)(end - p) : n;
    }
    if (n >= 12)
        memset(body + 8, 0, 4);
    return n;
}

static void ask(struct client *c, const struct question *q)
{
    char *body = NULL;
    const char *why;
    size_t n = 0, number = (size_t)(q - questions);
    uint64_t start = now_us(), most;
    int status = exchange(c, q, &body, &n, &why);
    uint64_t took = now_us() - start;
    atomic_fetch_add(&asked_n, 1);
    for (most = slowest_us; took > most && !atomic_compare_exchange_weak(&slowest_us, &most, took);)
        ;
    if (outage_ms && took > (uint64_t)(outage_ms + SLACK_MS) * 1000)
        say(&late_n, "question %zu: answered after %llu ms", number, (unsigned long long)took / 1000);
    if (status == 0) {
        hang_up(c);
        say(&failed_n, "question %zu: %s", number, why);
    } else if (outage_ms && status >= 502 && status <= 504 && memmem(body, n, "\"error\"", 7)) {
        atomic_fetch_add(&refused_n, 1);
    } else if (status != 200) {
        say(&failed_n, "question %zu: status %d: %.*s", number, status, n < 300 ? (int)n : 300, body);
    } else if ((n = without_time(body, n)) != q->answer_n || memcmp(body, q->answer, n) != 0) {
        say(&wrong_n, "question %zu: an answer of %zu bytes is not the first one, of %zu", number, n, q->answer_n);
    }
}

/* ---- the load ------------------------------------------------------------------------- */

static bool open_client(struct client *c, uint64_t seed)
{
    *c = (struct client){.fd = -1, .random = seed * 0x9e3779b97f4a7c15u + 1, .in = malloc(ANSWER_MOST)};
    return c->in;
}

static bool first_answers(void)
{
    struct client c;
    if (!open_client(&c, 0))
        return false;
    for (size_t i = 0; i < questions_n; i++) {
        struct question *q = &questions[i];
        char *body = NULL;
        const char *why = "";
        int status = exchange(&c, q, &body, &q->answer_n, &why);
        if (status != 200) {
            fprintf(stderr, "chaos_load: no first answer to question %zu: status %d %s %.*s\n", i, status, why,
                    body ? (int)q->answer_n : 0, body ? body : "");
            return false;
        }
        q->answer_n = without_time(body, q->answer_n);
        q->answer = malloc(q->answer_n + 1);
        assert(q->answer);
        memcpy(q->answer, body, q->answer_n);
    }
    hang_up(&c);
    free(c.in);
    return true;
}

static void *run(void *arg)
{
    struct client *c = arg;
    while (!over) {
        c->random ^= c->random >> 12, c->random ^= c->random << 25, c->random ^= c->random >> 27;
        ask(c, &questions[(c->random * 2685821657736338717u >> 32) % questions_n]);
    }
    hang_up(c);
    free(c->in);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct client clients[CLIENTS_MOST];
    char host[64], line[64];
    unsigned port;
    size_t clients_n = argc > 4 ? strtoul(argv[2], NULL, 10) : 0;
    if ((argc != 5 && argc != 7) || sscanf(argv[1], "http://%63[0-9.]:%u", host, &port) != 2 || clients_n == 0 ||
        clients_n > CLIENTS_MOST || (argc == 7 && strcmp(argv[5], "--outage") != 0)) {
        fprintf(stderr, "usage: chaos_load http://ADDRESS:PORT CLIENTS LAYERS HIDDEN [--outage MS]\n");
        return 2;
    }
    where = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &where.sin_addr);
    hidden = (uint32_t)strtoul(argv[4], NULL, 10);
    outage_ms = argc == 7 ? strtol(argv[6], NULL, 10) : 0;
    make_questions((uint32_t)strtoul(argv[3], NULL, 10));
    if (!first_answers())
        return 1;
    for (size_t i = 0; i < clients_n; i++)
        if (!open_client(&clients[i], i + 1) || pthread_create(&clients[i].thread, NULL, run, &clients[i]) != 0)
            return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin))
        printf("asked %lu\n", asked_n);
    over = true;
    for (size_t i = 0; i < clients_n; i++)
        pthread_join(clients[i].thread, NULL);
    printf("{\"asked\":%lu,\"failed\":%lu,\"wrong\":%lu,\"refused\":%lu,\"late\":%lu,\"slowest_ms\":%.1f}\n", asked_n,
           failed_n, wrong_n, refused_n, late_n, (double)slowest_us / 1000);
    for (size_t i = 0; i < questions_n; i++) {
        free(questions[i].bytes);
        free(questions[i].answer);
    }
    free(questions);
    return failed_n || wrong_n || late_n;
}
