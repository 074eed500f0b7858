/* vindex_write: a GGUF model as a vindex directory that LARQL loads (docs/vindex.md).
 * It is written to DIR.tmp, file by file, and becomes DIR when it is whole. A DIR.tmp that was
 * left half-way is gone on with when it is of the same model and options: files that are
 * there with the right size and hash stay, the others are written again. */
#ifndef LQ_MODEL_VINDEX_WRITE_H
#define LQ_MODEL_VINDEX_WRITE_H

#include "model/arch.h"

enum vindex_level { VINDEX_FFN, VINDEX_CLIENT, VINDEX_ALL };
enum vindex_dtype { VINDEX_F16, VINDEX_F32, VINDEX_Q4K };
extern const char *const vindex_level_name[3]; /* "ffn", "client", "all" */
extern const char *const vindex_dtype_name[3]; /* "f16", "f32", "q4k" */

struct vindex_write_opts {
    const char *dir;
    enum vindex_level level;
    enum vindex_dtype dtype;
    uint32_t layer_first, layer_last; /* whose FFN; inclusive, in the model */
    /* After each piece (may be NULL): bytes of all weight files so far. */
    void (*progress)(void *arg, const char *file, uint64_t done, uint64_t total);
    void *arg;
    const _Atomic bool *stop; /* may be NULL; set: LQ_CANCELLED, DIR.tmp stays */
};

struct vindex_write_report {
    size_t files_n, kept_n;       /* kept: from an earlier run */
    uint64_t bytes;               /* of the directory */
    uint64_t values_n, rounded_n; /* dense values of the files written now, and those that f16 changed */
    size_t requantised_n;         /* matrices in another block format than the model's */
    char requantised[128];        /* the first: "output.weight, Q6_K to Q4_K" */
};

/* LQ_UNSUPPORTED: LARQL would misread the result, or the model has what a vindex cannot hold;
 * the text says what to do. LQ_USAGE: DIR is there, or DIR.tmp is of another run. */
enum lq_err vindex_write(const struct gguf *g, const struct arch *a, const struct vindex_write_opts *o,
                         struct vindex_write_report *out, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
