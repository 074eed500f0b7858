/* offload: see offload.h. */
#include "common/offload.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
    bool stop;
};

static struct offload_task *take(struct offload *o)
{
    pthread_mutex_lock(&o->mu);
    while (!o->first && !o->stop)
        pthread_cond_wait(&o->some, &o->mu);
    struct offload_task *t = o->stop ? NULL : o->first;
    if (t) {
        o->first = t->next;
        if (!o->first)
            o->last = &o->first;
        o->tasks_n--;
        o->bytes -= t->bytes;
    }
    pthread_mutex_unlock(&o->mu);
    return t;
}

static void *thread_main(void *arg)
{
    struct offload *o = arg;
    struct offload_task *t;
    while ((t = take(o))) {
        t->run(t, o->arg);
        loop_post(o->loop, &t->done); /* last touch */
    }
    return NULL;
}

enum lq_err offload_new(struct loop *l, const char *name, size_t tasks_max, uint64_t bytes_max, void *arg,
                        struct offload **out, struct lq_fault *fault)
{
    struct offload *o = calloc(1, sizeof *o);
    if (!o)
        return lq_fail(fault, LQ_NOMEM, "out of memory for the queue of thread %s", name);
    *o = (struct offload){.loop = l, .arg = arg, .tasks_max = tasks_max, .bytes_max = bytes_max};
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

enum lq_err offload_put(struct offload *o, struct offload_task *t, struct lq_fault *fault)
{
    pthread_mutex_lock(&o->mu);
    bool full = o->tasks_n >= o->tasks_max || t->bytes > o->bytes_max - o->bytes;
    if (!full) {
        t->next = NULL;
        *o->last = t;
        o->last = &t->next;
        o->tasks_n++;
        o->bytes += t->bytes;
        pthread_cond_signal(&o->some);
    }
    pthread_mutex_unlock(&o->mu);
    return full ? lq_fail(fault, LQ_QUEUE_FULL, "the queue is full (at most %zu requests or %llu bytes wait)",
                          o->tasks_max, (unsigned long long)o->bytes_max)
                : LQ_OK;
}

size_t offload_waiting_n(struct offload *o, uint64_t *bytes)
{
    pthread_mutex_lock(&o->mu);
    size_t n = o->tasks_n;
    *bytes = o->bytes;
    pthread_mutex_unlock(&o->mu);
    return n;
}
