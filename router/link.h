/* link: one shard as one loop of the router sees it, and the view that all loops share.
 * Why      : routing, health and stats agree on one state, so all read it here.
 * Owner    : struct router; thread: its loop only. The view: struct crew, any thread.
 * Life     : NEW -> UP <-> DOWN. UP: the last probe or request got an answer.
 *            A link that is DOWN is probed every second, one that is UP every ten;
 *            a layer's only owner is tried all the same. Times monotonic. */
#ifndef LQ_ROUTER_LINK_H
#define LQ_ROUTER_LINK_H

#include "common/peer_stats.h"
#include "router/router.h"

enum link_state { LINK_NEW, LINK_UP, LINK_DOWN, LINK_STATES_N };

/* What the loops know together of one shard: a failure that one of them sees is every
 * one's, and /v1/topology tells the same whichever loop answers. Any thread. */
struct shard_view {
    _Atomic enum link_state state;
    _Atomic double latency_us; /* moving average of whole answers; an update lost between two loops is no loss */
    _Atomic uint64_t answers_n;
    pthread_mutex_t mu; /* guards why alone */
    char why[200];      /* of the last step to DOWN */
};

struct link {
    struct router *router;
    struct shard_view *view;
    struct http_pool *pool;
    const char *url; /* the route table's */
    struct event *probe_ev;
    struct http_call *probe; /* the one under way */
    int probe_status;
    bool probed_once;
    struct peer_stats stats; /* hidden 0: not known yet */
};

enum lq_err link_init(struct link *l, struct router *rt, const char *url, struct lq_fault *fault) LQ_MUST_CHECK;
void link_release(struct link *l);
void shard_view_init(struct shard_view *v);
void shard_view_release(struct shard_view *v);
const char *link_state_name(enum link_state s);

/* A request to it was answered (any status) after us, or failed in transport. */
void link_answered(struct link *l, uint64_t us);
void link_failed(struct link *l, const char *why);
/* Did the shard refuse this router's key? That is not the client's error: LQ_SHARD_DOWN. */
bool link_refuses_key(int status, struct lq_fault *fault);

#endif
