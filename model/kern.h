/* kern: kernels on one row of weights and on f32 vectors, chosen at run time.
 * Order of summation is part of the contract: a dot product keeps 32 partial
 * sums (value i goes to lane i mod 32), no fused multiply-add, lanes folded
 * 16+16, 8+8, 4+4, 2+2, 1+1. So every form, on every CPU, gives the same bits, and a
 * remote layer equals a local one on another machine (ADR 0005).
 * Nothing allocates. Rows need no alignment; x and out do not overlap. */
#ifndef LQ_MODEL_KERN_H
#define LQ_MODEL_KERN_H

#include <stddef.h>
#include <stdint.h>

#include "model/quant.h"

enum { KERN_LANES_N = 32 };

struct kern_ops {
    const char *name; /* "ref", "avx2", "avx512", "neon" */
    /* n weights (a multiple of the block) -> n floats */
    void (*dequant[QUANT_TYPES_N])(const void *w, size_t n, float *out);
    /* dot of n weights with x, straight from the blocks; equals dequant + dot_f32 bit for bit */
    float (*dot[QUANT_TYPES_N])(const void *w, const float *x, size_t n);
    /* out[r * out_step] = the same with row r of x, at x + r * x_step: W is read once. NULL
     * for types in blocks */
    void (*dot_rows[QUANT_TYPES_N])(const void *w, const float *x, size_t x_step, size_t rows_n, size_t n, float *out,
                                    size_t out_step);
    /* dot of two f32 vectors of any length */
    float (*dot_f32)(const float *a, const float *b, size_t n);
    /* out[i] += s * x[i] */
    void (*axpy)(float s, const float *x, size_t n, float *out);
    /* out[i] = x[i] * s * w[i]: the end of an RMS norm */
    void (*scale_mul)(const float *x, float s, const float *w, size_t n, float *out);
    /* gate[i] = act(gate[i]) * up[i] */
    void (*silu_mul)(float *gate, const float *up, size_t n);
    void (*gelu_tanh_mul)(float *gate, const float *up, size_t n);
};

extern const struct kern_ops kern_ref;
void kern_init(struct kern_ops *k, unsigned cpu_sets);
void kern_init_avx2(struct kern_ops *k);
void kern_init_avx512(struct kern_ops *k);
void kern_init_neon(struct kern_ops *k);

#endif
