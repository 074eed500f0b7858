/* pool: see pool.h. A job is published by a new generation in `state`, taken part in
 * by counting oneself there while it is open, and closed by the caller when nothing is
 * left to hand out: a worker that was asleep, or kept off its CPU, is not waited for.
 * The items are cut into one share a thread; shares are handed out in parts by a counter
 * each, first to their own thread, then to whoever has finished. */
#include "model/pool.h"

#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum {
    THREADS_MAX = 64,
    CACHE_LINE = 64,
    SPINS_MAX = 4000, /* some tens of microseconds: more than lies between two jobs of a layer */
    SPINS_MIN = 60,   /* where the long ones were in vain */
    SPINS_A_YIELD = 64,
};

/* state: generation | open | threads that take part */
#define STATE_ACTIVE 0xffffu
#define STATE_OPEN 0x10000u
#define STATE_GENERATION 0x20000u /* one of them; the rest of the word counts */

struct share {
    alignas(CACHE_LINE) _Atomic size_t next;
    size_t end;
};

struct worker {
    struct pool *pool;
    size_t number;
    pthread_t thread;
};

struct pool {
    size_t threads_n;
    unsigned spins_max;     /* 0: more threads than CPUs, where a spinner keeps a worker out */
    struct worker *workers; /* threads_n - 1: the caller is thread 0 */
    struct share *shares;   /* threads_n */
    /* the job: written while nobody takes part */
    pool_fn fn;
    void *arg;
    size_t grain;
    alignas(CACHE_LINE) _Atomic uint64_t state;
    alignas(CACHE_LINE) _Atomic size_t sleepers_n; /* workers */
    _Atomic bool caller_sleeps;
    _Atomic bool stop;
    pthread_mutex_t mu; /* for sleeping alone */
    pthread_cond_t wake, done;
};

/* One turn of spinning. Now and then whoever waits for this CPU gets it: the workers of
 * another shard on this host, say, whose turn it is. */
static inline void spin_once(unsigned turn)
{
    if (turn % SPINS_A_YIELD == SPINS_A_YIELD - 1)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_parts(struct pool *p, size_t thread)
{
    for (size_t i = 0; i < p->threads_n; i++) {
        struct share *s = &p->shares[(thread + i) % p->threads_n];
        for (;;) {
            size_t first = atomic_fetch_add_explicit(&s->next, p->grain, memory_order_relaxed);
            if (first >= s->end)
                break;
            p->fn(p->arg, first, s->end - first < p->grain ? s->end : first + p->grain, thread);
        }
    }
}

/* ---- workers ---------------------------------------------------------------------------- */

static bool is_news(struct pool *p, uint64_t state, uint64_t seen)
{
    return ((state & STATE_OPEN) && state / STATE_GENERATION != seen) || atomic_load(&p->stop);
}

/* Until a job other than `seen` is open, or the end. *spins adapts: spinning that was in
 * vain halves it, spinning that paid restores it. */
static void wait_job(struct pool *p, uint64_t seen, unsigned *spins)
{
    for (unsigned i = 0; i < *spins; i++) {
        if (is_news(p, atomic_load(&p->state), seen)) {
            *spins = p->spins_max;
            return;
        }
        spin_once(i);
    }
    if (*spins > SPINS_MIN)
        *spins /= 2;
    pthread_mutex_lock(&p->mu);
    atomic_fetch_add(&p->sleepers_n, 1); /* before the look: publish() looks the other way round */
    while (!is_news(p, atomic_load(&p->state), seen))
        pthread_cond_wait(&p->wake, &p->mu);
    atomic_fetch_sub(&p->sleepers_n, 1);
    pthread_mutex_unlock(&p->mu);
}

/* Counts this thread in, unless the job has been closed. */
static bool join_job(struct pool *p, uint64_t *seen)
{
    uint64_t s = atomic_load(&p->state);
    do {
        if (!(s & STATE_OPEN))
            return false;
    } while (!atomic_compare_exchange_weak(&p->state, &s, s + 1));
    *seen = s / STATE_GENERATION;
    return true;
}

static void leave_job(struct pool *p)
{
    uint64_t before = atomic_fetch_sub(&p->state, 1); /* last touch of the job */
    if ((before & (STATE_ACTIVE | STATE_OPEN)) == 1 && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->mu);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->mu);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint64_t seen = 0;
    unsigned spins = p->spins_max;
    for (;;) {
        wait_job(p, seen, &spins);
        if (atomic_load(&p->stop))
            return NULL;
        if (!join_job(p, &seen))
            continue;
        take_parts(p, w->number);
        leave_job(p);
    }
}

/* ---- the caller --------------------------------------------------------------------------- */

/* Wakes who sleeps for `wake`. What they look at was changed before the call. */
static void wake_workers(struct pool *p)
{
    if (atomic_load(&p->sleepers_n) == 0)
        return;
    pthread_mutex_lock(&p->mu);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
}

/* Until those who take part in the closed job have left. */
static void wait_left(struct pool *p)
{
    for (unsigned i = 0; i <= p->spins_max; i++) {
        if ((atomic_load(&p->state) & STATE_ACTIVE) == 0)
            return;
        spin_once(i);
    }
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->caller_sleeps, true); /* before the look: leave_job() looks the other way round */
    while ((atomic_load(&p->state) & STATE_ACTIVE) != 0)
        pthread_cond_wait(&p->done, &p->mu);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->mu);
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
    p->grain = grain;
    size_t parts_n = (items_n - 1) / grain + 1;
    for (size_t i = 0; i < p->threads_n; i++) {
        size_t first = parts_n * i / p->threads_n * grain, end = parts_n * (i + 1) / p->threads_n * grain;
        atomic_store_explicit(&p->shares[i].next, first, memory_order_relaxed);
        p->shares[i].end = end < items_n ? end : items_n;
    }
    atomic_store(&p->state, (atomic_load(&p->state) + STATE_GENERATION) | STATE_OPEN);
    wake_workers(p);
    take_parts(p, 0);
    atomic_fetch_and(&p->state, ~(uint64_t)STATE_OPEN);
    wait_left(p);
}

/* ---- life ------------------------------------------------------------------------------- */

static size_t cpus_n(const cpu_set_t *set)
{
    int n = CPU_COUNT(set);
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (size_t)n;
}

static cpu_set_t cpus_allowed(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    (void)sched_getaffinity(0, sizeof set, &set); /* fails with more than CPU_SETSIZE: counts as one */
    return set;
}

struct pool *pool_new(size_t threads_n)
{
    struct pool *p = aligned_alloc(CACHE_LINE, sizeof *p); /* sizeof is a multiple of its alignment */
    if (!p)
        return NULL;
    cpu_set_t set = cpus_allowed();
    size_t cpus = cpus_n(&set), want = threads_n ? threads_n : cpus;
    *p = (struct pool){.threads_n = 1, .spins_max = want <= cpus ? SPINS_MAX : 0};
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->workers = calloc(want, sizeof *p->workers);
    p->shares = aligned_alloc(CACHE_LINE, want * sizeof *p->shares);
    sigset_t all, old; /* signals are the caller's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool ok = p->workers && p->shares;
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
    atomic_store(&p->stop, true);
    wake_workers(p);
    for (size_t i = 1; i < p->threads_n; i++)
        pthread_join(p->workers[i - 1].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mu);
    free(p->workers);
    free(p->shares);
    free(p);
}

size_t pool_threads_n(const struct pool *p)
{
    return p->threads_n;
}

enum lq_err pool_pin(struct pool *p, pthread_t caller, struct lq_fault *fault)
{
    cpu_set_t allowed = cpus_allowed();
    if ((size_t)CPU_COUNT(&allowed) < p->threads_n)
        return lq_fail(fault, LQ_USAGE, "%zu threads cannot have a CPU each: this process may use %d", p->threads_n,
                       CPU_COUNT(&allowed));
    size_t cpu = 0;
    for (size_t i = 0; i < p->threads_n; i++, cpu++) {
        while (!CPU_ISSET(cpu, &allowed))
            cpu++;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        int err = pthread_setaffinity_np(i == 0 ? caller : p->workers[i - 1].thread, sizeof one, &one);
        if (err)
            return lq_fail(fault, LQ_IO, "cannot keep a thread on CPU %zu: error %d", cpu, err);
    }
    return LQ_OK;
}
