/* codec_avx2: AVX2 + F16C forms. Tails go through codec_ref: the same bytes. */
#include "proto/codec.h"

#if defined(__x86_64__)
#include <float.h>
#include <immintrin.h>

#include "proto/bytes.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))

AVX2 static size_t f16_encode(const float *x, size_t n, uint8_t *out)
{
    const __m256 top = _mm256_set1_ps(65504.0f), sign = _mm256_set1_ps(-0.0f);
    size_t over = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), a = _mm256_andnot_ps(sign, v);
        over += (size_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, top, _CMP_GT_OQ)));
        v = _mm256_or_ps(_mm256_min_ps(a, top), _mm256_and_ps(sign, v));
        _mm_storeu_si128((__m128i *)(void *)(out + 2 * i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
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
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 m = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        m = _mm256_max_ps(m, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    float lane[8], top = 0;
    _mm256_storeu_ps(lane, m);
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

AVX2 static void i8_encode_row(const float *x, size_t n, uint8_t *out)
{
    float scale = absmax(x, n) / 127.0f;
    if (!(scale > 0.0f)) {
        codec_ref.i8_encode_row(x, n, out);
        return;
    }
    lef32_put(out, scale);
    lef32_put(out + 4, 0.0f);
    const __m256 s = _mm256_set1_ps(scale);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* undoes the lane-wise packs */
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = round_away(_mm256_loadu_ps(x + i), s), b = round_away(_mm256_loadu_ps(x + i + 8), s);
        __m256i c = round_away(_mm256_loadu_ps(x + i + 16), s), d = round_away(_mm256_loadu_ps(x + i + 24), s);
        __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        _mm256_storeu_si256((__m256i *)(void *)(out + 8 + i), _mm256_permutevar8x32_epi32(q, order));
    }
    for (; i < n; i++) {
        int32_t q[8];
        _mm256_storeu_si256((__m256i *)(void *)q, round_away(_mm256_set1_ps(x[i]), s));
        out[8 + i] = (uint8_t)(int8_t)q[0];
    }
}

AVX2 static void i8_decode_row(const uint8_t *in, size_t n, float *out)
{
    const __m256 s = _mm256_set1_ps(lef32_get(in)), top = _mm256_set1_ps(FLT_MAX), low = _mm256_set1_ps(-FLT_MAX);
    const uint8_t *p = in + 8;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + i)));
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(q), s);
        _mm256_storeu_ps(out + i, _mm256_max_ps(_mm256_min_ps(v, top), low));
    }
    for (float scale = lef32_get(in); i < n; i++) {
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
