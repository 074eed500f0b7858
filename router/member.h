/* member: one shard of the grid as all loops see it.
 * Why      : what one loop learns of a shard (it failed, it is slow) every loop knows at
 *            once, and a request keeps it alive while the grid changes under it.
 * Owner    : counted: route tables and links hold it. Any thread reads; who writes which
 *            field is said beside it.
 * Life     : health NEW -> UP <-> DOWN. UP: the last probe or request got an answer.
 *            standing SERVING, or DRAINING or REFUSED: then nothing new goes there.
 * Units    : times in us, monotonic. */
#ifndef LQ_ROUTER_MEMBER_H
#define LQ_ROUTER_MEMBER_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/peer_stats.h"

struct event_log;
struct health;
struct http_call;
struct http_pool;
struct link;

enum member_health { MEMBER_NEW, MEMBER_UP, MEMBER_DOWN, MEMBER_HEALTHS_N };
enum member_standing { MEMBER_SERVING, MEMBER_JOINING, MEMBER_DRAINING, MEMBER_REFUSED, MEMBER_STANDINGS_N };

/* What a joined shard says of itself in each heartbeat. */
struct member_load {
    float cpu_pct, requests_per_s;
    uint64_t ram_used_bytes;
    uint32_t in_flight;
};

struct member {
    atomic_uint refs;
    struct event_log *events;
    uint64_t serial; /* of this process, from 1: no other member has or had it */
    char *url, id[48];
    bool joined; /* else of the static map */
    /* any thread */
    _Atomic enum member_health health;
    _Atomic enum member_standing standing; /* written by the main loop alone */
    atomic_uint inflight_n;
    _Atomic double latency_us, p95_us; /* moving estimates of whole answers; a lost update is no loss */
    _Atomic uint64_t answers_n, failures_n, last_answer_us;
    _Atomic double busy; /* moving mean of inflight_n, the first loop's to write: hot.h */
    atomic_bool checked; /* its stats agree with its peers'; written by the main loop alone */
    _Atomic uint64_t busy_until_us; /* it said 503: others first until then */
    _Atomic uint64_t probe_at_us, probed_us; /* the next probe, and the last */
    pthread_mutex_t mu;             /* guards these two alone */
    char why[200];                  /* of the last step to DOWN, DRAINING or REFUSED */
    struct member_load load;
    /* the main loop alone: registry.c, health.c */
    struct peer_stats stats; /* hidden 0: not known yet */
    struct health *health_of;
    struct http_pool *probe_pool;
    struct http_call *probe;
    int probe_status;
    bool probed_once, left;
    void (*on_probed)(void *arg, struct member *m, bool again, const char *why); /* health.h */
    void *probed_arg;
    /* each loop its own one */
    struct link *links[];
};

/* One reference; links_n: loops of this process. NULL: out of memory. */
struct member *member_new(const char *url, const char *id, bool joined, size_t links_n, struct event_log *events);
struct member *member_ref(struct member *m);
void member_unref(struct member *m); /* NULL is fine */

const char *member_health_name(enum member_health h);
/* What /v1/topology calls its state: health, or its standing when that is not SERVING. */
const char *member_state_name(const struct member *m);
/* The reason of its state, into a buffer. */
void member_why(struct member *m, char *buf, size_t buf_n);

/* The only places that assign health and standing; each step is logged once with its
 * reason and becomes an event; why "": the caller does. True: it was a step. */
bool member_set_health(struct member *m, enum member_health to, const char *why);
bool member_set_standing(struct member *m, enum member_standing to, const char *why);

/* A whole answer of any status came after us. */
void member_answered(struct member *m, uint64_t us);

/* Lower is better: what a choice of two compares. Own requests in flight, plus this
 * one, times the moving mean of an answer. */
double member_cost(const struct member *m);

#endif
