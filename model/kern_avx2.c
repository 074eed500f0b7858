/* kern_avx2: the same kernels, compiled for AVX2. */
#include "model/kern.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "model/kern_isa.h"
#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

ISA_BEGIN(ISA_AVX2)
#define KERN_W 8
#define KERN_CVT_F16(p) (vf) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p)))
#include "model/kern_body.h"
static const struct kern_ops table = KERN_TABLE("avx2");
ISA_END

void kern_init_avx2(struct kern_ops *k)
{
    *k = table;
}
#else
void kern_init_avx2(struct kern_ops *k)
{
    (void)k;
}
#endif
