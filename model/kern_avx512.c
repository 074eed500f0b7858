/* kern_avx512: the same kernels, compiled for AVX-512 F/BW/VL/DQ. The target is set for these
 * functions alone, so no instruction leaks into code that other CPUs run. */
#include "model/kern.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))),            \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif
#define KERN_W 16
#define KERN_CVT_F16(p) (vf) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p)))
#include "model/kern_body.h"
static const struct kern_ops table = KERN_TABLE("avx512");
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

void kern_init_avx512(struct kern_ops *k)
{
    *k = table;
}
#else
void kern_init_avx512(struct kern_ops *k)
{
    (void)k;
}
#endif
