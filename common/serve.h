/* serve: what both servers do with their listener: the shared options, the ready
 * line, and the drain on SIGTERM. */
#ifndef LQ_COMMON_SERVE_H
#define LQ_COMMON_SERVE_H

#include "common/http.h"
#include "common/loop.h"
#include "common/opt.h"
#include "common/trust.h"

struct serve_opts {
    const char *host, *unix_path, *log_level, *log_format;
    int64_t port, header_timeout_ms, body_timeout_ms, idle_timeout_ms, connections_max;
    int64_t body_mb, json_mb, deadline_ms, drain_ms, busy_poll_us;
    bool log_requests;
    struct trust_opts trust;
};
void serve_opts_init(struct serve_opts *o, int port);

/* Their rows of an option table: SERVE_OPTS_N of them into rows. */
enum { SERVE_OPTS_N = 15 + TRUST_OPTS_N };
void serve_opt_rows(struct serve_opts *o, struct opt *rows);

/* Sets up the log as the options say; LQ_USAGE for a word that is none of theirs. */
enum lq_err serve_log_init(const struct serve_opts *o, struct lq_fault *fault) LQ_MUST_CHECK;
/* The last words of a program that cannot serve: a line for people, or for machines a
 * log line, as --log-format says. */
void serve_say_failure(const char *program, const struct serve_opts *o, const struct lq_fault *fault);

/* By trust's certificate, where it has one; LQ_USAGE when it may not listen on that address.
 * shared: the server of another loop whose listener this one accepts from too, or NULL.
 * loops_n of them share --max-connections. */
enum lq_err serve_listen(struct loop *l, const struct serve_opts *o, const struct trust *trust,
                         const struct http_server *shared, unsigned loops_n, const char *server_name,
                         http_on_request fn, void *arg, struct http_server **out,
                         struct lq_fault *fault) LQ_MUST_CHECK;

/* Prints `ready url=...` on stdout, the only line there, and tells the service manager. */
void serve_ready(const struct http_server *s);

/* A listener's URL that names every address, and so none that others can reach. */
bool serve_url_is_wild(const char *url);

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
    void (*on_begin)(void *arg); /* at its begin, on this loop's thread; NULL: nothing */
    void *arg;
    _Atomic bool ended;
    void (*status)(const void *arg, char *text, size_t text_n); /* one line, no newline */
    const void *status_arg;
    /* serve.c's own */
    struct event *beat_ev;
    bool is_first;
    _Atomic uint64_t beat_us;
    uint64_t watchdog_us;
    char status_told[160];
};
/* Begins it on d's own loop; from any thread, once. */
void serve_drain_tell(struct serve_drain *d);
/* d: the first; before any of the loops runs. serve_drain_release() on failure too. */
enum lq_err serve_drain_on_signals(struct serve_drain *d, struct lq_fault *fault) LQ_MUST_CHECK;
/* All of them, when no loop runs any more and before the loops are freed. */
void serve_drain_release(struct serve_drain *d);
/* SIGHUP reads keys and certificates again; in whichever loop gets the signals. */
enum lq_err serve_reload_on_hup(struct loop *l, struct trust *trust, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
