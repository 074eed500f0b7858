/* pool: see pool.h. A job is a number (its generation); workers wait for the next
 * one, first spinning, then on a condition. Parts are handed out by one atomic
 * counter, so a slow thread takes fewer. */
#include "model/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { THREADS_MAX = 64, SPINS = 4000 /* a few tens of microseconds */ };

struct worker {
    struct pool *pool;
    size_t number;
    pthread_t thread;
};

struct pool {
    size_t threads_n;
    unsigned spins;
    struct worker *workers; /* threads_n - 1: the caller is thread 0 */
    /* the job */
    pool_fn fn;
    void *arg;
    size_t items_n, grain;
    _Atomic size_t next;
    _Atomic size_t busy_n; /* workers that have not finished the job */
    _Atomic uint64_t generation;
    _Atomic bool stop;
    pthread_mutex_t mu; /* for sleeping alone */
    pthread_cond_t wake;
    size_t sleepers_n;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_parts(struct pool *p, size_t thread)
{
    for (;;) {
        size_t first = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (first >= p->items_n)
            return;
        size_t end = p->items_n - first < p->grain ? p->items_n : first + p->grain;
        p->fn(p->arg, first, end, thread);
    }
}

/* Waits for a generation other than `seen`. */
static uint64_t wait_job(struct pool *p, uint64_t seen)
{
    for (unsigned i = 0; i < p->spins; i++) {
        uint64_t g = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (g != seen)
            return g;
        pause_cpu();
    }
    pthread_mutex_lock(&p->mu);
    p->sleepers_n++;
    while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen)
        pthread_cond_wait(&p->wake, &p->mu);
    p->sleepers_n--;
    pthread_mutex_unlock(&p->mu);
    return atomic_load_explicit(&p->generation, memory_order_acquire);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    for (uint64_t seen = 0;;) {
        seen = wait_job(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire))
            return NULL;
        take_parts(p, w->number);
        atomic_fetch_sub_explicit(&p->busy_n, 1, memory_order_release); /* last touch of the job */
    }
}

/* A new generation, under the mutex so that nobody falls asleep past it. */
static void publish(struct pool *p)
{
    pthread_mutex_lock(&p->mu);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    if (p->sleepers_n > 0)
        pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
}

static size_t cpus_n(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (size_t)n;
}

struct pool *pool_new(size_t threads_n)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    size_t cpus = cpus_n(), want = threads_n ? threads_n : cpus;
    p->threads_n = 1;
    p->spins = want <= cpus ? SPINS : 0; /* with more threads than CPUs a spinner keeps a worker out */
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = calloc(want, sizeof *p->workers);
    sigset_t all, old; /* signals are the caller's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool ok = p->workers != NULL;
    for (size_t i = 1; i < want && ok; i++) {
        struct worker *w = &p->workers[i - 1];
        *w = (struct worker){.pool = p, .number = i};
        ok = pthread_create(&w->thread, NULL, worker_main, w) == 0;
        p->threads_n += ok;
        if (ok)
            (void)pthread_setname_np(w->thread, "ffn");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (ok)
        return p;
    pool_free(p);
    return NULL;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    publish(p);
    for (size_t i = 1; i < p->threads_n; i++)
        pthread_join(p->workers[i - 1].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mu);
    free(p->workers);
    free(p);
}

size_t pool_threads_n(const struct pool *p)
{
    return p->threads_n;
}

void pool_run(struct pool *p, size_t items_n, size_t grain, pool_fn fn, void *arg)
{
    if (grain == 0)
        grain = 1;
    if (p->threads_n == 1 || items_n <= grain) {
        if (items_n > 0)
            fn(arg, 0, items_n, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->items_n = items_n;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy_n, p->threads_n - 1, memory_order_relaxed);
    publish(p);
    take_parts(p, 0);
    for (unsigned i = 0; atomic_load_explicit(&p->busy_n, memory_order_acquire) > 0; i++) {
        pause_cpu();
        if (i > p->spins)
            sched_yield();
    }
}
