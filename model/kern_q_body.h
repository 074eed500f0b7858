/* kern_q_body: kern_q.h in portable C; each ISA file compiles it for itself, with
 * HALF_DOT(u, x): the integer dot of 16 unsigned with 16 signed bytes. Not a header to
 * use elsewhere. Loops are plain so that compilers vectorise them. */
#include "model/kern_q_act.h"
#include "model/quant_blocks.h"
#include "proto/bytes.h"

/* 256 weights of one row: w = wd * u - wm; [1]: of the second 16 values of each block. */
struct group {
    _Alignas(64) uint8_t u[KERN_Q_GROUP];
    float wd[2][KERN_Q_BLOCKS], wm[2][KERN_Q_BLOCKS];
};

INLINE float half_at(const uint8_t p[2])
{
    return f16_decode_one(le16_get(p));
}

INLINE void nibbles(const uint8_t *qs, uint8_t *u)
{
    for (int i = 0; i < 16; i++) {
        u[i] = qs[i] & 15;
        u[16 + i] = qs[i] >> 4;
    }
}

INLINE void fifth_bits(const uint8_t qh[4], uint8_t *u)
{
    uint32_t bits = le32_get(qh);
    for (int i = 0; i < 32; i++)
        u[i] = (uint8_t)(u[i] | (bits >> i & 1) << 4);
}

INLINE void unpack_q4_0(const void *w, int blocks_n, struct group *g)
{
    const struct block_q4_0 *b = w;
    for (int j = 0; j < blocks_n; j++) {
        g->wd[0][j] = half_at(b[j].d);
        g->wm[0][j] = 8.0f * g->wd[0][j];
        nibbles(b[j].qs, g->u + 32 * j);
    }
}

INLINE void unpack_q4_1(const void *w, int blocks_n, struct group *g)
{
    const struct block_q4_1 *b = w;
    for (int j = 0; j < blocks_n; j++) {
        g->wd[0][j] = half_at(b[j].d);
        g->wm[0][j] = -half_at(b[j].m);
        nibbles(b[j].qs, g->u + 32 * j);
    }
}

INLINE void unpack_q5_0(const void *w, int blocks_n, struct group *g)
{
    const struct block_q5_0 *b = w;
    for (int j = 0; j < blocks_n; j++) {
        g->wd[0][j] = half_at(b[j].d);
        g->wm[0][j] = 16.0f * g->wd[0][j];
        nibbles(b[j].qs, g->u + 32 * j);
        fifth_bits(b[j].qh, g->u + 32 * j);
    }
}

INLINE void unpack_q5_1(const void *w, int blocks_n, struct group *g)
{
    const struct block_q5_1 *b = w;
    for (int j = 0; j < blocks_n; j++) {
        g->wd[0][j] = half_at(b[j].d);
        g->wm[0][j] = -half_at(b[j].m);
        nibbles(b[j].qs, g->u + 32 * j);
        fifth_bits(b[j].qh, g->u + 32 * j);
    }
}

INLINE void unpack_q8_0(const void *w, int blocks_n, struct group *g)
{
    const struct block_q8_0 *b = w;
    for (int j = 0; j < blocks_n; j++) {
        g->wd[0][j] = half_at(b[j].d);
        g->wm[0][j] = 128.0f * g->wd[0][j];
        for (int i = 0; i < 32; i++)
            g->u[32 * j + i] = (uint8_t)b[j].qs[i] ^ 0x80;
    }
}

/* The 6-bit scales and minima of 8 sub-blocks out of their 12 bytes. */
INLINE void k_scales(const uint8_t d[2], const uint8_t dmin[2], const uint8_t s[12], struct group *g)
{
    float scale = half_at(d), min = half_at(dmin);
    for (int j = 0; j < 4; j++) {
        g->wd[0][j] = scale * (float)(s[j] & 63);
        g->wm[0][j] = min * (float)(s[j + 4] & 63);
        g->wd[0][j + 4] = scale * (float)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        g->wm[0][j + 4] = min * (float)((s[j + 8] >> 4) | (s[j + 4] >> 6) << 4);
    }
}

INLINE void unpack_q4_k(const void *w, int blocks_n, struct group *g)
{
    (void)blocks_n; /* all: a block is a group */
    const struct block_q4_k *b = w;
    k_scales(b->d, b->dmin, b->scales, g);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 32; i++) {
            g->u[64 * p + i] = b->qs[32 * p + i] & 15;
            g->u[64 * p + 32 + i] = b->qs[32 * p + i] >> 4;
        }
}

INLINE void unpack_q5_k(const void *w, int blocks_n, struct group *g)
{
    (void)blocks_n; /* all: a block is a group */
    const struct block_q5_k *b = w;
    k_scales(b->d, b->dmin, b->scales, g);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 32; i++) {
            g->u[64 * p + i] = (uint8_t)((b->qs[32 * p + i] & 15) | (b->qh[i] >> 2 * p & 1) << 4);
            g->u[64 * p + 32 + i] = (uint8_t)(b->qs[32 * p + i] >> 4 | (b->qh[i] >> (2 * p + 1) & 1) << 4);
        }
}

INLINE void unpack_q6_k(const void *w, int blocks_n, struct group *g)
{
    (void)blocks_n; /* all: a block is a group */
    const struct block_q6_k *b = w;
    float d = half_at(b->d);
    for (int j = 0; j < KERN_Q_BLOCKS; j++) {
        const uint8_t *low = b->ql + 64 * (j / 4) + 32 * (j % 2), *high = b->qh + 32 * (j / 4);
        for (int i = 0; i < 32; i++)
            g->u[32 * j + i] = (uint8_t)((low[i] >> 4 * (j % 4 / 2) & 15) | (high[i] >> 2 * (j % 4) & 3) << 4);
        for (int part = 0; part < 2; part++) {
            g->wd[part][j] = d * (float)b->scales[2 * j + part];
            g->wm[part][j] = 32.0f * g->wd[part][j];
        }
    }
}

/* acc[0..blocks_n - 1] of one activation row takes one group, or what a row ends with; halves: a scale for each 16
 * values. */
INLINE void add_group(const struct group *g, const struct kern_q_x *x, bool two, bool halves, int blocks_n,
                      float *acc)
{
    int32_t dot[2][KERN_Q_BLOCKS];
    for (int j = 0; j < blocks_n; j++)
        for (int part = 0; part < 2; part++) {
            const int at = 32 * j + 16 * part;
            dot[part][j] = HALF_DOT(g->u + at, x->hi + at);
            if (two)
                dot[part][j] = dot[part][j] * 128 + HALF_DOT(g->u + at, x->lo + at);
        }
    for (int j = 0; j < blocks_n; j++) {
        if (halves) {
            acc[j] = __builtin_fmaf((float)dot[0][j], g->wd[0][j] * x->d[j], acc[j]);
            acc[j] = __builtin_fmaf((float)dot[1][j], g->wd[1][j] * x->d[j], acc[j]);
            acc[j] = __builtin_fmaf(-g->wm[0][j], x->s_half[0][j], acc[j]);
            acc[j] = __builtin_fmaf(-g->wm[1][j], x->s_half[1][j], acc[j]);
        } else {
            acc[j] = __builtin_fmaf((float)(dot[0][j] + dot[1][j]), g->wd[0][j] * x->d[j], acc[j]);
            acc[j] = __builtin_fmaf(-g->wm[0][j], x->s[j], acc[j]);
        }
    }
}

INLINE float fold(const float a[KERN_Q_BLOCKS])
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

#define Q_DOT(type, group_blocks, halves)                                                                            \
    INLINE void rows_##type(const void *w, size_t n, const struct kern_q_x *x, size_t x_step, size_t rows_n,         \
                            bool two, float *out, size_t out_step)                                                   \
    {                                                                                                                \
        const struct block_##type *b = w;                                                                            \
        float acc[KERN_Q_ROWS_MAX][KERN_Q_BLOCKS] = {{0}};                                                           \
        for (size_t at = 0; at < n; at += KERN_Q_GROUP, b += (group_blocks), x += x_step) {                          \
            struct group g;                                                                                          \
            const int blocks_n = n - at < KERN_Q_GROUP ? (int)((n - at) / KERN_Q_BLOCK) : KERN_Q_BLOCKS;             \
            unpack_##type(b, blocks_n, &g);                                                                          \
            for (size_t r = 0; r < rows_n; r++)                                                                      \
                add_group(&g, x + r, two, halves, blocks_n, acc[r]);                                                 \
        }                                                                                                            \
        for (size_t r = 0; r < rows_n; r++)                                                                          \
            out[r * out_step] = fold(acc[r]);                                                                        \
    }                                                                                                                \
    static void dot_##type(const void *w, size_t n, const struct kern_q_x *x, size_t x_step, size_t rows_n,          \
                           bool two, float *out, size_t out_step)                                                    \
    {                                                                                                                \
        if (two)                                                                                                     \
            rows_##type(w, n, x, x_step, rows_n, true, out, out_step);                                               \
        else                                                                                                         \
            rows_##type(w, n, x, x_step, rows_n, false, out, out_step);                                              \
    }

KERN_Q_EACH(Q_DOT)
