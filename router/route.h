/* route: which shard owns a layer: the static map of --shards.
 * An immutable snapshot, read by every loop without a lock; a change builds a new
 * one and swaps the pointer. Grammar: docs/protocol.md, 6.6. */
#ifndef LQ_ROUTER_ROUTE_H
#define LQ_ROUTER_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum { ROUTE_SHARDS_MAX = 1024, ROUTE_REPLICAS_MAX = 64 };

struct route { /* one range of layers and who has it */
    uint32_t first, last;
    uint32_t replicas_n;
    uint32_t replicas[ROUTE_REPLICAS_MAX]; /* indices into urls */
};

struct route_table {
    struct route *routes; /* sorted by first, not overlapping */
    size_t routes_n;
    char **urls; /* distinct, without a trailing slash */
    size_t urls_n;
};

/* "0-8=http://a:1,9-17=http://b:2": same range again = a replica, partial overlap
 * refused. LQ_USAGE with the documented messages. `t` holds nothing on failure. */
enum lq_err route_table_parse(const char *map, struct route_table *t, struct lq_fault *fault) LQ_MUST_CHECK;
void route_table_release(struct route_table *t);

/* NULL: nobody owns it. */
const struct route *route_find(const struct route_table *t, uint32_t layer);

#endif
