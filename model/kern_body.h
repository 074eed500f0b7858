/* kern_body: the kernels, once, in portable C that every ISA file compiles for itself
 * (kern_ref.c, kern_avx2.c, ...), with KERN_W defined. Not a header to use elsewhere.
 * GNU vector types of one register each; sums keep the lane order of kern.h. */
#include "model/kern.h"
#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

#define INLINE static inline __attribute__((always_inline))

/* KERN_W floats are one register of the ISA: 16, 8 or 4. Kernels go by pieces of 16
 * values, PIECE_V registers; even and odd pieces fill the two halves of kern.h's lanes.
 * Vectors are never passed by value: their ABI depends on the ISA. */
enum { PIECE_V = 16 / KERN_W, SUM_V = KERN_LANES_N / KERN_W, ROWS_AT_ONCE = KERN_W == 16 ? 8 : 2 };
typedef float vf __attribute__((vector_size(4 * KERN_W)));
typedef int32_t vi __attribute__((vector_size(4 * KERN_W)));
typedef uint32_t vu __attribute__((vector_size(4 * KERN_W)));
typedef uint8_t vb __attribute__((vector_size(KERN_W)));
/* The same at any address. */
typedef float vf_any __attribute__((vector_size(4 * KERN_W), aligned(1), may_alias));
typedef uint8_t vb_any __attribute__((vector_size(KERN_W), aligned(1), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(2 * KERN_W), aligned(1), may_alias));
#define LOAD(p) (*(const vf_any *)(const void *)(p))
#define STORE(p, v) (*(vf_any *)(void *)(p) = (v))
#define BYTES(p) (*(const vb_any *)(const void *)(p))
#define NIBBLES(p, high) (BYTES(p) >> 4 * (high)&15)
#define FLOATS(ints) __builtin_convertvector(ints, vf)
/* From unsigned bytes only: gcc 12 takes signed ones apart, byte by byte. */
#define INTS(bytes) __builtin_convertvector(bytes, vi)
/* Each register of a piece in turn; c: where its lanes begin. */
#define EACH_V(p, c) _Pragma("GCC unroll 4") for (int p = 0, c = 0; p < PIECE_V; p++, c += KERN_W)

INLINE float half_at(const uint8_t p[2])
{
    return f16_decode_one(le16_get(p));
}

/* ---- 16 values of a block ------------------------------------------------------------
 * block_TYPE_16(block, k, v): values 16k .. 16k + 15. They stay in registers: a block
 * that went through memory in narrow stores and wide loads would stall on each. */

INLINE void block_q4_0_16(const struct block_q4_0 *b, int k, vf v[PIECE_V])
{
    float d = half_at(b->d);
    EACH_V(p, c) v[p] = d * FLOATS(INTS(NIBBLES(b->qs + c, k)) - 8);
}

INLINE void block_q4_1_16(const struct block_q4_1 *b, int k, vf v[PIECE_V])
{
    float d = half_at(b->d), m = half_at(b->m);
    EACH_V(p, c) v[p] = d * FLOATS(INTS(NIBBLES(b->qs + c, k))) + m;
}

/* Bit 16k + i of 32 goes to value i, as 16 or 0; here for the lanes from c on. */
INLINE void fifth_bits(const uint8_t qh[4], int k, int c, vi *v)
{
    vu place;
    for (int i = 0; i < KERN_W; i++)
        place[i] = (uint32_t)(16 * k + c + i);
    vu all = (vu){0} + le32_get(qh);
    *v = (vi)((all >> place & 1) << 4);
}

INLINE void block_q5_0_16(const struct block_q5_0 *b, int k, vf v[PIECE_V])
{
    float d = half_at(b->d);
    EACH_V(p, c)
    {
        vi high;
        fifth_bits(b->qh, k, c, &high);
        v[p] = d * FLOATS((INTS(NIBBLES(b->qs + c, k)) | high) - 16);
    }
}

INLINE void block_q5_1_16(const struct block_q5_1 *b, int k, vf v[PIECE_V])
{
    float d = half_at(b->d), m = half_at(b->m);
    EACH_V(p, c)
    {
        vi high;
        fifth_bits(b->qh, k, c, &high);
        v[p] = d * FLOATS(INTS(NIBBLES(b->qs + c, k)) | high) + m;
    }
}

INLINE void block_q8_0_16(const struct block_q8_0 *b, int k, vf v[PIECE_V])
{
    float d = half_at(b->d);
    EACH_V(p, c) v[p] = d * FLOATS(INTS(BYTES(b->qs + 16 * k + c) ^ 0x80) - 128);
}

/* Sub-block j's 6-bit scale and minimum out of the 12 shared bytes. */
INLINE void k_scale(const uint8_t s[12], int j, float *scale, float *min)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *min = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (float)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* Two sub-blocks of 32 share 32 bytes: low nibbles, then high nibbles. */
INLINE void block_q4_k_16(const struct block_q4_k *b, int k, vf v[PIECE_V])
{
    int j = k / 2;
    float scale, min;
    k_scale(b->scales, j, &scale, &min);
    scale = half_at(b->d) * scale;
    min = half_at(b->dmin) * min;
    const uint8_t *q = b->qs + 32 * (j / 2) + 16 * (k % 2);
    EACH_V(p, c) v[p] = scale * FLOATS(INTS(NIBBLES(q + c, j % 2))) - min;
}

INLINE void block_q5_k_16(const struct block_q5_k *b, int k, vf v[PIECE_V])
{
    int j = k / 2;
    float scale, min;
    k_scale(b->scales, j, &scale, &min);
    scale = half_at(b->d) * scale;
    min = half_at(b->dmin) * min;
    const uint8_t *q = b->qs + 32 * (j / 2) + 16 * (k % 2), *high = b->qh + 16 * (k % 2);
    EACH_V(p, c) v[p] = scale * FLOATS(INTS(NIBBLES(q + c, j % 2) | (BYTES(high + c) >> j & 1) << 4)) - min;
}

/* Each half of 128 values: 64 bytes of low nibbles, 32 of high pairs; 16 values a scale. */
INLINE void block_q6_k_16(const struct block_q6_k *b, int k, vf v[PIECE_V])
{
    int half = k / 8, group = k % 8 / 2, part = k % 2;
    float scale = half_at(b->d) * (float)b->scales[8 * half + 2 * group + part];
    const uint8_t *low = b->ql + 64 * half + 32 * (group % 2) + 16 * part, *high = b->qh + 32 * half + 16 * part;
    EACH_V(p, c)
    {
        vb q = NIBBLES(low + c, group / 2) | (BYTES(high + c) >> 2 * group & 3) << 4;
        v[p] = scale * FLOATS(INTS(q) - 32);
    }
}

/* 16 halves as f16_decode_one() reads each. */
INLINE void f16_16(const uint8_t *w, vf v[PIECE_V])
{
#ifdef KERN_CVT_F16
    EACH_V(p, c) v[p] = KERN_CVT_F16(w + 2 * c);
#else
    EACH_V(p, c)
    {
        vu h = __builtin_convertvector(*(const vh_any *)(const void *)(w + 2 * c), vu);
        vu body = (h & 0x7fff) << 13, normal = body + (112u << 23), special = body | 0x7f800000u;
        vf shifted = (vf)(body + (113u << 23)) - 0x1p-14f;
        vu is_small = (vu)((h & 0x7c00) == 0), is_special = (vu)((h & 0x7c00) == 0x7c00);
        vu bits = (is_small & (vu)shifted) | (is_special & special) | (~(is_small | is_special) & normal);
        v[p] = (vf)(bits | (h & 0x8000) << 16);
    }
#endif
}

INLINE void bf16_16(const uint8_t *w, vf v[PIECE_V])
{
    EACH_V(p, c) v[p] = (vf)(__builtin_convertvector(*(const vh_any *)(const void *)(w + 2 * c), vu) << 16);
}

INLINE float bf16_at(const uint8_t *p)
{
    return f16_bits_float((uint32_t)le16_get(p) << 16);
}

INLINE void f32_16(const uint8_t *w, vf v[PIECE_V])
{
    EACH_V(p, c) v[p] = LOAD(w + 4 * c);
}

/* A row comes from memory once, in order; the hardware's own reading ahead stops at each
 * page, so this goes on beyond it, into L2: L1 has few lines on their way at once, and
 * these rows are long. Never faults. */
enum { AHEAD_BYTES = 8192, LINE_BYTES = 64 };
INLINE void read_ahead(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES)
        __builtin_prefetch((const char *)p + AHEAD_BYTES + i, 0, 2);
}

/* ---- sums ----------------------------------------------------------------------------- */

INLINE float fold(float a[KERN_LANES_N])
{
    for (int half = KERN_LANES_N / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

/* Out of the registers, once: sums that are written lane by lane would live in memory. */
#define LANES(a, sum)                                                                                                \
    float a[KERN_LANES_N];                                                                                           \
    for (int i_ = 0; i_ < SUM_V; i_++)                                                                               \
    STORE((a) + KERN_W * i_, (sum)[i_])

/* Piece k of a row times 16 values of x. */
#define ADD_PRODUCT(sum, k, v, x) EACH_V(p, c) sum[(k) % 2 * PIECE_V + p] += v[p] * LOAD((x) + c)

/* ---- rows ------------------------------------------------------------------------------ */

/* Both functions of one block type. */
#define ROW_KERNELS(type, N)                                                                                         \
    static void dequant_##type(const void *w, size_t n, float *out)                                                  \
    {                                                                                                                \
        const struct block_##type *b = w;                                                                            \
        for (size_t i = 0; i < n; i += (N), b++) {                                                                   \
            _Pragma("GCC unroll 16") for (int k = 0; k < (N) / 16; k++)                                              \
            {                                                                                                        \
                vf v[PIECE_V];                                                                                       \
                block_##type##_16(b, k, v);                                                                          \
                EACH_V(p, c) STORE(out + i + 16 * (size_t)k + (size_t)c, v[p]);                                      \
            }                                                                                                        \
        }                                                                                                            \
    }                                                                                                                \
    static float dot_##type(const void *w, const float *x, size_t n)                                                 \
    {                                                                                                                \
        const struct block_##type *b = w;                                                                            \
        vf sum[SUM_V] = {0};                                                                                         \
        for (size_t i = 0; i < n; i += (N), b++) {                                                                   \
            read_ahead(b, sizeof *b);                                                                                \
            _Pragma("GCC unroll 16") for (int k = 0; k < (N) / 16; k++)                                              \
            {                                                                                                        \
                vf v[PIECE_V];                                                                                       \
                block_##type##_16(b, k, v);                                                                          \
                ADD_PRODUCT(sum, k, v, x + i + 16 * (size_t)k);                                                      \
            }                                                                                                        \
        }                                                                                                            \
        LANES(lanes, sum);                                                                                           \
        return fold(lanes);                                                                                          \
    }

ROW_KERNELS(q4_0, QUANT_BLOCK_SMALL)
ROW_KERNELS(q4_1, QUANT_BLOCK_SMALL)
ROW_KERNELS(q5_0, QUANT_BLOCK_SMALL)
ROW_KERNELS(q5_1, QUANT_BLOCK_SMALL)
ROW_KERNELS(q8_0, QUANT_BLOCK_SMALL)
ROW_KERNELS(q4_k, QUANT_BLOCK_K)
ROW_KERNELS(q5_k, QUANT_BLOCK_K)
ROW_KERNELS(q6_k, QUANT_BLOCK_K)

/* Types without blocks, rows of any length; bytes each value, at any address. */
#define PLAIN_KERNELS(type, bytes, at)                                                                               \
    static void dequant_##type(const void *w, size_t n, float *out)                                                  \
    {                                                                                                                \
        const uint8_t *b = w;                                                                                        \
        size_t i = 0;                                                                                                \
        for (; i + 16 <= n; i += 16) {                                                                               \
            vf v[PIECE_V];                                                                                           \
            type##_16(b + (bytes)*i, v);                                                                             \
            EACH_V(p, c) STORE(out + i + c, v[p]);                                                                   \
        }                                                                                                            \
        for (; i < n; i++)                                                                                           \
            out[i] = at(b + (bytes)*i);                                                                              \
    }                                                                                                                \
    /* rows_n is a constant where this is inlined: all sums stay in registers */                                     \
    INLINE void rows_##type(const void *w, const float *x, size_t x_step, size_t rows_n, size_t n, float *out,       \
                            size_t out_step)                                                                         \
    {                                                                                                                \
        const uint8_t *b = w;                                                                                        \
        vf sum[ROWS_AT_ONCE][SUM_V] = {0};                                                                           \
        size_t i = 0;                                                                                                \
        for (; i + 32 <= n; i += 32) {                                                                               \
            vf v[2][PIECE_V];                                                                                        \
            read_ahead(b + (bytes)*i, 32 * (bytes));                                                                 \
            type##_16(b + (bytes)*i, v[0]);                                                                          \
            type##_16(b + (bytes) * (i + 16), v[1]);                                                                 \
            _Pragma("GCC unroll 8") for (size_t r = 0; r < rows_n; r++)                                              \
            {                                                                                                        \
                ADD_PRODUCT(sum[r], 0, v[0], x + r * x_step + i);                                                    \
                ADD_PRODUCT(sum[r], 1, v[1], x + r * x_step + i + 16);                                               \
            }                                                                                                        \
        }                                                                                                            \
        _Pragma("GCC unroll 8") for (size_t r = 0; r < rows_n; r++)                                                  \
        {                                                                                                            \
            LANES(lanes, sum[r]);                                                                                    \
            for (size_t k = i; k < n; k++)                                                                           \
                lanes[k - i] += at(b + (bytes)*k) * x[r * x_step + k];                                               \
            out[r * out_step] = fold(lanes);                                                                         \
        }                                                                                                            \
    }                                                                                                                \
    static float dot_##type(const void *w, const float *x, size_t n)                                                 \
    {                                                                                                                \
        float out;                                                                                                   \
        rows_##type(w, x, n, 1, n, &out, 1);                                                                         \
        return out;                                                                                                  \
    }                                                                                                                \
    static void dot_rows_##type(const void *w, const float *x, size_t x_step, size_t rows_n, size_t n, float *out,   \
                                size_t out_step)                                                                     \
    {                                                                                                                \
        size_t r = 0;                                                                                                \
        for (; r + ROWS_AT_ONCE <= rows_n; r += ROWS_AT_ONCE)                                                        \
            rows_##type(w, x + r * x_step, x_step, ROWS_AT_ONCE, n, out + r * out_step, out_step);                   \
        for (; r + 2 <= rows_n; r += 2)                                                                              \
            rows_##type(w, x + r * x_step, x_step, 2, n, out + r * out_step, out_step);                              \
        if (r < rows_n)                                                                                              \
            rows_##type(w, x + r * x_step, x_step, 1, n, out + r * out_step, out_step);                              \
    }

PLAIN_KERNELS(f32, 4, lef32_get)
PLAIN_KERNELS(f16, 2, half_at)
PLAIN_KERNELS(bf16, 2, bf16_at)

static float dot_floats(const float *a, const float *b, size_t n)
{
    return dot_f32(a, b, n);
}

/* ---- vectors --------------------------------------------------------------------------------- */

static void axpy(float s, const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] += s * x[i];
}

static void scale_mul(const float *x, float s, const float *w, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * s * w[i];
}

/* e^z for |z| <= 88, within 2 ulp: e^z = 2^k e^r, |r| <= ln2/2, e^r by its series to
 * the 7th power. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. */
INLINE float exp_one(float z)
{
    const float magic = 12582912.0f;
    z = z > 88.0f ? 88.0f : z;
    z = z < -88.0f ? -88.0f : z;
    float t = z * 1.44269504f + magic, k = t - magic;
    float r = z - k * 0.693145752f;
    r = r - k * 1.42860677e-6f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * f16_bits_float((f16_float_bits(t) + 127u) << 23);
}

static void silu_mul(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + exp_one(-gate[i])) * up[i];
}

/* 0.5 x (1 + tanh(y)) = x / (1 + e^(-2y)), y = sqrt(2/pi) (x + 0.044715 x^3): no
 * cancellation for negative x. */
static void gelu_tanh_mul(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = gate[i], y = 0.797884561f * (x + 0.044715f * x * x * x);
        gate[i] = x / (1.0f + exp_one(-2.0f * y)) * up[i];
    }
}

#define KERN_TABLE(isa)                                                                                              \
    {                                                                                                                \
        .name = isa,                                                                                                 \
        .dequant = {[QUANT_F32] = dequant_f32,   [QUANT_F16] = dequant_f16,   [QUANT_BF16] = dequant_bf16,           \
                    [QUANT_Q4_0] = dequant_q4_0, [QUANT_Q4_1] = dequant_q4_1, [QUANT_Q5_0] = dequant_q5_0,           \
                    [QUANT_Q5_1] = dequant_q5_1, [QUANT_Q8_0] = dequant_q8_0, [QUANT_Q4_K] = dequant_q4_k,           \
                    [QUANT_Q5_K] = dequant_q5_k, [QUANT_Q6_K] = dequant_q6_k},                                       \
        .dot = {[QUANT_F32] = dot_f32,   [QUANT_F16] = dot_f16,   [QUANT_BF16] = dot_bf16, [QUANT_Q4_0] = dot_q4_0,  \
                [QUANT_Q4_1] = dot_q4_1, [QUANT_Q5_0] = dot_q5_0, [QUANT_Q5_1] = dot_q5_1, [QUANT_Q8_0] = dot_q8_0,  \
                [QUANT_Q4_K] = dot_q4_k, [QUANT_Q5_K] = dot_q5_k, [QUANT_Q6_K] = dot_q6_k},                          \
        .dot_rows = {[QUANT_F32] = dot_rows_f32, [QUANT_F16] = dot_rows_f16, [QUANT_BF16] = dot_rows_bf16},          \
        .dot_f32 = dot_floats, .axpy = axpy, .scale_mul = scale_mul, .silu_mul = silu_mul,                           \
        .gelu_tanh_mul = gelu_tanh_mul,                                                                              \
    }
