/* spare: see spare.h. */
#include "shard/spare.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "common/log.h"
#include "shard/shard.h"
#include "shard/store.h"

enum { MODEL_ID_CHARS = 256, URL_CHARS = 2048, MORE_ARGS_N = 8 };

struct spare {
    struct shard *s;
    const struct spare_opts *opts;
    struct http_server *server;
    struct store_fetch *fetch; /* under way; NULL: waits for an assignment */
    struct store_progress progress;
    char model_id[MODEL_ID_CHARS], url[URL_CHARS], bearer[KEY_BEARER_CHARS + 1];
    uint32_t first, last;
    struct hash256 model;
    bool draining, loaded; /* loaded: the loop ends to become a shard */
};

/* ---- HTTP: it is there, and serves nothing yet ------------------------------------- */

static void answer_health(void *arg, struct http_req *r)
{
    const struct spare *x = arg;
    http_front_json_new(r, 503,
                        json_pack("{ss,ss,sI,sI}", "status", x->draining ? "draining" : "loading", "spare",
                                  x->fetch ? "fetching" : "waiting", "bytes", (json_int_t)x->progress.bytes,
                                  "bytes_total", (json_int_t)x->progress.bytes_total));
}

static void answer_nothing(void *arg, struct http_req *r)
{
    (void)arg;
    http_front_refuse(r, LQ_NOT_READY, "loading: this is a spare without layers yet");
}

static void on_request(struct http_req *r, void *arg)
{
    static const struct http_page pages[] = {
        {"/v1/health", "GET", answer_health, ACCESS_ANY},
        {"/v1/stats", "GET", answer_nothing, ACCESS_CLIENT},
        {"/v1/walk-ffn", "POST", answer_nothing, ACCESS_CLIENT},
    };
    struct spare *x = arg;
    http_front_dispatch(pages, sizeof pages / sizeof *pages, &x->s->trust.access, x, r);
}

/* ---- an assignment ------------------------------------------------------------------- */

static void on_progress(const struct store_progress *p, void *arg)
{
    ((struct spare *)arg)->progress = *p;
}

static void on_fetched(enum lq_err rc, const struct store_result *result, const struct lq_fault *fault, void *arg)
{
    (void)result;
    struct spare *x = arg;
    store_fetch_free(x->fetch);
    x->fetch = NULL;
    x->loaded = rc == LQ_OK;
    if (x->loaded) {
        loop_stop(x->s->loop);
        return;
    }
    log_error("assignment_failed model=%s layers=%u-%u why=%s", log_q(x->model_id), x->first, x->last,
              log_q(fault->text));
    join_refuse(x->s->join, fault->text);
}

/* The grid's key goes to members of the grid alone. */
static bool is_member_url(const char *url)
{
    static const char path[] = "/v1/model/file";
    size_t n = strlen(url);
    return n > sizeof path - 1 && strcmp(url + n - (sizeof path - 1), path) == 0;
}

/* The expected model hash; LARQL's routers send none, or zeros. False: it is no hash. */
static bool read_hash(const char *text, struct hash256 *out, bool *has)
{
    *has = *text && strspn(text, "0") != strlen(text);
    return !*has || hash256_read(text, out);
}

static const char *on_assign(void *arg, const struct join_assignment *a)
{
    static char why[512]; /* for the caller's next step only; one loop */
    struct spare *x = arg;
    struct lq_fault fault;
    bool has_hash;
    if (x->fetch || x->draining)
        return x->draining ? "it is about to stop" : "it loads other layers already";
    if (!*a->model_id || strlen(a->model_id) >= sizeof x->model_id || strlen(a->origin_url) >= sizeof x->url)
        return "the model's name or the origin's URL is missing or too long";
    if (!read_hash(a->hash, &x->model, &has_hash))
        return "the hash is no text of 64 hex digits";
    snprintf(x->model_id, sizeof x->model_id, "%s", a->model_id);
    snprintf(x->url, sizeof x->url, "%s", a->origin_url);
    x->first = a->first;
    x->last = a->last;
    x->progress = (struct store_progress){0};
    bool show_key = x->s->trust.grid && is_member_url(x->url);
    if (show_key)
        keys_bearer(x->s->trust.grid, x->bearer);
    const struct store_opts so = {.url = x->url,
                                  .dir = x->opts->store_dir,
                                  .layer_first = x->first,
                                  .layer_last = x->last,
                                  .bearer = show_key ? x->bearer + strlen("Bearer ") : NULL,
                                  .ca_file = x->opts->serve->trust.tls_ca,
                                  .cert_file = x->opts->serve->trust.tls_cert,
                                  .key_file = x->opts->serve->trust.tls_key,
                                  .model = has_hash ? &x->model : NULL};
    enum lq_err rc = store_fetch_start(x->s->loop, &so, on_progress, on_fetched, x, &x->fetch, &fault);
    explicit_bzero(x->bearer, sizeof x->bearer);
    if (rc == LQ_OK)
        return NULL;
    snprintf(why, sizeof why, "%s", fault.text);
    return why;
}

/* ---- becoming a shard -------------------------------------------------------------------- */

/* Everything is closed but the standard descriptors; the port is free to be bound again. */
static enum lq_err become_shard(const struct spare *x, const char *port, struct lq_fault *fault)
{
    const struct spare_opts *o = x->opts;
    char layers[32];
    char **argv = calloc((size_t)o->argc + MORE_ARGS_N, sizeof *argv);
    if (!argv)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    snprintf(layers, sizeof layers, "%u-%u", x->first, x->last);
    const char *more[MORE_ARGS_N] = {"--layers", layers, "--model-id", x->model_id, x->url, *port ? "--port" : NULL,
                                     port,       NULL};
    for (int i = 0; i < o->argc; i++)
        argv[i] = o->argv[i];
    for (size_t i = 0; i < MORE_ARGS_N; i++) /* exec's argv is not const, and is not written to */
        argv[(size_t)o->argc + i] = (char *)(uintptr_t)more[i];
    log_info("spare_loaded model=%s layers=%s", log_q(x->model_id), layers);
    (void)close_range(3, ~0u, 0);
    execv("/proc/self/exe", argv);
    enum lq_err rc = lq_fail(fault, LQ_IO, "cannot start anew as a shard: %s", strerror(errno));
    free(argv);
    return rc;
}

static void on_drain(void *arg)
{
    struct spare *x = arg;
    if (x->fetch)
        store_fetch_cancel(x->fetch);
    join_drain(x->s->join);
}

static uint64_t free_disk_bytes(const char *dir)
{
    struct statvfs v;
    return statvfs(dir, &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : 0;
}

static uint64_t ram_bytes(void)
{
    struct sysinfo i;
    return sysinfo(&i) == 0 ? (uint64_t)i.totalram * i.mem_unit : 0;
}

static enum lq_err start(struct spare *x, struct serve_drain *drain, struct lq_fault *fault)
{
    static const char *const h2[] = {"h2", NULL};
    const struct spare_opts *o = x->opts;
    struct shard *s = x->s;
    struct tls *tls = NULL;
    enum lq_err rc = serve_listen(s->loop, o->serve, &s->trust, NULL, 1, "larql-shard/" LQ_VERSION, on_request, x,
                                  &x->server, fault);
    const char *url = !rc && !o->public_url ? http_server_url(x->server) : o->public_url;
    if (!rc && serve_url_is_wild(url)) /* before it fetches what it could not serve */
        rc = lq_fail(fault, LQ_USAGE, "--spare needs --public-url: routers cannot reach %s", url);
    if (!rc && mkdir(o->store_dir, 0777) != 0 && errno != EEXIST)
        rc = lq_fail(fault, LQ_IO, "--store %s: %s", o->store_dir, strerror(errno));
    *drain = (struct serve_drain){.loop = s->loop,
                                  .server = x->server,
                                  .draining = &x->draining,
                                  .drain_ms = (uint64_t)o->serve->drain_ms,
                                  .on_begin = on_drain,
                                  .arg = x};
    if (!rc)
        rc = serve_drain_on_signals(drain, fault);
    if (!rc)
        rc = trust_tls(&s->trust, TLS_CLIENT, h2, o->join_pin, &tls, fault);
    const struct join_opts j = {.routers = o->join,
                                .public_url = "",
                                .keys = s->trust.grid,
                                .tls = tls,
                                .tls_always = o->join_pin || o->serve->trust.tls_ca,
                                .spare = true,
                                .ram_bytes = ram_bytes(),
                                .disk_bytes = free_disk_bytes(o->store_dir),
                                .store = o->store_dir,
                                .on_assign = on_assign,
                                .arg = x};
    return rc ? rc : join_new(s, &j, &s->join, fault);
}

enum lq_err spare_run(struct shard *s, const struct spare_opts *o, struct lq_fault *fault)
{
    struct spare x = {.s = s, .opts = o};
    struct serve_drain drain = {.next = NULL};
    char port[8] = "";
    if (!(s->loop = loop_new()))
        return lq_fail(fault, LQ_NOMEM, "out of memory or file descriptors at start");
    enum lq_err rc = start(&x, &drain, fault);
    if (!rc) {
        log_info("spare url=%s store=%s", http_server_url(x.server), log_q(o->store_dir));
        loop_run(s->loop);
        const char *colon = strrchr(http_server_url(x.server), ':');
        if (!o->serve->unix_path)
            snprintf(port, sizeof port, "%s", colon ? colon + 1 : "0");
    }
    join_free(s->join);
    s->join = NULL;
    store_fetch_free(x.fetch);
    http_server_free(x.server);
    serve_drain_release(&drain);
    loop_free(s->loop);
    s->loop = NULL;
    return rc == LQ_OK && x.loaded && !x.draining ? become_shard(&x, port, fault) : rc;
}
