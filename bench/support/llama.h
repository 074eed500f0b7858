/* llama: llama.cpp as a judge of whole models, called through its C library from the same
 * npm package as ggml.h. Not through Node: there each token starts new threads, which on
 * two CPUs makes two threads slower than one. Here a pool of threads stays, as in
 * llama.cpp's own programs; all else is llama.cpp's default (repacked weights, flash
 * attention where it likes, 512 tokens of context). Not thread-safe. */
#ifndef LQ_BENCH_SUPPORT_LLAMA_H
#define LQ_BENCH_SUPPORT_LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/support/ggml.h"

struct llama_judge;
enum { LLAMA_CONTEXT_N = 512 };

/* NULL: *why, in static memory. g stays the caller's and outlives it. */
struct llama_judge *llama_judge_open(struct ggml_judge *g, const char *model_path, int threads_n, const char **why);
void llama_judge_close(struct llama_judge *j); /* NULL is fine */

int32_t llama_judge_vocab_n(const struct llama_judge *j);

/* Empties the KV cache, then all n tokens as one batch. False: llama.cpp failed. */
bool llama_judge_prompt(struct llama_judge *j, const int32_t *ids, size_t n);
/* One more token; returns the likeliest that follows, or -1 when llama.cpp failed. */
int32_t llama_judge_next(struct llama_judge *j, int32_t id);

#endif
