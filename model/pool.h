/* pool: the threads that compute inside a layer. One job at a time; the caller
 * takes part. Threads without work spin briefly, then sleep.
 * Created after every fork(); never used across one. */
#ifndef LQ_MODEL_POOL_H
#define LQ_MODEL_POOL_H

#include <pthread.h>
#include <stddef.h>

#include "proto/err.h"

struct pool;

/* threads_n >= 1, the caller included; 0: the CPUs this process may run on
 * (sched_getaffinity), at most 64. NULL: out of memory or threads. */
struct pool *pool_new(size_t threads_n);
void pool_free(struct pool *p);
size_t pool_threads_n(const struct pool *p);

/* Keeps each thread on a CPU of its own, of those this process may run on: the first
 * is for `caller`, the thread that calls pool_run(). LQ_USAGE: too few CPUs. */
enum lq_err pool_pin(struct pool *p, pthread_t caller, struct lq_fault *fault) LQ_MUST_CHECK;

/* Runs fn(arg, first, end, thread) over [0, items_n) cut in parts of at least
 * grain items; returns when all are done. Each thread begins with the same share of
 * the items in each job of that size, so that it meets the weights that its caches
 * and its memory node have, and then helps the others.
 * thread < pool_threads_n() names the scratch a part may use.
 * Results must not depend on the cut. */
typedef void (*pool_fn)(void *arg, size_t first, size_t end, size_t thread);
void pool_run(struct pool *p, size_t items_n, size_t grain, pool_fn fn, void *arg);

#endif
