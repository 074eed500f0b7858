/* kern_q: dot products of quantised weights with activations of 8 or 16 bit, in integers.
 * An activation row is cut into blocks of 32: x ~ d * q, q one signed digit of 8 bit, or
 * two (q = 128 hi + lo). Integer sums are exact, and the order of what is rounded is part
 * of the contract, so every form on every CPU gives the same bits (ADR 0011):
 *
 *   a group is 8 blocks (256 values); acc[j], j = 0..7, takes block j of every group:
 *     acc[j] = fma(float(sum u q), wd * d, acc[j])     u: the weight's unsigned quant
 *     acc[j] = fma(-wm, s, acc[j])                     w = wd * u - wm, s = d * sum q
 *   Q6_K, whose scales are per 16 values: first half, second half, their wm the same way;
 *   the result is ((acc0 + acc4) + (acc2 + acc6)) + ((acc1 + acc5) + (acc3 + acc7)).
 *
 * A row may end inside a group: its missing blocks add nothing. A result depends on its own
 * two rows alone, never on how many are computed at once. Nothing allocates. */
#ifndef LQ_MODEL_KERN_Q_H
#define LQ_MODEL_KERN_Q_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/quant.h"

enum {
    KERN_Q_GROUP = 256,
    KERN_Q_BLOCK = 32,
    KERN_Q_BLOCKS = 8,
    KERN_Q_ROWS_MAX = 16,  /* activation rows of one dot */
    KERN_Q_TILE_ROWS = 16, /* weight rows of one tile */
    KERN_Q_TILE_X = 32,    /* activation rows of one tile */
};

/* 256 activations. */
struct kern_q_x {
    _Alignas(64) int8_t hi[KERN_Q_GROUP];
    int8_t lo[KERN_Q_GROUP]; /* with two digits */
    float d[KERN_Q_BLOCKS], s[KERN_Q_BLOCKS];
    float s_half[2][KERN_Q_BLOCKS]; /* s of the first and of the second 16 values */
};

/* Groups of a row of n values. */
static inline size_t kern_q_groups(size_t n)
{
    return (n + KERN_Q_GROUP - 1) / KERN_Q_GROUP;
}

/* Activation rows lie side by side: group k of row r is x[k * x_step + r].
 * One weight row of n values with rows_n (1..KERN_Q_ROWS_MAX) of them: out[r * out_step]. */
typedef void (*kern_q_dot)(const void *w, size_t n, const struct kern_q_x *x, size_t x_step, size_t rows_n, bool two,
                           float *out, size_t out_step);
/* KERN_Q_TILE_ROWS weight rows, w_step bytes apart, with rows_n (1..KERN_Q_TILE_X)
 * activation rows: out[r * out_step + i] for weight row i; the bits of as many dots. */
typedef void (*kern_q_tile)(const void *w, size_t w_step, size_t n, const struct kern_q_x *x, size_t x_step,
                            size_t rows_n, bool two, float *out, size_t out_step);

struct kern_q_ops {
    /* NULL for types that are not quantised. w needs no alignment. */
    kern_q_dot dot[QUANT_TYPES_N];
    /* NULL also where dots are as fast. */
    kern_q_tile tile[QUANT_TYPES_N];
    /* n values to out[k * x_step], the rest of the last group as zeros. Where one is not
     * finite, every product with its block is not finite either. */
    void (*quantize)(const float *x, size_t n, bool two, struct kern_q_x *out, size_t x_step);
};

extern const struct kern_q_ops kern_q_ref;
void kern_q_init(struct kern_q_ops *k, unsigned cpu_sets);
void kern_q_init_avx2(struct kern_q_ops *k);
void kern_q_init_vnni(struct kern_q_ops *k);
void kern_q_init_tile(struct kern_q_ops *k); /* VNNI's */
void kern_q_init_neon(struct kern_q_ops *k);

#endif
