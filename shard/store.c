/* store: a fetch's thread and its messages to the loop. See store.h; the steps are in
 * store_job.c.
 * A fetch is shared by its owner, its thread and the messages on their way to the loop; the
 * last one frees it, so that a message never meets a fetch that is gone. */
#include "shard/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "shard/store_impl.h"

struct store_fetch {
    struct loop *loop;
    store_on_progress on_progress;
    store_on_done on_done;
    void *arg;
    struct store_job job;
    char *strings[6]; /* copies behind job.o */
    struct hash256 model, *layers;
    pthread_t thread;
    _Atomic bool stop;
    atomic_uint users_n;
    bool freed; /* by its owner; loop only */
    /* to the loop */
    struct loop_msg progress_msg, done_msg;
    _Atomic bool progress_sent; /* progress_msg is on its way */
    pthread_mutex_t mu;         /* progress */
    struct store_progress progress;
    enum lq_err rc;
    struct store_result result;
    struct lq_fault fault;
};

static void unuse(struct store_fetch *f)
{
    if (atomic_fetch_sub(&f->users_n, 1) != 1)
        return;
    for (size_t i = 0; i < sizeof f->strings / sizeof *f->strings; i++)
        free(f->strings[i]);
    free(f->layers);
    pthread_mutex_destroy(&f->mu);
    free(f);
}

#define FETCH_OF(m, member) ((struct store_fetch *)(void *)((char *)(m)-offsetof(struct store_fetch, member)))

static void on_progress_msg(struct loop_msg *m)
{
    struct store_fetch *f = FETCH_OF(m, progress_msg);
    pthread_mutex_lock(&f->mu);
    struct store_progress p = f->progress;
    pthread_mutex_unlock(&f->mu);
    atomic_store(&f->progress_sent, false);
    if (!f->freed && f->on_progress)
        f->on_progress(&p, f->arg);
    unuse(f);
}

static void on_done_msg(struct loop_msg *m)
{
    struct store_fetch *f = FETCH_OF(m, done_msg);
    if (!f->freed)
        f->on_done(f->rc, f->rc ? NULL : &f->result, &f->fault, f->arg);
    unuse(f);
}

static void say(void *arg, const struct store_progress *p)
{
    struct store_fetch *f = arg;
    pthread_mutex_lock(&f->mu);
    f->progress = *p;
    pthread_mutex_unlock(&f->mu);
    if (atomic_exchange(&f->progress_sent, true))
        return; /* the one on its way will tell this */
    atomic_fetch_add(&f->users_n, 1);
    loop_post(f->loop, &f->progress_msg);
}

static void *run(void *arg)
{
    struct store_fetch *f = arg;
    f->rc = store_job_run(&f->job, &f->result, &f->fault);
    loop_post(f->loop, &f->done_msg); /* its use was counted at the start */
    return NULL;
}

static bool copy(struct store_fetch *f, size_t i, const char *from, const char **to)
{
    if (from && !(f->strings[i] = strdup(from)))
        return false;
    *to = f->strings[i];
    return true;
}

static bool copy_opts(struct store_fetch *f, const struct store_opts *o)
{
    struct store_opts *to = &f->job.o;
    *to = *o;
    if (o->model) {
        f->model = *o->model;
        to->model = &f->model;
    }
    if (o->layers) {
        size_t n = (size_t)o->layer_last - o->layer_first + 1;
        if (!(f->layers = malloc(n * sizeof *f->layers)))
            return false;
        memcpy(f->layers, o->layers, n * sizeof *f->layers);
        to->layers = f->layers;
    }
    return copy(f, 0, o->url, &to->url) && copy(f, 1, o->dir, &to->dir) && copy(f, 2, o->bearer, &to->bearer) &&
           copy(f, 3, o->ca_file, &to->ca_file) && copy(f, 4, o->cert_file, &to->cert_file) &&
           copy(f, 5, o->key_file, &to->key_file);
}

static enum lq_err check_opts(const struct store_opts *o, struct lq_fault *fault)
{
    struct fetch *probe;
    const struct fetch_opts asked = {.url = o->url};
    if (o->layer_first > o->layer_last || (o->layers && o->layer_last == STORE_TO_LAST_LAYER))
        return lq_fail(fault, LQ_USAGE, "layers %u-%u are no range", o->layer_first, o->layer_last);
    enum lq_err rc = fetch_global_init(fault);
    if (!rc)
        rc = fetch_new(&asked, &probe, fault);
    if (!rc)
        fetch_free(probe);
    return rc;
}

enum lq_err store_fetch_start(struct loop *l, const struct store_opts *o, store_on_progress on_progress,
                              store_on_done on_done, void *arg, struct store_fetch **out, struct lq_fault *fault)
{
    enum lq_err rc = check_opts(o, fault);
    if (rc)
        return rc;
    struct store_fetch *f = calloc(1, sizeof *f);
    if (!f)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a fetch");
    f->loop = l;
    f->on_progress = on_progress;
    f->on_done = on_done;
    f->arg = arg;
    f->progress_msg.fn = on_progress_msg;
    f->done_msg.fn = on_done_msg;
    f->job.stop = &f->stop;
    f->job.say = say;
    f->job.say_arg = f;
    pthread_mutex_init(&f->mu, NULL);
    atomic_init(&f->users_n, 1);
    if (!copy_opts(f, o)) {
        unuse(f);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a fetch");
    }
    atomic_fetch_add(&f->users_n, 1); /* done_msg's */
    if (pthread_create(&f->thread, NULL, run, f) != 0) {
        atomic_store(&f->users_n, 1);
        unuse(f);
        return lq_fail(fault, LQ_NOMEM, "cannot start a thread for a fetch");
    }
    *out = f;
    return LQ_OK;
}

void store_fetch_cancel(struct store_fetch *f)
{
    atomic_store(&f->stop, true);
}

void store_fetch_free(struct store_fetch *f)
{
    if (!f)
        return;
    store_fetch_cancel(f);
    pthread_join(f->thread, NULL);
    f->freed = true;
    unuse(f);
}

/* ---- alone --------------------------------------------------------------------------------- */

struct wait {
    struct loop *loop;
    struct store_fetch *fetch;
    enum lq_err rc;
    struct store_result *result;
    struct lq_fault *fault;
};

static void on_waited(enum lq_err rc, const struct store_result *result, const struct lq_fault *fault, void *arg)
{
    struct wait *w = arg;
    w->rc = rc;
    if (rc)
        *w->fault = *fault;
    else
        *w->result = *result;
    loop_stop(w->loop);
}

static void on_stop(void *arg)
{
    store_fetch_cancel(((struct wait *)arg)->fetch);
}

enum lq_err store_fetch_wait(const struct store_opts *o, struct store_result *out, struct lq_fault *fault)
{
    struct lq_fault here;
    struct wait w = {.loop = loop_new(), .result = out, .fault = fault ? fault : &here};
    if (!w.loop)
        return lq_fail(fault, LQ_NOMEM, "out of memory or file descriptors at start");
    enum lq_err rc = store_fetch_start(w.loop, o, NULL, on_waited, &w, &w.fetch, fault);
    if (!rc && (rc = loop_on_signals(w.loop, on_stop, &w)))
        (void)lq_fail(fault, rc, "cannot watch for signals");
    if (!rc) {
        loop_run(w.loop);
        rc = w.rc;
    }
    store_fetch_free(w.fetch);
    loop_free(w.loop);
    return rc;
}
