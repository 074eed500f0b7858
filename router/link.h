/* link: one shard as one loop of the router sees it.
 * Why      : routing, health and stats agree on one state, so all read it here.
 * Owner    : struct router; thread: its loop only, no locks.
 * Life     : NEW -> UP <-> DOWN. UP: the last probe or request got an answer.
 *            A link that is DOWN is probed every second, one that is UP every ten;
 *            a layer's only owner is tried all the same. Times monotonic. */
#ifndef LQ_ROUTER_LINK_H
#define LQ_ROUTER_LINK_H

#include "common/peer_stats.h"
#include "router/router.h"

enum link_state { LINK_NEW, LINK_UP, LINK_DOWN, LINK_STATES_N };

struct link {
    struct router *router;
    enum link_state state;
    struct http_pool *pool;
    const char *url; /* the route table's */
    struct event *probe_ev;
    struct http_call *probe; /* the one under way */
    bool probed_once;
    char why[200];     /* of the last step to DOWN */
    double latency_us; /* moving average of whole answers */
    uint64_t answers_n;
    struct peer_stats stats; /* hidden 0: not known yet */
};

enum lq_err link_init(struct link *l, struct router *rt, const char *url, struct lq_fault *fault) LQ_MUST_CHECK;
void link_release(struct link *l);
const char *link_state_name(enum link_state s);

/* A request to it was answered (any status) after us, or failed in transport. */
void link_answered(struct link *l, uint64_t us);
void link_failed(struct link *l, const char *why);

#endif
