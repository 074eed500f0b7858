/* tokenizer_impl: the vocabulary, shared by tokenizer.c (metadata, special tokens,
 * API), tokenizer_spm.c and tokenizer_bpe.c. Private to client/. */
#ifndef LQ_CLIENT_TOKENIZER_IMPL_H
#define LQ_CLIENT_TOKENIZER_IMPL_H

#include "client/tokenizer.h"
#include "common/name_index.h"

enum token_type { /* numbers of tokenizer.ggml.token_type */
                  TOKEN_NORMAL = 1,
                  TOKEN_UNKNOWN,
                  TOKEN_CONTROL,
                  TOKEN_USER,
                  TOKEN_UNUSED,
                  TOKEN_BYTE
};

#define TOKEN_NONE UINT32_MAX

struct ids { /* a growing list */
    uint32_t *p;
    size_t n, cap;
    bool failed; /* out of memory: later pushes do nothing */
};
void ids_push(struct ids *l, uint32_t id);

struct bpe; /* tokenizer_bpe.c: merges and the pre-tokenizer */

struct tokenizer {
    bool is_spm;
    uint32_t vocab_n;
    struct name *text;     /* as the model has it: SentencePiece with U+2581, byte level decoded to bytes */
    uint8_t *type;         /* enum token_type */
    const uint8_t *scores; /* spm: vocab_n x f32, unaligned, in the file */
    char *arena;           /* bytes behind decoded texts */
    struct name_index by_text;
    uint32_t *special; /* ids that are matched in raw text, longest first */
    size_t special_n, special_len_max;
    struct name_index by_special;
    uint32_t byte_id[256]; /* spm: <0xNN>; bpe: the byte itself; TOKEN_NONE where absent */
    int32_t bos, eos, unk;
    bool add_bos, add_eos, add_space_prefix;
    struct bpe *bpe;
};

static inline uint32_t token_find(const struct tokenizer *t, const char *p, size_t n)
{
    size_t i = name_index_find(&t->by_text, p, n);
    return i == SIZE_MAX ? TOKEN_NONE : (uint32_t)i;
}

/* One stretch of raw text -> ids. */
enum lq_err spm_encode(const struct tokenizer *t, const char *text, size_t n, struct ids *out,
                       struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err bpe_encode(const struct tokenizer *t, const char *text, size_t n, struct ids *out,
                       struct lq_fault *fault) LQ_MUST_CHECK;

/* Reads merges and the pre-tokenizer's name; needs t->by_text. */
enum lq_err bpe_new(const struct gguf *g, const struct tokenizer *t, struct bpe **out,
                    struct lq_fault *fault) LQ_MUST_CHECK;
void bpe_free(struct bpe *b);
/* The byte that a character of a byte-level text stands for (GPT-2's table); -1: none.
 * *used: bytes of UTF-8 that it took. */
int bpe_byte_of(const char *p, size_t n, size_t *used);

/* A priority queue of possible merges; the best first, the leftmost among equals. */
struct merge {
    float key;                /* lower is better: rank, or -score */
    uint32_t left, right;     /* positions of symbols */
    uint32_t left_n, right_n; /* their lengths when this was pushed: stale when changed */
    uint32_t id;              /* what they become; bpe */
};
struct merge_heap {
    struct merge *p;
    size_t n, cap;
};
bool merge_push(struct merge_heap *h, struct merge m);   /* false: out of memory */
bool merge_pop(struct merge_heap *h, struct merge *out); /* false: empty */

/* A stretch of text as a chain of symbols that merge. */
struct symbol {
    const char *p;
    uint32_t n;          /* 0: merged into its left neighbour */
    uint32_t prev, next; /* TOKEN_NONE: end */
    uint32_t id;         /* bpe */
};

#endif
