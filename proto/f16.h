/* f16: one half-precision value to and from f32, inline for loops that vectorise.
 * IEEE 754 binary16; encode is nearest even and saturates finite overflow at
 * +-65504 (docs/protocol.md, 2.3). The only converter in the tree. */
#ifndef LQ_PROTO_F16_H
#define LQ_PROTO_F16_H

#include <stdint.h>
#include <string.h>

static inline float f16_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f16_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Exact for every half. The exponent is re-biased with integers; a subnormal is its
 * 10 bits below 2^-14, which the subtraction of 2^-14 normalises. Written with
 * selects, not branches, so that compilers vectorise it. */
static inline float f16_decode_one(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7fffu;
    uint32_t normal = (body << 13) + ((127u - 15u) << 23);
    uint32_t special = (body << 13) | 0x7f800000u; /* Inf, NaN keep their mantissa */
    uint32_t small = f16_float_bits(f16_bits_float((body << 13) + (113u << 23)) - f16_bits_float(113u << 23));
    uint32_t magnitude = body >= 0x7c00u ? special : body < 0x0400u ? small : normal;
    return f16_bits_float(magnitude | sign);
}

/* x is finite. */
static inline uint16_t f16_encode_one(float x)
{
    uint32_t u = f16_float_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    /* Normal halves: add half of the last kept bit, less one where that bit is 0. */
    uint32_t normal = (a + 0xfffu + (a >> 13 & 1u) - ((127u - 15u) << 23)) >> 13;
    /* Subnormal ones: adding 0.5 lines the kept bits up at the end of the mantissa,
     * where the FPU rounds them to nearest even. */
    uint32_t small = f16_float_bits(f16_bits_float(a) + 0.5f) - 0x3f000000u;
    uint32_t h = a < 0x38800000u ? small : normal; /* 2^-14 */
    h = a > 0x477fe000u ? 0x7bffu : h;             /* 65504 */
    return (uint16_t)(h | sign);
}

#endif
