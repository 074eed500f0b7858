/* attention: rotary positions and attention over the KV cache, for some rows of one
 * layer. Part of the decoder; no model file, no FFN here. */
#ifndef LQ_CLIENT_ATTENTION_H
#define LQ_CLIENT_ATTENTION_H

#include "model/arch.h"
#include "model/mat.h"

/* Angles of a RoPE: inverse frequencies once, cosines and sines per chunk of rows. */
struct rope {
    enum arch_rope kind;
    uint32_t dims;        /* values of a head that turn */
    double *inverse;      /* dims / 2, position scale included; owned */
    float *cosine, *sine; /* rows_max * dims / 2 each; owned */
};

enum lq_err rope_init(struct rope *r, const struct arch *a, bool local, uint32_t rows_max,
                      struct lq_fault *fault) LQ_MUST_CHECK;
void rope_release(struct rope *r);
/* Angles of positions pos .. pos + rows_n - 1. */
void rope_set(struct rope *r, uint32_t pos, uint32_t rows_n);
/* Turns `heads_n` heads of `head_dim` values in each of rows_n rows. */
void rope_turn(const struct rope *r, float *x, uint32_t rows_n, uint32_t heads_n, uint32_t head_dim);

struct attention {
    const struct arch *arch;
    const float *q;       /* rows_n x heads x head_dim, turned */
    const float *k, *v;   /* cache of the layer: position x kv_heads x head_dim */
    uint32_t pos, rows_n; /* the first row's position */
    uint32_t window;      /* 0: all */
    float *scores;        /* a thread's are scores + thread * context_max */
    uint32_t context_max;
    float *out; /* rows_n x heads x head_dim */
};

/* out[row, head] = softmax(q . k) v over the positions up to the row's own. The
 * result does not depend on the number of threads. */
void attention_run(struct attention *at, struct compute *c);

#endif
