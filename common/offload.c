/* offload: see offload.h. */
#include "common/offload.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* How many waiting tasks are asked to join: what bounds the time under the lock. */
enum { JOIN_SCAN_MAX = 1024 };

struct offload {
    struct loop *loop;
    void *arg;
    pthread_t thread;
    size_t tasks_max;
    uint64_t bytes_max;

    pthread_mutex_t mu; /* guards what follows */
    pthread_cond_t some;
    struct offload_task *first, **last;
    size_t tasks_n;
    uint64_t bytes;
    bool idle; /* the thread waits, and touches nothing of its arg */
    bool stop;
};

/* Takes *at out of the queue. */
static struct offload_task *unlink_task(struct offload *o, struct offload_task **at)
{
    struct offload_task *t = *at;
    *at = t->next;
    if (!*at)
        o->last = at;
    t->next = NULL;
    o->tasks_n--;
    o->bytes -= t->bytes;
    return t;
}

/* The first task and whatever joins it, in the queue's order. */
static struct offload_task *take_first(struct offload *o)
{
    struct offload_task *first = unlink_task(o, &o->first), **end = &first->next, **at = &o->first;
    for (size_t i = 0; first->joins && *at && i < JOIN_SCAN_MAX; i++) {
        if ((*at)->joins && (*at)->joins(first, *at)) {
            *end = unlink_task(o, at);
            end = &(*end)->next;
        } else {
            at = &(*at)->next;
        }
    }
    return first;
}

static struct offload_task *take(struct offload *o)
{
    pthread_mutex_lock(&o->mu);
    o->idle = true;
    while (!o->first && !o->stop)
        pthread_cond_wait(&o->some, &o->mu);
    o->idle = false;
    struct offload_task *t = o->stop ? NULL : take_first(o);
    pthread_mutex_unlock(&o->mu);
    return t;
}

static void *thread_main(void *arg)
{
    struct offload *o = arg;
    struct offload_task *t;
    while ((t = take(o))) {
        t->run(t, o->arg);
        while (t) {
            struct offload_task *next = t->next;
            loop_post(o->loop, &t->done); /* last touch */
            t = next;
        }
    }
    return NULL;
}

enum lq_err offload_new(struct loop *l, const char *name, size_t tasks_max, uint64_t bytes_max, void *arg,
                        struct offload **out, struct lq_fault *fault)
{
    struct offload *o = calloc(1, sizeof *o);
    if (!o)
        return lq_fail(fault, LQ_NOMEM, "out of memory for the queue of thread %s", name);
    *o = (struct offload){.loop = l, .arg = arg, .tasks_max = tasks_max, .bytes_max = bytes_max, .idle = true};
    o->last = &o->first;
    pthread_mutex_init(&o->mu, NULL);
    pthread_cond_init(&o->some, NULL);

    sigset_t all, old; /* signals are the loop's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&o->thread, NULL, thread_main, o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        pthread_cond_destroy(&o->some);
        pthread_mutex_destroy(&o->mu);
        free(o);
        return lq_fail(fault, LQ_NOMEM, "cannot start thread %s: %s", name, strerror(err));
    }
    (void)pthread_setname_np(o->thread, name); /* for people who look at top */
    *out = o;
    return LQ_OK;
}

void offload_free(struct offload *o)
{
    if (!o)
        return;
    pthread_mutex_lock(&o->mu);
    o->stop = true;
    pthread_cond_signal(&o->some);
    pthread_mutex_unlock(&o->mu);
    pthread_join(o->thread, NULL);
    while (o->first) {
        struct offload_task *t = o->first;
        o->first = t->next;
        t->done.fn(&t->done);
    }
    pthread_cond_destroy(&o->some);
    pthread_mutex_destroy(&o->mu);
    free(o);
}

static enum lq_err append(struct offload *o, struct offload_task *t, bool wake, struct lq_fault *fault)
{
    pthread_mutex_lock(&o->mu);
    bool full = o->tasks_n >= o->tasks_max || t->bytes > o->bytes_max - o->bytes;
    if (!full) {
        t->next = NULL;
        *o->last = t;
        o->last = &t->next;
        o->tasks_n++;
        o->bytes += t->bytes;
        if (wake)
            pthread_cond_signal(&o->some);
    }
    pthread_mutex_unlock(&o->mu);
    return full ? lq_fail(fault, LQ_QUEUE_FULL, "the queue is full (at most %zu requests or %llu bytes wait)",
                          o->tasks_max, (unsigned long long)o->bytes_max)
                : LQ_OK;
}

enum lq_err offload_put(struct offload *o, struct offload_task *t, struct lq_fault *fault)
{
    return append(o, t, true, fault);
}

enum lq_err offload_queue(struct offload *o, struct offload_task *t, struct lq_fault *fault)
{
    return append(o, t, false, fault);
}

bool offload_start(struct offload *o)
{
    struct offload_task *here = NULL;
    pthread_mutex_lock(&o->mu);
    if (o->idle && o->tasks_n == 1 && o->first->small)
        here = unlink_task(o, &o->first);
    else if (o->idle && o->tasks_n > 0)
        pthread_cond_signal(&o->some);
    pthread_mutex_unlock(&o->mu);
    if (!here)
        return false;
    /* The loop is the only one that queues, and it is here: the thread stays idle. */
    here->run(here, o->arg);
    here->done.fn(&here->done);
    return true;
}

pthread_t offload_thread(const struct offload *o)
{
    return o->thread;
}

bool offload_is_busy(struct offload *o)
{
    pthread_mutex_lock(&o->mu);
    bool busy = !o->idle;
    pthread_mutex_unlock(&o->mu);
    return busy;
}

size_t offload_waiting_n(struct offload *o, uint64_t *bytes)
{
    pthread_mutex_lock(&o->mu);
    size_t n = o->tasks_n;
    *bytes = o->bytes;
    pthread_mutex_unlock(&o->mu);
    return n;
}
