/* layer_stats: what each served layer takes to compute, as heartbeats tell it.
 * Thread: one at a time notes (the compute path); any reads. No lock, no allocation
 *         after layer_stats_new(). */
#ifndef LQ_SHARD_LAYER_STATS_H
#define LQ_SHARD_LAYER_STATS_H

#include <stddef.h>
#include <stdint.h>

enum { LAYER_STATS_WINDOW = 100 };

struct layer_latency {
    uint32_t layer;
    float avg_ms; /* exponential mean, alpha 0.1 */
    float p99_ms; /* of the last LAYER_STATS_WINDOW: the nearest rank */
};

struct layer_stats;

/* Layers first..last. NULL: out of memory. */
struct layer_stats *layer_stats_new(uint32_t first, uint32_t last);
void layer_stats_free(struct layer_stats *s);

/* One batch of rows through one of those layers took us. */
void layer_stats_note(struct layer_stats *s, uint32_t layer, uint64_t us);

/* The layers that were ever computed, in order, at most max_n of them; how many. */
size_t layer_stats_snapshot(const struct layer_stats *s, struct layer_latency *out, size_t max_n);

#endif
