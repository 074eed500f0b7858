/* kern_body: the kernels, once, in portable C that every ISA file compiles for
 * itself (kern_ref.c, kern_avx2.c, ...). Not a header to use elsewhere.
 * Vectors are GNU vector types of 16 floats: one zmm, two ymm, four xmm or NEON
 * registers; sums keep the lane order that kern.h promises. */
#include "model/kern.h"
#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64)));
/* The same at any address. Vectors are never passed by value: their ABI depends on the ISA. */
typedef float f32x16_any __attribute__((vector_size(64), aligned(1), may_alias));
#define LOAD16(p) (*(const f32x16_any *)(const void *)(p))

INLINE float half_at(const uint8_t p[2])
{
    return f16_decode_one(le16_get(p));
}

/* ---- one block -> its values ------------------------------------------------------ */

INLINE void block_q4_0_dequant(const void *w, float *out)
{
    const struct block_q4_0 *b = w;
    float d = half_at(b->d);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((b->qs[i] & 15) - 8);
        out[i + 16] = d * (float)((b->qs[i] >> 4) - 8);
    }
}

INLINE void block_q4_1_dequant(const void *w, float *out)
{
    const struct block_q4_1 *b = w;
    float d = half_at(b->d), m = half_at(b->m);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(b->qs[i] & 15) + m;
        out[i + 16] = d * (float)(b->qs[i] >> 4) + m;
    }
}

INLINE void block_q5_0_dequant(const void *w, float *out)
{
    const struct block_q5_0 *b = w;
    float d = half_at(b->d);
    uint32_t high = le32_get(b->qh);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((int)((b->qs[i] & 15u) | (high >> i & 1u) << 4) - 16);
        out[i + 16] = d * (float)((int)((b->qs[i] >> 4) | (high >> (i + 16) & 1u) << 4) - 16);
    }
}

INLINE void block_q5_1_dequant(const void *w, float *out)
{
    const struct block_q5_1 *b = w;
    float d = half_at(b->d), m = half_at(b->m);
    uint32_t high = le32_get(b->qh);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(int)((b->qs[i] & 15u) | (high >> i & 1u) << 4) + m;
        out[i + 16] = d * (float)(int)((b->qs[i] >> 4) | (high >> (i + 16) & 1u) << 4) + m;
    }
}

INLINE void block_q8_0_dequant(const void *w, float *out)
{
    const struct block_q8_0 *b = w;
    float d = half_at(b->d);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)b->qs[i];
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

INLINE void block_q4_k_dequant(const void *w, float *out)
{
    const struct block_q4_k *b = w;
    float d = half_at(b->d), dmin = half_at(b->dmin), scale, min;
    for (int j = 0; j < 8; j += 2) { /* 32 bytes hold two sub-blocks: low nibbles, high nibbles */
        const uint8_t *q = b->qs + 16 * j;
        k_scale(b->scales, j, &scale, &min);
        float s = d * scale, m = dmin * min;
        for (int i = 0; i < 32; i++)
            out[32 * j + i] = s * (float)(q[i] & 15) - m;
        k_scale(b->scales, j + 1, &scale, &min);
        s = d * scale;
        m = dmin * min;
        for (int i = 0; i < 32; i++)
            out[32 * j + 32 + i] = s * (float)(q[i] >> 4) - m;
    }
}

INLINE void block_q5_k_dequant(const void *w, float *out)
{
    const struct block_q5_k *b = w;
    float d = half_at(b->d), dmin = half_at(b->dmin), scale, min;
    for (int j = 0; j < 8; j += 2) {
        const uint8_t *q = b->qs + 16 * j;
        k_scale(b->scales, j, &scale, &min);
        float s = d * scale, m = dmin * min;
        for (int i = 0; i < 32; i++)
            out[32 * j + i] = s * (float)((q[i] & 15) + (b->qh[i] >> j & 1) * 16) - m;
        k_scale(b->scales, j + 1, &scale, &min);
        s = d * scale;
        m = dmin * min;
        for (int i = 0; i < 32; i++)
            out[32 * j + 32 + i] = s * (float)((q[i] >> 4) + (b->qh[i] >> (j + 1) & 1) * 16) - m;
    }
}

INLINE void block_q6_k_dequant(const void *w, float *out)
{
    const struct block_q6_k *b = w;
    float d = half_at(b->d);
    for (int half = 0; half < 2; half++, out += 128) {
        const uint8_t *ql = b->ql + 64 * half, *qh = b->qh + 32 * half;
        const int8_t *sc = b->scales + 8 * half;
        for (int part = 0; part < 2; part++) { /* 16 values share a scale */
            float s0 = d * (float)sc[part], s1 = d * (float)sc[part + 2];
            float s2 = d * (float)sc[part + 4], s3 = d * (float)sc[part + 6];
            for (int i = 16 * part; i < 16 * part + 16; i++) {
                out[i] = s0 * (float)(((ql[i] & 15) | (qh[i] & 3) << 4) - 32);
                out[i + 32] = s1 * (float)(((ql[i + 32] & 15) | (qh[i] >> 2 & 3) << 4) - 32);
                out[i + 64] = s2 * (float)((ql[i] >> 4 | (qh[i] >> 4 & 3) << 4) - 32);
                out[i + 96] = s3 * (float)((ql[i + 32] >> 4 | (qh[i] >> 6) << 4) - 32);
            }
        }
    }
}

/* ---- sums ----------------------------------------------------------------------------- */

INLINE float fold(const f32x16 *v)
{
    float a[16];
    memcpy(a, v, sizeof a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

static float dot_f32(const float *a, const float *b, size_t n)
{
    f32x16 sum = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum += LOAD16(a + i) * LOAD16(b + i);
    for (size_t lane = 0; i < n; i++, lane++)
        sum[lane] += a[i] * b[i];
    return fold(&sum);
}

/* ---- rows ------------------------------------------------------------------------------ */

/* Both functions of one block type. The block's values stay in L1 or registers. */
#define ROW_KERNELS(type, N)                                                      \
    static void dequant_##type(const void *w, size_t n, float *out)               \
    {                                                                             \
        const struct block_##type *b = w;                                         \
        for (size_t i = 0; i < n; i += (N), b++)                                  \
            block_##type##_dequant(b, out + i);                                   \
    }                                                                             \
    static float dot_##type(const void *w, const float *x, size_t n)              \
    {                                                                             \
        const struct block_##type *b = w;                                         \
        f32x16 sum = {0};                                                         \
        float v[N];                                                               \
        for (size_t i = 0; i < n; i += (N), b++) {                                \
            block_##type##_dequant(b, v);                                         \
            for (size_t k = 0; k < (N); k += 16)                                  \
                sum += LOAD16(v + k) * LOAD16(x + i + k);                         \
        }                                                                         \
        return fold(&sum);                                                         \
    }

ROW_KERNELS(q4_0, QUANT_BLOCK_SMALL)
ROW_KERNELS(q4_1, QUANT_BLOCK_SMALL)
ROW_KERNELS(q5_0, QUANT_BLOCK_SMALL)
ROW_KERNELS(q5_1, QUANT_BLOCK_SMALL)
ROW_KERNELS(q8_0, QUANT_BLOCK_SMALL)
ROW_KERNELS(q4_k, QUANT_BLOCK_K)
ROW_KERNELS(q5_k, QUANT_BLOCK_K)
ROW_KERNELS(q6_k, QUANT_BLOCK_K)

static void dequant_f32(const void *w, size_t n, float *out)
{
    memcpy(out, w, n * sizeof *out);
}

static float dot_f32_row(const void *w, const float *x, size_t n)
{
    f32x16 sum = {0};
    const uint8_t *p = w; /* a file's tensor need not be aligned */
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum += LOAD16(p + 4 * i) * LOAD16(x + i);
    for (size_t lane = 0; i < n; i++, lane++)
        sum[lane] += lef32_get(p + 4 * i) * x[i];
    return fold(&sum);
}

static void dequant_f16(const void *w, size_t n, float *out)
{
    const uint8_t *p = w;
    for (size_t i = 0; i < n; i++)
        out[i] = half_at(p + 2 * i);
}

static void dequant_bf16(const void *w, size_t n, float *out)
{
    const uint8_t *p = w;
    for (size_t i = 0; i < n; i++)
        out[i] = f16_bits_float((uint32_t)le16_get(p + 2 * i) << 16);
}

#define HALF_DOT(type)                                                            \
    static float dot_##type(const void *w, const float *x, size_t n)              \
    {                                                                             \
        const uint8_t *p = w;                                                     \
        f32x16 sum = {0};                                                         \
        float v[16] = {0};                                                        \
        size_t i = 0;                                                             \
        for (; i + 16 <= n; i += 16) {                                            \
            dequant_##type(p + 2 * i, 16, v);                                     \
            sum += LOAD16(v) * LOAD16(x + i);                                     \
        }                                                                         \
        dequant_##type(p + 2 * i, n - i, v);                                      \
        for (size_t lane = 0; i < n; i++, lane++)                                 \
            sum[lane] += v[lane] * x[i];                                          \
        return fold(&sum);                                                         \
    }

HALF_DOT(f16)
HALF_DOT(bf16)

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

#define KERN_TABLE(isa)                                                                                          \
    {                                                                                                            \
        .name = isa,                                                                                             \
        .dequant = {[QUANT_F32] = dequant_f32, [QUANT_F16] = dequant_f16, [QUANT_BF16] = dequant_bf16,           \
                    [QUANT_Q4_0] = dequant_q4_0, [QUANT_Q4_1] = dequant_q4_1, [QUANT_Q5_0] = dequant_q5_0,       \
                    [QUANT_Q5_1] = dequant_q5_1, [QUANT_Q8_0] = dequant_q8_0, [QUANT_Q4_K] = dequant_q4_k,       \
                    [QUANT_Q5_K] = dequant_q5_k, [QUANT_Q6_K] = dequant_q6_k},                                   \
        .dot = {[QUANT_F32] = dot_f32_row, [QUANT_F16] = dot_f16, [QUANT_BF16] = dot_bf16,                       \
                [QUANT_Q4_0] = dot_q4_0, [QUANT_Q4_1] = dot_q4_1, [QUANT_Q5_0] = dot_q5_0,                       \
                [QUANT_Q5_1] = dot_q5_1, [QUANT_Q8_0] = dot_q8_0, [QUANT_Q4_K] = dot_q4_k,                       \
                [QUANT_Q5_K] = dot_q5_k, [QUANT_Q6_K] = dot_q6_k},                                               \
        .dot_f32 = dot_f32, .axpy = axpy, .scale_mul = scale_mul, .silu_mul = silu_mul,                          \
        .gelu_tanh_mul = gelu_tanh_mul,                                                                          \
    }
