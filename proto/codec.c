/* codec: the scalar form in every slot, then what the CPU does better. */
#include "proto/codec.h"

#include "proto/cpu.h"

void codec_init(struct codec_ops *ops, unsigned cpu_sets)
{
    *ops = codec_ref;
    if (cpu_sets & CPU_NEON)
        codec_init_neon(ops);
    if (cpu_sets & CPU_AVX2)
        codec_init_avx2(ops);
    if (cpu_sets & CPU_AVX512)
        codec_init_avx512(ops);
}
