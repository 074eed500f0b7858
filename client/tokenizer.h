/* tokenizer: text <-> token ids, from the tokenizer.ggml.* metadata of a GGUF.
 * Models: "llama" (SentencePiece BPE by scores, byte fallback) and "gpt2"
 * (byte-level BPE by merges, after the pre-tokenizer regex that tokenizer.ggml.pre
 * names, run by PCRE2). Ids equal llama.cpp's exactly. */
#ifndef LQ_CLIENT_TOKENIZER_H
#define LQ_CLIENT_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "model/gguf.h"

struct tokenizer; /* read-only after new; borrows the gguf */

/* LQ_UNSUPPORTED names an unknown model or pre-tokenizer, LQ_BAD_MODEL the field. */
enum lq_err tokenizer_new(const struct gguf *g, struct tokenizer **out, struct lq_fault *fault) LQ_MUST_CHECK;
void tokenizer_free(struct tokenizer *t);

uint32_t tokenizer_vocab_n(const struct tokenizer *t);
/* -1 where the model has none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_is_end(const struct tokenizer *t, uint32_t id); /* eos, eot, <end_of_turn>, <|im_end|>, ... */

/* Text of n bytes (UTF-8; other bytes are taken one by one) -> *ids, malloc'd, *ids_n.
 * add_special: bos/eos as the model's flags say. parse_special: control tokens
 * written in the text ("<|im_start|>") become their ids. */
enum lq_err tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                             bool parse_special, uint32_t **ids, size_t *ids_n, struct lq_fault *fault) LQ_MUST_CHECK;

/* The bytes of one token into buf, *n of them (<= buf_n, 256 is always enough for
 * sane models; longer ones are cut). A character may span tokens, so a terminal
 * gets bytes as they come. control: control tokens' text too, else nothing. */
size_t tokenizer_piece(const struct tokenizer *t, uint32_t id, bool control, char *buf, size_t buf_n);

#endif
