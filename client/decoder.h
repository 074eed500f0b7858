/* decoder: the client's half of a model: embeddings, attention with its KV cache,
 * norms and lm_head. The FFN is a function of the caller's: local or remote.
 * Maps no FFN tensor. Not thread-safe: one per sequence. */
#ifndef LQ_CLIENT_DECODER_H
#define LQ_CLIENT_DECODER_H

#include "model/arch.h"
#include "model/mat.h"

struct decoder;

/* out[rows_n * hidden] = FFN of layer on x; fills fault on failure. */
typedef enum lq_err (*decoder_ffn)(void *arg, uint32_t layer, const float *x, size_t rows_n, float *out,
                                   struct lq_fault *fault);

/* context_max: tokens of the KV cache (memory: layers * 2 * kv_heads * head_dim * 4 bytes each).
 * rows_max: tokens of one decoder_feed step inside; longer prompts go in chunks.
 * g, a, c, and ffn's arg outlive it. */
enum lq_err decoder_new(const struct gguf *g, const struct arch *a, struct compute *c, uint32_t context_max,
                        uint32_t rows_max, decoder_ffn ffn, void *ffn_arg, struct decoder **out,
                        struct lq_fault *fault) LQ_MUST_CHECK;
void decoder_free(struct decoder *d);
uint32_t decoder_pos(const struct decoder *d); /* tokens fed so far */
void decoder_reset(struct decoder *d);

/* Feeds ids. logits (vocab floats, owned by d, good until the next call) of the
 * last one, or of each one through on_logits when given (position counted from 0
 * over all feeds). A failed FFN call fails the feed; d is then only good for reset. */
typedef void (*decoder_on_logits)(void *arg, uint32_t pos, const float *logits);
enum lq_err decoder_feed(struct decoder *d, const uint32_t *ids, size_t ids_n, const float **logits,
                         decoder_on_logits on_logits, void *arg, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
