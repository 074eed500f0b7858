/* loop: one libevent loop and what every server here needs of it: signals that
 * drain, work handed over by other threads, objects freed after their callback.
 * Owner: the thread that runs it; only loop_post() may be called from others. */
#ifndef LQ_COMMON_LOOP_H
#define LQ_COMMON_LOOP_H

#include <event2/event.h>

#include "proto/err.h"

struct loop;

/* NULL: out of memory or of file descriptors. SIGPIPE is ignored process-wide. */
struct loop *loop_new(void);
void loop_free(struct loop *l);
struct event_base *loop_base(struct loop *l);

/* Runs until loop_stop(). */
void loop_run(struct loop *l);
/* Before loop_run(): polls for us after each event before it sleeps; threads_n: how many
 * loops of the process do (common/spin.h). Logs when there are too few CPUs for that. */
void loop_busy_poll(struct loop *l, uint64_t us, unsigned threads_n);
void loop_stop(struct loop *l);

/* fn(arg) after the current turn, on the loop's thread; for frees under a callback. */
void loop_later(struct loop *l, void (*fn)(void *arg), void *arg);

/* A message to the loop from any thread: intrusive, so that posting cannot fail.
 * fn runs on the loop's thread, in order; the poster must not touch m after. */
struct loop_msg {
    struct loop_msg *next;
    void (*fn)(struct loop_msg *m);
};
void loop_post(struct loop *l, struct loop_msg *m);

/* SIGTERM and SIGINT: the first calls on_drain, the second exits with 130 at once. */
enum lq_err loop_on_signals(struct loop *l, void (*on_drain)(void *arg), void *arg) LQ_MUST_CHECK;

/* SIGHUP: fn(arg), each time. Without it the signal ends the process. */
enum lq_err loop_on_hup(struct loop *l, void (*fn)(void *arg), void *arg) LQ_MUST_CHECK;

#endif
