/* router: finds the shards of a layer and passes requests on.
 * Files : main.c options and wiring
 *         the grid    member.c one shard as all loops see it; route.c who owns a layer, a
 *                     snapshot; route_map.c the static map; registry.c the members, and the
 *                     tables made of them; health.c probes; hot.c ranges with too much to
 *                     do; grid.c shards that join
 *         requests    flow.c one request; attempt.c its tries at shards; choose.c which
 *                     shard; fanout.c one JSON request over several; link.c a loop's
 *                     connections to one shard; budget.c how many retries are too many
 *         telling     admin.c health, stats, models, metrics; topology.c; event_log.c;
 *                     page.c with page.html
 * Thread: a struct router is one loop and all that it owns: its connections, its links
 *         with their pools, its reference to the route table. Several loops (--threads)
 *         are several of these that share a struct crew: members (atomic), events and
 *         metrics. The first loop, which runs on main()'s thread, also owns the registry:
 *         it alone changes who is in the grid, and hands each new table to all. */
#ifndef LQ_ROUTER_ROUTER_H
#define LQ_ROUTER_ROUTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/http_front.h"
#include "common/loop.h"
#include "router/budget.h"
#include "common/trust.h"
#include "router/route.h"

enum {
    ROUTER_RETRY_BYTES_MAX = 1024 * 1024, /* a body up to here is kept, so that it can be sent again */
    ROUTER_WHOLE_ANSWER_MAX = 64 * 1024,  /* an answer up to here leaves only when whole */
    ROUTER_TRIES_MAX = 4,                 /* of one request, hedges included */
};

struct event_log;
struct grid;
struct health;
struct link;
struct member;
struct offload;
struct registry;

struct router_metrics {
    struct http_front_books books;
    struct metric *fan_outs, *retries, *hedges, *hedge_wins, *budget_spent, *budget, *cut_answers;
    struct metric *ejections[3]; /* by a failed request, by a probe, by silence of its stream */
    struct metric *joins, *refusals, *leaves;
    struct metric *shards_up, *shards, *gap_layers, *hot_ranges, *connections;
};

/* What all loops of this process share. Made before the threads and freed after them. */
struct crew {
    struct router *routers;
    size_t routers_n;
    struct registry *registry; /* the first loop's; registry.h */
    struct health *health;     /* its own; health.h */
    struct grid *grid;         /* shards that join; NULL without --grid-port */
    struct event_log *events;
    struct retry_budget budget;
    struct metrics *metrics;
    struct trust trust; /* keys and certificates, of all loops */
    uint64_t start_us;
    bool hedge;
};

struct router {
    struct crew *crew;
    size_t index;                         /* in crew->routers */
    struct route_table *table;            /* a reference; never NULL once it runs */
    _Atomic(struct route_table *) next_table; /* handed over by the first loop, not yet taken */
    struct loop_msg table_msg, down_msg;
    atomic_bool table_posted, down_posted; /* the message is in the loop's list: it must not go in twice */
    TAILQ_HEAD(link_list, link) links;
    pthread_t thread;
    bool has_thread; /* all but the first, which is main()'s */
    struct loop *loop;
    struct http_server *server;
    struct offload *json_thread; /* JSON over JSON_ON_LOOP_BYTES_MAX is parsed there */
    struct router_metrics m;     /* the crew's series; the books' served_n is this loop's */
    uint64_t body_max, json_max, deadline_ms;
    uint64_t down_rounds; /* of link_tell_down() */
    bool telling;         /* it walks over the links */
    uint64_t random; /* state of choose.c's generator */
    bool draining;
};

/* flow.c: POST /v1/walk-ffn, a page of the table in admin.c. */
void flow_start(void *router, struct http_req *r);

/* What both kinds of request need. */

/* Who was asked already and failed: the others come first. By number, since who left may
 * be freed and its address somebody else's. */
struct tried {
    uint64_t serials[ROUTER_TRIES_MAX];
    uint32_t n;
};
/* The layer list -> members: of each route the better of two random replicas that are
 * up and were not tried; a replica that is down, or was tried, only where there is no
 * other. *one: the member that serves them all, or NULL; then chosen[i] serves layers[i].
 * model_id NULL or "": the only model. LQ_BAD_LAYER: "layer {l} has no owning shard in
 * this router"; LQ_NOT_READY: the grid lacks layers for now, which are named. Before it
 * fails it takes the loop's next table, if there is one: members live until the turn ends. */
enum lq_err flow_choose(struct router *rt, const char *model_id, const uint32_t *layers, uint32_t layers_n,
                        const struct tried *tried, struct member **chosen, struct member **one,
                        struct lq_fault *fault) LQ_MUST_CHECK;
bool tried_has(const struct tried *t, const struct member *m);
void tried_add(struct tried *t, const struct member *m);

/* The headers that a shard gets: Content-Type, all Accept lines, X-Request-Id and
 * X-Larql-Deadline-Ms with what is left. NULL: out of memory. */
struct http_headers *flow_shard_headers(struct http_req *r, uint64_t ms_left);
/* The answer of a shard's failure, in the words that every path uses:
 * `shard URL: reason`, status by code. */
enum lq_err flow_shard_fault(const struct member *m, enum lq_err rc, const struct lq_fault *cause,
                             struct lq_fault *out);
/* For a call that must end by then: at least 1 ms, since 0 means no limit. */
uint64_t flow_ms_left(uint64_t deadline_us);
/* What one try may take of it: half where another could follow. */
uint64_t flow_try_ms(uint64_t deadline_us, bool another);

/* A whole body, to the one member that serves its layers; takes r, drains body.
 * format WIRE_FORMATS_N: JSON. */
void flow_forward_whole(struct router *rt, struct http_req *r, struct evbuffer *body, const char *model_id,
                        const uint32_t *layers, uint32_t layers_n, struct member *one, unsigned format);

/* fanout.c: a JSON body, whole; takes r, drains body. */
void fanout_start(struct router *rt, struct http_req *r, struct evbuffer *body);

/* admin.c: on_request of the server, by the table of pages. */
void admin_on_request(struct http_req *r, void *router);
/* Coverage in a line, for the service manager. */
void admin_status_text(const void *router, char *text, size_t text_n);
/* Registers them once, in the first router; the others copy its m. */
bool admin_metrics_init(struct crew *crew);

/* page.c: GET /. */
void page_answer(void *router, struct http_req *r);

/* topology.c: GET /v1/topology. */
void topology_answer(void *router, struct http_req *r);
/* Layers of that model (of all shards' claims) without an owner that is up or new. */
uint64_t topology_gap_layers(const struct route_table *t, const struct route_model *m);

#endif
