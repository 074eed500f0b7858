/* codec_avx512: AVX-512 F/BW/VL/DQ forms. Masked tails, so no scalar loop. */
#include "proto/codec.h"

#if defined(__x86_64__)
#include <float.h>
#include <immintrin.h>

#include "proto/bytes.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))

/* The lanes of a chunk that begins at i. */
static inline unsigned lanes(size_t i, size_t n)
{
    return n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1u;
}

AVX512 static size_t f16_encode(const float *x, size_t n, uint8_t *out)
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

AVX512 static void f16_decode(const uint8_t *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        _mm512_mask_storeu_ps(out + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, in + 2 * i)));
    }
}

AVX512 static void i8_encode_row(const float *x, size_t n, uint8_t *out)
{
    __m512 most = _mm512_setzero_ps();
    for (size_t i = 0; i < n; i += 16)
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps((__mmask16)lanes(i, n), x + i)));
    float scale = _mm512_reduce_max_ps(most) / 127.0f;
    if (!(scale > 0.0f)) {
        codec_ref.i8_encode_row(x, n, out);
        return;
    }
    lef32_put(out, scale);
    lef32_put(out + 4, 0.0f);
    const __m512 s = _mm512_set1_ps(scale), half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        __m512 q = _mm512_div_ps(_mm512_maskz_loadu_ps(m, x + i), s);
        __m512 a = _mm512_min_ps(_mm512_abs_ps(q), _mm512_set1_ps(127.0f));
        __m512 whole = _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
        __mmask16 up = _mm512_cmp_ps_mask(_mm512_sub_ps(a, whole), half, _CMP_GE_OQ);
        whole = _mm512_mask_add_ps(whole, up, whole, one);
        whole = _mm512_or_ps(whole, _mm512_and_ps(q, _mm512_set1_ps(-0.0f)));
        _mm_mask_storeu_epi8(out + 8 + i, m, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole)));
    }
}

AVX512 static void i8_decode_row(const uint8_t *in, size_t n, float *out)
{
    const __m512 s = _mm512_set1_ps(lef32_get(in)), top = _mm512_set1_ps(FLT_MAX), low = _mm512_set1_ps(-FLT_MAX);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)lanes(i, n);
        __m512i q = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(m, in + 8 + i));
        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(q), s);
        _mm512_mask_storeu_ps(out + i, m, _mm512_max_ps(_mm512_min_ps(v, top), low));
    }
}

AVX512 static size_t first_bad(const float *x, size_t n)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    for (size_t i = 0; i < n; i += 16) {
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
