/* kern_q: the portable form first, then what the CPU does better. */
#include "model/kern_q.h"

#include "proto/cpu.h"

void kern_q_init(struct kern_q_ops *k, unsigned cpu_sets)
{
    *k = kern_q_ref;
    if (cpu_sets & CPU_NEON)
        kern_q_init_neon(k);
    if (cpu_sets & CPU_AVX2)
        kern_q_init_avx2(k);
    if (cpu_sets & CPU_VNNI)
        kern_q_init_vnni(k);
}
