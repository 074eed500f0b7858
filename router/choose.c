/* choose: layers -> links. The rules of docs/protocol.md, 6.2 to 6.5. */
#include "router/link.h"

/* Lower is better: up before new before down, then fewer in flight, then faster. */
static bool better(const struct link *a, const struct link *b)
{
    static const unsigned rank[LINK_STATES_N] = {[LINK_UP] = 0, [LINK_NEW] = 1, [LINK_DOWN] = 2};
    enum link_state s = a->view->state, t = b->view->state; /* read once: another loop may change it */
    if (rank[s] != rank[t])
        return rank[s] < rank[t];
    uint32_t x = http_pool_inflight_n(a->pool), y = http_pool_inflight_n(b->pool);
    return x != y ? x < y : a->view->latency_us < b->view->latency_us;
}

static bool has_replica(const struct route *r, uint32_t link)
{
    for (uint32_t i = 0; i < r->replicas_n; i++)
        if (r->replicas[i] == link)
            return true;
    return false;
}

/* The best replica of the first layer's route that every other route has too. */
static struct link *common_link(struct router *rt, const uint32_t *layers, uint32_t layers_n,
                                const struct link *avoid)
{
    const struct route *first = route_find(rt->table, layers[0]);
    struct link *best = NULL;
    for (uint32_t i = 0; i < first->replicas_n; i++) {
        uint32_t at = first->replicas[i];
        bool all = true;
        for (uint32_t k = 1; k < layers_n && all; k++)
            all = has_replica(route_find(rt->table, layers[k]), at);
        struct link *l = &rt->links[at];
        if (all && (!best || best == avoid || (l != avoid && better(l, best))))
            best = l;
    }
    return best;
}

static struct link *best_of(struct router *rt, const struct route *r, const struct link *avoid)
{
    struct link *best = NULL;
    for (uint32_t i = 0; i < r->replicas_n; i++) {
        struct link *l = &rt->links[r->replicas[i]];
        if (!best || best == avoid || (l != avoid && better(l, best)))
            best = l;
    }
    return best;
}

enum lq_err flow_choose(struct router *rt, const uint32_t *layers, uint32_t layers_n, const struct link *avoid,
                        struct link **chosen, struct link **one, struct lq_fault *fault)
{
    for (uint32_t i = 0; i < layers_n; i++)
        if (!route_find(rt->table, layers[i]))
            return lq_fail(fault, LQ_BAD_LAYER, "layer %u has no owning shard in this router", layers[i]);
    *one = common_link(rt, layers, layers_n, avoid);
    for (uint32_t i = 0; i < layers_n && !*one; i++) {
        const struct route *r = route_find(rt->table, layers[i]);
        /* Layers of one route stay together, so that a shard gets one part. */
        chosen[i] = i > 0 && r == route_find(rt->table, layers[i - 1]) ? chosen[i - 1] : best_of(rt, r, avoid);
    }
    return LQ_OK;
}
