/* vindex_verify: a directory against its own index.json: hashes, sizes, manifests, and
 * that what its level promises can be opened. */
#ifndef LQ_MODEL_VINDEX_VERIFY_H
#define LQ_MODEL_VINDEX_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct vindex_verify_report {
    size_t hashed_n, unhashed_n; /* files with and without a checksum */
    uint64_t bytes;              /* hashed */
    bool ffn, client;            /* what the directory holds */
    uint32_t ffn_layers_n, layers_n;
    char warning[256]; /* what LARQL would do to it; "": nothing */
};

/* progress (may be NULL): after each file that was hashed. LQ_BAD_MODEL names file, field and
 * value; LQ_IO, LQ_UNSUPPORTED, LQ_NOMEM. */
enum lq_err vindex_verify(const char *dir, void (*progress)(void *arg, const char *file, uint64_t bytes), void *arg,
                          struct vindex_verify_report *out, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
