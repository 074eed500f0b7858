/* ffn: the feed-forward blocks of a range of layers: down(act(gate x) * up x),
 * no norm and no residual add (docs/protocol.md, 1).
 * Weights stay in the file's map; only the range's pages are touched. */
#ifndef LQ_MODEL_FFN_H
#define LQ_MODEL_FFN_H

#include "model/arch.h"
#include "model/mat.h"

/* The tensors of a layer that are bound, by i < FFN_TENSORS_N, in the order of their names:
 * blk.L.ffn_{down,gate,up}.weight. Returns name. */
enum { FFN_TENSORS_N = 3, FFN_NAME_BYTES = 64 };
const char *ffn_tensor_name(uint32_t layer, size_t i, char name[FFN_NAME_BYTES]);

struct ffn; /* read-only after ffn_new; threads share it, each with its own compute and scratch */

/* Binds layers first..last (inclusive); LQ_BAD_MODEL names the tensor that is
 * absent or misshapen, LQ_BAD_LAYER a range outside the model. g outlives it. */
enum lq_err ffn_new(const struct gguf *g, const struct arch *a, uint32_t first, uint32_t last, struct ffn **out,
                    struct lq_fault *fault) LQ_MUST_CHECK;
void ffn_free(struct ffn *f);
uint64_t ffn_bytes(const struct ffn *f);    /* of the range's weights */
const char *ffn_dtype(const struct ffn *f); /* type of the first gate, e.g. "Q4_K"; several: "mixed" */
void ffn_prefetch(const struct ffn *f);     /* reads the range's pages ahead */

/* Rows of intermediate values that one call needs: caller's scratch, 2 * ffn_n * chunk floats,
 * with chunk = min(seq_n, FFN_CHUNK_ROWS). */
enum { FFN_CHUNK_ROWS = 256 };
size_t ffn_scratch_floats(const struct ffn *f, size_t seq_n);

/* out[seq_n * hidden] from x[seq_n * hidden]; layer in range. scratch as above. */
void ffn_forward(const struct ffn *f, struct compute *c, uint32_t layer, const float *x, size_t seq_n, float *scratch,
                 float *out);
/* scores[ffn_n] = gate . x of one row: the features mode. */
void ffn_gate_scores(const struct ffn *f, struct compute *c, uint32_t layer, const float *x, float *scores);

#endif
