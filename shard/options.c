/* options: see options.h. */
#include "shard/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/file.h"
#include "common/log.h"
#include "shard/shard.h"

enum { KEY_FILE_BYTES_MAX = 4096 };

enum { OWN_N = 20 };

static void own_rows(struct options *o, struct opt rows[OWN_N])
{
    const struct opt own[OWN_N] = {
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
         "serve the model file's bytes at /v1/model/file, for other shards to fetch; --join does too", 0, 0,
         &o->serve_model},
    };
    memcpy(rows, own, sizeof own);
}

enum opt_result options_read(struct options *o, int argc, char **argv)
{
    char **args;
    int args_n;
    struct opt opts[OWN_N + SERVE_OPTS_N];
    *o = (struct options){.argv = argv,
                          .argc = argc,
                          .batch_rows = 16,
                          .answer_mb = 256,
                          .queue_jobs = 256,
                          .queue_mb = 256,
                          .wire_preference = "precise",
                          .activations = "16"};
    serve_opts_init(&o->serve, 8080);
    own_rows(o, opts);
    serve_opt_rows(&o->serve, opts + OWN_N);
    const struct opt_program program = {
        .name = "larql-shard",
        .synopsis = "MODEL|URL [--layers A-B] [--port P] [options]",
        .about =
            "Serve the feed-forward layers of a model, a GGUF file or a vindex directory, to a larql grid.\n"
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
    enum opt_result rc = opt_parse(&program, argc, argv, &args, &args_n);
    if (rc != OPT_RUN)
        return rc;
    o->model = args_n > 0 ? args[0] : NULL;
    if (o->model || (o->spare && o->join && o->store_dir))
        return OPT_RUN;
    fprintf(stderr, "larql-shard: %s\nTry 'larql-shard --help'.\n",
            o->spare ? "--spare needs --join and --store" : "MODEL, or --spare, is missing");
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

enum lq_err options_wire(const struct options *o, struct wire_switches *w, struct lq_fault *fault)
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

bool options_is_url(const char *model)
{
    return strncmp(model, "http://", 7) == 0 || strncmp(model, "https://", 8) == 0;
}

enum lq_err options_layers(const struct options *o, uint32_t *first, uint32_t *last, struct lq_fault *fault)
{
    if (!o->layers || !args_range(o->layers, strlen(o->layers), first, last, fault))
        return LQ_OK;
    struct lq_fault why = *fault;
    return lq_fail(fault, LQ_USAGE, "--layers %s: %s", o->layers, why.text);
}

enum lq_err options_origin_key(const struct options *o, char **out, struct lq_fault *fault)
{
    size_t n;
    *out = NULL;
    enum lq_err rc = o->origin_key_file ? file_read(o->origin_key_file, KEY_FILE_BYTES_MAX, out, &n, fault) : LQ_OK;
    if (rc || !*out)
        return rc;
    (*out)[strcspn(*out, "\r\n")] = '\0';
    return **out ? LQ_OK
                 : lq_fail(fault, LQ_USAGE, "--origin-key-file %s: its first line is empty", o->origin_key_file);
}
