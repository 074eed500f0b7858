/* larql-shard: options, then the parts in the order in which they need each
 * other, then the loop until a signal drains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/serve.h"
#include "proto/cpu.h"
#include "shard/job.h"
#include "shard/join.h"
#include "shard/spare.h"
#include "shard/store.h"

enum { EXIT_USAGE = 2, EXIT_MODEL = 4, KEY_FILE_BYTES_MAX = 4096, MODEL_ID_BYTES = 256 };

struct options {
    struct serve_opts serve;
    char **argv; /* main()'s, argc of them */
    int argc;
    const char *layers, *wire_preference, *model_id, *activations, *join, *join_pin, *public_url;
    const char *store_dir, *origin_key_file;
    int64_t threads, batch_rows, answer_mb, queue_jobs, queue_mb;
    bool no_f16, no_i8, prefetch, pin, serve_model, spare;
};

static enum opt_result read_options(struct options *o, int argc, char **argv, char ***args, int *args_n)
{
    enum { OWN_N = 20 };
    struct opt opts[OWN_N + SERVE_OPTS_N] = {
        {"layers", 'l', OPT_TEXT, "A-B", NULL, "layers to serve, inclusive (default: all)", 0, 0, &o->layers},
        {"threads", 't', OPT_INT, "N", NULL, "threads that compute inside a layer, 0: all CPUs (default 0)", 0, 1024,
         &o->threads},
        {"pin", 0, OPT_FLAG, NULL, NULL,
         "keep each of them on a CPU of its own, of those that the process may use (taskset chooses)", 0, 0, &o->pin},
        {"activations", 0, OPT_TEXT, "8|16|f32", NULL,
         "what quantised weights are multiplied with: digits of 8 or 16 bit, or f32 (default 16)", 0, 0,
         &o->activations},
        {"batch-rows", 0, OPT_INT, "N", NULL,
         "rows of waiting requests for one layer that are computed together, 1: none (default 16)", 1, 16,
         &o->batch_rows},
        {"join", 'j', OPT_TEXT, "HOST:PORT,...", NULL, "announce this shard to these routers' --grid-port", 0, 0,
         &o->join},
        {"join-pin", 0, OPT_TEXT, "sha256:HEX", NULL,
         "trust the routers by this fingerprint of their certificate, whatever signed it", 0, 0, &o->join_pin},
        {"spare", 0, OPT_FLAG, NULL, NULL,
         "without a MODEL: wait until a router assigns layers, fetch them into --store, serve them", 0, 0, &o->spare},
        {"public-url", 0, OPT_TEXT, "URL", NULL, "how those routers reach it (default: the ready line's)", 0, 0,
         &o->public_url},
        {"model-id", 0, OPT_TEXT, "NAME", NULL, "name in /v1/models (default: the file's name)", 0, 0, &o->model_id},
        {"no-f16", 0, OPT_FLAG, NULL, NULL, "serve no f16 bodies (also LARQL_F16_WIRE=0, LARQL_F16_WIRE_DISABLE)", 0,
         0, &o->no_f16},
        {"no-i8", 0, OPT_FLAG, NULL, NULL, "serve no i8 bodies (also LARQL_I8_WIRE=0)", 0, 0, &o->no_i8},
        {"wire-preference", 0, OPT_TEXT, "precise|compact", NULL,
         "which format wins at equal q in Accept (default precise; compact for LARQL's clients)", 0, 0,
         &o->wire_preference},
        {"queue", 0, OPT_INT, "N", NULL, "requests that may wait, then 503 (default 256)", 1, 65536, &o->queue_jobs},
        {"queue-mb", 0, OPT_INT, "MB", NULL, "their body bytes together (default 256)", 1, 65536, &o->queue_mb},
        {"max-answer-mb", 0, OPT_INT, "MB", NULL, "largest answer, then 413 (default 256)", 1, 1024, &o->answer_mb},
        {"prefetch", 0, OPT_FLAG, NULL, NULL, "read the layers' pages ahead at start", 0, 0, &o->prefetch},
        {"store", 0, OPT_TEXT, "DIR", NULL,
         "folder for what is fetched of a model given as a URL: its head and the layers' tensors", 0, 0,
         &o->store_dir},
        {"origin-key-file", 0, OPT_TEXT, "FILE", NULL,
         "its first line is sent to the URL's host as Authorization: Bearer", 0, 0, &o->origin_key_file},
        {"serve-model", 0, OPT_FLAG, NULL, NULL,
         "serve the model file's bytes at /v1/model/file, for other shards to fetch; --join does too", 0, 0, &o->serve_model},
    };
    serve_opt_rows(&o->serve, opts + OWN_N);
    const struct opt_program program = {
        .name = "larql-shard",
        .synopsis = "MODEL.gguf|URL [--layers A-B] [--port P] [options]",
        .about =
            "Serve the feed-forward layers of a GGUF model to a larql grid.\n"
            "Prints one line, ready url=http://HOST:PORT, on stdout when it can serve; logs go to stderr.\n"
            "Of a model given as http:// or https:// URL only the head and the layers' tensors are fetched, into\n"
            "the folder --store; what is there already is used without network.\n"
            "SIGTERM finishes what is in flight and exits with 0; a second one exits at once.\n"
            "Exit codes: 0 stopped, 1 cannot serve, 2 wrong use, 4 the model file cannot be used.",
        .examples = "  larql-shard gemma-3-270m-q4_k_m.gguf --layers 0-8 --port 8081\n"
                    "  larql-shard https://HOST/gemma-3-270m-q4_k_m.gguf --layers 0-8 --store /var/lib/larql\n"
                    "  curl --json '{\"layer\":0,\"residual\":[...],\"full_output\":true}' "
                    "http://127.0.0.1:8081/v1/walk-ffn",
        .opts = opts,
        .opts_n = sizeof opts / sizeof *opts,
        .args_min = 0,
        .args_max = 1,
    };
    enum opt_result rc = opt_parse(&program, argc, argv, args, args_n);
    const char *missing = *args_n == 0 && !o->spare ? "MODEL, or --spare, is missing"
                          : *args_n == 0 && !(o->join && o->store_dir) ? "--spare needs --join and --store"
                                                                       : NULL;
    if (rc != OPT_RUN || !missing)
        return rc;
    fprintf(stderr, "larql-shard: %s\nTry 'larql-shard --help'.\n", missing);
    return OPT_EXIT_USAGE;
}

/* 0 and 1 as words of the environment; anything else is a mistake worth a stop. */
static enum lq_err env_is_zero(const char *name, bool *zero, struct lq_fault *fault)
{
    const char *v = getenv(name);
    *zero = v && strcmp(v, "0") == 0;
    if (v && *v && strcmp(v, "0") != 0 && strcmp(v, "1") != 0)
        return lq_fail(fault, LQ_USAGE, "%s=%s: use 0 or 1", name, log_q(v));
    return LQ_OK;
}

static enum lq_err switches_from(const struct options *o, struct wire_switches *w, struct lq_fault *fault)
{
    bool f16_zero, i8_zero;
    enum lq_err rc = env_is_zero("LARQL_F16_WIRE", &f16_zero, fault);
    if (!rc)
        rc = env_is_zero("LARQL_I8_WIRE", &i8_zero, fault);
    if (rc)
        return rc;
    w->f16_on = !o->no_f16 && !f16_zero && !getenv("LARQL_F16_WIRE_DISABLE");
    w->i8_on = !o->no_i8 && !i8_zero;
    w->compact_ties = strcmp(o->wire_preference, "compact") == 0;
    if (!w->compact_ties && strcmp(o->wire_preference, "precise") != 0)
        return lq_fail(fault, LQ_USAGE, "--wire-preference %s: use precise or compact", log_q(o->wire_preference));
    return LQ_OK;
}

static bool is_url(const char *s)
{
    return strncmp(s, "http://", 7) == 0 || strncmp(s, "https://", 8) == 0;
}

static enum lq_err layers_from(const struct options *o, uint32_t *first, uint32_t *last, struct lq_fault *fault)
{
    if (!o->layers || !args_range(o->layers, strlen(o->layers), first, last, fault))
        return LQ_OK;
    struct lq_fault why = *fault;
    return lq_fail(fault, LQ_USAGE, "--layers %s: %s", o->layers, why.text);
}

/* The first line of a key file, malloc'd. */
static enum lq_err key_from(const char *path, char **out, struct lq_fault *fault)
{
    size_t n;
    enum lq_err rc = file_read(path, KEY_FILE_BYTES_MAX, out, &n, fault);
    if (rc)
        return rc;
    (*out)[strcspn(*out, "\r\n")] = '\0';
    return **out ? LQ_OK : lq_fail(fault, LQ_USAGE, "--origin-key-file %s: its first line is empty", path);
}

/* A model given as a URL becomes a file of the store. */
static enum lq_err fetch_model(struct shard *s, const struct options *o, struct store_result *file,
                               struct lq_fault *fault)
{
    if (!is_url(s->model_path))
        return o->store_dir ? lq_fail(fault, LQ_USAGE, "--store is for a model given as http:// or https:// URL")
                            : LQ_OK;
    if (!o->store_dir)
        return lq_fail(fault, LQ_USAGE, "a model given as a URL needs --store DIR, the folder it is fetched into");
    char *key = NULL;
    struct store_opts so = {
        .url = s->model_path, .dir = o->store_dir, .layer_last = STORE_TO_LAST_LAYER, .ca_file = o->serve.trust.tls_ca};
    enum lq_err rc = layers_from(o, &so.layer_first, &so.layer_last, fault);
    if (!rc && o->origin_key_file)
        rc = key_from(o->origin_key_file, &key, fault);
    so.bearer = key;
    if (!rc)
        rc = store_fetch_wait(&so, file, fault);
    if (!rc)
        s->model_path = file->path;
    free(key);
    return rc;
}

static enum lq_err load_model(struct shard *s, const struct options *o, struct lq_fault *fault)
{
    enum lq_err rc = gguf_open(s->model_path, &s->gguf, fault);
    if (!rc)
        rc = arch_read(s->gguf, &s->arch, fault);
    if (rc)
        return rc;
    s->layer_last = s->arch.layers_n - 1;
    rc = layers_from(o, &s->layer_first, &s->layer_last, fault);
    if (rc)
        return rc;
    rc = ffn_new(s->gguf, &s->arch, s->layer_first, s->layer_last, &s->ffn, fault);
    if (!rc && o->prefetch)
        ffn_prefetch(s->ffn);
    return rc;
}

static void status_text(const void *shard, char *text, size_t text_n)
{
    const struct shard *s = shard;
    snprintf(text, text_n, "layers %u-%u of %u of %.100s", s->layer_first, s->layer_last, s->arch.layers_n,
             s->model_id);
}

static void on_drain(void *shard)
{
    join_drain(((struct shard *)shard)->join); /* routers first: they stop sending before we refuse */
}

/* Where a wildcard or a unix socket says nothing to others, the operator must. */
static enum lq_err announce(struct shard *s, const struct options *o, struct lq_fault *fault)
{
    const char *url = o->public_url ? o->public_url : http_server_url(s->server);
    bool wild = strstr(url, "://0.0.0.0") || strstr(url, "://[::]");
    if (!o->join)
        return LQ_OK;
    if (wild)
        return lq_fail(fault, LQ_USAGE, "--join needs --public-url: routers cannot reach %s", url);
    static const char *const h2[] = {"h2", NULL};
    struct tls *tls;
    enum lq_err rc = trust_tls(&s->trust, TLS_CLIENT, h2, o->join_pin, &tls, fault);
    const struct join_opts j = {.routers = o->join,
                                .public_url = url,
                                .keys = s->trust.grid,
                                .tls = tls,
                                .tls_always = o->join_pin || o->serve.trust.tls_ca};
    return rc ? rc : join_new(s, &j, &s->join, fault);
}

static enum lq_err serve(struct shard *s, const struct options *o, struct lq_fault *fault)
{
    enum lq_err rc =
        serve_listen(s->loop, &o->serve, &s->trust, NULL, 1, "larql-shard/" LQ_VERSION, admin_on_request, s, &s->server, fault);
    struct serve_drain drain = {.loop = s->loop,
                                .server = s->server,
                                .draining = &s->draining,
                                .drain_ms = (uint64_t)o->serve.drain_ms,
                                .on_begin = on_drain,
                                .arg = s,
                                .status = status_text,
                                .status_arg = s};
    if (!rc)
        rc = serve_drain_on_signals(&drain, fault);
    if (!rc)
        rc = serve_reload_on_hup(s->loop, &s->trust, fault);
    if (!rc)
        rc = announce(s, o, fault);
    if (rc)
        return rc;
    http_server_count_refused(s->server, s->m.books.refused);
    s->start_us = clock_us();
    char identity[HASH256_TEXT_BYTES];
    log_info("identity model=%s", hash256_text(&s->identity.model, identity));
    load_begin(&s->load, s->start_us);
    log_info("serving model=%s family=%s layers=%u-%u of=%u hidden=%u ffn=%u dtype=%s bytes=%llu %s",
             log_q(s->model_id), s->arch.family, s->layer_first, s->layer_last, s->arch.layers_n, s->arch.hidden_n,
             s->arch.ffn_n, ffn_dtype(s->ffn), (unsigned long long)ffn_bytes(s->ffn), s->kernels);
    loop_busy_poll(s->loop, (uint64_t)o->serve.busy_poll_us, 1);
    serve_ready(s->server);
    loop_run(s->loop);
    return LQ_OK;
}

static enum lq_err wait_for_layers(struct shard *s, const struct options *o, struct lq_fault *fault)
{
    const struct spare_opts so = {.serve = &o->serve,
                                  .store_dir = o->store_dir,
                                  .join = o->join,
                                  .join_pin = o->join_pin,
                                  .public_url = o->public_url,
                                  .argv = o->argv,
                                  .argc = o->argc};
    return spare_run(s, &so, fault);
}

static enum lq_err run(struct shard *s, const struct options *o, struct store_result *file, struct lq_fault *fault)
{
    unsigned cpu;
    enum mat_activations activations;
    enum lq_err rc = serve_log_init(&o->serve, fault);
    if (!rc)
        rc = mat_activations_read(o->activations, &activations, fault);
    if (!rc)
        rc = switches_from(o, &s->wire, fault);
    if (!rc)
        rc = cpu_allowed(&cpu, fault);
    if (!rc)
        rc = trust_init(&s->trust, &o->serve.trust, true, fault);
    if (!rc && !o->serve.unix_path) /* before the model is loaded, which takes its time */
        rc = trust_may_listen(&s->trust, o->serve.host, fault);
    if (rc)
        return rc;
    codec_init(&s->codec, cpu);
    args_raise_open_files();
    if (!s->model_path)
        return wait_for_layers(s, o, fault);
    rc = fetch_model(s, o, file, fault);
    if (!rc)
        rc = load_model(s, o, fault);
    if (rc)
        return rc;
    s->layer_stats = layer_stats_new(s->layer_first, s->layer_last);
    if (!(s->loop = loop_new()) || !admin_metrics_init(s) || !s->layer_stats)
        return lq_fail(fault, LQ_NOMEM, "out of memory or file descriptors at start");
    s->turn_ev = event_new(loop_base(s->loop), -1, 0, flow_on_turn_end, s);
    if (!s->turn_ev)
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    s->work = work_new(s, (size_t)o->threads, activations, fault); /* forks, for BLIS: before any thread */
    if (!s->work)
        return fault->code;
    rc = identity_read(s->gguf, s->layer_first, s->layer_last, compute_pool(work_compute(s->work)), NULL,
                       &s->identity, fault);
    if (rc)
        return rc;
    rc = offload_new(s->loop, "compute", (size_t)o->queue_jobs, (uint64_t)o->queue_mb << 20, s->work, &s->queue,
                     fault);
    if (!rc && o->pin)
        rc = pool_pin(compute_pool(work_compute(s->work)), offload_thread(s->queue), fault);
    if (rc)
        return rc;
    s->kernels = compute_describe(work_compute(s->work));
    return serve(s, o, fault);
}

static void release(struct shard *s)
{
    join_free(s->join);
    http_server_free(s->server); /* detaches jobs from their requests */
    offload_free(s->queue);
    work_free(s->work);
    if (s->turn_ev)
        event_free(s->turn_ev);
    loop_free(s->loop);
    metrics_free(s->metrics);
    identity_release(&s->identity);
    layer_stats_free(s->layer_stats);
    trust_release(&s->trust);
    ffn_free(s->ffn);
    gguf_free(s->gguf);
}

/* The last part of a path, or of a URL's. */
static void name_of(const char *model, char out[MODEL_ID_BYTES])
{
    size_t n = is_url(model) ? strcspn(model, "?#") : strlen(model), from = n;
    while (from > 0 && model[from - 1] != '/')
        from--;
    snprintf(out, MODEL_ID_BYTES, "%.*s", n - from > 255 ? 255 : (int)(n - from), model + from);
}

int main(int argc, char **argv)
{
    struct options o = {.batch_rows = 16,
                        .answer_mb = 256,
                        .queue_jobs = 256,
                        .queue_mb = 256,
                        .wire_preference = "precise",
                        .activations = "16"};
    serve_opts_init(&o.serve, 8080);
    char **args;
    int args_n;
    enum opt_result parsed = read_options(&o, argc, argv, &args, &args_n);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : EXIT_USAGE;

    o.argv = argv;
    o.argc = argc;
    struct shard s = {.model_path = args_n > 0 ? args[0] : NULL,
                      .batch_rows_max = (uint32_t)(o.batch_rows < BATCH_ROWS_MAX ? o.batch_rows : BATCH_ROWS_MAX),
                      .body_max = (uint64_t)o.serve.body_mb << 20,
                      .json_max = (uint64_t)o.serve.json_mb << 20,
                      .answer_max = (uint64_t)o.answer_mb << 20,
                      .deadline_ms = (uint64_t)o.serve.deadline_ms,
                      .serve_model = o.serve_model || o.join};
    char file_name[MODEL_ID_BYTES];
    name_of(s.model_path ? s.model_path : "", file_name);
    s.model_id = o.model_id ? o.model_id : file_name;
    struct lq_fault fault = {.text = ""};
    struct store_result file;
    enum lq_err rc = run(&s, &o, &file, &fault);
    if (rc == LQ_CANCELLED) { /* SIGTERM while it fetched */
        log_info("fetch_stopped why=%s", log_q(fault.text));
        rc = LQ_OK;
    }
    if (rc)
        serve_say_failure("larql-shard", &o.serve, &fault);
    release(&s);
    switch (rc) {
    case LQ_OK:
        return EXIT_SUCCESS;
    case LQ_USAGE:
    case LQ_BAD_LAYER:
        return EXIT_USAGE;
    case LQ_BAD_MODEL:
    case LQ_UNSUPPORTED:
        return EXIT_MODEL;
    default:
        return EXIT_FAILURE;
    }
}
