/* kern_q_tile: AVX-512 VNNI on 16 weight rows at once. A lane is a weight row: four bytes
 * of it a step against four activations that all lanes share, so sums need no shuffles,
 * and the unpacking is paid once for all activation rows. Blocks are transposed while
 * packed, in 4 x 4 words of 128-bit lanes. */
#include "model/kern_q.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "model/kern_isa.h"
#include "model/quant_blocks.h"

ISA_BEGIN(ISA_VNNI)
#define INLINE static inline __attribute__((always_inline))

enum { ROWS = KERN_Q_TILE_ROWS, QUADS = KERN_Q_BLOCK / 4 };

/* One group of 16 weight rows: u[j][q] holds values 4q .. 4q + 3 of block j. */
struct tile {
    __m512i u[KERN_Q_BLOCKS][QUADS];
    __m512 wd[2][KERN_Q_BLOCKS], wm[2][KERN_Q_BLOCKS]; /* as in kern_q.h; [1]: second halves, Q6_K only */
};

/* 16 bytes of each row, rows `step` bytes apart: c[i] holds their bytes 4i .. 4i + 3. */
INLINE void columns(const void *at, size_t step, __m512i c[4])
{
    const uint8_t *p = at;
    __m512i r[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) { /* register i: rows i, 4 + i, 8 + i, 12 + i */
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(p + i * step)));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(p + (4 + i) * step)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(p + (8 + i) * step)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(p + (12 + i) * step)), 3);
    }
    __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpacklo_epi32(r[2], r[3]);
    c[0] = _mm512_unpacklo_epi64(a, b);
    c[1] = _mm512_unpackhi_epi64(a, b);
    a = _mm512_unpackhi_epi32(r[0], r[1]);
    b = _mm512_unpackhi_epi32(r[2], r[3]);
    c[2] = _mm512_unpacklo_epi64(a, b);
    c[3] = _mm512_unpackhi_epi64(a, b);
}

/* The half in the low 16 bits of each lane. */
INLINE __m512 halves(__m512i words)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

INLINE __m512i low_nibbles(__m512i q)
{
    return _mm512_and_si512(q, _mm512_set1_epi8(15));
}

INLINE __m512i high_nibbles(__m512i q)
{
    return low_nibbles(_mm512_srli_epi16(q, 4));
}

/* Adds 16 to the bytes where high has a bit of mask. */
INLINE __m512i fifth(__m512i u, __m512i high, __m512i mask)
{
    return _mm512_mask_add_epi8(u, _mm512_test_epi8_mask(high, mask), u, _mm512_set1_epi8(16));
}

/* 16 bytes of nibbles are a block: low ones first. */
INLINE void block_nibbles(const void *qs, size_t step, __m512i u[QUADS])
{
    __m512i c[4];
    columns(qs, step, c);
    for (int i = 0; i < 4; i++) {
        u[i] = low_nibbles(c[i]);
        u[4 + i] = high_nibbles(c[i]);
    }
}

/* Bit i of each lane of qh is the fifth of value i. */
INLINE void block_fifths(__m512i qh, __m512i u[QUADS])
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i byte =
            _mm512_add_epi32(_mm512_set1_epi32(0x01010101 * i),
                             _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c)));
        __m512i eight = _mm512_shuffle_epi8(qh, byte);
        u[2 * i] = fifth(u[2 * i], eight, _mm512_set1_epi32(0x08040201));
        u[2 * i + 1] = fifth(u[2 * i + 1], eight, _mm512_set1_epi32((int)0x80402010u));
    }
}

INLINE __m512 negated(__m512 v)
{
    return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

static void unpack_q4_0(const void *group, size_t step, int blocks_n, struct tile *t)
{
    const struct block_q4_0 *b = group;
    for (int j = 0; j < blocks_n; j++) {
        __m512i c[4];
        columns(&b[j], step, c);
        t->wd[0][j] = halves(c[0]);
        t->wm[0][j] = _mm512_mul_ps(t->wd[0][j], _mm512_set1_ps(8.0f));
        block_nibbles(b[j].qs, step, t->u[j]);
    }
}

static void unpack_q4_1(const void *group, size_t step, int blocks_n, struct tile *t)
{
    const struct block_q4_1 *b = group;
    for (int j = 0; j < blocks_n; j++) {
        __m512i c[4];
        columns(&b[j], step, c);
        t->wd[0][j] = halves(c[0]);
        t->wm[0][j] = negated(halves(_mm512_srli_epi32(c[0], 16)));
        block_nibbles(b[j].qs, step, t->u[j]);
    }
}

static void unpack_q5_0(const void *group, size_t step, int blocks_n, struct tile *t)
{
    const struct block_q5_0 *b = group;
    for (int j = 0; j < blocks_n; j++) {
        __m512i c[4]; /* d, the first half of qh; the second half, ... */
        columns(&b[j], step, c);
        t->wd[0][j] = halves(c[0]);
        t->wm[0][j] = _mm512_mul_ps(t->wd[0][j], _mm512_set1_ps(16.0f));
        block_nibbles(b[j].qs, step, t->u[j]);
        block_fifths(_mm512_or_si512(_mm512_srli_epi32(c[0], 16), _mm512_slli_epi32(c[1], 16)), t->u[j]);
    }
}

static void unpack_q5_1(const void *group, size_t step, int blocks_n, struct tile *t)
{
    const struct block_q5_1 *b = group;
    for (int j = 0; j < blocks_n; j++) {
        __m512i c[4];
        columns(&b[j], step, c);
        t->wd[0][j] = halves(c[0]);
        t->wm[0][j] = negated(halves(_mm512_srli_epi32(c[0], 16)));
        block_nibbles(b[j].qs, step, t->u[j]);
        block_fifths(c[1], t->u[j]);
    }
}

static void unpack_q8_0(const void *group, size_t step, int blocks_n, struct tile *t)
{
    const struct block_q8_0 *b = group;
    const __m512i sign = _mm512_set1_epi8(-128);
    for (int j = 0; j < blocks_n; j++) {
        __m512i c[4];
        columns(&b[j], step, c);
        t->wd[0][j] = halves(c[0]);
        t->wm[0][j] = _mm512_mul_ps(t->wd[0][j], _mm512_set1_ps(128.0f));
        columns(b[j].qs, step, t->u[j]);
        columns(b[j].qs + 16, step, t->u[j] + 4);
        for (int q = 0; q < QUADS; q++)
            t->u[j][q] = _mm512_xor_si512(t->u[j][q], sign);
    }
}

/* d, dmin and the 6-bit scales and minima of the 8 sub-blocks: the first 16 bytes. */
INLINE void k_scales(const void *b, size_t step, struct tile *t)
{
    const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15), two = _mm512_set1_epi8(48);
    __m512i c[4];
    columns(b, step, c);
    __m512 d = halves(c[0]), dmin = halves(_mm512_srli_epi32(c[0], 16));
    __m512i scale[2], min[2]; /* a byte each: sub-blocks 0 to 3, 4 to 7 */
    scale[0] = _mm512_and_si512(c[1], six);
    min[0] = _mm512_and_si512(c[2], six);
    scale[1] = _mm512_or_si512(_mm512_and_si512(c[3], four), _mm512_and_si512(_mm512_srli_epi32(c[1], 2), two));
    min[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(c[3], 4), four),
                             _mm512_and_si512(_mm512_srli_epi32(c[2], 2), two));
    for (int j = 0; j < KERN_Q_BLOCKS; j++) {
        const __m512i byte = _mm512_set1_epi32(255);
        const unsigned shift = 8 * ((unsigned)j % 4);
        t->wd[0][j] =
            _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(scale[j / 4], shift), byte)));
        t->wm[0][j] =
            _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(min[j / 4], shift), byte)));
    }
}

/* 32 bytes of nibbles are two blocks: low ones first. */
INLINE void pair_nibbles(const uint8_t *qs, size_t step, __m512i low[QUADS], __m512i high[QUADS])
{
    __m512i c[QUADS];
    columns(qs, step, c);
    columns(qs + 16, step, c + 4);
    for (int q = 0; q < QUADS; q++) {
        low[q] = low_nibbles(c[q]);
        high[q] = high_nibbles(c[q]);
    }
}

static void unpack_q4_k(const void *group, size_t step, int blocks_n, struct tile *t)
{
    (void)blocks_n; /* all: a block is a group */
    const struct block_q4_k *b = group;
    k_scales(b, step, t);
    for (int k = 0; k < 4; k++)
        pair_nibbles(b->qs + 32 * k, step, t->u[2 * k], t->u[2 * k + 1]);
}

static void unpack_q5_k(const void *group, size_t step, int blocks_n, struct tile *t)
{
    (void)blocks_n; /* all: a block is a group */
    const struct block_q5_k *b = group;
    __m512i high[QUADS];
    k_scales(b, step, t);
    columns(b->qh, step, high);
    columns(b->qh + 16, step, high + 4);
    for (int k = 0; k < 4; k++) {
        pair_nibbles(b->qs + 32 * k, step, t->u[2 * k], t->u[2 * k + 1]);
        for (int part = 0; part < 2; part++)
            for (int q = 0; q < QUADS; q++)
                t->u[2 * k + part][q] =
                    fifth(t->u[2 * k + part][q], high[q], _mm512_set1_epi8((char)(1 << (2 * k + part))));
    }
}

static void unpack_q6_k(const void *group, size_t step, int blocks_n, struct tile *t)
{
    (void)blocks_n; /* all: a block is a group */
    const struct block_q6_k *b = group;
    const __m512i pair = _mm512_set1_epi8(48);
    for (int half = 0; half < 2; half++) {
        __m512i high[QUADS], (*u)[QUADS] = t->u + 4 * half;
        columns(b->qh + 32 * half, step, high);
        columns(b->qh + 32 * half + 16, step, high + 4);
        pair_nibbles(b->ql + 64 * half, step, u[0], u[2]);
        pair_nibbles(b->ql + 64 * half + 32, step, u[1], u[3]);
        for (int q = 0; q < QUADS; q++) { /* bits 0 and 1 of high are the first block's 4 and 5, and so on */
            u[0][q] = _mm512_or_si512(u[0][q], _mm512_and_si512(_mm512_slli_epi16(high[q], 4), pair));
            u[1][q] = _mm512_or_si512(u[1][q], _mm512_and_si512(_mm512_slli_epi16(high[q], 2), pair));
            u[2][q] = _mm512_or_si512(u[2][q], _mm512_and_si512(high[q], pair));
            u[3][q] = _mm512_or_si512(u[3][q], _mm512_and_si512(_mm512_srli_epi16(high[q], 2), pair));
        }
    }
    __m512i scale[4], end[4];
    columns(b->scales, step, scale);
    columns(b->scales + 2, step, end); /* ends with the block: its last two bytes are d */
    __m512 d = halves(_mm512_srli_epi32(end[3], 16));
    for (int j = 0; j < KERN_Q_BLOCKS; j++)
        for (int part = 0; part < 2; part++) {
            __m512i top = _mm512_slli_epi32(scale[j / 2], 24 - 8 * (2 * ((unsigned)j % 2) + (unsigned)part));
            t->wd[part][j] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24)));
            t->wm[part][j] = _mm512_mul_ps(t->wd[part][j], _mm512_set1_ps(32.0f));
        }
}

/* The integer sum of quads first .. end - 1 of a block. */
INLINE __m512i sum_quads(const __m512i u[QUADS], const int8_t *hi, const int8_t *lo, bool two, int first, int end)
{
    __m512i sum = _mm512_setzero_si512();
    int32_t four;
#pragma GCC unroll 8
    for (int q = first; q < end; q++) {
        memcpy(&four, hi + 4 * q, sizeof four);
        sum = _mm512_dpbusd_epi32(sum, u[q], _mm512_set1_epi32(four));
    }
    if (!two)
        return sum;
    sum = _mm512_slli_epi32(sum, 7);
#pragma GCC unroll 8
    for (int q = first; q < end; q++) {
        memcpy(&four, lo + 4 * q, sizeof four);
        sum = _mm512_dpbusd_epi32(sum, u[q], _mm512_set1_epi32(four));
    }
    return sum;
}

INLINE __m512 add_scaled(__m512 acc, __m512i sum, __m512 wd, float d)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(wd, _mm512_set1_ps(d)), acc);
}

/* acc[r][j] takes one group of each of rows_n activation rows. */
INLINE void add_group(const struct tile *t, int blocks_n, const struct kern_q_x *x, size_t rows_n, bool two,
                      bool in_halves, __m512 (*acc)[KERN_Q_BLOCKS])
{
    for (int j = 0; j < blocks_n; j++) {
        /* These stay in registers over the rows. */
        const __m512 wd[2] = {t->wd[0][j], t->wd[in_halves][j]}, wm[2] = {t->wm[0][j], t->wm[in_halves][j]};
        __m512i u[QUADS];
        memcpy(u, t->u[j], sizeof u);
        for (size_t r = 0; r < rows_n; r++) {
            const int8_t *hi = x[r].hi + KERN_Q_BLOCK * j, *lo = x[r].lo + KERN_Q_BLOCK * j;
            __m512 a = acc[r][j];
            if (in_halves) {
                a = add_scaled(a, sum_quads(u, hi, lo, two, 0, QUADS / 2), wd[0], x[r].d[j]);
                a = add_scaled(a, sum_quads(u, hi, lo, two, QUADS / 2, QUADS), wd[1], x[r].d[j]);
                a = _mm512_fnmadd_ps(wm[0], _mm512_set1_ps(x[r].s_half[0][j]), a);
                acc[r][j] = _mm512_fnmadd_ps(wm[1], _mm512_set1_ps(x[r].s_half[1][j]), a);
            } else {
                a = add_scaled(a, sum_quads(u, hi, lo, two, 0, QUADS), wd[0], x[r].d[j]);
                acc[r][j] = _mm512_fnmadd_ps(wm[0], _mm512_set1_ps(x[r].s[j]), a);
            }
        }
    }
}

typedef void add_fn(const struct tile *t, int blocks_n, const struct kern_q_x *x, size_t rows_n,
                    __m512 (*acc)[KERN_Q_BLOCKS]);

#define ADD(name, two, in_halves)                                                                                    \
    static void name(const struct tile *t, int blocks_n, const struct kern_q_x *x, size_t rows_n,                    \
                     __m512(*acc)[KERN_Q_BLOCKS])                                                                    \
    {                                                                                                                \
        add_group(t, blocks_n, x, rows_n, two, in_halves, acc);                                                      \
    }
ADD(add_one, false, false)
ADD(add_two, true, false)
ADD(add_one_halves, false, true)
ADD(add_two_halves, true, true)

INLINE __m512 fold(const __m512 a[KERN_Q_BLOCKS])
{
    __m512 even = _mm512_add_ps(_mm512_add_ps(a[0], a[4]), _mm512_add_ps(a[2], a[6]));
    return _mm512_add_ps(even, _mm512_add_ps(_mm512_add_ps(a[1], a[5]), _mm512_add_ps(a[3], a[7])));
}

INLINE void read_ahead(const uint8_t *at, size_t step, size_t bytes)
{
    for (size_t i = 0; i < ROWS; i++)
        for (size_t k = 0; k < bytes; k += 64)
            _mm_prefetch((const char *)at + i * step + bytes + k, _MM_HINT_T0);
}

/* What a type is: its blocks, and what unpacks a group of them. */
struct form {
    void (*unpack)(const void *group, size_t step, int blocks_n, struct tile *t);
    add_fn *add[2]; /* one digit, two */
    size_t block_bytes, block_n;
};

INLINE void run(const struct form *f, const void *w, size_t step, size_t n, const struct kern_q_x *x, size_t x_step,
                size_t rows_n, bool two, float *out, size_t out_step)
{
    const size_t group_bytes = f->block_bytes * (KERN_Q_GROUP / f->block_n);
    const uint8_t *group = w;
    __m512 acc[KERN_Q_TILE_X][KERN_Q_BLOCKS];
    struct tile t;
    memset(acc, 0, rows_n * sizeof *acc);
    for (size_t at = 0; at < n; at += KERN_Q_GROUP, group += group_bytes, x += x_step) {
        const int blocks_n = n - at < KERN_Q_GROUP ? (int)((n - at) / KERN_Q_BLOCK) : KERN_Q_BLOCKS;
        read_ahead(group, step, group_bytes);
        f->unpack(group, step, blocks_n, &t);
        f->add[two](&t, blocks_n, x, rows_n, acc);
    }
    for (size_t r = 0; r < rows_n; r++)
        _mm512_storeu_ps(out + r * out_step, fold(acc[r]));
}

#define Q_TILE(type, n_, one_digit, two_digits)                                                                      \
    static void tile_##type(const void *w, size_t step, size_t n, const struct kern_q_x *x, size_t x_step,           \
                            size_t rows_n, bool two, float *out, size_t out_step)                                    \
    {                                                                                                                \
        static const struct form f = {unpack_##type, {one_digit, two_digits}, sizeof(struct block_##type), n_};      \
        run(&f, w, step, n, x, x_step, rows_n, two, out, out_step);                                                  \
    }

Q_TILE(q4_0, 32, add_one, add_two)
Q_TILE(q4_1, 32, add_one, add_two)
Q_TILE(q5_0, 32, add_one, add_two)
Q_TILE(q5_1, 32, add_one, add_two)
Q_TILE(q8_0, 32, add_one, add_two)
Q_TILE(q4_k, 256, add_one, add_two)
Q_TILE(q5_k, 256, add_one, add_two)
Q_TILE(q6_k, 256, add_one_halves, add_two_halves)

static const kern_q_tile table[QUANT_TYPES_N] = {
    [QUANT_Q4_0] = tile_q4_0, [QUANT_Q4_1] = tile_q4_1, [QUANT_Q5_0] = tile_q5_0, [QUANT_Q5_1] = tile_q5_1,
    [QUANT_Q8_0] = tile_q8_0, [QUANT_Q4_K] = tile_q4_k, [QUANT_Q5_K] = tile_q5_k, [QUANT_Q6_K] = tile_q6_k};
ISA_END

void kern_q_init_tile(struct kern_q_ops *k)
{
    for (int t = 0; t < QUANT_TYPES_N; t++)
        k->tile[t] = table[t];
}
#else
void kern_q_init_tile(struct kern_q_ops *k)
{
    (void)k;
}
#endif
