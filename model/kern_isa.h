/* kern_isa: an instruction set for the functions between ISA_BEGIN and ISA_END alone, so
 * that no instruction of it leaks into code that other CPUs run. */
#ifndef LQ_MODEL_KERN_ISA_H
#define LQ_MODEL_KERN_ISA_H

#define ISA_AVX2 "avx2,fma,f16c"
#define ISA_AVX512 "avx512f,avx512bw,avx512vl,avx512dq," ISA_AVX2
#define ISA_VNNI "avx512vnni," ISA_AVX512

#define ISA_PRAGMA(...) ISA_PRAGMA_TEXT(__VA_ARGS__)
#define ISA_PRAGMA_TEXT(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define ISA_BEGIN(sets) ISA_PRAGMA(clang attribute push(__attribute__((target(sets))), apply_to = function))
#define ISA_END ISA_PRAGMA(clang attribute pop)
#else
#define ISA_BEGIN(sets) ISA_PRAGMA(GCC push_options) ISA_PRAGMA(GCC target(sets))
#define ISA_END ISA_PRAGMA(GCC pop_options)
#endif

#endif
