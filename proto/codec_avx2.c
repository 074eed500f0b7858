/* codec_avx2: AVX2 + F16C forms. Tails go through codec_ref: the same bytes. */
#include "proto/codec.h"

#if defined(__x86_64__)
#include <float.h>
#include <immintrin.h>
#include <stdbool.h>

#include "proto/bytes.h"
#include "proto/codec_round.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))

AVX2 static inline __m256 magnitude(__m256 v)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

AVX2 static inline __m256 larger_of_4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    return _mm256_max_ps(_mm256_max_ps(magnitude(a), magnitude(b)), _mm256_max_ps(magnitude(c), magnitude(d)));
}

AVX2 static inline bool any_over(__m256 v, __m256 limit)
{
    return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(v, limit, _CMP_GT_OQ)) != 0, 0);
}

AVX2 static inline void f16_put(uint8_t *out, __m256 v)
{
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* Looks for one that saturates among 32 values, and leaves those to the scalar form. */
AVX2 static size_t f16_encode(const float *x, size_t n, uint8_t *out)
{
    const __m256 top = _mm256_set1_ps(65504.0f);
    size_t over = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        __m256 c = _mm256_loadu_ps(x + i + 16), d = _mm256_loadu_ps(x + i + 24);
        if (any_over(larger_of_4(a, b, c, d), top)) {
            over += codec_ref.f16_encode(x + i, 32, out + 2 * i);
            continue;
        }
        f16_put(out + 2 * i, a);
        f16_put(out + 2 * i + 16, b);
        f16_put(out + 2 * i + 32, c);
        f16_put(out + 2 * i + 48, d);
    }
    return over + codec_ref.f16_encode(x + i, n - i, out + 2 * i);
}

AVX2 static void f16_decode(const uint8_t *in, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + 2 * i))));
    codec_ref.f16_decode(in + 2 * i, n - i, out + i);
}

AVX2 static float absmax(const float *x, size_t n)
{
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = _mm256_max_ps(a, magnitude(_mm256_loadu_ps(x + i)));
        b = _mm256_max_ps(b, magnitude(_mm256_loadu_ps(x + i + 8)));
        c = _mm256_max_ps(c, magnitude(_mm256_loadu_ps(x + i + 16)));
        d = _mm256_max_ps(d, magnitude(_mm256_loadu_ps(x + i + 24)));
    }
    float lane[8], top = 0;
    _mm256_storeu_ps(lane, larger_of_4(a, b, c, d));
    for (int k = 0; k < 8; k++)
        top = lane[k] > top ? lane[k] : top;
    for (; i < n; i++)
        top = __builtin_fabsf(x[i]) > top ? __builtin_fabsf(x[i]) : top;
    return top;
}

/* Half away from zero as in codec_ref: truncate, then compare the fraction. */
AVX2 static __m256i round_away(__m256 v, __m256 scale)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 q = _mm256_div_ps(v, scale);
    __m256 a = _mm256_min_ps(_mm256_andnot_ps(sign, q), _mm256_set1_ps(127.0f));
    __m256 whole = _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    __m256 up = _mm256_cmp_ps(_mm256_sub_ps(a, whole), _mm256_set1_ps(0.5f), _CMP_GE_OQ);
    whole = _mm256_add_ps(whole, _mm256_and_ps(up, _mm256_set1_ps(1.0f)));
    return _mm256_cvtps_epi32(_mm256_or_ps(whole, _mm256_and_ps(sign, q)));
}

/* 32 x i32 of -127 to 127 -> i8 */
AVX2 static inline void i8_put(uint8_t *out, __m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* undoes the lane-wise packs */
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permutevar8x32_epi32(q, order));
}

/* By the definition, with divisions. Any length, any scale > 0. */
AVX2 static void i8_divide(const float *x, size_t n, __m256 s, uint8_t *out)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        i8_put(out + i, round_away(_mm256_loadu_ps(x + i), s), round_away(_mm256_loadu_ps(x + i + 8), s),
               round_away(_mm256_loadu_ps(x + i + 16), s), round_away(_mm256_loadu_ps(x + i + 24), s));
    for (; i < n; i++)
        out[i] = (uint8_t)(int8_t)_mm256_cvtsi256_si32(round_away(_mm256_set1_ps(x[i]), s));
}

/* 8 products with the reciprocal, rounded; *off gets how far each was from that. */
AVX2 static inline __m256i i8_multiply(const float *x, __m256 reciprocal, __m256 *off)
{
    __m256 r = _mm256_mul_ps(_mm256_loadu_ps(x), reciprocal);
    __m256i q = _mm256_cvtps_epi32(r);
    *off = _mm256_sub_ps(r, _mm256_cvtepi32_ps(q));
    return q;
}

AVX2 static void i8_encode_row(const float *x, size_t n, uint8_t *out)
{
    float scale = absmax(x, n) / 127.0f;
    if (!(scale > 0.0f)) {
        codec_ref.i8_encode_row(x, n, out);
        return;
    }
    lef32_put(out, scale);
    lef32_put(out + 4, 0.0f);
    out += 8;
    const __m256 s = _mm256_set1_ps(scale), reciprocal = _mm256_set1_ps(1.0f / scale);
    const __m256 sure = _mm256_set1_ps(CODEC_SURE);
    size_t i = 0;
    for (; i + 32 <= n && scale >= CODEC_RECIPROCAL_MIN; i += 32) {
        __m256 off_a, off_b, off_c, off_d;
        __m256i a = i8_multiply(x + i, reciprocal, &off_a), b = i8_multiply(x + i + 8, reciprocal, &off_b);
        __m256i c = i8_multiply(x + i + 16, reciprocal, &off_c), d = i8_multiply(x + i + 24, reciprocal, &off_d);
        i8_put(out + i, a, b, c, d);
        if (any_over(larger_of_4(off_a, off_b, off_c, off_d), sure))
            i8_divide(x + i, 32, s, out + i);
    }
    i8_divide(x + i, n - i, s, out + i);
}

AVX2 static inline __m256 i8_product(const uint8_t *p, __m256 s)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p))),
                         s);
}

/* Products that cannot overflow need no clamp. */
AVX2 static void i8_decode_row(const uint8_t *in, size_t n, float *out)
{
    const float scale = lef32_get(in);
    const __m256 s = _mm256_set1_ps(scale), top = _mm256_set1_ps(FLT_MAX), low = _mm256_set1_ps(-FLT_MAX);
    const uint8_t *p = in + 8;
    size_t i = 0;
    for (; i + 8 <= n && __builtin_fabsf(scale) <= FLT_MAX / 128; i += 8)
        _mm256_storeu_ps(out + i, i8_product(p + i, s));
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_max_ps(_mm256_min_ps(i8_product(p + i, s), top), low));
    for (; i < n; i++) {
        float v = (float)(int8_t)p[i] * scale;
        v = v > FLT_MAX ? FLT_MAX : v;
        out[i] = v < -FLT_MAX ? -FLT_MAX : v;
    }
}

AVX2 static size_t first_bad(const float *x, size_t n)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i bad = _mm256_setzero_si256();
        for (size_t k = 0; k < 32; k += 8) {
            __m256i v = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(x + i + k)), exponent);
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(v, exponent));
        }
        if (!_mm256_testz_si256(bad, bad))
            break;
    }
    return i + codec_ref.finite(x + i, n - i);
}

AVX2 static size_t f16_saturates(const float *x, size_t n)
{
    const __m256 top = _mm256_set1_ps(65504.0f), sign = _mm256_set1_ps(-0.0f);
    size_t over = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i));
        over += (size_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, top, _CMP_GT_OQ)));
    }
    return over + codec_ref.f16_saturates(x + i, n - i);
}

void codec_init_avx2(struct codec_ops *ops)
{
    *ops = (struct codec_ops){"avx2", f16_encode, f16_decode, i8_encode_row, i8_decode_row, first_bad, f16_saturates};
}
#else
void codec_init_avx2(struct codec_ops *ops)
{
    (void)ops;
}
#endif
