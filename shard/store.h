/* store: a folder of partial model files, each fetched from an HTTP(S) origin: the head,
 * and the tensors that a shard of some layers needs, in a sparse file of the origin's size
 * (ADR 0014). In DIR, for one URL:
 *   NAME-HASH.gguf        once it has been whole for the layers asked; before: .gguf.part
 *   NAME-HASH.gguf.held   what it holds (model/held.h); written after the bytes are on disk,
 *                         so that a fetch goes on where it was, after a crash too
 *   NAME-HASH.gguf.larql-hashes, NAME-HASH.lock
 * NAME is the URL's last part with harmless characters, HASH 16 digits of the SHA-256 of
 * the URL. Processes that want the same file wait for each other.
 * What is there is used without network, only what is missing is fetched; a file that has
 * changed at its origin is begun anew. At the end the layers' hashes are compared with the
 * expected ones, or else with those recorded when they came.
 * Thread: a fetch has one of its own; everything here is called on the loop's. */
#ifndef LQ_SHARD_STORE_H
#define LQ_SHARD_STORE_H

#include <limits.h>

#include "common/hash256.h"
#include "common/loop.h"

enum { STORE_TO_LAST_LAYER = INT_MAX };

struct store_opts {
    const char *url, *dir;            /* dir is made when absent (its parent is not) */
    uint32_t layer_first, layer_last; /* inclusive; last STORE_TO_LAST_LAYER: the model's last */
    const char *bearer;               /* key for the origin; NULL: none */
    const char *ca_file;              /* PEM that the origin's certificate is checked with; NULL: the system's */
    const char *cert_file, *key_file; /* PEM, shown to an origin that asks for them; NULL: none */
    const struct hash256 *model;      /* model hash it must have (model/identity.h); NULL: any */
    const struct hash256 *layers;     /* hashes of layer_first..layer_last; NULL: any */
};

struct store_progress {
    uint64_t bytes, bytes_total; /* of what this fetch is to bring */
    uint64_t bytes_per_s;
};

struct store_result {
    char path[PATH_MAX];    /* of the model file, for gguf_open() */
    uint64_t bytes_fetched; /* bodies from the network; 0: all was there */
    uint32_t layer_last;
};

struct store_fetch;
typedef void (*store_on_progress)(const struct store_progress *p, void *arg);
/* Once. rc LQ_OK: result is set. LQ_SHARD_DOWN, LQ_BAD_ANSWER (origin), LQ_BAD_MODEL (file
 * or hashes), LQ_IO (folder, disk), LQ_BAD_LAYER, LQ_CANCELLED; fault says why. What has
 * come is kept for the next fetch. */
typedef void (*store_on_done)(enum lq_err rc, const struct store_result *result, const struct lq_fault *fault,
                              void *arg);

/* Copies *o. When it returns an error no callback runs. The process's first call should
 * come before other threads exist (libcurl's start). LQ_USAGE: URL or layers. */
enum lq_err store_fetch_start(struct loop *l, const struct store_opts *o, store_on_progress on_progress,
                              store_on_done on_done, void *arg, struct store_fetch **out,
                              struct lq_fault *fault) LQ_MUST_CHECK;
/* Asks it to end soon (within a second); on_done still comes, as a rule with LQ_CANCELLED. */
void store_fetch_cancel(struct store_fetch *f);
/* Ends it, waits for its thread, frees f; no callback runs any more. Legal in on_done. */
void store_fetch_free(struct store_fetch *f);

/* The whole of it for a program that has nothing else to do: a loop of its own, on which
 * SIGTERM ends the fetch with LQ_CANCELLED. No thread is left when it returns. */
enum lq_err store_fetch_wait(const struct store_opts *o, struct store_result *out,
                             struct lq_fault *fault) LQ_MUST_CHECK;

#endif
