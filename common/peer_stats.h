/* peer_stats: what a shard or a router says of itself in /v1/stats, as router and
 * client read it. The text comes from a peer: every field is range-checked. */
#ifndef LQ_COMMON_PEER_STATS_H
#define LQ_COMMON_PEER_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/hash256.h"
#include "proto/wire.h"

struct peer_stats {
    char model[128], family[32], dtype[16];             /* "" where absent */
    uint32_t hidden;                                    /* > 0 */
    uint32_t layers, features, layer_first, layer_last; /* 0 where absent */
    bool wire[WIRE_FORMATS_N];                          /* f32 always: a LARQL server lists none, and reads that */
    /* What the weights are (model/identity.h). A LARQL server tells neither. */
    bool has_identity;
    struct hash256 identity;
    struct hash256 *layer_hashes; /* of layer_first..layer_last; NULL: not told; owned */
};

/* LQ_BAD_ANSWER: no JSON object, no usable hidden_size, or hashes that are none (64 hex
 * digits, as many as layers); nothing to release then. */
enum lq_err peer_stats_read(const char *text, size_t n, struct peer_stats *out, struct lq_fault *fault) LQ_MUST_CHECK;
void peer_stats_release(struct peer_stats *s); /* {0} is fine */

#endif
