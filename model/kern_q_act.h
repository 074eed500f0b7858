/* kern_q_act: activations to digits (kern_q.h), in portable C that each ISA file compiles
 * for itself, and the table of a form. Not a header to use elsewhere. */
#include <string.h>

#include "model/kern_q.h"
#include "proto/f16.h"

#define INLINE static inline __attribute__((always_inline))

/* Nearest even by the float adder: adding 1.5 * 2^23 leaves the whole number in the low bits. */
INLINE int32_t round_even(float v)
{
    return (int32_t)(f16_float_bits(v + 12582912.0f) - 0x4b400000u);
}

INLINE void quantize_block(const float *x, bool two, int8_t *hi, int8_t *lo, float *d, float half_sum[2])
{
    uint32_t top = 0; /* magnitudes order like their bits, NaN above all */
    for (int i = 0; i < KERN_Q_BLOCK; i++) {
        uint32_t a = f16_float_bits(x[i]) & 0x7fffffffu;
        top = a > top ? a : top;
    }
    float m = f16_bits_float(top), scale = m / (two ? 16256.0f : 127.0f);
    /* So small that its inverse overflows: zero. Not finite stays so, and spreads. */
    if (scale < 0x1p-120f)
        scale = 0.0f;
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < KERN_Q_BLOCK; i++) {
        int32_t q = round_even(x[i] * inverse);
        int32_t high = two ? (q + 64) >> 7 : q;
        hi[i] = (int8_t)(uint8_t)high;
        lo[i] = (int8_t)(uint8_t)(two ? (uint32_t)q - 128u * (uint32_t)high : 0u);
        sum[i / 16] += (two ? 128 * hi[i] : hi[i]) + lo[i];
    }
    *d = scale;
    half_sum[0] = scale * (float)sum[0];
    half_sum[1] = scale * (float)sum[1];
}

static void quantize(const float *x, size_t n, bool two, struct kern_q_x *out, size_t x_step)
{
    for (size_t at = 0; at < n; at += KERN_Q_GROUP, out += x_step) {
        for (int j = 0; j < KERN_Q_BLOCKS; j++) {
            float block[KERN_Q_BLOCK] = {0}, half_sum[2];
            size_t from = at + KERN_Q_BLOCK * (size_t)j, left = from < n ? n - from : 0;
            memcpy(block, x + (left ? from : 0), (left < KERN_Q_BLOCK ? left : KERN_Q_BLOCK) * sizeof *x);
            quantize_block(block, two, out->hi + KERN_Q_BLOCK * j, out->lo + KERN_Q_BLOCK * j, &out->d[j], half_sum);
            out->s_half[0][j] = half_sum[0];
            out->s_half[1][j] = half_sum[1];
            out->s[j] = half_sum[0] + half_sum[1];
        }
    }
}

/* What each form ends with: its dots, X(type, blocks of a group, are scales per 16 values), and
 * the table of them. */
#define KERN_Q_EACH(X)                                                                                               \
    X(q4_0, 8, false)                                                                                                \
    X(q4_1, 8, false)                                                                                                \
    X(q5_0, 8, false)                                                                                                \
    X(q5_1, 8, false)                                                                                                \
    X(q8_0, 8, false)                                                                                                \
    X(q4_k, 1, false)                                                                                                \
    X(q5_k, 1, false)                                                                                                \
    X(q6_k, 1, true)

#define KERN_Q_TABLE                                                                                                 \
    {                                                                                                                \
        .dot = {[QUANT_Q4_0] = dot_q4_0, [QUANT_Q4_1] = dot_q4_1, [QUANT_Q5_0] = dot_q5_0, [QUANT_Q5_1] = dot_q5_1,  \
                [QUANT_Q8_0] = dot_q8_0, [QUANT_Q4_K] = dot_q4_k, [QUANT_Q5_K] = dot_q5_k, [QUANT_Q6_K] = dot_q6_k}, \
        .quantize = quantize                                                                                         \
    }
