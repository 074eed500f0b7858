/* route: which shards own a layer: an immutable snapshot of the whole grid.
 * Every loop reads its own reference without a lock; a change of the grid builds a new
 * table, which each loop takes when it comes to it. A look-up is O(1) in layers and
 * shards.
 *   model --by_layer--> route (a run of layers with the same replicas) --> members */
#ifndef LQ_ROUTER_ROUTE_H
#define LQ_ROUTER_ROUTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/name_index.h"
#include "common/peer_stats.h"

enum {
    ROUTE_LAYERS_MAX = 65536, /* as a shard's /v1/stats may say: common/peer_stats.c */
    ROUTE_MAP_SHARDS_MAX = 1024,
    ROUTE_REPLICAS_MAX = 64, /* of one range of a static map */
    ROUTE_MODEL_CHARS = 128,
};
#define ROUTE_NONE UINT32_MAX

struct member;

struct route { /* a run of layers that the same shards own */
    uint32_t first, last;
    uint32_t replicas_n;
    uint32_t *replicas; /* indices into the table's members; the table's memory */
};

struct route_model {
    char id[ROUTE_MODEL_CHARS]; /* "": no shard of it has said yet */
    struct peer_stats stats;    /* what its shards agree on, wire the formats that all have; hidden 0: unknown yet */
    uint32_t mapped_n;          /* size of by_layer */
    uint32_t *by_layer;         /* -> routes, or ROUTE_NONE */
    struct route *routes;       /* by first, not overlapping */
    size_t routes_n;
    uint32_t *replicas; /* what the routes point into */
};

/* One range that one shard has, of one model. */
struct route_claim {
    uint32_t model, member; /* indices */
    uint32_t first, last;
};

struct route_table {
    atomic_uint refs;
    uint64_t generation;
    bool grid;               /* shards may join: a missing layer is a gap, not a mistake */
    struct member **members; /* one reference each; also those that get no requests */
    size_t members_n;
    struct route_model *models;
    size_t models_n;
    struct route_claim *claims; /* by member */
    size_t claims_n;
    struct name_index by_id;
};

/* Takes members (the array, and a reference each), claims, and models (the array; of each
 * id and stats are the caller's, the rest is made here), on failure too. LQ_NOMEM. */
enum lq_err route_table_new_take(struct member **members, size_t members_n, struct route_model *models,
                                 size_t models_n, struct route_claim *claims, size_t claims_n,
                                 struct route_table **out, struct lq_fault *fault) LQ_MUST_CHECK;
struct route_table *route_table_ref(struct route_table *t);
void route_table_unref(struct route_table *t); /* NULL is fine */

/* NULL: nobody owns it. */
static inline const struct route *route_find(const struct route_model *m, uint32_t layer)
{
    uint32_t at = layer < m->mapped_n ? m->by_layer[layer] : ROUTE_NONE;
    return at == ROUTE_NONE ? NULL : &m->routes[at];
}

/* The model of that id; id NULL or "": the only one. NULL: there is none, or several. */
const struct route_model *route_model_find(const struct route_table *t, const char *id);

/* ---- the static map of --shards; grammar: docs/protocol.md, 6.6 (route_map.c) ---- */

struct route_map {
    char **urls; /* distinct, without a trailing slash */
    size_t urls_n;
    struct route_claim *claims; /* model 0, member: index into urls; by first */
    size_t claims_n;
};

/* "0-8=http://a:1,9-17=http://b:2": same range again = a replica, partial overlap
 * refused. LQ_USAGE with the documented messages. `map` holds nothing on failure. */
enum lq_err route_map_parse(const char *text, struct route_map *map, struct lq_fault *fault) LQ_MUST_CHECK;
void route_map_release(struct route_map *map);

#endif
