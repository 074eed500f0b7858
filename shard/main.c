/* larql-shard: options, then the parts in the order in which they need each
 * other, then the loop until a signal drains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/serve.h"
#include "model/vindex.h"
#include "proto/cpu.h"
#include "shard/job.h"
#include "shard/join.h"
#include "shard/options.h"
#include "shard/spare.h"
#include "shard/store.h"

enum { EXIT_USAGE = 2, EXIT_MODEL = 4, MODEL_ID_BYTES = 256 };

/* A model given as a URL becomes a file of the store. */
static enum lq_err fetch_model(struct shard *s, const struct options *o, struct store_result *file,
                               struct lq_fault *fault)
{
    if (!options_is_url(s->model_path))
        return o->store_dir ? lq_fail(fault, LQ_USAGE, "--store is for a model given as http:// or https:// URL")
                            : LQ_OK;
    if (!o->store_dir)
        return lq_fail(fault, LQ_USAGE, "a model given as a URL needs --store DIR, the folder it is fetched into");
    char *key = NULL;
    struct store_opts so = {.url = s->model_path,
                            .dir = o->store_dir,
                            .layer_last = STORE_TO_LAST_LAYER,
                            .ca_file = o->serve.trust.tls_ca,
                            .cert_file = o->serve.trust.tls_cert,
                            .key_file = o->serve.trust.tls_key};
    enum lq_err rc = options_layers(o, &so.layer_first, &so.layer_last, fault);
    if (!rc)
        rc = options_origin_key(o, &key, fault);
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
    struct model_want want = {.ffn = true, .ffn_first = 0, .ffn_last = UINT32_MAX};
    enum lq_err rc = options_layers(o, &want.ffn_first, &want.ffn_last, fault);
    if (!rc)
        rc = model_open(s->model_path, &want, &s->gguf, fault);
    if (!rc)
        rc = arch_read(s->gguf, &s->arch, fault);
    if (rc)
        return rc;
    s->layer_last = s->arch.layers_n - 1;
    rc = options_layers(o, &s->layer_first, &s->layer_last, fault);
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
    if (!o->join)
        return LQ_OK;
    if (serve_url_is_wild(url))
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

static void until_drained(struct shard *s, const struct options *o)
{
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
}

static enum lq_err serve(struct shard *s, const struct options *o, struct lq_fault *fault)
{
    enum lq_err rc = serve_listen(s->loop, &o->serve, &s->trust, NULL, 1, "larql-shard/" LQ_VERSION, admin_on_request,
                                  s, &s->server, fault);
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
    if (!rc)
        until_drained(s, o);
    serve_drain_release(&drain);
    return rc;
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
        rc = options_wire(o, &s->wire, fault);
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
    size_t n = options_is_url(model) ? strcspn(model, "?#") : strlen(model);
    while (n > 1 && model[n - 1] == '/') /* a folder's */
        n--;
    size_t from = n;
    while (from > 0 && model[from - 1] != '/')
        from--;
    snprintf(out, MODEL_ID_BYTES, "%.*s", n - from > 255 ? 255 : (int)(n - from), model + from);
}

int main(int argc, char **argv)
{
    struct options o;
    enum opt_result parsed = options_read(&o, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : EXIT_USAGE;

    struct shard s = {.model_path = o.model,
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
