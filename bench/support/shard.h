/* shard: a real larql-shard with a synthetic model, for the programs of this folder.
 * They run from the top of the tree; the shard is the one beside them in the build
 * folder. Errors go to stderr in words. */
#ifndef LQ_BENCH_SUPPORT_SHARD_H
#define LQ_BENCH_SUPPORT_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct bench_shard {
    pid_t pid;
    char url[256]; /* of its ready line */
};

/* BUILD/models/NAME.gguf in path, made by tests/tools/make_model.py with the NULL-ended
 * args where it is not there yet. argv0: of the program, BUILD/bench/PROGRAM. */
bool bench_model(const char *argv0, const char *name, const char *const *args, char *path, size_t path_n);

/* Starts it on a free port, or where the NULL-ended args say; returns when it is ready. */
bool bench_shard_start(struct bench_shard *s, const char *argv0, const char *model, const char *const *args);
void bench_shard_stop(struct bench_shard *s);

#endif
