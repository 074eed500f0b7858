/* http_load: see http_load.h. */
#include "bench/support/http_load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bench/support/timer.h"

enum { ANSWER_BYTES = 1 << 20, HEAD_BYTES = 512 };

void load_die(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

struct load_addr load_tcp(int port)
{
    struct load_addr a = {.n = sizeof(struct sockaddr_in)};
    const struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memcpy(&a.a, &in, sizeof in);
    return a;
}

struct load_request load_request_new(size_t body_n)
{
    static const unsigned char row[16] = {[4] = 1, [8] = 1}; /* layer 0, one row, full output */
    struct load_request q = {.bytes = calloc(1, HEAD_BYTES + body_n)};
    if (!q.bytes)
        load_die("memory");
    int n = snprintf((char *)q.bytes, HEAD_BYTES,
                     "POST /v1/walk-ffn HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                     "Content-Type: application/x-larql-ffn-f16\r\n"
                     "Accept: application/x-larql-ffn-f16, application/x-larql-ffn;q=0.5\r\n"
                     "X-Larql-Deadline-Ms: 30000\r\nContent-Length: %zu\r\n\r\n",
                     body_n);
    q.n = (size_t)n + body_n;
    memcpy(q.bytes + n, row, sizeof row);
    return q;
}

int load_open(const struct load_addr *to)
{
    int one = 1, fd = socket(to->a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, &to->a.any, to->n) != 0)
        load_die("connect");
    if (to->a.any.sa_family == AF_INET)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* ---- one answer, as it comes ---------------------------------------------------------- */

struct answer {
    size_t got, whole; /* whole: bytes of head and body, 0: not known yet */
};

/* True: the answer is there. */
static bool take(struct answer *a, int fd, char *buf, int flags)
{
    ssize_t n = recv(fd, buf + a->got, ANSWER_BYTES - 1 - a->got, flags);
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN)
            return false;
        errno = n < 0 ? errno : ECONNRESET;
        load_die("answer");
    }
    a->got += (size_t)n;
    if (a->whole == 0) {
        buf[a->got] = '\0';
        char *end = strstr(buf, "\r\n\r\n"), *length = strcasestr(buf, "\r\ncontent-length:");
        if (!end)
            return false;
        errno = 0;
        if (strncmp(buf, "HTTP/1.1 200", 12) != 0 || !length || length > end)
            load_die(buf);
        a->whole = (size_t)(end + 4 - buf) + strtoul(length + 17, NULL, 10);
    }
    return a->got >= a->whole;
}

static void send_all(int fd, const struct load_request *q)
{
    for (size_t sent = 0; sent < q->n;) {
        ssize_t n = send(fd, q->bytes + sent, q->n - sent, MSG_NOSIGNAL);
        if (n < 0)
            load_die("request");
        sent += (size_t)n;
    }
}

double load_once_us(int fd, const struct load_request *q)
{
    static char buf[ANSWER_BYTES];
    struct answer a = {0};
    uint64_t begin = timer_now_ns();
    send_all(fd, q);
    while (!take(&a, fd, buf, 0)) {
    }
    return (double)(timer_now_ns() - begin) / 1e3;
}

double load_rate(const int *fds, size_t fds_n, const struct load_request *q, size_t requests_n)
{
    struct answer *a = calloc(fds_n, sizeof *a);
    char *bufs = malloc(fds_n * ANSWER_BYTES);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    if (!a || !bufs || ep < 0)
        load_die("memory");
    size_t sent_n = 0, open_n = 0;
    uint64_t begin = timer_now_ns();
    for (size_t i = 0; i < fds_n; i++, sent_n++, open_n++) {
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = i};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e) != 0)
            load_die("epoll");
        send_all(fds[i], q);
    }
    while (open_n > 0) {
        struct epoll_event e[64];
        int n = epoll_wait(ep, e, 64, -1);
        for (int k = 0; k < n; k++) {
            size_t i = e[k].data.u64;
            if (!take(&a[i], fds[i], bufs + i * ANSWER_BYTES, MSG_DONTWAIT))
                continue;
            a[i] = (struct answer){0};
            open_n--;
            if (sent_n < requests_n) {
                sent_n++;
                open_n++;
                send_all(fds[i], q);
            }
        }
    }
    double s = (double)(timer_now_ns() - begin) / 1e9;
    close(ep);
    free(bufs);
    free(a);
    return (double)sent_n / s;
}
