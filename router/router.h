/* router: finds the shard of a layer and passes requests on.
 * Files : main.c options and wiring; route.c the map; link.c one shard as this
 *         loop sees it; flow.c one request, raw; fanout.c one JSON request over
 *         several shards; admin.c health, stats, models, topology, metrics.
 * Thread: a struct router is one loop and all that it owns: its connections, its
 *         links with their pools. Several loops (--threads) are several of these
 *         that share a struct crew: the route table, which nobody writes, what is
 *         known of each shard, and the metrics, both atomic. */
#ifndef LQ_ROUTER_ROUTER_H
#define LQ_ROUTER_ROUTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/http_front.h"
#include "common/loop.h"
#include "router/route.h"

enum {
    ROUTER_RETRY_BYTES_MAX = 1024 * 1024, /* a body up to here is kept, so that it can be sent again */
    ROUTER_WHOLE_ANSWER_MAX = 64 * 1024,  /* an answer up to here leaves only when whole */
};

struct link;
struct offload;

struct router_metrics {
    struct http_front_books books;
    struct metric *fan_outs, *retries, *cut_answers;
    struct metric *shards_up, *connections;
};

/* What all loops of this process share. Its arrays are made before the threads and freed
 * after them. */
struct crew {
    const struct route_table *table;
    struct router *routers;
    size_t routers_n;
    struct shard_view *views; /* of each of table->urls; link.h */
    atomic_size_t first_probes_left;
    void (*on_first_probes)(struct crew *crew); /* on the thread of whose probe was the last */
    struct metrics *metrics;
    uint64_t start_us;
};

struct router {
    struct crew *crew;
    const struct route_table *table;
    struct link *links; /* links_n = table->urls_n, same order */
    size_t links_n;
    pthread_t thread;
    bool has_thread; /* all but the first, which is main()'s */
    struct loop *loop;
    struct http_server *server;
    struct offload *json_thread; /* JSON over JSON_ON_LOOP_BYTES_MAX is parsed there */
    struct router_metrics m;     /* the crew's series; the books' served_n is this loop's */
    uint64_t body_max, json_max, deadline_ms;
    bool draining;
};

/* flow.c: POST /v1/walk-ffn, a page of the table in admin.c. */
void flow_start(void *router, struct http_req *r);

/* What both kinds of request need. */
/* The headers that a shard gets: Content-Type, all Accept lines, X-Request-Id and
 * X-Larql-Deadline-Ms with what is left. NULL: out of memory. */
struct http_headers *flow_shard_headers(struct http_req *r, uint64_t deadline_us);
/* The layer list -> links: of each route the least busy replica that is up; `avoid`
 * (may be NULL) only where there is no other. *one: the link that serves them all,
 * or NULL; then chosen[i] is the link of layers[i]. LQ_BAD_LAYER: "layer {l} has no
 * owning shard in this router". */
enum lq_err flow_choose(struct router *rt, const uint32_t *layers, uint32_t layers_n, const struct link *avoid,
                        struct link **chosen, struct link **one, struct lq_fault *fault) LQ_MUST_CHECK;
/* The answer of a shard's failure, in the words that every path uses:
 * `shard URL: reason`, status by code. */
enum lq_err flow_shard_fault(const struct link *l, enum lq_err rc, const struct lq_fault *cause,
                             struct lq_fault *out);
/* For a call that must end by then: at least 1 ms, since 0 means no limit. */
uint64_t flow_ms_left(uint64_t deadline_us);

/* A whole body, to the one link that serves its layers; takes r, drains body.
 * format WIRE_FORMATS_N: JSON. */
void flow_forward_whole(struct router *rt, struct http_req *r, struct evbuffer *body, const uint32_t *layers,
                        uint32_t layers_n, struct link *one, unsigned format);

/* fanout.c: a JSON body, whole; takes r, drains body. */
void fanout_start(struct router *rt, struct http_req *r, struct evbuffer *body);

/* admin.c: on_request of the server, by the table of pages. */
void admin_on_request(struct http_req *r, void *router);
/* Coverage in a line, for the service manager. */
void admin_status_text(const void *router, char *text, size_t text_n);
/* Registers them once, in the first router; the others copy its m. */
bool admin_metrics_init(struct crew *crew);

#endif
