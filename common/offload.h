/* offload: one thread beside a loop, fed through a bounded queue; what would keep
 * the loop from its sockets (compute, large JSON) runs there.
 * A task belongs to the loop until offload_put(), to the thread until its `done`
 * is posted, then to the loop again. */
#ifndef LQ_COMMON_OFFLOAD_H
#define LQ_COMMON_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "common/loop.h"

struct offload;

struct offload_task {     /* first member of the user's struct */
    struct loop_msg done; /* done.fn runs on the loop when run() has returned; first member */
    struct offload_task *next;
    void (*run)(struct offload_task *t, void *arg); /* on the thread */
    size_t bytes;                                   /* what it holds while it waits */
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
size_t offload_waiting_n(struct offload *o, uint64_t *bytes);

#endif
