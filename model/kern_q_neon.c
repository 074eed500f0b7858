/* kern_q_neon: AArch64's widening multiplies for the integer dots; the rest is the
 * portable body, which compilers vectorise for NEON. */
#include "model/kern_q.h"

#if defined(__aarch64__)
#include <arm_neon.h>

static inline __attribute__((always_inline)) int32_t half_dot(const uint8_t *u, const int8_t *x)
{
    uint8x16_t a = vld1q_u8(u);
    int8x16_t b = vld1q_s8(x);
    int16x8_t a0 = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(a))), a1 = vreinterpretq_s16_u16(vmovl_high_u8(a));
    int16x8_t b0 = vmovl_s8(vget_low_s8(b)), b1 = vmovl_high_s8(b);
    int32x4_t sum = vmull_s16(vget_low_s16(a0), vget_low_s16(b0));
    sum = vmlal_high_s16(sum, a0, b0);
    sum = vmlal_s16(sum, vget_low_s16(a1), vget_low_s16(b1));
    sum = vmlal_high_s16(sum, a1, b1);
    return vaddvq_s32(sum);
}
#define HALF_DOT half_dot
#include "model/kern_q_body.h"

void kern_q_init_neon(struct kern_q_ops *k)
{
    *k = (struct kern_q_ops)KERN_Q_TABLE;
}
#else
void kern_q_init_neon(struct kern_q_ops *k)
{
    (void)k;
}
#endif
