/* http_load: a client that does nothing but measure: POST bodies of a given size over
 * keep-alive connections, one after the other or several at a time. Any trouble ends
 * the program with a message: a bench that lost a request has no figures. */
#ifndef LQ_BENCH_SUPPORT_HTTP_LOAD_H
#define LQ_BENCH_SUPPORT_HTTP_LOAD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct load_addr { /* where a server listens */
    union {
        struct sockaddr any;
        struct sockaddr_un un;
        struct sockaddr_storage storage;
    } a;
    socklen_t n;
};

/* Loopback, that port. */
struct load_addr load_tcp(int port);

struct load_request {
    unsigned char *bytes; /* head and body of a binary walk-ffn request, one row */
    size_t n;
};
struct load_request load_request_new(size_t body_n);

/* A connected blocking socket. */
int load_open(const struct load_addr *to);
/* Sends one request, reads one whole answer, which must have status 200; microseconds. */
double load_once_us(int fd, const struct load_request *q);
/* requests_n exchanges over the open sockets fds, each always busy; requests per second. */
double load_rate(const int *fds, size_t fds_n, const struct load_request *q, size_t requests_n);

_Noreturn void load_die(const char *what);

#endif
