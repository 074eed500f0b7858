/* cpu: which instruction sets this process may use.
 * detected & mask; a set is reported only when the OS saves its registers.
 * The mask comes from LQ_CPU=ref|avx2|avx512|neon (an unknown word is an error
 * at start) and from tests, which walk every set the machine has. */
#ifndef LQ_PROTO_CPU_H
#define LQ_PROTO_CPU_H

#include "proto/err.h"

enum cpu_set {
    CPU_AVX2 = 1u << 0,   /* AVX2 + FMA + F16C together */
    CPU_AVX512 = 1u << 1, /* F + BW + VL + DQ; implies CPU_AVX2 */
    CPU_NEON = 1u << 2,   /* AArch64 baseline */
    CPU_VNNI = 1u << 3,   /* AVX512_VNNI; implies CPU_AVX512 */
};

/* Sets of this machine, whatever LQ_CPU says. */
unsigned cpu_detect(void);

/* Sets that may be used: cpu_detect() limited by LQ_CPU.
 * LQ_USAGE: LQ_CPU holds an unknown word, or asks for a set that is absent. */
enum lq_err cpu_allowed(unsigned *out, struct lq_fault *fault) LQ_MUST_CHECK;

/* "avx512", "avx2", "neon" or "ref": the best of a set, for logs and /v1/stats. */
const char *cpu_name(unsigned sets);

#endif
