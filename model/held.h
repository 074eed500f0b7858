/* held: the list beside a partial model file of what it holds. MODEL.gguf then has the
 * size and the offsets of its origin, with holes where bytes were never fetched; the list
 * is MODEL.gguf.held, and MODEL.gguf.part (a file not whole yet) has the same list.
 * JSON: {"version":1,"bytes":N,"held":[[from,end],...],"url","etag"?,"modified"?,
 *        "layers":{"3":"64 hex",...}}
 * Whoever reads weights goes by it (model/gguf does): a hole reads as zeros. The bytes of a
 * range are on disk before the list names it. */
#ifndef LQ_MODEL_HELD_H
#define LQ_MODEL_HELD_H

#include "common/hash256.h"
#include "model/ranges.h"
#include "proto/err.h"

enum { HELD_WORD_BYTES = 256 };

struct held_layer {
    uint32_t layer;
    struct hash256 hash; /* model/identity.h; as it was when the layer had come */
};

struct held {       /* {0} is empty */
    uint64_t bytes; /* of the whole file */
    struct ranges ranges;
    char *url;                                             /* of the origin; NULL: not known */
    char etag[HELD_WORD_BYTES], modified[HELD_WORD_BYTES]; /* its validators; "": none */
    struct held_layer *layers;
    size_t layers_n;
};

/* MODEL + suffix, for MODEL.part too. False: the path is too long. */
bool held_side_path(const char *model, const char *suffix, char *out, size_t n) __attribute__((warn_unused_result));

/* *there false (and LQ_OK): model has no list, so it is whole. LQ_BAD_MODEL: a list that
 * cannot be trusted; LQ_IO, LQ_NOMEM. */
enum lq_err held_read(const char *model, struct held *out, bool *there, struct lq_fault *fault) LQ_MUST_CHECK;
/* In one step, lasting. */
enum lq_err held_write(const char *model, const struct held *h, struct lq_fault *fault) LQ_MUST_CHECK;
void held_release(struct held *h);

/* NULL: not recorded. */
const struct hash256 *held_layer(const struct held *h, uint32_t layer);
/* False: out of memory. */
bool held_set_layer(struct held *h, uint32_t layer, const struct hash256 *hash) __attribute__((warn_unused_result));
void held_forget_layer(struct held *h, uint32_t layer);

#endif
