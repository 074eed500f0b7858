/* spare: a shard without layers: it waits for a router to assign some, fetches them into its
 * store, and becomes a shard by starting this program anew in its own place (exec): the same
 * process, arguments and port, with the model, the layers and the name added. So a spare
 * that has loaded is a shard like any other, and there is one way to start one. */
#ifndef LQ_SHARD_SPARE_H
#define LQ_SHARD_SPARE_H

#include "common/serve.h"
#include "shard/join.h"

struct spare_opts {
    const struct serve_opts *serve;
    const char *store_dir, *join, *join_pin, *public_url;
    char **argv; /* of main(), argc of them */
    int argc;
};

/* Runs until SIGTERM (LQ_OK) or an error; does not return when it has become a shard.
 * `s` needs its trust; its loop is made and freed here. */
enum lq_err spare_run(struct shard *s, const struct spare_opts *o, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
