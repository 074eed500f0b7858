/* shard: a range of a model's FFN layers, served over HTTP.
 * Files : options.c, main.c wiring; flow.c one request on the loop; work.c the
 *         same request, and others beside it, on the compute path (common/offload
 *         between them), work_json.c its JSON form; admin.c health, stats, models, metrics;
 *         load.c, layer_stats.c how busy it is, for heartbeats.
 * Thread: everything here belongs to the loop thread, except what a comment
 *         gives to the compute thread. Model, ffn and options are read-only. */
#ifndef LQ_SHARD_SHARD_H
#define LQ_SHARD_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/http_front.h"
#include "common/loop.h"
#include "common/trust.h"
#include "model/arch.h"
#include "model/ffn.h"
#include "model/identity.h"
#include "proto/codec.h"
#include "proto/negotiate.h"
#include "shard/layer_stats.h"
#include "shard/load.h"

struct join;
struct offload;
struct work;

enum { BATCH_CLASSES_N = 5 };
struct shard_metrics {
    struct http_front_books books;
    struct metric *compute_seconds;          /* of a batch, decode and encode included */
    struct metric *batches[BATCH_CLASSES_N]; /* of 1, 2, 3-4, 5-8, 9-16 requests */
    struct metric *batch_rows;
    struct metric *inline_jobs; /* run by the loop itself */
    struct metric *rows;
    struct metric *saturated, *f32_fallbacks, *not_finite, *deadline;
    /* gauges, set when printed */
    struct metric *busy, *queue_jobs, *queue_bytes, *connections, *in_flight, *per_second, *cpu, *resident;
};

struct shard {
    /* what it serves */
    const char *model_path, *model_id;
    struct gguf *gguf;
    struct arch arch;
    struct ffn *ffn;
    struct identity identity; /* of the served layers */
    uint32_t layer_first, layer_last;
    struct codec_ops codec;
    const char *kernels; /* compute_describe() of the compute thread */
    /* limits and switches */
    struct wire_switches wire;
    uint64_t body_max, json_max, answer_max, deadline_ms;
    uint32_t batch_rows_max; /* 1: every request alone */
    bool serve_model;        /* GET /v1/model/file */
    /* running */
    struct loop *loop;
    struct trust trust;
    struct http_server *server;
    struct join *join; /* NULL: no router to tell */
    struct work *work; /* the compute path's */
    struct offload *queue;
    struct event *turn_ev; /* the end of a turn in which jobs were queued */
    uint32_t row_us;       /* what one row of a layer takes, a running mean; 0: not known yet */
    struct metrics *metrics;
    struct shard_metrics m;
    struct load_meter load;
    struct layer_stats *layer_stats; /* noted by the compute path */
    uint64_t start_us;
    bool draining;
    uint32_t downloads_n; /* of the model file, under way */
};

/* flow.c: POST /v1/walk-ffn, a page of the table in admin.c. */
void flow_start(void *shard, struct http_req *r);
void flow_on_turn_end(evutil_socket_t fd, short what, void *shard); /* turn_ev's */

/* model_file.c: GET /v1/model/file, the bytes of the model file that are held, by ranges. */
void model_file_start(void *shard, struct http_req *r);

/* admin.c: on_request of the server, by the table of pages. */
void admin_on_request(struct http_req *r, void *shard);
bool admin_metrics_init(struct shard *s);
#endif
