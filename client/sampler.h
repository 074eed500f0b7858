/* sampler: logits -> the next token. temperature 0: greedy (lowest id on ties).
 * Otherwise temperature, then top-k, then top-p, then one draw of a seeded
 * xoshiro256** generator: the same seed gives the same text. */
#ifndef LQ_CLIENT_SAMPLER_H
#define LQ_CLIENT_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct sampler_opts {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: all */
    float top_p;       /* 1: all */
    uint64_t seed;
};
struct sampler;

enum lq_err sampler_new(const struct sampler_opts *o, size_t vocab_n, struct sampler **out,
                        struct lq_fault *fault) LQ_MUST_CHECK;
void sampler_free(struct sampler *s);
uint32_t sampler_pick(struct sampler *s, const float *logits);

#endif
