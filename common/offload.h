/* offload: one thread beside a loop, fed through a bounded queue; what would keep
 * the loop from its sockets (compute, large JSON) runs there.
 * A task belongs to the loop until it is queued, to the thread until its `done` is
 * posted, then to the loop again. First come, first run: tasks may join the first
 * one in the queue, but nothing overtakes it. */
#ifndef LQ_COMMON_OFFLOAD_H
#define LQ_COMMON_OFFLOAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/loop.h"

struct offload;

struct offload_task {          /* first member of the user's struct */
    struct loop_msg done;      /* done.fn runs on the loop when run() has returned; first member */
    struct offload_task *next; /* in run(): what has joined, in the queue's order; NULL ends */
    void (*run)(struct offload_task *first, void *arg); /* on the thread */
    /* May t run together with first and those that have joined it already? NULL: t runs
     * alone. Under the queue's lock, so quick; first may keep its sums. */
    bool (*joins)(struct offload_task *first, const struct offload_task *t);
    size_t bytes; /* what it holds while it waits */
    bool small;   /* offload_start() may run it on the loop's thread */
};

/* name: of the thread, up to 15 bytes. arg goes to every run(). At most tasks_max
 * tasks of bytes_max bytes wait. */
enum lq_err offload_new(struct loop *l, const char *name, size_t tasks_max, uint64_t bytes_max, void *arg,
                        struct offload **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* Lets the running task end; the done of it and of those that wait runs before the
 * return or in loop_free(), unrun: their owners only free them. */
void offload_free(struct offload *o);
/* LQ_QUEUE_FULL leaves the task with the caller. */
enum lq_err offload_put(struct offload *o, struct offload_task *t, struct lq_fault *fault) LQ_MUST_CHECK;
pthread_t offload_thread(const struct offload *o);
bool offload_is_busy(struct offload *o); /* the thread has a task */
size_t offload_waiting_n(struct offload *o, uint64_t *bytes);

/* offload_put() in two steps, so that what arrives in one turn of the loop is seen
 * together: queues without waking the thread, which offload_start() must do in the
 * same turn. A small task that waits alone beside an idle thread runs inside
 * offload_start(), its done too, and true comes back: that saves two wake-ups. */
enum lq_err offload_queue(struct offload *o, struct offload_task *t, struct lq_fault *fault) LQ_MUST_CHECK;
bool offload_start(struct offload *o);

#endif
