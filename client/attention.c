/* attention: see attention.h. */
#include "client/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum lq_err rope_init(struct rope *r, const struct arch *a, bool local, uint32_t rows_max, struct lq_fault *fault)
{
    uint32_t half = a->rope_dims / 2;
    *r = (struct rope){.kind = a->rope, .dims = a->rope_dims};
    r->inverse = malloc(half * sizeof *r->inverse);
    r->cosine = malloc((size_t)rows_max * half * sizeof *r->cosine);
    r->sine = malloc((size_t)rows_max * half * sizeof *r->sine);
    if (!r->inverse || !r->cosine || !r->sine) {
        rope_release(r);
        return lq_fail(fault, LQ_NOMEM, "out of memory for the rotary angles of %u rows", rows_max);
    }
    /* Linear scaling and llama 3's divisors belong to the global RoPE alone. */
    double base = (double)(local ? a->rope_base_local : a->rope_base), scale = local ? 1.0 : (double)a->rope_scale;
    for (uint32_t i = 0; i < half; i++) {
        r->inverse[i] = scale * pow(base, -2.0 * i / a->rope_dims);
        if (a->rope_factors && !local)
            r->inverse[i] /= (double)a->rope_factors[i];
    }
    return LQ_OK;
}

void rope_release(struct rope *r)
{
    free(r->inverse);
    free(r->cosine);
    free(r->sine);
    *r = (struct rope){0};
}

void rope_set(struct rope *r, uint32_t pos, uint32_t rows_n)
{
    uint32_t half = r->dims / 2;
    for (uint32_t row = 0; row < rows_n; row++) {
        for (uint32_t i = 0; i < half; i++) {
            double angle = (double)(pos + row) * r->inverse[i];
            r->cosine[(size_t)row * half + i] = (float)cos(angle);
            r->sine[(size_t)row * half + i] = (float)sin(angle);
        }
    }
}

void rope_turn(const struct rope *r, float *x, uint32_t rows_n, uint32_t heads_n, uint32_t head_dim)
{
    uint32_t half = r->dims / 2;
    uint32_t step = r->kind == ARCH_ROPE_PAIRS ? 2 : 1, apart = r->kind == ARCH_ROPE_PAIRS ? 1 : half;
    for (uint32_t row = 0; row < rows_n; row++) {
        const float *c = r->cosine + (size_t)row * half, *s = r->sine + (size_t)row * half;
        for (uint32_t h = 0; h < heads_n; h++, x += head_dim) {
            for (uint32_t i = 0; i < half; i++) {
                float a = x[i * step], b = x[i * step + apart];
                x[i * step] = a * c[i] - b * s[i];
                x[i * step + apart] = a * s[i] + b * c[i];
            }
        }
    }
}

static void softmax(float *x, size_t n)
{
    float top = x[0], sum = 0.0f;
    for (size_t i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - top);
        sum += x[i];
    }
    for (size_t i = 0; i < n; i++)
        x[i] /= sum;
}

struct job {
    const struct attention *at;
    const struct kern_ops *kern;
};

/* One item is one head of one row. */
static void run_heads(void *arg, size_t first, size_t end, size_t thread)
{
    const struct job *j = arg;
    const struct attention *at = j->at;
    const struct arch *a = at->arch;
    size_t dim = a->head_dim, kv_dim = (size_t)a->kv_heads_n * dim, share = a->heads_n / a->kv_heads_n;
    float *scores = at->scores + thread * at->context_max;
    for (size_t item = first; item < end; item++) {
        size_t row = item / a->heads_n, head = item % a->heads_n, pos = at->pos + row;
        size_t begin = at->window && pos + 1 > at->window ? pos + 1 - at->window : 0, n = pos + 1 - begin;
        const float *q = at->q + item * dim, *k = at->k + begin * kv_dim + head / share * dim;
        const float *v = at->v + begin * kv_dim + head / share * dim;
        float *out = at->out + item * dim;
        for (size_t t = 0; t < n; t++)
            scores[t] = j->kern->dot_f32(q, k + t * kv_dim, dim) * a->attn_scale;
        softmax(scores, n);
        memset(out, 0, dim * sizeof *out);
        for (size_t t = 0; t < n; t++)
            j->kern->axpy(scores[t], v + t * kv_dim, dim, out);
    }
}

void attention_run(struct attention *at, struct compute *c)
{
    struct job j = {at, compute_kern(c)};
    pool_run(compute_pool(c), (size_t)at->rows_n * at->arch->heads_n, 1, run_heads, &j);
}
