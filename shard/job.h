/* job: one walk-ffn request on its way through the compute path.
 * Owner : as an offload task. Exceptions: `gone` is written by the loop and read
 *         by the compute thread at any time; `req` is the loop's always. */
#ifndef LQ_SHARD_JOB_H
#define LQ_SHARD_JOB_H

#include <event2/buffer.h>
#include <stdatomic.h>

#include "common/offload.h"
#include "shard/shard.h"

struct job {
    struct offload_task task; /* first; task.next: the jobs of the same batch */
    struct shard *shard;
    struct http_req *req;          /* NULL once the client has left or been answered */
    struct event *deadline_ev;     /* answers 504 */
    _Atomic bool gone;             /* nobody waits any more */
    uint64_t deadline_us;          /* monotonic */
    struct http_front_visit visit; /* for the books; of a JSON body layers and rows come at its end */
    uint64_t queued_us;
    struct negotiated form; /* .answer becomes f32 where f16 would clip and the client takes both */
    bool may_fall_back;     /* so it may: `answer` has the room */
    struct wire_head head;  /* binary: views into body */
    size_t values_n;        /* binary: S * hidden, checked */
    struct evbuffer *body;  /* pulled up: one piece */
    const uint8_t *body_p;
    size_t body_n;
    /* in a batch */
    uint32_t batch_rows_n; /* of its first job: rows of all that have joined */
    uint32_t batch_row;    /* its own first row */
    bool again;            /* fell back with layers already encoded in f16: a second pass, alone */
    /* the outcome */
    uint8_t *answer; /* malloc'd; binary: by the loop, so that the compute path need not */
    size_t answer_n;
    const char *content_type;
    size_t saturated_n; /* values clipped in an f16 answer */
    bool fell_back;     /* f16 was asked for, f32 answered */
    uint64_t rows_n;
    uint32_t json_layer, json_layers_n, json_rows_n; /* what a JSON body asked for */
    uint32_t queue_us, compute_us, encode_us;        /* Server-Timing; of a batch: compute and encode of all of it */
    uint32_t row_us;       /* what a layer took, of a job of one row that ran alone; 0: it was none */
    struct lq_fault fault; /* code LQ_OK: answer is good */
};

/* Rows that run together at most: as many as have the bits of single ones (model/mat.h). */
enum { BATCH_ROWS_MAX = MAT_DOT_ROWS_MAX < 16 ? MAT_DOT_ROWS_MAX : 16 };

/* What the compute path owns (shard/work.h). One such path: an FFN layer is bound by
 * memory bandwidth, and a second job beside it would evict the first one's weights. */
struct work;

struct work *work_new(const struct shard *s, size_t threads_n, enum mat_activations activations,
                      struct lq_fault *fault); /* NULL: see fault */
void work_free(struct work *w);
struct compute *work_compute(struct work *w);

/* Makes a task of j, checked and with its deadline: run, joins. */
void work_prepare(struct job *j);

#endif
