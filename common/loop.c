/* loop: see loop.h. */
#include "common/loop.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/spin.h"

enum { HEAP_PIECE_BYTES_MAX = 1 << 20, HEAP_KEPT_BYTES = 8 << 20 };

struct later {
    struct later *next;
    void (*fn)(void *arg);
    void *arg;
};

struct loop {
    struct event_base *base;
    struct event *wake_ev, *later_ev, *term_ev, *int_ev, *hup_ev;
    int wake_fd;
    struct later *later; /* to run after this turn, newest first */
    void (*on_drain)(void *arg);
    void *drain_arg;
    bool draining;
    void (*on_hup)(void *arg);
    void *hup_arg;
    struct spin spin;

    pthread_mutex_t mu; /* guards the message list alone */
    struct loop_msg *first, **last;
};

/* Takes the whole list under the mutex, runs it outside. */
static void run_messages(struct loop *l)
{
    pthread_mutex_lock(&l->mu);
    struct loop_msg *m = l->first;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->mu);
    while (m) { /* m may be gone once its fn has run */
        struct loop_msg *next = m->next;
        m->fn(m);
        m = next;
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    uint64_t count;
    if (read((int)fd, &count, sizeof count) < 0) {
        /* EAGAIN: another turn took it already. */
    }
    run_messages(arg);
}

void loop_post(struct loop *l, struct loop_msg *m)
{
    m->next = NULL;
    pthread_mutex_lock(&l->mu);
    bool wake = !l->first;
    *l->last = m;
    l->last = &m->next;
    pthread_mutex_unlock(&l->mu);
    if (wake) { /* else somebody has written already and the loop will see all */
        uint64_t one = 1;
        if (write(l->wake_fd, &one, sizeof one) < 0) {
            /* EAGAIN: the counter is full, so the loop is awake anyway. */
        }
    }
}

static void on_hup_signal(evutil_socket_t sig, short what, void *arg)
{
    (void)sig, (void)what;
    struct loop *l = arg;
    l->on_hup(l->hup_arg);
}

enum lq_err loop_on_hup(struct loop *l, void (*fn)(void *arg), void *arg)
{
    l->on_hup = fn;
    l->hup_arg = arg;
    l->hup_ev = evsignal_new(l->base, SIGHUP, on_hup_signal, l);
    return l->hup_ev && event_add(l->hup_ev, NULL) == 0 ? LQ_OK : LQ_NOMEM;
}

static void run_later(struct loop *l)
{
    while (l->later) {
        struct later *run = NULL;
        while (l->later) { /* oldest first */
            struct later *x = l->later;
            l->later = x->next;
            x->next = run;
            run = x;
        }
        while (run) {
            struct later *x = run;
            run = x->next;
            x->fn(x->arg);
            free(x);
        }
    }
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    run_later(arg);
}

void loop_later(struct loop *l, void (*fn)(void *arg), void *arg)
{
    struct later *x = malloc(sizeof *x);
    if (!x) {
        /* A leak of one object is the safe way out: its callback may be running. */
        log_error("loop_later_dropped why=nomem");
        return;
    }
    *x = (struct later){.next = l->later, .fn = fn, .arg = arg};
    l->later = x;
    event_active(l->later_ev, 0, 0);
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    (void)what;
    struct loop *l = arg;
    if (l->draining)
        _exit(130); /* the second signal: at once */
    l->draining = true;
    log_info("drain_begin signal=%s", sig == SIGINT ? "SIGINT" : "SIGTERM");
    l->on_drain(l->drain_arg);
}

enum lq_err loop_on_signals(struct loop *l, void (*on_drain)(void *arg), void *arg)
{
    l->on_drain = on_drain;
    l->drain_arg = arg;
    l->term_ev = evsignal_new(l->base, SIGTERM, on_signal, l);
    l->int_ev = evsignal_new(l->base, SIGINT, on_signal, l);
    if (!l->term_ev || !l->int_ev || event_add(l->term_ev, NULL) || event_add(l->int_ev, NULL))
        return LQ_NOMEM;
    return LQ_OK;
}

struct loop *loop_new(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    /* A body's buffers are freed and wanted again at each request: given back to the
     * kernel in between, their pages cost more faults than all else that is done to them. */
    (void)mallopt(M_MMAP_THRESHOLD, HEAP_PIECE_BYTES_MAX);
    (void)mallopt(M_TRIM_THRESHOLD, HEAP_KEPT_BYTES);
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->wake_fd = -1;
    l->last = &l->first;
    pthread_mutex_init(&l->mu, NULL);

    struct event_config *cfg = event_config_new();
    if (cfg) {
        /* Only loop_post() crosses threads, and it brings its own lock. */
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
        event_config_set_flag(cfg, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
        l->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!l->base || l->wake_fd < 0)
        goto fail;
    l->wake_ev = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, on_wake, l);
    l->later_ev = event_new(l->base, -1, 0, on_later, l);
    if (!l->wake_ev || !l->later_ev || event_add(l->wake_ev, NULL) != 0)
        goto fail;
    return l;
fail:
    loop_free(l);
    return NULL;
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    run_messages(l); /* the owners free what they were told about */
    run_later(l);
    struct event *evs[] = {l->wake_ev, l->later_ev, l->term_ev, l->int_ev, l->hup_ev};
    for (size_t i = 0; i < sizeof evs / sizeof *evs; i++)
        if (evs[i])
            event_free(evs[i]);
    if (l->base) {
        (void)event_base_loop(l->base, EVLOOP_NONBLOCK); /* libevent frees a TLS connection in a turn of its loop */
        event_base_free(l->base);
    }
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    pthread_mutex_destroy(&l->mu);
    free(l);
}

struct event_base *loop_base(struct loop *l)
{
    return l->base;
}

void loop_run(struct loop *l)
{
    if (l->spin.poll_us == 0) {
        event_base_dispatch(l->base);
        return;
    }
    while (spin_turn(&l->spin, l->base) == 0 && !event_base_got_break(l->base)) {
    }
}

void loop_busy_poll(struct loop *l, uint64_t us, unsigned threads_n)
{
    if (!spin_init(&l->spin, us, threads_n))
        log_warn("busy_poll_off us=%llu spinning_threads=%u why=%s", (unsigned long long)us, threads_n,
                 log_q("too few CPUs for the threads that would spin"));
}

void loop_stop(struct loop *l)
{
    event_base_loopbreak(l->base);
}
