/* decoder: see decoder.h. One chunk of rows through all layers:
 *
 *   embed -> [norm -> q, k, v -> (bias) -> (qk-norm) -> RoPE -> attention -> o
 *             -> (post norm) -> + -> norm -> FFN of the caller -> (post norm) -> +]* -> norm -> lm_head
 */
#include "client/decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/attention.h"
#include "proto/bytes.h"
#include "proto/codec.h"

enum { LOGIT_ROWS_MAX = 8 /* positions whose logits are computed at once */ };

struct layer {
    struct mat q, k, v, o;
    /* norms and biases; NULL where the architecture has none; all in one arena */
    float *attn_norm, *post_attn_norm, *ffn_norm, *post_ffn_norm, *q_norm, *k_norm, *q_bias, *k_bias, *v_bias;
    float *k_cache, *v_cache; /* context_max x kv_dim */
};

struct decoder {
    const struct gguf *g;
    const struct arch *a;
    struct compute *c;
    decoder_ffn ffn;
    void *ffn_arg;
    uint32_t context_max, rows_max, pos;
    bool broken; /* a failed feed: the cache holds half a chunk */
    struct mat embed, head;
    float *final_norm;
    struct layer *layers;
    struct rope rope, rope_local;
    float *vectors;                               /* arena of all norms and biases */
    float *cache;                                 /* arena of all KV caches */
    float *x, *h, *q, *att, *o, *scores, *logits; /* scratch */
};

/* ---- building ------------------------------------------------------------------------------ */

static uint32_t q_dim(const struct arch *a)
{
    return a->heads_n * a->head_dim;
}

static uint32_t kv_dim(const struct arch *a)
{
    return a->kv_heads_n * a->head_dim;
}

static enum lq_err bind_mats(struct decoder *d, uint32_t i, struct lq_fault *fault)
{
    const struct arch *a = d->a;
    struct layer *l = &d->layers[i];
    const struct {
        const char *name;
        struct mat *to;
        uint32_t rows_n, cols_n;
    } mats[] = {{"attn_q", &l->q, q_dim(a), a->hidden_n},
                {"attn_k", &l->k, kv_dim(a), a->hidden_n},
                {"attn_v", &l->v, kv_dim(a), a->hidden_n},
                {"attn_output", &l->o, a->hidden_n, q_dim(a)}};
    enum lq_err rc = LQ_OK;
    for (size_t k = 0; k < sizeof mats / sizeof *mats && !rc; k++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", i, mats[k].name);
        rc = mat_bind(mats[k].to, d->g, name, mats[k].rows_n, mats[k].cols_n, fault);
    }
    return rc;
}

/* Loads one vector into the arena at *next. */
static enum lq_err load(struct decoder *d, uint32_t i, const char *what, size_t n, float **to, float **next,
                        struct lq_fault *fault)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", i, what);
    *to = *next;
    *next += n;
    return vec_load(d->g, name, n, *to, fault);
}

static enum lq_err load_vectors(struct decoder *d, uint32_t i, float **next, struct lq_fault *fault)
{
    const struct arch *a = d->a;
    struct layer *l = &d->layers[i];
    const struct {
        const char *name;
        float **to;
        size_t n;
        bool has;
    } vectors[] = {{"attn_norm.weight", &l->attn_norm, a->hidden_n, true},
                   {"ffn_norm.weight", &l->ffn_norm, a->hidden_n, true},
                   {"post_attention_norm.weight", &l->post_attn_norm, a->hidden_n, a->post_norms},
                   {"post_ffw_norm.weight", &l->post_ffn_norm, a->hidden_n, a->post_norms},
                   {"attn_q_norm.weight", &l->q_norm, a->head_dim, a->qk_norm},
                   {"attn_k_norm.weight", &l->k_norm, a->head_dim, a->qk_norm},
                   {"attn_q.bias", &l->q_bias, q_dim(a), a->attn_bias},
                   {"attn_k.bias", &l->k_bias, kv_dim(a), a->attn_bias},
                   {"attn_v.bias", &l->v_bias, kv_dim(a), a->attn_bias}};
    enum lq_err rc = LQ_OK;
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors && !rc; k++)
        if (vectors[k].has)
            rc = load(d, i, vectors[k].name, vectors[k].n, vectors[k].to, next, fault);
    return rc;
}

static enum lq_err bind_model(struct decoder *d, struct lq_fault *fault)
{
    const struct arch *a = d->a;
    size_t each = 4 * (size_t)a->hidden_n + 2 * (size_t)a->head_dim + q_dim(a) + 2 * (size_t)kv_dim(a);
    d->vectors = malloc((each * a->layers_n + a->hidden_n) * sizeof *d->vectors);
    d->layers = calloc(a->layers_n, sizeof *d->layers);
    if (!d->vectors || !d->layers)
        return lq_fail(fault, LQ_NOMEM, "out of memory for the norms of %u layers", a->layers_n);
    float *next = d->vectors;
    d->final_norm = next;
    next += a->hidden_n;
    enum lq_err rc = vec_load(d->g, "output_norm.weight", a->hidden_n, d->final_norm, fault);
    if (!rc)
        rc = mat_bind(&d->embed, d->g, "token_embd.weight", a->vocab_n, a->hidden_n, fault);
    if (!rc && gguf_tensor(d->g, "output.weight"))
        rc = mat_bind(&d->head, d->g, "output.weight", a->vocab_n, a->hidden_n, fault);
    else
        d->head = d->embed; /* tied */
    for (uint32_t i = 0; i < a->layers_n && !rc; i++) {
        rc = bind_mats(d, i, fault);
        if (!rc)
            rc = load_vectors(d, i, &next, fault);
    }
    return rc;
}

static enum lq_err make_cache(struct decoder *d, struct lq_fault *fault)
{
    size_t one, all, bytes;
    if (!size_mul(d->context_max, kv_dim(d->a), &one) || !size_mul(one, 2 * (size_t)d->a->layers_n, &all) ||
        !size_mul(all, sizeof(float), &bytes) || !(d->cache = malloc(bytes)))
        return lq_fail(fault, LQ_NOMEM,
                       "out of memory for a KV cache of %u tokens (%u layers x 2 x %u floats each): "
                       "choose a smaller --context",
                       d->context_max, d->a->layers_n, kv_dim(d->a));
    for (uint32_t i = 0; i < d->a->layers_n; i++) {
        d->layers[i].k_cache = d->cache + 2 * i * one;
        d->layers[i].v_cache = d->layers[i].k_cache + one;
    }
    return LQ_OK;
}

static enum lq_err make_scratch(struct decoder *d, struct lq_fault *fault)
{
    const struct arch *a = d->a;
    size_t rows = d->rows_max, wide = q_dim(a) > a->hidden_n ? q_dim(a) : a->hidden_n;
    const struct {
        float **to;
        size_t n;
    } parts[] = {{&d->x, rows * a->hidden_n},
                 {&d->h, rows * a->hidden_n},
                 {&d->o, rows * a->hidden_n},
                 {&d->q, rows * wide},
                 {&d->att, rows * wide},
                 {&d->scores, pool_threads_n(compute_pool(d->c)) * (size_t)d->context_max},
                 {&d->logits, LOGIT_ROWS_MAX * (size_t)a->vocab_n}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!(*parts[i].to = malloc(parts[i].n * sizeof(float))))
            return lq_fail(fault, LQ_NOMEM, "out of memory for %zu rows of scratch", rows);
    enum lq_err rc = rope_init(&d->rope, a, false, d->rows_max, fault);
    return rc ? rc : rope_init(&d->rope_local, a, true, d->rows_max, fault);
}

enum lq_err decoder_new(const struct gguf *g, const struct arch *a, struct compute *c, uint32_t context_max,
                        uint32_t rows_max, decoder_ffn ffn, void *ffn_arg, struct decoder **out,
                        struct lq_fault *fault)
{
    if (context_max == 0 || rows_max == 0)
        return lq_fail(fault, LQ_USAGE, "a context of %u tokens in chunks of %u: both must be at least 1",
                       context_max, rows_max);
    struct decoder *d = calloc(1, sizeof *d);
    if (!d)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    d->g = g;
    d->a = a;
    d->c = c;
    d->ffn = ffn;
    d->ffn_arg = ffn_arg;
    d->context_max = context_max;
    d->rows_max = rows_max < context_max ? rows_max : context_max;
    enum lq_err rc = bind_model(d, fault);
    if (!rc)
        rc = make_cache(d, fault);
    if (!rc)
        rc = make_scratch(d, fault);
    if (rc)
        decoder_free(d);
    else
        *out = d;
    return rc;
}

void decoder_free(struct decoder *d)
{
    if (!d)
        return;
    float *parts[] = {d->vectors, d->cache, d->x, d->h, d->q, d->att, d->o, d->scores, d->logits};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free(parts[i]);
    rope_release(&d->rope);
    rope_release(&d->rope_local);
    free(d->layers);
    free(d);
}

uint32_t decoder_pos(const struct decoder *d)
{
    return d->pos;
}

void decoder_reset(struct decoder *d)
{
    d->pos = 0;
    d->broken = false;
}

/* ---- one chunk -------------------------------------------------------------------------------- */

/* out = x / rms(x) * w, for rows of n values; x may be out. */
static void rms_norm(const struct decoder *d, const float *x, const float *w, size_t rows_n, size_t n, float *out)
{
    const struct kern_ops *k = compute_kern(d->c);
    for (size_t r = 0; r < rows_n; r++) {
        const float *in = x + r * n;
        float mean = k->dot_f32(in, in, n) / (float)n;
        k->scale_mul(in, 1.0f / sqrtf(mean + d->a->rms_eps), w, n, out + r * n);
    }
}

static void add_bias(float *x, const float *bias, size_t rows_n, size_t n)
{
    for (size_t r = 0; bias && r < rows_n; r++)
        for (size_t i = 0; i < n; i++)
            x[r * n + i] += bias[i];
}

/* Rows of Q and K whose heads come as halves, into the pairs that the converter would have made. */
static void pair_rows(const struct arch *a, float *x, size_t rows_n, size_t heads_n)
{
    size_t half = a->head_dim / 2;
    float head[ARCH_HEAD_DIM_MAX];
    for (size_t h = 0; a->qk_rows_split && h < rows_n * heads_n; h++, x += a->head_dim) {
        memcpy(head, x, a->head_dim * sizeof *x);
        for (size_t i = 0; i < half; i++) {
            x[2 * i] = head[i];
            x[2 * i + 1] = head[half + i];
        }
    }
}

static void attend(struct decoder *d, uint32_t i, uint32_t rows_n)
{
    const struct arch *a = d->a;
    struct layer *l = &d->layers[i];
    bool local = arch_layer_is_local(a, i);
    const struct rope *rope = local ? &d->rope_local : &d->rope;
    float *k = l->k_cache + (size_t)d->pos * kv_dim(a), *v = l->v_cache + (size_t)d->pos * kv_dim(a);
    rms_norm(d, d->x, l->attn_norm, rows_n, a->hidden_n, d->h);
    mat_mul(d->c, &l->q, d->h, rows_n, d->q);
    mat_mul(d->c, &l->k, d->h, rows_n, k);
    mat_mul(d->c, &l->v, d->h, rows_n, v);
    add_bias(d->q, l->q_bias, rows_n, q_dim(a));
    add_bias(k, l->k_bias, rows_n, kv_dim(a));
    add_bias(v, l->v_bias, rows_n, kv_dim(a));
    pair_rows(a, d->q, rows_n, a->heads_n);
    pair_rows(a, k, rows_n, a->kv_heads_n);
    if (a->qk_norm) {
        rms_norm(d, d->q, l->q_norm, (size_t)rows_n * a->heads_n, a->head_dim, d->q);
        rms_norm(d, k, l->k_norm, (size_t)rows_n * a->kv_heads_n, a->head_dim, k);
    }
    rope_turn(rope, d->q, rows_n, a->heads_n, a->head_dim);
    rope_turn(rope, k, rows_n, a->kv_heads_n, a->head_dim);
    struct attention at = {.arch = a,
                           .q = d->q,
                           .k = l->k_cache,
                           .v = l->v_cache,
                           .pos = d->pos,
                           .rows_n = rows_n,
                           .window = local ? a->window : 0,
                           .scores = d->scores,
                           .context_max = d->context_max,
                           .out = d->att};
    attention_run(&at, d->c);
    mat_mul(d->c, &l->o, d->att, rows_n, d->o);
    if (a->post_norms)
        rms_norm(d, d->o, l->post_attn_norm, rows_n, a->hidden_n, d->o);
    compute_kern(d->c)->axpy(1.0f, d->o, (size_t)rows_n * a->hidden_n, d->x);
}

static enum lq_err feed_forward(struct decoder *d, uint32_t i, uint32_t rows_n, struct lq_fault *fault)
{
    const struct arch *a = d->a;
    const struct layer *l = &d->layers[i];
    size_t n = (size_t)rows_n * a->hidden_n;
    rms_norm(d, d->x, l->ffn_norm, rows_n, a->hidden_n, d->h);
    size_t bad = codec_ref.finite(d->h, n);
    if (bad < n)
        return lq_fail(fault, LQ_NOT_FINITE, "layer %u: the hidden state is not finite at position %zu, index %zu", i,
                       d->pos + bad / a->hidden_n, bad % a->hidden_n);
    enum lq_err rc = d->ffn(d->ffn_arg, i, d->h, rows_n, d->o, fault);
    if (rc)
        return rc;
    if (a->post_norms)
        rms_norm(d, d->o, l->post_ffn_norm, rows_n, a->hidden_n, d->o);
    compute_kern(d->c)->axpy(1.0f, d->o, n, d->x);
    return LQ_OK;
}

static enum lq_err run_chunk(struct decoder *d, const uint32_t *ids, uint32_t rows_n, struct lq_fault *fault)
{
    const struct arch *a = d->a;
    for (uint32_t r = 0; r < rows_n; r++) {
        float *x = d->x + (size_t)r * a->hidden_n;
        mat_row(d->c, &d->embed, ids[r], x);
        for (uint32_t i = 0; i < a->hidden_n && a->embed_scale != 1.0f; i++)
            x[i] *= a->embed_scale;
    }
    rope_set(&d->rope, d->pos, rows_n);
    rope_set(&d->rope_local, d->pos, rows_n);
    enum lq_err rc = LQ_OK;
    for (uint32_t i = 0; i < a->layers_n && !rc; i++) {
        attend(d, i, rows_n);
        rc = feed_forward(d, i, rows_n, fault);
    }
    return rc;
}

/* Logits of rows first .. first + n - 1 of the chunk, n <= LOGIT_ROWS_MAX. */
static void head(struct decoder *d, uint32_t first, uint32_t n)
{
    const struct arch *a = d->a;
    rms_norm(d, d->x + (size_t)first * a->hidden_n, d->final_norm, n, a->hidden_n, d->h);
    mat_mul(d->c, &d->head, d->h, n, d->logits);
    for (size_t i = 0; a->final_softcap > 0.0f && i < (size_t)n * a->vocab_n; i++)
        d->logits[i] = a->final_softcap * tanhf(d->logits[i] / a->final_softcap);
}

enum lq_err decoder_feed(struct decoder *d, const uint32_t *ids, size_t ids_n, const float **logits,
                         decoder_on_logits on_logits, void *arg, struct lq_fault *fault)
{
    if (d->broken)
        return lq_fail(fault, LQ_USAGE, "a feed failed before: reset first");
    if (ids_n == 0 || ids_n > d->context_max - d->pos)
        return lq_fail(fault, LQ_USAGE, "%zu tokens after %u do not fit a context of %u", ids_n, d->pos,
                       d->context_max);
    for (size_t i = 0; i < ids_n; i++)
        if (ids[i] >= d->a->vocab_n)
            return lq_fail(fault, LQ_USAGE, "token %u is outside the vocabulary of %u", ids[i], d->a->vocab_n);
    for (size_t at = 0; at < ids_n;) {
        uint32_t n = ids_n - at < d->rows_max ? (uint32_t)(ids_n - at) : d->rows_max;
        enum lq_err rc = run_chunk(d, ids + at, n, fault);
        if (rc) {
            d->broken = true;
            return rc;
        }
        for (uint32_t r = 0; on_logits && r < n; r += LOGIT_ROWS_MAX) {
            uint32_t some = n - r < LOGIT_ROWS_MAX ? n - r : LOGIT_ROWS_MAX;
            head(d, r, some);
            for (uint32_t k = 0; k < some; k++)
                on_logits(arg, d->pos + r + k, d->logits + (size_t)k * d->a->vocab_n);
        }
        if (!on_logits && at + n == ids_n && logits)
            head(d, n - 1, 1);
        d->pos += n;
        at += n;
    }
    if (logits)
        *logits = on_logits ? NULL : d->logits;
    return LQ_OK;
}
