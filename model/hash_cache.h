/* hash_cache: SHA-256 values of a model's tensors, kept in a file beside the model:
 *   MODEL.gguf.larql-hashes   (a split model: beside its first part)
 * or, where that folder takes no file, in $XDG_CACHE_HOME (or ~/.cache)/larql-grid/hashes.
 * JSON: {"version":1,"files":[{"bytes","mtime_ns"}...],"tensors":{"NAME":"64 hex"},"check":"64 hex"}
 * with check = SHA-256 of the rest, dumped compact and with sorted keys. A cache of other
 * files (size, time of change), or one whose check fails, counts as none: never trusted.
 * Several processes may write it: the last wins, what another had found is taken along.
 * Thread: its owner's. Private to model/. */
#ifndef LQ_MODEL_HASH_CACHE_H
#define LQ_MODEL_HASH_CACHE_H

#include "common/hash256.h"
#include "model/gguf.h"

struct hash_cache;

/* What is there for g; empty when nothing usable is. NULL: out of memory, or g is not of a
 * file. */
struct hash_cache *hash_cache_open(const struct gguf *g);
void hash_cache_free(struct hash_cache *c);
bool hash_cache_find(const struct hash_cache *c, const char *tensor, struct hash256 *out);
void hash_cache_put(struct hash_cache *c, const char *tensor, const struct hash256 *h);
/* Writes it where it can; one line in the log where it cannot, or when the model's
 * files have changed since they were opened (then nothing is written). */
void hash_cache_save(struct hash_cache *c);

#endif
