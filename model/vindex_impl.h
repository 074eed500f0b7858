/* vindex_impl: a directory's JSON files as structs, checked, and what an open one owns.
 * Shared by model/vindex*.c and by who checks or fuzzes a directory. */
#ifndef LQ_MODEL_VINDEX_IMPL_H
#define LQ_MODEL_VINDEX_IMPL_H

#include <jansson.h>

#include "common/hash256.h"
#include "model/arch.h"
#include "model/quant.h"
#include "model/vindex.h"

enum {
    VINDEX_JSON_BYTES_MAX = 64 << 20, /* index.json and manifests; real ones have less than 1 MB */
    VINDEX_TOKENIZER_BYTES_MAX = 256 << 20,
    VINDEX_ROWS_MAX = 1 << 16,
    VINDEX_KEY_BYTES = 160,
    VINDEX_FILE_BYTES = 64,
    VINDEX_FFN_ROWS = 3,  /* gate, up, down of a layer in interleaved_q4k_manifest.json */
    VINDEX_ATTN_ROWS = 4, /* Q, K, V, O in attn_weights_q4k_manifest.json */
    VINDEX_PAD = 256,     /* rows of blocks are filled up with zeros to a multiple */
};

/* ---- index.json ------------------------------------------------------------------------------ */

struct vindex_gate { /* a layer of gate_vectors.bin; length 0: not there */
    uint64_t offset, length;
};

struct vindex_index {
    char name[128], model_type[32], level[16];
    const char *arch; /* GGUF's general.architecture for model_type */
    uint32_t layers_n, hidden_n, ffn_n, vocab_n;
    uint32_t heads_n, kv_heads_n, head_dim;
    bool q4k;                  /* "quant" */
    enum quant_type dtype;     /* of gate_vectors.bin: QUANT_F32 or QUANT_F16 */
    struct vindex_gate *gates; /* layers_n */
    double rope_base, rms_eps; /* rms_eps: 1e-6 where it says nothing, as LARQL takes it */
    double rope_base_local, softcap, query_scalar, rotary_share, rope_factor; /* 0: it says nothing */
    uint32_t window, context_n;                                               /* 0: it says nothing */
    bool has_model_hash;                                                      /* of the GGUF file it was made from */
    struct hash256 model_hash;
    bool gemma_norms; /* stored without the 1 that GGUF's have */
};

/* name: of the file, for messages. LQ_BAD_MODEL, LQ_UNSUPPORTED, LQ_NOMEM. */
enum lq_err vindex_index_read(const char *name, const char *text, size_t n, struct vindex_index *out,
                              struct lq_fault *fault) LQ_MUST_CHECK;
void vindex_index_release(struct vindex_index *x);

/* ---- manifests -------------------------------------------------------------------------------- */

struct vindex_row {
    char key[VINDEX_KEY_BYTES];
    char file[VINDEX_FILE_BYTES]; /* a plain name */
    enum quant_type type;
    uint32_t dims_n;         /* 1 or 2 */
    uint64_t dims[2];        /* rows, columns as stored (padded in blocks); of a vector its length, 1 */
    uint64_t offset, length; /* length 0, in a manifest of blocks: not in this directory */
    bool superseded;         /* while it is read */
};

struct vindex_rows {
    struct vindex_row *p;
    size_t n;
};

/* weight_manifest.json. Rows of a kind that is not read (packed_bf16) are left out; of rows
 * with the same key the last stays. */
enum lq_err vindex_weights_read(const char *name, const char *text, size_t n, struct vindex_rows *out,
                                struct lq_fault *fault) LQ_MUST_CHECK;
/* A manifest of blocks, whose rows are of `file` and are found by position. */
enum lq_err vindex_blocks_read(const char *name, const char *file, const char *text, size_t n,
                               struct vindex_rows *out, struct lq_fault *fault) LQ_MUST_CHECK;
void vindex_rows_release(struct vindex_rows *rows);

/* The GGUF name of a manifest's key, for models of x; false: nothing reads it.
 * *layer: UINT32_MAX: of no layer. */
bool vindex_gguf_name(const struct vindex_index *x, const char *key, char name[GGUF_NAME_BYTES_MAX], uint32_t *layer);
/* The reverse; false: it has no place in a vindex. gemma_norms: of vindex_index. */
bool vindex_key_of(bool gemma_norms, const char *gguf_name, char key[VINDEX_KEY_BYTES]);

/* ---- Q6_K --------------------------------------------------------------------------------------- */

/* LARQL keeps a Q6_K block's bits in the order of the values, ggml in four interleaved
 * rows; sizes, scales and values are the same. in and out do not overlap. */
void vindex_q6k_to_ggml(const uint8_t *in, size_t blocks_n, uint8_t *out);
void vindex_q6k_from_ggml(const uint8_t *in, size_t blocks_n, uint8_t *out);

/* ---- an open one ---------------------------------------------------------------------------------- */

struct vindex;
void vindex_free(struct vindex *v);

/* Memory that lives as long as the directory is open; NULL: out of memory. */
void *vindex_alloc(struct vindex *v, size_t n);

/* Keys that are added to g->kvs, whose values live in v; all fail together. */
struct vindex_keys {
    struct gguf *g;
    struct vindex *v;
    size_t cap;
    bool failed; /* out of memory */
};
void vindex_key_u32(struct vindex_keys *k, const char *arch, const char *key, uint32_t value);
void vindex_key_f32(struct vindex_keys *k, const char *arch, const char *key, double value);
void vindex_key_bool(struct vindex_keys *k, const char *key, bool value);
void vindex_key_text(struct vindex_keys *k, const char *key, const char *p, size_t n);
/* n values of `type`: bytes of vindex_alloc() at p, or strings, malloc'd and taken over. */
void vindex_key_list(struct vindex_keys *k, const char *key, enum gguf_type type, const void *p, size_t n);

/* Pre-tokenizers by GGUF's name for them, and what tokenizer.json says instead: Split by these
 * patterns one after the other, or digits one by one, then ByteLevel. */
enum { VINDEX_SPLITS_MAX = 4 };
extern const struct vindex_pre {
    const char *name;
    const char *split[VINDEX_SPLITS_MAX];
    bool digits, byte_regex; /* byte_regex: ByteLevel cuts words by GPT-2's pattern first */
    bool whole_words;        /* model.ignore_merges */
} vindex_pres[];
extern const size_t vindex_pres_n;

/* tokenizer.json and what lies beside it, as tokenizer.ggml.* keys. */
enum lq_err vindex_tokenizer_read(const char *dir, const struct vindex_index *x, struct vindex_keys *k,
                                  struct lq_fault *fault) LQ_MUST_CHECK;
/* The same over the file's text; config: tokenizer_config.json's, or NULL. */
enum lq_err vindex_tokenizer_parse(const char *name, const char *text, size_t n, json_t *config,
                                   const struct vindex_index *x, struct vindex_keys *k,
                                   struct lq_fault *fault) LQ_MUST_CHECK;

/* DIR/NAME; LQ_BAD_MODEL: too long. */
enum { VINDEX_PATH_BYTES = 4096 };
enum lq_err vindex_path(const char *dir, const char *file, char path[VINDEX_PATH_BYTES],
                        struct lq_fault *fault) LQ_MUST_CHECK;

#endif
