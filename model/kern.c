/* kern: every slot scalar first, then what the CPU does better. */
#include "model/kern.h"

#include "proto/cpu.h"

void kern_init(struct kern_ops *k, unsigned cpu_sets)
{
    *k = kern_ref;
    if (cpu_sets & CPU_NEON)
        kern_init_neon(k);
    if (cpu_sets & CPU_AVX2)
        kern_init_avx2(k);
    if (cpu_sets & CPU_AVX512)
        kern_init_avx512(k);
}
