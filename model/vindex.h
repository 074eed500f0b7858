/* vindex: LARQL's model directories (docs/vindex.md), opened as if they were the GGUF file
 * that they were made from: keys and tensors have its names, shapes, types and bytes. So
 * nothing above this file knows which of the two a model is, but for gguf_rows_unpermuted()
 * and rows with zeros behind them (struct gguf_tensor.pad_n).
 * Weights stay in the files' maps, except what is stored in another form than GGUF's:
 * Q6_K blocks (LARQL orders their bits differently) and norms of gemma (without the +1)
 * are copies. Only what is asked for is mapped; the rest are holes, as in a partial file.
 * Nothing in a directory is trusted: every count, range and word is checked, an error names
 * file, row and value. */
#ifndef LQ_MODEL_VINDEX_H
#define LQ_MODEL_VINDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

struct gguf;

struct model_want {
    bool ffn;                     /* the FFN of layers ffn_first..ffn_last, which may pass the model's end */
    uint32_t ffn_first, ffn_last; /* inclusive */
    bool every_file;              /* a tensor in a file that is not there is an error, wanted or not */
    bool client;                  /* embeddings, attention, norms, head and tokenizer */
};
extern const struct model_want model_want_all;

/* Opens a GGUF file (whole: what is wanted plays no part) or a vindex directory.
 * LQ_IO, LQ_BAD_MODEL, LQ_UNSUPPORTED, LQ_NOMEM. */
enum lq_err model_open(const char *path, const struct model_want *want, struct gguf **out,
                       struct lq_fault *fault) LQ_MUST_CHECK;

#endif
