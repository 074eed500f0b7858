/* layer_stats: see layer_stats.h. */
#include "shard/layer_stats.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

static const float alpha = 0.1f;

struct window {
    _Atomic float avg_us;
    _Atomic uint64_t noted_n;
    _Atomic uint32_t us[LAYER_STATS_WINDOW]; /* a ring; noted_n % LAYER_STATS_WINDOW is the next */
};

struct layer_stats {
    uint32_t first, layers_n;
    struct window layer[];
};

struct layer_stats *layer_stats_new(uint32_t first, uint32_t last)
{
    uint32_t layers_n = last - first + 1;
    struct layer_stats *s = calloc(1, sizeof *s + layers_n * sizeof *s->layer);
    if (s) {
        s->first = first;
        s->layers_n = layers_n;
    }
    return s;
}

void layer_stats_free(struct layer_stats *s)
{
    free(s);
}

void layer_stats_note(struct layer_stats *s, uint32_t layer, uint64_t us)
{
    assert(layer >= s->first && layer - s->first < s->layers_n);
    struct window *w = &s->layer[layer - s->first];
    uint64_t n = atomic_load_explicit(&w->noted_n, memory_order_relaxed);
    float avg_us = atomic_load_explicit(&w->avg_us, memory_order_relaxed);
    atomic_store_explicit(&w->us[n % LAYER_STATS_WINDOW], us < UINT32_MAX ? (uint32_t)us : UINT32_MAX,
                          memory_order_relaxed);
    atomic_store_explicit(&w->avg_us, n == 0 ? (float)us : avg_us + alpha * ((float)us - avg_us),
                          memory_order_relaxed);
    atomic_store_explicit(&w->noted_n, n + 1, memory_order_release);
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static float p99_us(const struct window *w, uint64_t noted_n)
{
    uint32_t us[LAYER_STATS_WINDOW];
    size_t n = noted_n < LAYER_STATS_WINDOW ? (size_t)noted_n : LAYER_STATS_WINDOW;
    for (size_t i = 0; i < n; i++)
        us[i] = atomic_load_explicit(&w->us[i], memory_order_relaxed);
    qsort(us, n, sizeof *us, by_size);
    return (float)us[(99 * n + 99) / 100 - 1];
}

size_t layer_stats_snapshot(const struct layer_stats *s, struct layer_latency *out, size_t max_n)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->layers_n && n < max_n; i++) {
        const struct window *w = &s->layer[i];
        uint64_t noted_n = atomic_load_explicit(&w->noted_n, memory_order_acquire);
        if (noted_n == 0)
            continue;
        out[n++] = (struct layer_latency){.layer = s->first + i,
                                          .avg_ms = atomic_load_explicit(&w->avg_us, memory_order_relaxed) / 1000.0f,
                                          .p99_ms = p99_us(w, noted_n) / 1000.0f};
    }
    return n;
}
