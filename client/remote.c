/* remote: the public library (larql_ffn.h): FFN layers on a grid, synchronously.
 *
 *   lq_ffn_forward -> cut into calls of <= BODY_BYTES_MAX -> choose_wire -> send_once
 *        -> answered: decode by its Content-Type
 *        -> 400/415 to the first compact body: f32 from now on, once more
 *        -> lost, or 503 with Retry-After: again, for AGAIN_MS and within the deadline, so that
 *           a router that is restarted costs a pause and no answer
 *
 * The library runs a small event loop of its own inside each call. */
#include "client/larql_ffn.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/clock.h"
#include "common/http.h"
#include "common/keys.h"
#include "common/peer_stats.h"
#include "common/percent.h"
#include "common/spin.h"
#include "common/tls.h"
#include "proto/codec.h"
#include "proto/cpu.h"
#include "proto/negotiate.h"
#include "proto/wire.h"
#include "proto/wire_json.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

enum {
    STATS_BYTES_MAX = 1 << 20,
    BODY_BYTES_MAX = 8 << 20, /* a prefill goes in calls of about this size */
    AGAIN_MS = 10000,         /* a call that finds nobody, or only 503, gives up after that */
    PAUSE_FIRST_MS = 10,      /* between such tries, but for the first; doubles */
    PAUSE_LAST_MS = 500,
    MODEL_ID_BYTES_MAX = 128,
    STATS_PATH_BYTES = 32 + 3 * MODEL_ID_BYTES_MAX,
};

struct lq_ffn {
    struct event_base *base;
    struct http_pool *pool;
    struct keys *keys; /* NULL: none */
    struct tls *tls;
    struct codec_ops codec;
    struct lq_ffn_opts opts;
    struct peer_stats server; /* what /v1/stats said */
    enum wire_format up;      /* of bodies: wanted, where the server lists it */
    bool compact_taken;       /* a non-f32 body was answered with 200 */
    bool compact_refused;     /* the first one was not: f32 from then on */
    struct lq_ffn_stats stats;
    struct spin spin;
    uint64_t session; /* random: X-Request-Id is this and the number of the call */
    char req_id[40];  /* of the last call: what router and shard log of it */
};

/* One HTTP exchange, run to its end. */
struct exchange {
    struct event_base *base;
    bool done;
    enum lq_err rc;
    int status;
    char content_type[160];
    uint64_t saturated_n;
    uint64_t retry_after_s; /* what it says; 0: nothing */
    struct evbuffer *body;  /* the answer's */
    struct lq_fault fault;
};

static enum lq_ffn_rc say(char *why, enum lq_ffn_rc rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static enum lq_ffn_rc say(char *why, enum lq_ffn_rc rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (why)
        (void)vsnprintf(why, LQ_WHY_BYTES, fmt, ap);
    va_end(ap);
    return rc;
}

/* ---- one exchange ------------------------------------------------------------------------ */

static void on_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg)
{
    (void)c, (void)length;
    struct exchange *x = arg;
    const char *type = http_headers_get(h, "Content-Type"), *clipped = http_headers_get(h, "X-Larql-Saturated"),
               *after = http_headers_get(h, "Retry-After");
    x->status = status;
    snprintf(x->content_type, sizeof x->content_type, "%s", type ? type : "");
    x->retry_after_s = after ? strtoull(after, NULL, 10) : 0;
    x->saturated_n = clipped ? strtoull(clipped, NULL, 10) : 0;
}

static void on_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault, void *arg)
{
    (void)c;
    struct exchange *x = arg;
    x->rc = rc;
    if (rc == LQ_OK && evbuffer_add_buffer(x->body, in) != 0)
        x->rc = lq_fail(&x->fault, LQ_NOMEM, "out of memory for an answer");
    else if (rc != LQ_OK)
        x->fault = *fault;
    x->done = true;
    event_base_loopbreak(x->base);
}

static void exchange_release(struct exchange *x)
{
    if (x->body)
        evbuffer_free(x->body);
}

/* rc and fault are in *x; the caller releases it. */
static void exchange_run(struct lq_ffn *f, struct exchange *x, const struct http_call_opts *o)
{
    static const struct http_call_cb cb = {.on_head = on_head, .on_end = on_end};
    struct http_call *call;
    *x = (struct exchange){.base = f->base, .body = evbuffer_new()};
    if (!x->body) {
        x->rc = lq_fail(&x->fault, LQ_NOMEM, "out of memory");
        return;
    }
    x->rc = http_call_start(f->pool, o, &cb, x, &call, &x->fault);
    if (x->rc)
        return;
    f->spin.last_us = clock_us();
    while (!x->done)
        if ((f->spin.poll_us ? spin_turn(&f->spin, f->base) : event_base_dispatch(f->base)) != 0 &&
            !x->done) { /* nothing left to wait for: cannot happen with a deadline */
            x->rc = lq_fail(&x->fault, LQ_INTERNAL, "the event loop ended before the answer");
            http_call_cancel(call);
            return;
        }
}

static const char *body_of(struct exchange *x, size_t *n)
{
    *n = evbuffer_get_length(x->body);
    return *n ? (const char *)evbuffer_pullup(x->body, -1) : "";
}

/* The words for a transport failure or an error status. where: "layer 3" or "/v1/stats". */
static enum lq_ffn_rc explain(const struct lq_ffn *f, struct exchange *x, const char *where, char *why)
{
    const char *url = http_pool_url(f->pool);
    if (x->rc != LQ_OK) {
        bool bad = x->rc == LQ_BAD_ANSWER || x->rc == LQ_BIG_BODY;
        enum lq_ffn_rc rc = x->rc == LQ_NOMEM ? LQ_FFN_NOMEM : bad ? LQ_FFN_BAD_ANSWER : LQ_FFN_UNREACHABLE;
        return say(why, rc, "%s at %s: %s", where, url, x->fault.text);
    }
    char text[300];
    size_t n;
    const char *p = body_of(x, &n);
    wire_json_error_text(p, n, text, sizeof text);
    if (x->status >= 500 && *f->req_id) /* theirs: what to look for in their logs */
        return say(why, LQ_FFN_REFUSED, "%s at %s: status %d: %s (request %s)", where, url, x->status, text,
                   f->req_id);
    return say(why, LQ_FFN_REFUSED, "%s at %s: status %d: %s", where, url, x->status, text);
}

/* ---- connect -------------------------------------------------------------------------------- */

static bool env_bool(const char *name, bool otherwise, bool *out)
{
    const char *v = getenv(name);
    *out = v && *v ? strcmp(v, "1") == 0 : otherwise;
    return !v || !*v || strcmp(v, "0") == 0 || strcmp(v, "1") == 0;
}

void lq_ffn_opts_init(struct lq_ffn_opts *o)
{
    bool f16, i8;
    *o = (struct lq_ffn_opts){.wire = LQ_FFN_WIRE_F16, .deadline_ms = 30000, .connect_ms = 1000};
    (void)env_bool("LARQL_F16_WIRE", true, &f16); /* a bad value is refused by lq_ffn_connect() */
    (void)env_bool("LARQL_I8_WIRE", false, &i8);
    const char *key = getenv("LARQL_API_KEY");
    o->api_key = key && *key ? key : NULL;
    o->wire = i8 ? LQ_FFN_WIRE_I8 : f16 ? LQ_FFN_WIRE_F16 : LQ_FFN_WIRE_F32;
}

static enum lq_ffn_rc check_environment(char *why)
{
    static const char *const names[] = {"LARQL_F16_WIRE", "LARQL_I8_WIRE"};
    bool unused;
    for (size_t i = 0; i < 2; i++)
        if (!env_bool(names[i], false, &unused))
            return say(why, LQ_FFN_USAGE, "%s=%.40s: use 0 or 1", names[i], getenv(names[i]));
    return LQ_FFN_OK;
}

static bool stats_path(const struct lq_ffn *f, char path[STATS_PATH_BYTES])
{
    const char *id = f->opts.model_id;
    int n = snprintf(path, STATS_PATH_BYTES, id ? "/v1/stats?model_id=" : "/v1/stats");
    if (!id)
        return true;
    for (const char *p = id; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            return false;
    return strlen(id) <= MODEL_ID_BYTES_MAX && percent_encode(path + n, STATS_PATH_BYTES - (size_t)n, id);
}

static enum lq_ffn_rc read_server(struct lq_ffn *f, char *why)
{
    struct exchange x;
    struct lq_fault fault;
    char path[STATS_PATH_BYTES];
    if (!stats_path(f, path))
        return say(why, LQ_FFN_USAGE, "model_id: up to %d bytes, and no control characters", MODEL_ID_BYTES_MAX);
    const struct http_call_opts o = {
        .method = "GET", .path = path, .deadline_ms = f->opts.deadline_ms, .answer_max = STATS_BYTES_MAX};
    enum lq_ffn_rc rc;
    exchange_run(f, &x, &o);
    size_t n;
    const char *p;
    if (x.rc != LQ_OK || x.status != 200)
        rc = explain(f, &x, "/v1/stats", why);
    else if (!(p = body_of(&x, &n)))
        rc = say(why, LQ_FFN_NOMEM, "out of memory");
    else if (peer_stats_read(p, n, &f->server, &fault) != LQ_OK)
        rc = say(why, LQ_FFN_BAD_ANSWER, "/v1/stats at %s: %s", http_pool_url(f->pool), fault.text);
    else
        rc = LQ_FFN_OK;
    exchange_release(&x);
    return rc;
}

/* What the options say of keys, certificates and the URL. */
static enum lq_ffn_rc open_pool(struct lq_ffn *f, const char *url, char *why)
{
    const struct lq_ffn_opts *o = &f->opts;
    const struct tls_opts to = {
        .side = TLS_CLIENT, .cert_path = o->tls_cert, .key_path = o->tls_key, .ca_path = o->tls_ca};
    struct http_pool_opts po;
    struct lq_fault fault;
    http_pool_opts_init(&po);
    enum lq_err rc = LQ_OK;
    if (o->api_key_file || o->api_key)
        rc = keys_new(o->api_key_file, o->api_key, "api_key", &f->keys, &fault);
    if (!rc)
        rc = tls_new(&to, &f->tls, &fault);
    po.connect_timeout_ms = (uint32_t)o->connect_ms;
    po.keys = f->keys;
    po.tls = f->tls;
    if (!rc)
        rc = http_pool_new(f->base, url, &po, &f->pool, &fault);
    return rc ? say(why, rc == LQ_NOMEM ? LQ_FFN_NOMEM : LQ_FFN_USAGE, "%s", fault.text) : LQ_FFN_OK;
}

enum lq_ffn_rc lq_ffn_connect(const char *url, const struct lq_ffn_opts *o, struct lq_ffn **out, char *why)
{
    struct lq_fault fault;
    unsigned cpu;
    enum lq_ffn_rc rc = check_environment(why);
    if (rc)
        return rc;
    struct lq_ffn *f = calloc(1, sizeof *f);
    if (!f || !(f->base = event_base_new())) {
        free(f);
        return say(why, LQ_FFN_NOMEM, "out of memory");
    }
    /* A socket that the peer has closed must give an error, not end the process. */
    struct sigaction old;
    if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        (void)signal(SIGPIPE, SIG_IGN);
    if (getrandom(&f->session, sizeof f->session, 0) != sizeof f->session)
        f->session = clock_us(); /* no entropy: an id for logs can do without */
    if (o)
        f->opts = *o;
    else
        lq_ffn_opts_init(&f->opts);
    (void)spin_init(&f->spin, f->opts.busy_poll_us, 1); /* on one CPU it sleeps as ever */
    if (f->opts.wire > LQ_FFN_WIRE_I8 || f->opts.deadline_ms == 0 || f->opts.deadline_ms > 86400000 ||
        f->opts.connect_ms == 0 || f->opts.connect_ms > 86400000 || f->opts.busy_poll_us > SPIN_US_MAX)
        rc = say(why, LQ_FFN_USAGE,
                 "options out of range: wire %d, deadline_ms %" PRIu64 ", connect_ms %" PRIu64
                 ", busy_poll_us %" PRIu64,
                 (int)f->opts.wire, f->opts.deadline_ms, f->opts.connect_ms, f->opts.busy_poll_us);
    else if (cpu_allowed(&cpu, &fault) != LQ_OK)
        rc = say(why, LQ_FFN_USAGE, "%s", fault.text);
    else
        rc = open_pool(f, url, why);
    if (!rc)
        rc = read_server(f, why);
    if (rc) {
        lq_ffn_close(f);
        return rc;
    }
    codec_init(&f->codec, cpu);
    *out = f;
    return lq_ffn_set_wire(f, f->opts.wire);
}

enum lq_ffn_rc lq_ffn_set_wire(struct lq_ffn *f, enum lq_ffn_wire wire)
{
    if (wire > LQ_FFN_WIRE_I8)
        return LQ_FFN_USAGE;
    /* Bodies: the wanted format where it is listed, else f32. */
    f->opts.wire = wire;
    f->up = f->server.wire[wire] && !f->compact_refused ? (enum wire_format)wire : WIRE_F32;
    return LQ_FFN_OK;
}

void lq_ffn_close(struct lq_ffn *f)
{
    if (!f)
        return;
    http_pool_free(f->pool);
    (void)event_base_loop(f->base, EVLOOP_NONBLOCK); /* libevent frees a TLS connection in a turn of its loop */
    event_base_free(f->base);
    peer_stats_release(&f->server);
    keys_free(f->keys);
    tls_free(f->tls);
    free(f);
}

/* ---- forward ----------------------------------------------------------------------------------- */

struct question {
    const uint32_t *layers;
    uint32_t layers_n;
    bool batch;
    const float *x;
    uint32_t rows_n;
    float *out; /* layers_n x rows_n x hidden */
};

static struct evbuffer *encode(struct lq_ffn *f, const struct question *q, enum wire_format form)
{
    size_t head_n = wire_request_head_bytes(q->batch, q->layers_n);
    size_t n = head_n + (size_t)wire_row_bytes(form, f->server.hidden) * q->rows_n;
    struct evbuffer *body = evbuffer_new();
    struct evbuffer_iovec v;
    if (!body || evbuffer_reserve_space(body, (ev_ssize_t)n, &v, 1) < 1) {
        if (body)
            evbuffer_free(body);
        return NULL;
    }
    /* top_k 0: LARQL's servers answer from a faulty cache otherwise. */
    wire_request_head_encode(q->batch, q->layers, q->layers_n, q->rows_n, 0, v.iov_base);
    (void)wire_payload_encode(&f->codec, form, q->x, q->rows_n, f->server.hidden, (uint8_t *)v.iov_base + head_n);
    v.iov_len = n;
    if (evbuffer_commit_space(body, &v, 1) != 0) {
        evbuffer_free(body);
        return NULL;
    }
    return body;
}

static struct http_headers *request_headers(struct lq_ffn *f, enum wire_format form, uint64_t deadline_ms)
{
    struct http_headers *h = http_headers_new();
    char ms[32];
    snprintf(ms, sizeof ms, "%" PRIu64, deadline_ms);
    snprintf(f->req_id, sizeof f->req_id, "%016" PRIx64 ".%" PRIu64, f->session, f->stats.calls);
    if (h && http_headers_add(h, "X-Request-Id", f->req_id) &&
        http_headers_add(h, "Content-Type", wire_content_type(form)) &&
        http_headers_add(h, "Accept", negotiate_client_accept((enum wire_format)f->opts.wire)) &&
        http_headers_add(h, "X-Larql-Deadline-Ms", ms) &&
        (!f->opts.model_id || http_headers_add(h, "X-Larql-Model", f->opts.model_id)))
        return h;
    http_headers_free(h);
    return NULL;
}

static enum lq_ffn_rc take_answer(struct lq_ffn *f, const struct question *q, struct exchange *x, const char *where,
                                  char *why)
{
    uint64_t *const down[WIRE_FORMATS_N] = {&f->stats.f32_down_calls, &f->stats.f16_down_calls,
                                            &f->stats.i8_down_calls};
    struct lq_fault fault;
    enum wire_format form;
    float latency_ms;
    size_t n;
    const char *p = body_of(x, &n);
    if (!p)
        return say(why, LQ_FFN_NOMEM, "out of memory");
    f->stats.bytes_down += n;
    f->stats.saturated_values += x->saturated_n;
    if (negotiate_answer(x->content_type, &form, &fault) != LQ_OK ||
        wire_answer_decode(&f->codec, form, (const uint8_t *)p, n, q->layers, q->layers_n, q->rows_n,
                           f->server.hidden, q->out, &latency_ms, &fault) != LQ_OK)
        return say(why, LQ_FFN_BAD_ANSWER, "%s at %s: %s", where, http_pool_url(f->pool), fault.text);
    ++*down[form];
    f->stats.server_ms += isfinite(latency_ms) ? (double)latency_ms : 0.0;
    return LQ_FFN_OK;
}

static enum lq_ffn_rc send_once(struct lq_ffn *f, const struct question *q, enum wire_format form,
                                uint64_t deadline_ms, const char *where, char *why, struct exchange *x)
{
    uint64_t *const up[WIRE_FORMATS_N] = {&f->stats.f32_up_calls, &f->stats.f16_up_calls, &f->stats.i8_up_calls};
    struct http_headers *h = request_headers(f, form, deadline_ms);
    struct evbuffer *body = encode(f, q, form);
    enum lq_ffn_rc rc = LQ_FFN_OK;
    *x = (struct exchange){.rc = LQ_NOMEM};
    if (!h || !body) {
        rc = say(why, LQ_FFN_NOMEM, "%s: out of memory for a request", where);
    } else {
        const struct http_call_opts o = {
            .method = "POST",
            .path = "/v1/walk-ffn",
            .headers = h,
            .body = body,
            .deadline_ms = deadline_ms,
            .answer_max = wire_answer_bytes(WIRE_F32, q->layers_n, q->rows_n, f->server.hidden) + STATS_BYTES_MAX};
        f->stats.calls++;
        f->stats.bytes_up += evbuffer_get_length(body);
        ++*up[form];
        exchange_run(f, x, &o);
        rc = x->rc != LQ_OK || x->status != 200 ? explain(f, x, where, why) : take_answer(f, q, x, where, why);
    }
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
    return rc;
}

static uint64_t ms_since(uint64_t start_us)
{
    return (clock_us() - start_us) / 1000;
}

/* Waits before a call is sent again. False: not within the time that it has. */
static bool pause_before(uint64_t ms, uint64_t start_us, uint64_t deadline_ms)
{
    uint64_t most = deadline_ms < AGAIN_MS ? deadline_ms : AGAIN_MS;
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    if (ms >= most || ms_since(start_us) + ms >= most)
        return false;
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
    return true;
}

static enum lq_ffn_rc ask(struct lq_ffn *f, const struct question *q, char *why)
{
    char where[64];
    size_t n = (size_t)q->rows_n * f->server.hidden, bad = f->codec.finite(q->x, n);
    snprintf(where, sizeof where, q->layers_n == 1 ? "layer %" PRIu32 : "layers %" PRIu32 "..", q->layers[0]);
    if (bad < n)
        return say(why, LQ_FFN_NOT_FINITE, "%s: the input is not finite at row %zu, index %zu", where,
                   bad / f->server.hidden, bad % f->server.hidden);
    enum wire_format form = f->up;
    if (form != WIRE_F32 && f->codec.f16_saturates(q->x, n) > 0) {
        form = WIRE_F32;
        f->stats.range_fallbacks++;
    }
    uint64_t start_us = clock_us(), pause_ms = 0;
    for (;;) {
        struct exchange x;
        uint64_t took_ms = ms_since(start_us),
                 left_ms = f->opts.deadline_ms > took_ms ? f->opts.deadline_ms - took_ms : 1;
        enum lq_ffn_rc rc = send_once(f, q, form, left_ms, where, why, &x);
        int status = x.rc == LQ_OK ? x.status : 0;
        exchange_release(&x);
        if (rc == LQ_FFN_OK) {
            f->compact_taken |= form != WIRE_F32;
            return rc;
        }
        bool unread = (status == 400 || status == 415) && form != WIRE_F32 && !f->compact_taken;
        bool lost = rc == LQ_FFN_UNREACHABLE && x.rc == LQ_SHARD_DOWN;
        bool later = status == 503 && x.retry_after_s > 0;
        if (unread) { /* the first compact body to this server: it may read f32 only */
            f->compact_refused = true;
            form = f->up = WIRE_F32;
        } else if (later && x.retry_after_s < AGAIN_MS) {
            if (!pause_before(x.retry_after_s * 1000, start_us, f->opts.deadline_ms))
                return rc;
        } else if (lost) { /* at once, then with longer and longer pauses */
            if (!pause_before(pause_ms, start_us, f->opts.deadline_ms))
                return rc;
            pause_ms = pause_ms == 0 ? PAUSE_FIRST_MS : pause_ms < PAUSE_LAST_MS / 2 ? 2 * pause_ms : PAUSE_LAST_MS;
        } else {
            return rc;
        }
        f->stats.retries++;
    }
}

enum lq_ffn_rc lq_ffn_forward(struct lq_ffn *f, uint32_t layer, const float *x, uint32_t rows_n, float *out,
                              char *why)
{
    /* Whole steps of 64 rows, so that a shard sees chunks that local runs have too. */
    size_t row_bytes = (size_t)f->server.hidden * sizeof(float), step = BODY_BYTES_MAX / row_bytes / 64 * 64;
    if (step == 0)
        step = 64;
    if (rows_n == 0)
        return say(why, LQ_FFN_USAGE, "layer %" PRIu32 ": no rows", layer);
    for (uint32_t row = 0; row < rows_n; row += (uint32_t)step) {
        struct question q = {.layers = &layer,
                             .layers_n = 1,
                             .x = x + (size_t)row * f->server.hidden,
                             .rows_n = rows_n - row < step ? rows_n - row : (uint32_t)step,
                             .out = out + (size_t)row * f->server.hidden};
        enum lq_ffn_rc rc = ask(f, &q, why);
        if (rc)
            return rc;
    }
    return LQ_FFN_OK;
}

enum lq_ffn_rc lq_ffn_forward_batch(struct lq_ffn *f, const uint32_t *layers, uint32_t layers_n, const float *x,
                                    uint32_t rows_n, float *out, char *why)
{
    if (rows_n == 0 || layers_n == 0 || layers_n > WIRE_LAYERS_MAX ||
        wire_answer_bytes(WIRE_F32, layers_n, rows_n, f->server.hidden) > SIZE_MAX / 2)
        return say(why, LQ_FFN_USAGE,
                   "a batch of %" PRIu32 " layers and %" PRIu32 " rows: 1 to %d layers, 1 row or more", layers_n,
                   rows_n, WIRE_LAYERS_MAX);
    struct question q = {layers, layers_n, true, x, rows_n, out};
    return ask(f, &q, why);
}

/* ---- facts ---------------------------------------------------------------------------------------- */

uint32_t lq_ffn_hidden(const struct lq_ffn *f)
{
    return f->server.hidden;
}

uint32_t lq_ffn_layers(const struct lq_ffn *f)
{
    return f->server.layers;
}

const char *lq_ffn_url(const struct lq_ffn *f)
{
    return http_pool_url(f->pool);
}

const char *lq_ffn_model(const struct lq_ffn *f)
{
    return f->server.model;
}

void lq_ffn_stats(const struct lq_ffn *f, struct lq_ffn_stats *out)
{
    *out = f->stats;
}

const char *lq_ffn_version(void)
{
    return STRING(LQ_FFN_VERSION_MAJOR) "." STRING(LQ_FFN_VERSION_MINOR) "." STRING(LQ_FFN_VERSION_PATCH);
}
