/* vindex_write_impl: files that are written with their hash, and what goes into them.
 * Private to model/vindex_write*.c. */
#ifndef LQ_MODEL_VINDEX_WRITE_IMPL_H
#define LQ_MODEL_VINDEX_WRITE_IMPL_H

#include <openssl/evp.h>

#include "model/kern.h"
#include "model/vindex_impl.h"
#include "model/vindex_write.h"

/* ---- a file: written as NAME.part, renamed when it is on disk ---- */

struct vindex_out {
    char path[VINDEX_PATH_BYTES]; /* without .part */
    int fd;
    uint8_t *buf;
    size_t n; /* in buf */
    uint64_t bytes;
    EVP_MD_CTX *sum;
    enum lq_err rc; /* of the first failure; later writes do nothing */
    struct lq_fault *fault;
};

/* vindex_out_end() must follow, whatever comes between. */
void vindex_out_begin(struct vindex_out *o, const char *dir, const char *name, struct lq_fault *fault);
void vindex_out_put(struct vindex_out *o, const void *p, size_t n);
void vindex_out_print(struct vindex_out *o, const char *fmt, ...) LQ_PRINTF(2, 3);
/* A JSON text of n bytes, quoted; what is no UTF-8 fails with LQ_UNSUPPORTED. */
void vindex_out_text(struct vindex_out *o, const char *p, size_t n);
/* On disk under its name, or gone. */
enum lq_err vindex_out_end(struct vindex_out *o, struct hash256 *hash) LQ_MUST_CHECK;
/* SHA-256 and size of a file that is there; LQ_IO: it is not, or cannot be read. */
enum lq_err vindex_file_hash(const char *path, struct hash256 *hash, uint64_t *bytes,
                             struct lq_fault *fault) LQ_MUST_CHECK;

/* ---- a tensor ---- */

struct vindex_tensor {
    const struct gguf_tensor *t;
    char key[VINDEX_KEY_BYTES];
    enum quant_type from, to;
    uint32_t head_dim;       /* rows of Q and K go from pairs to halves, a head at a time; 0: they stay */
    bool minus_one;          /* a norm of gemma */
    uint64_t offset, length; /* in its file */
};

/* Its values into o. row: scratch of dims[0] floats. */
enum lq_err vindex_tensor_put(struct vindex_out *o, const struct vindex_tensor *t, const struct kern_ops *kern,
                              float *row, struct vindex_write_report *report) LQ_MUST_CHECK;

/* ---- tokenizer.json, tokenizer_config.json ---- */

enum lq_err vindex_write_tokenizer(const struct gguf *g, const char *dir, struct hash256 hashes[2],
                                   struct lq_fault *fault) LQ_MUST_CHECK;

#endif
