/* kern_q_avx2: 16-bit multiplies for the integer dots (exact for all 8-bit quants, where
 * VPMADDUBSW would saturate); the rest is the portable body, compiled for AVX2. */
#include "model/kern_q.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "model/kern_isa.h"
#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

ISA_BEGIN(ISA_AVX2)
static inline __attribute__((always_inline)) int32_t half_dot(const uint8_t *u, const int8_t *x)
{
    __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)u));
    __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)x));
    __m256i p = _mm256_madd_epi16(a, b);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}
#define HALF_DOT half_dot
#include "model/kern_q_body.h"
static const struct kern_q_ops table = KERN_Q_TABLE;
ISA_END

void kern_q_init_avx2(struct kern_q_ops *k)
{
    *k = table;
}
#else
void kern_q_init_avx2(struct kern_q_ops *k)
{
    (void)k;
}
#endif
