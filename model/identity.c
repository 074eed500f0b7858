/* identity: see identity.h. */
#include "model/identity.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "model/ffn.h"
#include "model/hash_cache.h"
#include "model/pool.h"
#include "proto/bytes.h"

enum {
    PIECE_BYTES = 1 << 20,
    PROGRESS_US = 2000000,
    HEAD_BYTES_MAX = 4 + GGUF_NAME_BYTES_MAX + 8 + 8 * GGUF_DIMS_MAX
};

/* ---- one SHA-256 ------------------------------------------------------------------------- */

static enum lq_err refused(struct lq_fault *fault)
{
    return lq_fail(fault, LQ_INTERNAL, "OpenSSL computes no SHA-256 (out of memory, or switched off)");
}

enum lq_err identity_hash(const void *p, size_t n, struct hash256 *out, struct lq_fault *fault)
{
    return EVP_Digest(p, n, out->b, NULL, EVP_sha256(), NULL) == 1 ? LQ_OK : refused(fault);
}

/* A hash that is fed: begin, add..., end. After a refusal the rest does nothing. */
struct sum {
    EVP_MD_CTX *ctx;
    bool ok;
};

static void sum_add(struct sum *s, const void *p, size_t n)
{
    s->ok = s->ok && EVP_DigestUpdate(s->ctx, p, n) == 1;
}

static void sum_begin(struct sum *s, const char *tag)
{
    s->ctx = EVP_MD_CTX_new();
    s->ok = s->ctx && EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) == 1;
    sum_add(s, tag, strlen(tag));
}

static enum lq_err sum_end(struct sum *s, struct hash256 *out, struct lq_fault *fault)
{
    s->ok = s->ok && EVP_DigestFinal_ex(s->ctx, out->b, NULL) == 1;
    EVP_MD_CTX_free(s->ctx);
    return s->ok ? LQ_OK : refused(fault);
}

static void sum_add_head(struct sum *s, const struct gguf_tensor *t)
{
    uint8_t head[HEAD_BYTES_MAX], *p = head;
    size_t name_n = strlen(t->name);
    p = le32_put(p, (uint32_t)name_n);
    memcpy(p, t->name, name_n);
    p = le32_put(p + name_n, t->type);
    p = le32_put(p, t->dims_n);
    for (uint32_t d = 0; d < t->dims_n; d++) {
        p = le32_put(p, (uint32_t)t->dims[d]);
        p = le32_put(p, (uint32_t)(t->dims[d] >> 32));
    }
    sum_add(s, head, (size_t)(p - head));
}

/* ---- the model --------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct gguf_tensor *const *)a)->name, (*(const struct gguf_tensor *const *)b)->name);
}

enum lq_err identity_model(const struct gguf *g, struct hash256 *out, struct lq_fault *fault)
{
    if (gguf_model_hash(g)) {
        *out = *gguf_model_hash(g);
        return LQ_OK;
    }
    size_t n = gguf_tensors_n(g);
    const struct gguf_tensor **sorted = malloc((n + 1) * sizeof *sorted);
    if (!sorted)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = gguf_tensor_at(g, i);
    qsort(sorted, n, sizeof *sorted, by_name);
    struct sum s;
    sum_begin(&s, "larql-model-1\n");
    for (size_t i = 0; i < n; i++)
        sum_add_head(&s, sorted[i]);
    free(sorted);
    return sum_end(&s, out, fault);
}

/* ---- its layers -------------------------------------------------------------------------- */

struct item { /* one FFN tensor */
    const struct gguf_tensor *t;
    struct hash256 hash;
    bool known; /* by the cache */
};

struct work {
    struct item *items;
    size_t items_n;
    const _Atomic bool *stop;
    _Atomic bool failed;
    _Atomic uint64_t bytes, busy_us; /* so far; all threads' time together */
    uint64_t bytes_total, start_us, said_us;
};

static bool stopped(const struct work *w)
{
    return w->stop && atomic_load_explicit(w->stop, memory_order_relaxed);
}

/* Thread 0 is the caller, so one thread speaks. */
static void say_progress(struct work *w, size_t thread)
{
    uint64_t now = clock_us();
    if (thread != 0 || now - w->said_us < PROGRESS_US)
        return;
    w->said_us = now;
    log_info("identity_hashing bytes=%" PRIu64 " of=%" PRIu64, atomic_load(&w->bytes), w->bytes_total);
}

static void hash_items(void *arg, size_t first, size_t end, size_t thread)
{
    struct work *w = arg;
    uint64_t start_us = clock_us();
    for (size_t i = first; i < end && !stopped(w); i++) {
        struct item *it = &w->items[i];
        struct sum s;
        if (it->known)
            continue;
        sum_begin(&s, "");
        for (uint64_t at = 0; at < it->t->bytes && !stopped(w); at += PIECE_BYTES) {
            uint64_t left = it->t->bytes - at;
            size_t n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
            sum_add(&s, it->t->data + at, n);
            atomic_fetch_add_explicit(&w->bytes, n, memory_order_relaxed);
            say_progress(w, thread);
        }
        if (sum_end(&s, &it->hash, NULL))
            atomic_store(&w->failed, true);
    }
    atomic_fetch_add(&w->busy_us, clock_us() - start_us);
}

/* Names, and what the cache knows of them. */
static enum lq_err find_items(struct work *w, const struct gguf *g, uint32_t first, const struct hash_cache *cache,
                              struct lq_fault *fault)
{
    char name[FFN_NAME_BYTES];
    for (size_t i = 0; i < w->items_n; i++) {
        struct item *it = &w->items[i];
        ffn_tensor_name(first + (uint32_t)(i / FFN_TENSORS_N), i % FFN_TENSORS_N, name);
        it->t = gguf_tensor(g, name);
        if (!it->t || !it->t->data)
            return lq_fail(fault, LQ_BAD_MODEL, "%s: tensor '%s' is not there to be hashed", gguf_path(g), name);
        it->known = cache && hash_cache_find(cache, name, &it->hash);
        w->bytes_total += it->known ? 0 : it->t->bytes;
    }
    return LQ_OK;
}

static enum lq_err compute(struct work *w, struct pool *pool, struct hash_cache *cache, struct lq_fault *fault)
{
    if (w->bytes_total == 0)
        return LQ_OK;
    w->start_us = w->said_us = clock_us();
    if (pool)
        pool_run(pool, w->items_n, 1, hash_items, w);
    else
        hash_items(w, 0, w->items_n, 0);
    if (stopped(w))
        return lq_fail(fault, LQ_CANCELLED, "stopped while the model was hashed");
    if (atomic_load(&w->failed))
        return refused(fault);
    uint64_t us = clock_us() - w->start_us, busy_us = atomic_load(&w->busy_us);
    log_info("identity_hashed bytes=%" PRIu64 " ms=%" PRIu64 " threads=%zu mb_per_s_per_thread=%.0f", w->bytes_total,
             us / 1000, pool ? pool_threads_n(pool) : 1, (double)w->bytes_total / (double)(busy_us ? busy_us : 1));
    for (size_t i = 0; cache && i < w->items_n; i++)
        hash_cache_put(cache, w->items[i].t->name, &w->items[i].hash);
    if (cache)
        hash_cache_save(cache);
    return LQ_OK;
}

static enum lq_err sum_layers(const struct work *w, struct hash256 *layers, struct lq_fault *fault)
{
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < w->items_n && !rc; i += FFN_TENSORS_N) {
        struct sum s;
        sum_begin(&s, "larql-layer-1\n");
        for (size_t k = i; k < i + FFN_TENSORS_N; k++) {
            sum_add_head(&s, w->items[k].t);
            sum_add(&s, w->items[k].hash.b, HASH256_BYTES);
        }
        rc = sum_end(&s, &layers[i / FFN_TENSORS_N], fault);
    }
    return rc;
}

enum lq_err identity_read(const struct gguf *g, uint32_t first, uint32_t last, struct pool *pool,
                          const _Atomic bool *stop, struct identity *out, struct lq_fault *fault)
{
    size_t layers_n = (size_t)last - first + 1;
    struct work w = {.items_n = layers_n * FFN_TENSORS_N, .stop = stop};
    struct hash_cache *cache = hash_cache_open(g);
    *out = (struct identity){.layer_first = first, .layer_last = last};
    w.items = calloc(w.items_n, sizeof *w.items);
    out->layers = calloc(layers_n, sizeof *out->layers);
    enum lq_err rc = w.items && out->layers ? identity_model(g, &out->model, fault)
                                            : lq_fail(fault, LQ_NOMEM, "out of memory for %zu layers", layers_n);
    if (!rc)
        rc = find_items(&w, g, first, cache, fault);
    if (!rc)
        rc = compute(&w, pool, cache, fault);
    if (!rc)
        rc = sum_layers(&w, out->layers, fault);
    free(w.items);
    hash_cache_free(cache);
    if (rc)
        identity_release(out);
    return rc;
}

void identity_release(struct identity *id)
{
    free(id->layers);
    *id = (struct identity){0};
}
