/* serve: what both servers do with their listener: the shared options, the ready
 * line, and the drain on SIGTERM. */
#ifndef LQ_COMMON_SERVE_H
#define LQ_COMMON_SERVE_H

#include "common/http.h"
#include "common/loop.h"
#include "common/opt.h"

struct serve_opts {
    const char *host, *unix_path, *log_level;
    int64_t port, header_timeout_ms, body_timeout_ms, idle_timeout_ms, connections_max;
    int64_t body_mb, json_mb, deadline_ms, drain_ms, busy_poll_us;
};
void serve_opts_init(struct serve_opts *o, int port);

/* Their rows of an option table: SERVE_OPTS_N of them into rows. */
enum { SERVE_OPTS_N = 13 };
void serve_opt_rows(struct serve_opts *o, struct opt *rows);

/* shared: the server of another loop whose listener this one accepts from too, or NULL.
 * loops_n of them share --max-connections. */
enum lq_err serve_listen(struct loop *l, const struct serve_opts *o, const struct http_server *shared,
                         unsigned loops_n, const char *server_name, http_on_request fn, void *arg,
                         struct http_server **out, struct lq_fault *fault) LQ_MUST_CHECK;

/* Prints `ready url=...` on stdout, the only line there, and tells the service manager. */
void serve_ready(const struct http_server *s);

/* The first SIGTERM or SIGINT sets *draining, stops accepting, and stops the loop
 * when the last connection has ended or after drain_ms; the second exits. With several
 * loops the one that gets the signals tells those in `next`, each on its own thread, and
 * stops last: until then it hears the second.
 * Under a service manager (common/notify.h) each loop beats once a second, and the first
 * tells it what `status` (may be NULL) writes, when that has changed; that the drain began;
 * and WATCHDOG=1 while all of them beat. */
struct serve_drain {
    struct loop_msg told; /* first */
    struct serve_drain *next;
    struct loop *loop;
    struct http_server *server;
    bool *draining;
    uint64_t drain_ms, until_us;
    _Atomic bool ended;
    void (*status)(const void *arg, char *text, size_t text_n); /* one line, no newline */
    const void *status_arg;
    /* serve.c's own */
    bool is_first;
    _Atomic uint64_t beat_us;
    uint64_t watchdog_us;
    char status_told[160];
};
/* Begins it on d's own loop; from any thread, once. */
void serve_drain_tell(struct serve_drain *d);
/* d: the first; before any of the loops runs. */
enum lq_err serve_drain_on_signals(struct serve_drain *d, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
