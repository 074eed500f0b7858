/* identity: what a model's weights are, so that two files that share a name and a shape
 * but not their bytes are never taken for replicas of each other.
 *
 * Two kinds of SHA-256, over bytes that any implementation can make again; integers are
 * little-endian, nothing is padded. A tensor's head is
 *
 *     u32 bytes of its name | the name | u32 ggml type | u32 dimensions | u64 each dimension
 *
 * with the dimensions in the file's order (row length first). "Sorted" is by the names' bytes.
 *
 *   model hash      "larql-model-1\n", then the heads of all tensors of the model (all parts of
 *                   a split one), sorted. No weight and no metadata goes in: a file that holds
 *                   a few layers only has the hash of the whole.
 *   layer hash of L "larql-layer-1\n", then for each FFN tensor of layer L, sorted
 *                   (blk.L.ffn_down.weight, blk.L.ffn_gate.weight, blk.L.ffn_up.weight): its
 *                   head, and the 32 bytes of the SHA-256 of its bytes in the file.
 *
 * A vindex keeps the model hash of the GGUF file that it was made from (docs/vindex.md), and its
 * tensors are hashed as that file had them: Q6_K in ggml's order.
 *
 * tests/tools/identity.py is a second implementation. Byte hashes are kept beside the model
 * (model/hash_cache.h), so that a file is read for them once. */
#ifndef LQ_MODEL_IDENTITY_H
#define LQ_MODEL_IDENTITY_H

#include "common/hash256.h"
#include "model/gguf.h"

struct pool;

struct identity { /* {0} is empty */
    struct hash256 model;
    uint32_t layer_first, layer_last;
    struct hash256 *layers; /* of layer_first..layer_last */
};

/* SHA-256 of n bytes. LQ_INTERNAL: OpenSSL refuses. */
enum lq_err identity_hash(const void *p, size_t n, struct hash256 *out, struct lq_fault *fault) LQ_MUST_CHECK;

/* Reads heads only. LQ_NOMEM, LQ_INTERNAL. */
enum lq_err identity_model(const struct gguf *g, struct hash256 *out, struct lq_fault *fault) LQ_MUST_CHECK;

/* Both kinds, for layers first..last, which g holds (LQ_BAD_MODEL names a tensor that is
 * absent). Reads every FFN byte of them that no cache vouches for, on the threads of
 * `pool` (NULL: on this one), and logs how it goes and how fast it was. stop (may be NULL):
 * set by another thread, ends it with LQ_CANCELLED. */
enum lq_err identity_read(const struct gguf *g, uint32_t first, uint32_t last, struct pool *pool,
                          const _Atomic bool *stop, struct identity *out, struct lq_fault *fault) LQ_MUST_CHECK;
void identity_release(struct identity *id);

#endif
