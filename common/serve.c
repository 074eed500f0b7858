/* serve: see serve.h. */
#include "common/serve.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/notify.h"
#include "common/spin.h"

enum { DRAIN_POLL_MS = 20, BEAT_US = 1000000 };

void serve_opts_init(struct serve_opts *o, int port)
{
    *o = (struct serve_opts){.host = "127.0.0.1",
                             .log_level = "info",
                             .log_format = "text",
                             .port = port,
                             .header_timeout_ms = 10000,
                             .body_timeout_ms = 30000,
                             .idle_timeout_ms = 75000,
                             .body_mb = 64,
                             .json_mb = 4,
                             .deadline_ms = 30000,
                             .drain_ms = 30000};
}

void serve_opt_rows(struct serve_opts *o, struct opt *rows)
{
    const struct opt table[SERVE_OPTS_N - TRUST_OPTS_N] = {
        {"host", 0, OPT_TEXT, "ADDR", NULL, "address to listen on (default 127.0.0.1)", 0, 0, &o->host},
        {"port", 'p', OPT_INT, "PORT", NULL, "port to listen on, 0: a free one (default 8080, router 9090)", 0, 65535,
         &o->port},
        {"unix", 0, OPT_TEXT, "PATH", NULL, "listen on a unix socket instead", 0, 0, &o->unix_path},
        {"deadline-ms", 0, OPT_INT, "MS", NULL, "time one request may take, then 504 (default 30000)", 1, 3600000,
         &o->deadline_ms},
        {"drain-ms", 0, OPT_INT, "MS", NULL, "time to finish on SIGTERM (default 30000)", 0, 3600000, &o->drain_ms},
        {"max-body-mb", 0, OPT_INT, "MB", NULL, "largest binary body, then 413 (default 64)", 1, 1024, &o->body_mb},
        {"max-json-mb", 0, OPT_INT, "MB", NULL, "largest JSON body, then 413 (default 4)", 1, 256, &o->json_mb},
        {"header-timeout-ms", 0, OPT_INT, "MS", NULL, "a header must be whole by then, or 408 (default 10000)", 10,
         3600000, &o->header_timeout_ms},
        {"body-timeout-ms", 0, OPT_INT, "MS", NULL, "longest pause inside a body, then 408 (default 30000)", 10,
         3600000, &o->body_timeout_ms},
        {"idle-timeout-ms", 0, OPT_INT, "MS", NULL, "keep-alive without a request (default 75000)", 10, 3600000,
         &o->idle_timeout_ms},
        {"max-connections", 0, OPT_INT, "N", NULL, "open connections, 0: by the open-file limit (default 0)", 0,
         1000000, &o->connections_max},
        {"busy-poll", 0, OPT_INT, "US", NULL,
         "poll for so long after each event before sleeping: saves wake-ups, costs a core a loop (default 0)", 0,
         SPIN_US_MAX, &o->busy_poll_us},
        {"log-level", 0, OPT_TEXT, "LEVEL", "LARQL_LOG", "debug, info, warn or error (default info)", 0, 0,
         &o->log_level},
        {"log-format", 0, OPT_TEXT, "text|json", "LARQL_LOG_FORMAT",
         "key=value lines, or one JSON object a line (default text)", 0, 0, &o->log_format},
        {"log-requests", 0, OPT_FLAG, NULL, NULL, "a line for each request at level info (otherwise at debug)", 0, 0,
         &o->log_requests},
    };
    memcpy(rows, table, sizeof table);
    trust_opt_rows(&o->trust, rows + sizeof table / sizeof *table);
}

enum lq_err serve_log_init(const struct serve_opts *o, struct lq_fault *fault)
{
    enum lq_err rc = log_level_set(o->log_level, fault);
    if (!rc)
        rc = log_format_set(o->log_format, fault);
    if (!rc)
        log_requests_set(o->log_requests);
    return rc;
}

void serve_say_failure(const char *program, const struct serve_opts *o, const struct lq_fault *fault)
{
    if (strcmp(o->log_format, "json") == 0)
        log_error("cannot_serve program=%s error=%s why=%s", program, lq_err_word(fault->code), log_q(fault->text));
    else
        fprintf(stderr, "%s: %s\n", program, fault->text);
}

enum lq_err serve_listen(struct loop *l, const struct serve_opts *o, const struct trust *trust,
                         const struct http_server *shared, unsigned loops_n, const char *server_name,
                         http_on_request fn, void *arg, struct http_server **out, struct lq_fault *fault)
{
    struct http_server_opts h;
    enum lq_err rc = o->unix_path ? LQ_OK : trust_may_listen(trust, o->host, fault);
    if (rc)
        return rc;
    http_server_opts_init(&h);
    h.tls = trust->listen;
    h.host = o->host;
    h.port = (int)o->port;
    h.unix_path = o->unix_path;
    h.header_timeout_ms = (uint32_t)o->header_timeout_ms;
    h.body_timeout_ms = (uint32_t)o->body_timeout_ms;
    h.idle_timeout_ms = (uint32_t)o->idle_timeout_ms;
    h.connections_max = (uint32_t)o->connections_max;
    h.server_name = server_name;
    h.shared = shared;
    h.loops_n = loops_n;
    return http_server_new(loop_base(l), &h, fn, arg, out, fault);
}

void serve_ready(const struct http_server *s)
{
    printf("ready url=%s\n", http_server_url(s));
    fflush(stdout);
    notify_send("READY=1");
}

bool serve_url_is_wild(const char *url)
{
    return strstr(url, "://0.0.0.0") || strstr(url, "://[::]");
}

static bool rest_has_ended(const struct serve_drain *d)
{
    for (const struct serve_drain *n = d->next; n; n = n->next)
        if (!n->ended)
            return false;
    return true;
}

static void on_drain_poll(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct serve_drain *d = arg;
    size_t left_n = http_server_connections_n(d->server);
    if (!d->ended && (left_n == 0 || clock_us() >= d->until_us)) {
        log_info("drain_end connections=%zu", left_n);
        d->ended = true;
    }
    if (d->ended && rest_has_ended(d)) { /* who gets the signals goes last */
        loop_stop(d->loop);
        return;
    }
    struct timeval tv = {.tv_usec = DRAIN_POLL_MS * 1000};
    if (event_base_once(loop_base(d->loop), -1, EV_TIMEOUT, on_drain_poll, d, &tv) != 0) {
        d->ended = true;
        loop_stop(d->loop); /* out of memory: nothing better than to end now */
    }
}

static void begin(struct serve_drain *d)
{
    *d->draining = true;
    if (d->on_begin)
        d->on_begin(d->arg);
    d->until_us = clock_us() + d->drain_ms * 1000;
    if (d->is_first)
        notify_send("STOPPING=1\nSTATUS=draining");
    http_server_drain(d->server);
    on_drain_poll(-1, 0, d);
}

static void on_told(struct loop_msg *m)
{
    begin((struct serve_drain *)m);
}

void serve_drain_tell(struct serve_drain *d)
{
    d->told.fn = on_told;
    loop_post(d->loop, &d->told);
}

static void on_drain(void *arg)
{
    struct serve_drain *d = arg;
    for (struct serve_drain *n = d->next; n; n = n->next)
        serve_drain_tell(n);
    begin(d);
}

/* ---- what the service manager is told, where there is one ---- */

/* A loop that is stuck does not beat: then the manager hears nothing more and acts. */
static bool all_beat(const struct serve_drain *first, uint64_t now_us)
{
    for (const struct serve_drain *n = first; n; n = n->next)
        if (!n->ended && now_us - n->beat_us > first->watchdog_us)
            return false;
    return true;
}

static void tell_status(struct serve_drain *d)
{
    char text[sizeof d->status_told];
    if (!d->status || *d->draining)
        return;
    d->status(d->status_arg, text, sizeof text);
    for (char *p = text; *p; p++)
        if (*p == '\n') /* would begin another variable */
            *p = ' ';
    if (strcmp(text, d->status_told) == 0)
        return;
    memcpy(d->status_told, text, sizeof text);
    notify_send("STATUS=%s", text);
}

static void beat_after(struct serve_drain *d, uint64_t us)
{
    struct timeval tv = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
    if (evtimer_add(d->beat_ev, &tv) != 0)
        log_warn("beat_lost why=memory");
}

static void on_beat(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct serve_drain *d = arg;
    d->beat_us = clock_us();
    if (d->is_first) {
        if (d->watchdog_us && all_beat(d, d->beat_us))
            notify_send("WATCHDOG=1");
        tell_status(d);
    }
    beat_after(d, d->watchdog_us && d->watchdog_us / 4 < BEAT_US ? d->watchdog_us / 4 : BEAT_US);
}

enum lq_err serve_drain_on_signals(struct serve_drain *d, struct lq_fault *fault)
{
    d->is_first = true;
    bool ok = loop_on_signals(d->loop, on_drain, d) == LQ_OK;
    uint64_t watchdog_us = notify_watchdog_us();
    for (struct serve_drain *n = d; n && notify_is_on() && ok; n = n->next) {
        n->watchdog_us = watchdog_us;
        n->beat_us = clock_us();
        ok = (n->beat_ev = evtimer_new(loop_base(n->loop), on_beat, n)) != NULL;
        if (ok)
            beat_after(n, 0);
    }
    return ok ? LQ_OK : lq_fail(fault, LQ_NOMEM, "cannot watch for signals");
}

void serve_drain_release(struct serve_drain *d)
{
    for (; d; d = d->next) {
        if (d->beat_ev)
            event_free(d->beat_ev);
        d->beat_ev = NULL;
    }
}

static void on_hup(void *arg)
{
    trust_reload(arg);
}

enum lq_err serve_reload_on_hup(struct loop *l, struct trust *trust, struct lq_fault *fault)
{
    if (loop_on_hup(l, on_hup, trust) != LQ_OK)
        return lq_fail(fault, LQ_NOMEM, "cannot watch for signals");
    return LQ_OK;
}
