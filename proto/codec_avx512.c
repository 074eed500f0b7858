/* codec_avx512: AVX-512 F/BW/VL/DQ forms. Masked tails, so no scalar loop. */
#include "proto/codec.h"

#if defined(__x86_64__)
#include <float.h>
#include <immintrin.h>

#include "proto/bytes.h"
#include "proto/codec_round.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))

/* The lanes of a chunk that begins at i. */
static inline unsigned lanes(size_t i, size_t n)
{
    return n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1u;
}

/* The larger magnitude of each lane: one instruction. */
AVX512 static inline __m512 larger(__m512 a, __m512 b)
{
    return _mm512_range_ps(a, b, 0x0b);
}

AVX512 static inline __m512 larger_of_4(__m512 a, __m512 b, __m512 c, __m512 d)
{
    return larger(larger(a, b), larger(c, d));
}

/* Any length, any values. */
AVX512 static size_t f16_encode_careful(const float *x, size_t n, uint8_t *out)
{
    const __m512 top = _mm512_set1_ps(65504.0f), low = _mm512_set1_ps(-65504.0f);
    size_t over = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        over += (size_t)__builtin_popcount(_mm512_cmp_ps_mask(_mm512_abs_ps(v), top, _CMP_GT_OQ));
        v = _mm512_max_ps(_mm512_min_ps(v, top), low);
        _mm256_mask_storeu_epi16(out + 2 * i, m, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    return over;
}

AVX512 static inline void f16_put(uint8_t *out, __m512 v)
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Looks for one that saturates among 64 values, and only then counts and clamps. */
AVX512 static size_t f16_encode(const float *x, size_t n, uint8_t *out)
{
    const __m512 top = _mm512_set1_ps(65504.0f);
    size_t over = 0, i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        __m512 c = _mm512_loadu_ps(x + i + 32), d = _mm512_loadu_ps(x + i + 48);
        if (__builtin_expect(_mm512_cmp_ps_mask(larger_of_4(a, b, c, d), top, _CMP_GT_OQ) != 0, 0)) {
            over += f16_encode_careful(x + i, 64, out + 2 * i);
            continue;
        }
        f16_put(out + 2 * i, a);
        f16_put(out + 2 * i + 32, b);
        f16_put(out + 2 * i + 64, c);
        f16_put(out + 2 * i + 96, d);
    }
    return over + f16_encode_careful(x + i, n - i, out + 2 * i);
}

AVX512 static void f16_decode(const uint8_t *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        _mm512_mask_storeu_ps(out + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, in + 2 * i)));
    }
}

AVX512 static float absmax(const float *x, size_t n)
{
    __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        a = larger(a, _mm512_loadu_ps(x + i));
        b = larger(b, _mm512_loadu_ps(x + i + 16));
        c = larger(c, _mm512_loadu_ps(x + i + 32));
        d = larger(d, _mm512_loadu_ps(x + i + 48));
    }
    for (; i < n; i += 16)
        a = larger(a, _mm512_maskz_loadu_ps((__mmask16)lanes(i, n), x + i));
    return _mm512_reduce_max_ps(larger_of_4(a, b, c, d));
}

/* By the definition: a division, half away from zero. Any length, any scale > 0. */
AVX512 static void i8_divide(const float *x, size_t n, __m512 scale, uint8_t *out)
{
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        __m512 q = _mm512_div_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
        __m512 a = _mm512_min_ps(_mm512_abs_ps(q), _mm512_set1_ps(127.0f));
        __m512 whole = _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
        __mmask16 up = _mm512_cmp_ps_mask(_mm512_sub_ps(a, whole), half, _CMP_GE_OQ);
        whole = _mm512_mask_add_ps(whole, up, whole, one);
        whole = _mm512_or_ps(whole, _mm512_and_ps(q, _mm512_set1_ps(-0.0f)));
        _mm_mask_storeu_epi8(out + i, m, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole)));
    }
}

/* 16 products with the reciprocal, rounded; *off gets how far each was from a whole
 * number. CODEC_ROUND makes the unit in the last place 1: the sum's low byte is the i8. */
AVX512 static inline __m128i i8_multiply(const float *x, __m512 reciprocal, __m512 *off)
{
    const __m512 round = _mm512_set1_ps(CODEC_ROUND);
    __m512 r = _mm512_mul_ps(_mm512_loadu_ps(x), reciprocal);
    __m512 sum = _mm512_add_ps(r, round);
    *off = _mm512_sub_ps(r, _mm512_sub_ps(sum, round));
    return _mm512_cvtepi32_epi8(_mm512_castps_si512(sum));
}

AVX512 static void i8_encode_row(const float *x, size_t n, uint8_t *out)
{
    float scale = absmax(x, n) / 127.0f;
    if (!(scale > 0.0f)) {
        codec_ref.i8_encode_row(x, n, out);
        return;
    }
    lef32_put(out, scale);
    lef32_put(out + 4, 0.0f);
    out += 8;
    const __m512 s = _mm512_set1_ps(scale), reciprocal = _mm512_set1_ps(1.0f / scale);
    const __m512 sure = _mm512_set1_ps(CODEC_SURE);
    size_t i = 0;
    for (; i + 64 <= n && scale >= CODEC_RECIPROCAL_MIN; i += 64) {
        __m512 a, b, c, d;
        __m128i *to = (__m128i *)(void *)(out + i);
        _mm_storeu_si128(to, i8_multiply(x + i, reciprocal, &a));
        _mm_storeu_si128(to + 1, i8_multiply(x + i + 16, reciprocal, &b));
        _mm_storeu_si128(to + 2, i8_multiply(x + i + 32, reciprocal, &c));
        _mm_storeu_si128(to + 3, i8_multiply(x + i + 48, reciprocal, &d));
        if (__builtin_expect(_mm512_cmp_ps_mask(larger_of_4(a, b, c, d), sure, _CMP_GT_OQ) != 0, 0))
            i8_divide(x + i, 64, s, out + i);
    }
    i8_divide(x + i, n - i, s, out + i);
}

/* Products that cannot overflow need no clamp. */
AVX512 static void i8_decode_row(const uint8_t *in, size_t n, float *out)
{
    const float scale = lef32_get(in);
    const __m512 s = _mm512_set1_ps(scale), top = _mm512_set1_ps(FLT_MAX), low = _mm512_set1_ps(-FLT_MAX);
    size_t i = 0;
    for (; i + 16 <= n && __builtin_fabsf(scale) <= FLT_MAX / 128; i += 16) {
        __m512i q = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(in + 8 + i)));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_cvtepi32_ps(q), s));
    }
    for (; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        __m512i q = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(m, in + 8 + i));
        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(q), s);
        _mm512_mask_storeu_ps(out + i, m, _mm512_max_ps(_mm512_min_ps(v, top), low));
    }
}

AVX512 static size_t first_bad(const float *x, size_t n)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __mmask16 bad = 0;
        for (size_t k = 0; k < 64; k += 16)
            bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(x + i + k), exponent), exponent);
        if (bad)
            break;
    }
    for (; i < n; i += 16) {
        __m512i v = _mm512_and_si512(_mm512_maskz_loadu_epi32((__mmask16)lanes(i, n), x + i), exponent);
        __mmask16 bad = _mm512_cmpeq_epi32_mask(v, exponent);
        if (bad)
            return i + (size_t)__builtin_ctz(bad);
    }
    return n;
}

AVX512 static size_t f16_saturates(const float *x, size_t n)
{
    size_t over = 0;
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps((__mmask16)lanes(i, n), x + i);
        over +=
            (size_t)__builtin_popcount(_mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(65504.0f), _CMP_GT_OQ));
    }
    return over;
}

void codec_init_avx512(struct codec_ops *ops)
{
    *ops =
        (struct codec_ops){"avx512", f16_encode, f16_decode, i8_encode_row, i8_decode_row, first_bad, f16_saturates};
}
#else
void codec_init_avx512(struct codec_ops *ops)
{
    (void)ops;
}
#endif
