/* gemm_blis: the only file that knows BLIS.
 * Debian's BLIS 0.9 does not know newer CPUs and falls back to its generic
 * kernels, five times slower: gemm_init() picks a configuration from our own CPU
 * flags and sets BLIS_ARCH_TYPE before the first call, after trying each
 * candidate in a forked child (a refused one aborts). An operator's own
 * BLIS_ARCH_TYPE is tried the same way and kept when it works. ADR 0006. */
#ifndef LQ_MODEL_GEMM_BLIS_H
#define LQ_MODEL_GEMM_BLIS_H

#include <stddef.h>

#include "proto/err.h"

/* Once a process, before threads exist (it forks); later calls do nothing. */
enum lq_err gemm_init(struct lq_fault *fault) LQ_MUST_CHECK;
const char *gemm_config(void); /* "skx", "haswell", "zen3", ..., "generic" */

/* out[s * ldo + r] = sum over c of x[s * k + c] * w[r * k + c]; one thread, the
 * caller's; threads of a pool may call at once on disjoint outputs. */
void gemm_xwt(const float *x, size_t seq_n, const float *w, size_t rows_n, size_t k, float *out, size_t ldo);

#endif
