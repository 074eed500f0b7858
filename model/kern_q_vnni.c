/* kern_q_vnni: AVX-512 with VNNI. A group of 256 weights is four registers of bytes and
 * its scales two of eight floats; nothing of it goes through memory when one activation
 * row is asked for. Register k holds blocks 2k and 2k + 1, so its 128-bit lanes are the
 * halves of blocks; sums of lanes meet in the order of blocks only at the end. */
#include "model/kern_q.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "model/kern_isa.h"
#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

ISA_BEGIN(ISA_VNNI)
#include "model/kern_q_act.h"

struct group {
    __m512i u[4];
    __m256 wd[2], wm[2]; /* [1] for Q6_K: of the second 16 values of each block */
};

INLINE __m128i load16(const void *p)
{
    return _mm_loadu_si128(p);
}

INLINE __m512i join(__m256i a, __m256i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Blocks of 16 bytes of nibbles, two at a time: low nibbles of a, high ones, then b's. */
INLINE __m512i nibbles(const void *a, const void *b)
{
    const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    __m512i q = join(_mm256_broadcastsi128_si256(load16(a)), _mm256_broadcastsi128_si256(load16(b)));
    return _mm512_and_si512(_mm512_srlv_epi64(q, shift), _mm512_set1_epi8(15));
}

/* Adds 16 where a bit is set. */
INLINE __m512i fifth(__m512i u, __mmask64 bits)
{
    return _mm512_mask_add_epi8(u, bits, u, _mm512_set1_epi8(16));
}

/* A row may end inside a group: `last` is its last block there, 7 in a whole one. What is
 * unpacked beyond it is read from it again and not used. */
#define AT(j) ((j) < last ? (j) : last)

/* 64 bytes from p + at on, those beyond the group's blocks as zeros, unread. */
INLINE __m512i load(const void *p, size_t at, size_t block_bytes, int last)
{
    size_t bytes = (size_t)(last + 1) * block_bytes, n = bytes > at ? bytes - at : 0;
    const uint8_t *from = (const uint8_t *)p + at;
    return n >= 64 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, from);
}

INLINE __m256 halves_at(const uint8_t *p, size_t step, int last)
{
    __m128i h = _mm_setr_epi16((short)le16_get(p), (short)le16_get(p + (size_t)AT(1) * step),
                               (short)le16_get(p + (size_t)AT(2) * step), (short)le16_get(p + (size_t)AT(3) * step),
                               (short)le16_get(p + (size_t)AT(4) * step), (short)le16_get(p + (size_t)AT(5) * step),
                               (short)le16_get(p + (size_t)AT(6) * step), (short)le16_get(p + (size_t)AT(7) * step));
    return _mm256_cvtph_ps(h);
}

/* d in the low 16 bits of each word, m in the high ones. */
INLINE void scale_and_min(__m256i words, struct group *g)
{
    g->wd[0] = _mm256_cvtph_ps(_mm256_cvtepi32_epi16(words));
    g->wm[0] =
        _mm256_xor_ps(_mm256_cvtph_ps(_mm256_cvtepi32_epi16(_mm256_srli_epi32(words, 16))), _mm256_set1_ps(-0.0f));
}

INLINE void unpack_q4_0(const struct block_q4_0 *b, int last, struct group *g)
{
    const __m512i at = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63)); /* 9 words a block */
    __m512i d = _mm512_permutex2var_epi16(load(b, 0, sizeof *b, last), at, load(b, 64, sizeof *b, last));
    g->wd[0] = _mm256_cvtph_ps(_mm512_castsi512_si128(d));
    g->wm[0] = _mm256_mul_ps(g->wd[0], _mm256_set1_ps(8.0f));
    for (int k = 0; k < 4; k++)
        g->u[k] = nibbles(b[AT(2 * k)].qs, b[AT(2 * k + 1)].qs);
}

INLINE void unpack_q4_1(const struct block_q4_1 *b, int last, struct group *g)
{
    const __m512i at = _mm512_castsi128_si512(_mm_setr_epi32(0, 5, 10, 15)); /* 5 words of 32 bits a block */
    __m128i low = _mm512_castsi512_si128(_mm512_permutexvar_epi32(at, load(b, 0, sizeof *b, last)));
    __m128i high = _mm512_castsi512_si128(_mm512_permutexvar_epi32(at, load(b, 4 * sizeof *b, sizeof *b, last)));
    scale_and_min(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), g);
    for (int k = 0; k < 4; k++)
        g->u[k] = nibbles(b[AT(2 * k)].qs, b[AT(2 * k + 1)].qs);
}

INLINE __mmask64 two_qh(const uint8_t *a, const uint8_t *b)
{
    return (__mmask64)(le32_get(a) | (uint64_t)le32_get(b) << 32);
}

INLINE void unpack_q5_0(const struct block_q5_0 *b, int last, struct group *g)
{
    /* 11 words a block: those of blocks 0 to 5 in two registers, then the last two */
    const __m512i at = _mm512_castsi128_si512(_mm_setr_epi16(0, 11, 22, 32, 43, 54, 0, 0));
    const __m512i rest = _mm512_castsi128_si512(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 32 + 10, 32 + 21));
    __m512i d = _mm512_permutex2var_epi16(load(b, 0, sizeof *b, last), at, load(b, 66, sizeof *b, last));
    d = _mm512_permutex2var_epi16(d, rest, load(b, 112, sizeof *b, last));
    g->wd[0] = _mm256_cvtph_ps(_mm512_castsi512_si128(d));
    g->wm[0] = _mm256_mul_ps(g->wd[0], _mm256_set1_ps(16.0f));
    for (int k = 0; k < 4; k++)
        g->u[k] = fifth(nibbles(b[AT(2 * k)].qs, b[AT(2 * k + 1)].qs), two_qh(b[AT(2 * k)].qh, b[AT(2 * k + 1)].qh));
}

INLINE void unpack_q5_1(const struct block_q5_1 *b, int last, struct group *g)
{
    /* 6 words of 32 bits a block, 8 blocks in three registers */
    const __m512i at = _mm512_castsi256_si512(_mm256_setr_epi32(0, 6, 12, 16 + 2, 16 + 8, 16 + 14, 0, 0));
    const __m512i rest = _mm512_castsi256_si512(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 16 + 4, 16 + 10));
    __m512i words = _mm512_permutex2var_epi32(load(b, 0, sizeof *b, last), at, load(b, 64, sizeof *b, last));
    words = _mm512_permutex2var_epi32(words, rest, load(b, 128, sizeof *b, last));
    scale_and_min(_mm512_castsi512_si256(words), g);
    for (int k = 0; k < 4; k++)
        g->u[k] = fifth(nibbles(b[AT(2 * k)].qs, b[AT(2 * k + 1)].qs), two_qh(b[AT(2 * k)].qh, b[AT(2 * k + 1)].qh));
}

INLINE void unpack_q8_0(const struct block_q8_0 *b, int last, struct group *g)
{
    g->wd[0] = halves_at(b->d, sizeof *b, last);
    g->wm[0] = _mm256_mul_ps(g->wd[0], _mm256_set1_ps(128.0f));
    for (int k = 0; k < 4; k++) {
        __m512i q = join(_mm256_loadu_si256((const void *)b[AT(2 * k)].qs),
                         _mm256_loadu_si256((const void *)b[AT(2 * k + 1)].qs));
        g->u[k] = _mm512_xor_si512(q, _mm512_set1_epi8(-128));
    }
}

/* d, dmin and the 6-bit scales and minima of 8 sub-blocks: the first 16 bytes of a block.
 * Those of sub-blocks 4 to 7 have their low nibbles in the last word, their high bits above
 * the others' six. */
INLINE void k_scales(const void *block, struct group *g)
{
    const __m128i low_at = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i high_at = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11);
    const __m512i pair = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m128i head = load16(block);
    __m128i low = _mm_srlv_epi32(_mm_shuffle_epi8(head, low_at), _mm_setr_epi32(0, 0, 0, 4));
    __m128i high = _mm_srli_epi16(_mm_shuffle_epi8(head, high_at), 2);
    low = _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    __m128i six = _mm_or_si128(low, _mm_and_si128(high, _mm_set1_epi8(0x30))); /* 8 scales, 8 minima */
    __m512 d = _mm512_permutexvar_ps(pair, _mm512_castps128_ps512(_mm_cvtph_ps(head)));
    __m512 both = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six)), d);
    g->wd[0] = _mm512_castps512_ps256(both);
    g->wm[0] = _mm512_extractf32x8_ps(both, 1);
}

/* 32 bytes of nibbles are two blocks. */
INLINE __m512i k_nibbles(const uint8_t *qs)
{
    const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    __m512i q = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)qs));
    return _mm512_and_si512(_mm512_srlv_epi64(q, shift), _mm512_set1_epi8(15));
}

INLINE void unpack_q4_k(const struct block_q4_k *b, int last, struct group *g)
{
    (void)last; /* blocks of a whole group */
    k_scales(b, g);
    for (int k = 0; k < 4; k++)
        g->u[k] = k_nibbles(b->qs + 32 * k);
}

INLINE void unpack_q5_k(const struct block_q5_k *b, int last, struct group *g)
{
    (void)last;
    __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)b->qh));
    __m512i bit = join(_mm256_set1_epi8(1), _mm256_set1_epi8(2));
    k_scales(b, g);
    for (int k = 0; k < 4; k++) {
        g->u[k] = fifth(k_nibbles(b->qs + 32 * k), _mm512_test_epi8_mask(high, bit));
        bit = _mm512_slli_epi16(bit, 2);
    }
}

INLINE void unpack_q6_k(const struct block_q6_k *b, int last, struct group *g)
{
    (void)last;
    const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
    for (int half = 0; half < 2; half++) {
        __m512i q = _mm512_loadu_si512(b->ql + 64 * half);
        __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(b->qh + 32 * half)));
        /* bits 0, 1 of the first 32 values, 2, 3 of the next, then 4 to 7: each to bits 4, 5 */
        __m512i h0 =
            join(_mm256_slli_epi16(_mm512_castsi512_si256(h), 4), _mm256_slli_epi16(_mm512_castsi512_si256(h), 2));
        __m512i h1 = _mm512_srlv_epi64(h, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2));
        g->u[2 * half] = _mm512_or_si512(_mm512_and_si512(q, low), _mm512_and_si512(h0, pair));
        g->u[2 * half + 1] =
            _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(q, 4), low), _mm512_and_si512(h1, pair));
    }
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(b->scales))),
                             _mm512_set1_ps(f16_decode_one(le16_get(b->d))));
    s = _mm512_permutexvar_ps(order, s);
    __m512 m = _mm512_mul_ps(s, _mm512_set1_ps(32.0f));
    g->wd[0] = _mm512_castps512_ps256(s);
    g->wd[1] = _mm512_extractf32x8_ps(s, 1);
    g->wm[0] = _mm512_castps512_ps256(m);
    g->wm[1] = _mm512_extractf32x8_ps(m, 1);
}

/* a * b + c where blocks are, c elsewhere. */
INLINE __m256 add_product(__m256 a, __m256 b, __m256 c, int last)
{
    return last == 7 ? _mm256_fmadd_ps(a, b, c) : _mm256_mask3_fmadd_ps(a, b, c, (__mmask8)((2u << last) - 1));
}

INLINE __m256 sub_product(__m256 a, __m256 b, __m256 c, int last)
{
    return last == 7 ? _mm256_fnmadd_ps(a, b, c) : _mm256_mask3_fnmadd_ps(a, b, c, (__mmask8)((2u << last) - 1));
}

/* acc takes one group of one activation row. */
INLINE __m256 add_group(const struct group *g, const struct kern_q_x *x, bool two, bool halves, int last, __m256 acc)
{
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    __m512i i[4];
    for (int k = 0; k < 4; k++) {
        i[k] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), g->u[k], _mm512_load_si512(x->hi + 64 * k));
        if (two)
            i[k] = _mm512_dpbusd_epi32(_mm512_slli_epi32(i[k], 7), g->u[k], _mm512_load_si512(x->lo + 64 * k));
    }
    /* Four sums of each 128-bit lane: lane L, place k: half L % 2 of block 2k + L / 2. */
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(i[0], i[1]), _mm512_unpackhi_epi32(i[0], i[1]));
    __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(i[2], i[3]), _mm512_unpackhi_epi32(i[2], i[3]));
    __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    sums = _mm512_permutexvar_epi32(order, sums); /* first halves of blocks 0..7, then second ones */
    __m256i first = _mm512_castsi512_si256(sums), second = _mm512_extracti64x4_epi64(sums, 1);
    __m256 d = _mm256_load_ps(x->d);
    if (halves) {
        acc = add_product(_mm256_cvtepi32_ps(first), _mm256_mul_ps(g->wd[0], d), acc, last);
        acc = add_product(_mm256_cvtepi32_ps(second), _mm256_mul_ps(g->wd[1], d), acc, last);
        acc = sub_product(g->wm[0], _mm256_load_ps(x->s_half[0]), acc, last);
        return sub_product(g->wm[1], _mm256_load_ps(x->s_half[1]), acc, last);
    }
    acc = add_product(_mm256_cvtepi32_ps(_mm256_add_epi32(first, second)), _mm256_mul_ps(g->wd[0], d), acc, last);
    return sub_product(g->wm[0], _mm256_load_ps(x->s), acc, last);
}

/* A row comes from memory once, in order; the hardware's own reading ahead stops at each
 * page, so this goes on beyond it. Never faults. */
INLINE void read_ahead(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + 4096 + i, _MM_HINT_T0);
}

INLINE float fold(__m256 a)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); /* 0+4, 1+5, 2+6, 3+7 */
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}

#define Q_DOT(type, group_blocks, halves)                                                                            \
    INLINE float row_##type(const void *w, size_t n, const struct kern_q_x *x, size_t x_step, bool two)              \
    {                                                                                                                \
        const struct block_##type *b = w;                                                                            \
        struct group g;                                                                                              \
        __m256 acc = _mm256_setzero_ps();                                                                            \
        for (; n >= KERN_Q_GROUP; n -= KERN_Q_GROUP, b += (group_blocks), x += x_step) {                             \
            read_ahead(b, (group_blocks) * sizeof *b);                                                               \
            unpack_##type(b, 7, &g);                                                                                 \
            acc = add_group(&g, x, two, halves, 7, acc);                                                             \
        }                                                                                                            \
        if (n > 0) { /* of small blocks only */                                                                      \
            const int last = (int)(n / KERN_Q_BLOCK) - 1;                                                            \
            unpack_##type(b, last, &g);                                                                              \
            acc = add_group(&g, x, two, halves, last, acc);                                                          \
        }                                                                                                            \
        return fold(acc);                                                                                            \
    }                                                                                                                \
    static void dot_##type(const void *w, size_t n, const struct kern_q_x *x, size_t x_step, size_t rows_n,          \
                           bool two, float *out, size_t out_step)                                                    \
    {                                                                                                                \
        for (size_t r = 0; r < rows_n; r++) /* the weights come from L1 after the first */                           \
            out[r * out_step] =                                                                                      \
                two ? row_##type(w, n, x + r, x_step, true) : row_##type(w, n, x + r, x_step, false);                \
    }

KERN_Q_EACH(Q_DOT)

static const struct kern_q_ops table = KERN_Q_TABLE;
ISA_END

void kern_q_init_vnni(struct kern_q_ops *k)
{
    *k = table;
}
#else
void kern_q_init_vnni(struct kern_q_ops *k)
{
    (void)k;
}
#endif
