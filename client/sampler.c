/* sampler: see sampler.h. Generator: xoshiro256** 1.0 (Blackman, Vigna), seeded by
 * splitmix64; a dozen lines, and the same text for the same seed everywhere. */
#include "client/sampler.h"

#include <math.h>
#include <stdlib.h>

struct candidate {
    float logit;
    uint32_t id;
};

struct sampler {
    struct sampler_opts opts;
    size_t vocab_n;
    uint64_t state[4];
    struct candidate *list; /* vocab_n; NULL when greedy */
};

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static double next_unit(uint64_t s[4]) /* [0, 1) */
{
    uint64_t out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return (double)(out >> 11) * 0x1.0p-53;
}

enum lq_err sampler_new(const struct sampler_opts *o, size_t vocab_n, struct sampler **out, struct lq_fault *fault)
{
    if (!(o->temperature >= 0.0f) || !isfinite(o->temperature) || !(o->top_p > 0.0f && o->top_p <= 1.0f) ||
        vocab_n == 0)
        return lq_fail(fault, LQ_USAGE, "temperature %g, top-p %g: need temperature >= 0 and 0 < top-p <= 1",
                       (double)o->temperature, (double)o->top_p);
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    s->opts = *o;
    s->vocab_n = vocab_n;
    uint64_t seed = o->seed;
    for (int i = 0; i < 4; i++)
        s->state[i] = splitmix(&seed);
    if (o->temperature > 0.0f && !(s->list = malloc(vocab_n * sizeof *s->list))) {
        sampler_free(s);
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu candidates", vocab_n);
    }
    *out = s;
    return LQ_OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->list);
    free(s);
}

static uint32_t greedy(const float *logits, size_t n)
{
    uint32_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best] || (isnan(logits[best]) && !isnan(logits[i])))
            best = (uint32_t)i;
    return best;
}

static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

uint32_t sampler_pick(struct sampler *s, const float *logits)
{
    if (s->opts.temperature == 0.0f)
        return greedy(logits, s->vocab_n);
    size_t n = 0;
    for (size_t i = 0; i < s->vocab_n; i++)
        if (isfinite(logits[i]))
            s->list[n++] = (struct candidate){logits[i], (uint32_t)i};
    if (n == 0)
        return greedy(logits, s->vocab_n);
    qsort(s->list, n, sizeof *s->list, by_logit);
    if (s->opts.top_k > 0 && s->opts.top_k < n)
        n = s->opts.top_k;
    /* Weights of what is left; top-p keeps the shortest head that reaches the share. */
    double sum = 0.0, top = (double)s->list[0].logit;
    for (size_t i = 0; i < n; i++)
        sum += exp(((double)s->list[i].logit - top) / (double)s->opts.temperature);
    double head = 0.0;
    for (size_t i = 0; i < n; i++) {
        head += exp(((double)s->list[i].logit - top) / (double)s->opts.temperature);
        if (s->opts.top_p < 1.0f && head >= (double)s->opts.top_p * sum) {
            n = i + 1;
            sum = head;
        }
    }
    double mark = next_unit(s->state) * sum, seen = 0.0;
    for (size_t i = 0; i < n; i++) {
        seen += exp(((double)s->list[i].logit - top) / (double)s->opts.temperature);
        if (mark < seen)
            return s->list[i].id;
    }
    return s->list[n - 1].id;
}
