/* choose: layers -> members. The rules of docs/protocol.md, 6.2 to 6.5. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "router/health.h"
#include "router/link.h"

/* FALLBACK: of the static map, where shards can join. NEVER also: one that was not compared
 * yet with those of its model that are known, since it may be another model. */
enum { RANK_UP, RANK_FALLBACK, RANK_BUSY, RANK_DOWN, RANK_TRIED, RANK_NEVER };

bool tried_has(const struct tried *t, const struct member *m)
{
    for (uint32_t i = 0; t && i < t->n; i++)
        if (t->serials[i] == m->serial)
            return true;
    return false;
}

void tried_add(struct tried *t, const struct member *m)
{
    assert(t->n < ROUTER_TRIES_MAX);
    t->serials[t->n++] = m->serial;
}

/* xorshift64*: who of two is asked needs no better. */
static uint32_t random_below(struct router *rt, uint32_t n)
{
    uint64_t x = rt->random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    rt->random = x;
    return (uint32_t)((x * 2685821657736338717u >> 32) * n >> 32);
}

struct draw {
    const struct route_table *table;
    const struct route_model *model;
    const struct tried *tried;
};

static unsigned rank_of(const struct draw *d, const struct member *m)
{
    if (m->standing != MEMBER_SERVING || (!m->checked && d->model->stats.hidden))
        return RANK_NEVER;
    if (tried_has(d->tried, m))
        return RANK_TRIED;
    if (m->health != MEMBER_UP)
        return RANK_DOWN;
    if (m->busy_until_us && m->busy_until_us > clock_us())
        return RANK_BUSY;
    return d->table->grid && !m->joined ? RANK_FALLBACK : RANK_UP;
}

/* Of those that are in every route: routes[0]'s alone when routes_n is 1. */
static bool in_all(const struct route *const *routes, uint32_t routes_n, uint32_t member)
{
    for (uint32_t k = 1; k < routes_n; k++) {
        bool has = false;
        for (uint32_t i = 0; i < routes[k]->replicas_n && !has; i++)
            has = routes[k]->replicas[i] == member;
        if (!has)
            return false;
    }
    return true;
}

/* The cheaper of two random ones that are up; where one of them is not, the best of all. */
static struct member *pick(struct router *rt, const struct draw *d, const struct route *const *routes,
                           uint32_t routes_n)
{
    const struct route *r = routes[0];
    struct member **members = rt->table->members;
    if (routes_n == 1) {
        /* Two different ones: of a pair the cheaper, always, so that one that stands still
         * (and is not yet found out) does not collect the requests of every client. */
        uint32_t n = r->replicas_n, at = random_below(rt, n), other = n > 1 ? at + 1 + random_below(rt, n - 1) : at;
        struct member *a = members[r->replicas[at]], *b = members[r->replicas[other < n ? other : other - n]];
        if (rank_of(d, a) == RANK_UP && rank_of(d, b) == RANK_UP)
            return member_cost(b) < member_cost(a) ? b : a;
    }
    struct member *best = NULL;
    unsigned best_rank = RANK_NEVER;
    uint32_t from = random_below(rt, r->replicas_n); /* among equals not always the first */
    for (uint32_t i = 0; i < r->replicas_n; i++) {
        uint32_t at = r->replicas[(from + i) % r->replicas_n];
        struct member *m = members[at];
        unsigned rank = rank_of(d, m);
        if (rank > best_rank || rank == RANK_NEVER || !in_all(routes, routes_n, at))
            continue;
        if (rank < best_rank || member_cost(m) < member_cost(best))
            best = m, best_rank = rank;
    }
    return best;
}

/* "layers 3-5, 9 of model 'x'" of those asked for that nobody has. */
static enum lq_err gap(const struct route_table *t, const struct route_model *m, const uint32_t *layers,
                       uint32_t layers_n, struct lq_fault *fault)
{
    char list[256];
    size_t n = 0;
    for (uint32_t i = 0; i < layers_n && n < sizeof list - 32; i++) {
        if (route_find(m, layers[i]))
            continue;
        if (!t->grid)
            return lq_fail(fault, LQ_BAD_LAYER, "layer %u has no owning shard in this router", layers[i]);
        if (m->stats.layers && layers[i] >= m->stats.layers)
            return lq_fail(fault, LQ_BAD_LAYER, "layer %u out of range (num_layers = %u)", layers[i],
                           m->stats.layers);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%u", n ? ", " : "", layers[i]);
    }
    return lq_fail(fault, LQ_NOT_READY, "no shard serves layers %s of model '%s' now", list, m->id);
}

/* Its shards are there and none may be asked: why. One that never answered is probed now. */
static enum lq_err nobody(struct router *rt, const struct route_model *m, const struct route *r, uint32_t layer,
                          struct lq_fault *fault)
{
    char why[sizeof rt->table->members[0]->why];
    for (uint32_t i = 0; i < r->replicas_n; i++) {
        struct member *x = rt->table->members[r->replicas[i]];
        if (x->standing != MEMBER_SERVING || x->health != MEMBER_DOWN)
            continue;
        health_suspect(rt->crew, x);
        member_why(x, why, sizeof why);
        return lq_fail(fault, LQ_SHARD_DOWN, "layer %u: shard %s: %s", layer, x->url, why);
    }
    return lq_fail(fault, LQ_NOT_READY,
                   "every shard of layers %u-%u of model '%s' is leaving or refused; see /v1/topology", r->first,
                   r->last, m->id);
}

static const struct route_model *model_of(const struct route_table *t, const char *id, struct lq_fault *fault)
{
    const struct route_model *m = route_model_find(t, id);
    if (!m && !t->grid && t->models_n == 1) /* a static map serves one model, whatever it is called */
        m = &t->models[0];
    if (m)
        return m;
    char list[300] = "";
    for (size_t i = 0, n = 0; i < t->models_n && n < sizeof list - ROUTE_MODEL_CHARS - 8; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s'%s'", i ? ", " : "", t->models[i].id);
    if (t->models_n == 0)
        (void)lq_fail(fault, LQ_NOT_READY, "no shard has joined this grid yet");
    else if (id && *id)
        (void)lq_fail(fault, LQ_NO_MODEL, "model '%.128s' is not in this grid (it has %s)", id, list);
    else
        (void)lq_fail(fault, LQ_BAD_BODY,
                      "this grid has several models (%s): name one, in JSON as model_id, else in the header "
                      "X-Larql-Model",
                      list);
    return NULL;
}

static enum lq_err choose(struct router *rt, const char *model_id, const uint32_t *layers, uint32_t layers_n,
                          const struct tried *tried, struct member **chosen, struct member **one,
                          struct lq_fault *fault)
{
    const struct route_model *m = model_of(rt->table, model_id, fault);
    const struct route *routes[WIRE_LAYERS_MAX];
    uint32_t routes_n = 0;
    if (!m)
        return fault->code;
    assert(layers_n > 0);
    for (uint32_t i = 0; i < layers_n; i++) {
        const struct route *r = route_find(m, layers[i]);
        if (!r)
            return gap(rt->table, m, layers, layers_n, fault);
        bool seen = false;
        for (uint32_t k = 0; k < routes_n && !seen; k++)
            seen = routes[k] == r;
        if (!seen)
            routes[routes_n++] = r;
    }
    const struct draw d = {rt->table, m, tried};
    *one = pick(rt, &d, routes, routes_n);
    for (uint32_t k = 0; k < routes_n && !*one; k++) {
        /* Layers of one route stay together, so that a shard gets one part. */
        struct member *best = pick(rt, &d, &routes[k], 1);
        for (uint32_t i = 0; i < layers_n; i++) {
            if (route_find(m, layers[i]) != routes[k])
                continue;
            if (!best)
                return nobody(rt, m, routes[k], layers[i], fault);
            chosen[i] = best;
        }
    }
    return LQ_OK;
}

enum lq_err flow_choose(struct router *rt, const char *model_id, const uint32_t *layers, uint32_t layers_n,
                        const struct tried *tried, struct member **chosen, struct member **one,
                        struct lq_fault *fault)
{
    enum lq_err rc = choose(rt, model_id, layers, layers_n, tried, chosen, one, fault);
    /* Members change at once, tables when their loop comes to it: who left may have been
     * followed by somebody that only the next table has. */
    if (rc && link_take_table(rt))
        rc = choose(rt, model_id, layers, layers_n, tried, chosen, one, fault);
    return rc;
}
