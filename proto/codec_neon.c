/* codec_neon: AArch64 forms. Tails go through codec_ref: the same bytes. */
#include "proto/codec.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <float.h>

#include "proto/bytes.h"

static size_t f16_encode(const float *x, size_t n, uint8_t *out)
{
    const float32x4_t top = vdupq_n_f32(65504.0f), low = vdupq_n_f32(-65504.0f);
    uint32x4_t over = vdupq_n_u32(0);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        over = vsubq_u32(over, vcagtq_f32(v, top));
        v = vmaxq_f32(vminq_f32(v, top), low);
        vst1_u8(out + 2 * i, vreinterpret_u8_f16(vcvt_f16_f32(v)));
    }
    return vaddvq_u32(over) + codec_ref.f16_encode(x + i, n - i, out + 2 * i);
}

static void f16_decode(const uint8_t *in, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(in + 2 * i))));
    codec_ref.f16_decode(in + 2 * i, n - i, out + i);
}

static void i8_encode_row(const float *x, size_t n, uint8_t *out)
{
    float32x4_t most = vdupq_n_f32(0);
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
    float top = vmaxvq_f32(most);
    for (; i < n; i++)
        top = __builtin_fabsf(x[i]) > top ? __builtin_fabsf(x[i]) : top;
    float scale = top / 127.0f;
    if (!(scale > 0.0f)) {
        codec_ref.i8_encode_row(x, n, out);
        return;
    }
    lef32_put(out, scale);
    lef32_put(out + 4, 0.0f);
    const float32x4_t s = vdupq_n_f32(scale), most_q = vdupq_n_f32(127.0f), least_q = vdupq_n_f32(-127.0f);
    int8_t *to = (int8_t *)(out + 8);
    for (i = 0; i + 8 <= n; i += 8) { /* FCVTAS rounds half away from zero */
        float32x4_t a = vmaxq_f32(vminq_f32(vdivq_f32(vld1q_f32(x + i), s), most_q), least_q);
        float32x4_t b = vmaxq_f32(vminq_f32(vdivq_f32(vld1q_f32(x + i + 4), s), most_q), least_q);
        vst1_s8(to + i, vmovn_s16(vcombine_s16(vmovn_s32(vcvtaq_s32_f32(a)), vmovn_s32(vcvtaq_s32_f32(b)))));
    }
    for (; i < n; i++) {
        float32x4_t a = vmaxq_f32(vminq_f32(vdivq_f32(vdupq_n_f32(x[i]), s), most_q), least_q);
        to[i] = (int8_t)vgetq_lane_s32(vcvtaq_s32_f32(a), 0);
    }
}

static void i8_decode_row(const uint8_t *in, size_t n, float *out)
{
    float scale = lef32_get(in);
    const float32x4_t top = vdupq_n_f32(FLT_MAX), low = vdupq_n_f32(-FLT_MAX);
    const int8_t *p = (const int8_t *)(in + 8);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int16x8_t q = vmovl_s8(vld1_s8(p + i));
        float32x4_t a = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(q))), scale);
        float32x4_t b = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(q))), scale);
        vst1q_f32(out + i, vmaxq_f32(vminq_f32(a, top), low));
        vst1q_f32(out + i + 4, vmaxq_f32(vminq_f32(b, top), low));
    }
    for (; i < n; i++) {
        float v = (float)p[i] * scale;
        v = v > FLT_MAX ? FLT_MAX : v;
        out[i] = v < -FLT_MAX ? -FLT_MAX : v;
    }
}

void codec_init_neon(struct codec_ops *ops)
{
    /* finite and f16_saturates: compilers vectorise the scalar ones as well. */
    ops->name = "neon";
    ops->f16_encode = f16_encode;
    ops->f16_decode = f16_decode;
    ops->i8_encode_row = i8_encode_row;
    ops->i8_decode_row = i8_decode_row;
}
#else
void codec_init_neon(struct codec_ops *ops)
{
    (void)ops;
}
#endif
