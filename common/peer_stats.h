/* peer_stats: what a shard or a router says of itself in /v1/stats, as router and
 * client read it. The text comes from a peer: every field is range-checked. */
#ifndef LQ_COMMON_PEER_STATS_H
#define LQ_COMMON_PEER_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

struct peer_stats {
    char model[128], family[32], dtype[16];             /* "" where absent */
    uint32_t hidden;                                    /* > 0 */
    uint32_t layers, features, layer_first, layer_last; /* 0 where absent */
    bool wire[WIRE_FORMATS_N];                          /* f32 always: a LARQL server lists none, and reads that */
};

/* LQ_BAD_ANSWER: no JSON object, or no usable hidden_size. */
enum lq_err peer_stats_read(const char *text, size_t n, struct peer_stats *out, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
