/* cpu: see cpu.h. __builtin_cpu_supports() asks CPUID and XGETBV, so a set whose
 * registers the OS does not save is not reported. */
#include "proto/cpu.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Not a word that clang 14 knows; AVX2 below stands for the OS's part. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

unsigned cpu_detect(void)
{
    unsigned sets = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        sets |= CPU_AVX2;
    if ((sets & CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        sets |= CPU_AVX512;
    if ((sets & CPU_AVX512) && __builtin_cpu_supports("avx512vnni"))
        sets |= CPU_VNNI;
#elif defined(__aarch64__)
    sets |= CPU_NEON;
#endif
    return sets;
}

enum lq_err cpu_allowed(unsigned *out, struct lq_fault *fault)
{
    static const struct {
        const char *word;
        unsigned need, mask;
    } words[] = {
        {"ref", 0, 0},
        {"avx2", CPU_AVX2, CPU_AVX2},
        {"avx512", CPU_AVX512, CPU_AVX2 | CPU_AVX512 | CPU_VNNI},
        {"neon", CPU_NEON, CPU_NEON},
    };
    unsigned have = cpu_detect();
    const char *want = getenv("LQ_CPU");
    *out = have;
    if (!want || !*want)
        return LQ_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(want, words[i].word) != 0)
            continue;
        if ((have & words[i].need) != words[i].need)
            return lq_fail(fault, LQ_USAGE, "LQ_CPU=%s: this CPU lacks it; its best is %s", want, cpu_name(have));
        *out = have & words[i].mask;
        return LQ_OK;
    }
    return lq_fail(fault, LQ_USAGE, "LQ_CPU=%.32s: use ref, avx2, avx512 or neon", want);
}

const char *cpu_name(unsigned sets)
{
    return sets & CPU_AVX512 ? "avx512" : sets & CPU_AVX2 ? "avx2" : sets & CPU_NEON ? "neon" : "ref";
}
