/* mat: a weight matrix and out = x W^T on it, by the kernels for few rows of x
 * and by dequantised tiles in BLIS for many (model/gemm_blis.c).
 * Results do not depend on the number of threads. */
#ifndef LQ_MODEL_MAT_H
#define LQ_MODEL_MAT_H

#include <stdint.h>

#include "model/gguf.h"
#include "model/kern.h"
#include "model/kern_q.h"
#include "model/pool.h"

struct mat {
    const uint8_t *data; /* NULL: absent */
    enum quant_type type;
    size_t rows_n, cols_n; /* W is [rows_n, cols_n]: output size, input size */
    size_t row_bytes;
    size_t pad_n; /* zeros stored behind a row's cols_n values, so that it is whole blocks: a vindex's */
};

/* What computes: kernels, threads and their scratch. One owner thread at a time
 * calls; make one per compute thread. */
struct compute;

enum { MAT_DOT_ROWS_MAX = 16 }; /* up to here bits do not depend on the number of rows */

/* What a product with quantised weights takes x as; F32, F16 and BF16 weights always
 * take f32. In digits (model/kern_q.h) each row's result is its own, however many come
 * at once; with f32 more than MAT_DOT_ROWS_MAX rows go through BLIS. */
enum mat_activations { MAT_F32, MAT_8, MAT_16, MAT_ACTIVATIONS_N };
extern const char *const mat_activations_name[MAT_ACTIVATIONS_N]; /* "f32", "8", "16" */
/* LQ_USAGE: another word. */
enum lq_err mat_activations_read(const char *word, enum mat_activations *out, struct lq_fault *fault) LQ_MUST_CHECK;

/* threads_n as pool_new(). cols_max: the longest row of a matrix that will come, so
 * that nothing is allocated later (it is rounded up to whole blocks). Chooses the BLIS configuration on the first
 * call in the process (gemm_blis.h) and logs nothing: see compute_describe(). */
enum lq_err compute_new(size_t threads_n, size_t cols_max, enum mat_activations activations, struct compute **out,
                        struct lq_fault *fault) LQ_MUST_CHECK;
void compute_free(struct compute *c);
const struct kern_ops *compute_kern(const struct compute *c);
struct pool *compute_pool(const struct compute *c);
/* "kernels=avx512 activations=8 blis=skx threads=2" */
const char *compute_describe(const struct compute *c);

/* Binds a tensor: 2 dimensions, known type, the given sides. LQ_BAD_MODEL,
 * LQ_UNSUPPORTED naming tensor and type. `g` outlives m. */
enum lq_err mat_bind(struct mat *m, const struct gguf *g, const char *name, size_t rows_n, size_t cols_n,
                     struct lq_fault *fault) LQ_MUST_CHECK;

/* out[s * rows_n + r] = sum over c of W[r,c] * x[s * cols_n + c], s < seq_n. */
void mat_mul(struct compute *c, const struct mat *w, const float *x, size_t seq_n, float *out);
/* The first half of an FFN in one pass: out[s * rows_n + r] = act(gate x)[r] * (up x)[r];
 * act as kern_ops.silu_mul. scratch: as much as out, used with many rows of f32 and with padded matrices. */
void mat_gate_up(struct compute *c, const struct mat *gate, const struct mat *up,
                 void (*act)(float *gate, const float *up, size_t n), const float *x, size_t seq_n, float *scratch,
                 float *out);
/* One row of W as floats, cols_n and pad_n of them: an embedding look-up. */
void mat_row(const struct compute *c, const struct mat *w, size_t row, float *out);

/* A vector tensor (norm weights, biases) as floats into out[n]; any known type. */
enum lq_err vec_load(const struct gguf *g, const char *name, size_t n, float *out,
                     struct lq_fault *fault) LQ_MUST_CHECK;

#endif
