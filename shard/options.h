/* options: larql-shard's command line and environment, read and checked. */
#ifndef LQ_SHARD_OPTIONS_H
#define LQ_SHARD_OPTIONS_H

#include "common/opt.h"
#include "common/serve.h"

struct wire_switches;

struct options {
    struct serve_opts serve;
    char **argv; /* main()'s, argc of them */
    int argc;
    const char *model; /* NULL: a spare */
    const char *layers, *wire_preference, *model_id, *activations, *join, *join_pin, *public_url;
    const char *store_dir, *origin_key_file;
    int64_t threads, batch_rows, answer_mb, queue_jobs, queue_mb;
    bool no_f16, no_i8, prefetch, pin, serve_model, spare;
};

/* Defaults, then argv. Anything but OPT_RUN: the process ends. */
enum opt_result options_read(struct options *o, int argc, char **argv);

bool options_is_url(const char *model); /* http:// or https:// */

/* Formats that are on, by options and environment. LQ_USAGE. */
enum lq_err options_wire(const struct options *o, struct wire_switches *w, struct lq_fault *fault) LQ_MUST_CHECK;
/* --layers; without it both stay as they are. LQ_USAGE. */
enum lq_err options_layers(const struct options *o, uint32_t *first, uint32_t *last,
                           struct lq_fault *fault) LQ_MUST_CHECK;
/* The first line of --origin-key-file, malloc'd; without it NULL. LQ_USAGE, and as file_read(). */
enum lq_err options_origin_key(const struct options *o, char **out, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
