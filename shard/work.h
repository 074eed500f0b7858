/* work: what the compute path shares (work.c, work_json.c). One owner at a time: the
 * compute thread, or the loop inside offload_start() while that thread is idle. It does
 * not allocate for binary jobs: tests/tools/alloc_guard.c aborts a build that does. */
#ifndef LQ_SHARD_WORK_H
#define LQ_SHARD_WORK_H

#include "shard/job.h"

/* What this thread's compute path is doing, for the guard; NULL: not on the path.
 * "json" may allocate. */
extern _Thread_local const char *work_phase;

struct work {
    struct compute *compute; /* its threads compute inside a layer */
    float *scratch;          /* ffn_scratch_floats() for FFN_CHUNK_ROWS rows */
    float *x, *out;          /* FFN_CHUNK_ROWS rows each: a batch, or a part of a long job */
};

/* Checks 14 and 15; 16. */
enum lq_err work_check_layer(const struct shard *s, uint32_t layer, struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err work_check_answer_size(const struct shard *s, uint64_t bytes, struct lq_fault *fault) LQ_MUST_CHECK;

/* What Server-Timing tells of a job that was computed from start_us until now. */
void work_timing(struct job *j, uint64_t start_us, uint64_t encode_us);

/* A JSON job to its outcome. */
enum lq_err work_json(struct work *w, struct job *j);

#endif
