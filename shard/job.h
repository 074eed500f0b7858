/* job: one walk-ffn request on its way through the compute thread.
 * Owner : as an offload task. Exceptions: `gone` is written by the loop and read
 *         by the compute thread at any time; `req` is the loop's always. */
#ifndef LQ_SHARD_JOB_H
#define LQ_SHARD_JOB_H

#include <event2/buffer.h>
#include <stdatomic.h>

#include "common/offload.h"
#include "shard/shard.h"

struct job {
    struct offload_task task; /* first */
    struct shard *shard;
    struct http_req *req;      /* NULL once the client has left or been answered */
    struct event *deadline_ev; /* answers 504 */
    _Atomic bool gone;         /* nobody waits any more */
    uint64_t deadline_us;      /* monotonic */
    struct negotiated form;
    struct wire_head head; /* binary: views into body */
    size_t values_n;       /* binary: S * hidden, checked */
    struct evbuffer *body; /* pulled up: one piece */
    const uint8_t *body_p;
    size_t body_n;
    /* the outcome */
    struct evbuffer *answer;
    const char *content_type;
    size_t saturated_n; /* values clipped in an f16 answer */
    bool fell_back;     /* f16 was asked for, f32 answered */
    uint64_t rows_n;
    struct lq_fault fault; /* code LQ_OK: answer is good */
};

/* What the compute thread owns. One such thread: an FFN layer is bound by memory
 * bandwidth, and a second job beside it would evict the first one's weights. */
struct work {
    struct compute *compute; /* its threads compute inside a layer */
    float *scratch;          /* ffn_scratch_floats() for FFN_CHUNK_ROWS rows */
};

enum lq_err work_init(struct work *w, const struct shard *s, size_t threads_n, struct lq_fault *fault) LQ_MUST_CHECK;
void work_release(struct work *w);
/* offload's run: takes a job to its outcome; arg is the struct work. */
void work_run(struct offload_task *t, void *work);

#endif
