/* arch: a model's shape and habits, read once from the metadata into a struct.
 * Architectures: llama (mistral too), gemma3, qwen2, qwen3. Another one is
 * refused by name. What llama.cpp's converter did to the file is written down
 * beside the field that needs it. */
#ifndef LQ_MODEL_ARCH_H
#define LQ_MODEL_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "model/gguf.h"

enum arch_act { ARCH_SILU, ARCH_GELU_TANH };
enum arch_rope {
    ARCH_ROPE_PAIRS, /* neighbours (2i, 2i+1): llama, whose Q and K rows were permuted by the converter */
    ARCH_ROPE_HALVES /* (i, i + d/2): gemma3, qwen2, qwen3 */
};
enum { ARCH_LAYERS_MAX = 1024, ARCH_HIDDEN_MAX = 1 << 20, ARCH_HEAD_DIM_MAX = 4096 };

struct arch {
    char family[32]; /* general.architecture */
    char name[128];  /* general.name, or the file's name */
    uint32_t layers_n, hidden_n, ffn_n, vocab_n, context_n;
    uint32_t heads_n, kv_heads_n, head_dim; /* head_dim: attention.key_length or hidden/heads */
    float rms_eps;
    enum arch_act act;
    enum arch_rope rope;
    uint32_t rope_dims;          /* values of a head that are rotated */
    float rope_base, rope_scale; /* position is multiplied by rope_scale (1/factor for linear scaling) */
    float rope_base_local;       /* gemma3's sliding layers: 10000, unscaled; else = rope_base */
    uint32_t window;             /* sliding window in tokens; 0: none */
    uint32_t window_pattern;     /* gemma3: every 6th layer is global; 0: all the same */
    float embed_scale;           /* gemma: sqrt(hidden); else 1 */
    float attn_scale;            /* 1/sqrt(head_dim) */
    bool qk_norm, post_norms, attn_bias;
    bool qk_rows_split; /* Q and K come in halves, RoPE wants pairs: a llama's vindex */
    /* gemma's norm weights carry the +1 already: the converter added it. */
    float final_softcap;       /* 0: none */
    const float *rope_factors; /* rope_freqs.weight: rope_dims/2 divisors (llama 3), or NULL; owned by gguf map */
};

/* True for a layer with the sliding window (and the local RoPE base). */
bool arch_layer_is_local(const struct arch *a, uint32_t layer);

/* All required fields, each range-checked against the tensors that are there.
 * LQ_BAD_MODEL names the key, LQ_UNSUPPORTED names the architecture. */
enum lq_err arch_read(const struct gguf *g, struct arch *out, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
