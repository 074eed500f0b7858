/* pool: the threads that compute inside a layer. One job at a time; the caller
 * takes part. Workers spin briefly for the next job, then sleep.
 * Created after every fork(); never used across one. */
#ifndef LQ_MODEL_POOL_H
#define LQ_MODEL_POOL_H

#include <stddef.h>

struct pool;

/* threads_n >= 1, the caller included; 0: the CPUs this process may run on
 * (sched_getaffinity), at most 64. NULL: out of memory or threads. */
struct pool *pool_new(size_t threads_n);
void pool_free(struct pool *p);
size_t pool_threads_n(const struct pool *p);

/* Runs fn(arg, first, end, thread) over [0, items_n) cut in parts of at least
 * grain items; parts are handed out dynamically; returns when all are done.
 * thread < pool_threads_n() names the scratch a part may use.
 * Results must not depend on the cut. */
typedef void (*pool_fn)(void *arg, size_t first, size_t end, size_t thread);
void pool_run(struct pool *p, size_t items_n, size_t grain, pool_fn fn, void *arg);

#endif
