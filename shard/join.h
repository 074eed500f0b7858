/* join: tells routers that this shard is there (docs/protocol.md, 7): one stream to each,
 * every one on its own. A router that is gone is tried again after 0.1 s, then twice as
 * long each time up to 30 s, with jitter; one that refuses us after half a minute.
 * Owner: struct shard; thread: loop. */
#ifndef LQ_SHARD_JOIN_H
#define LQ_SHARD_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

struct shard;
struct join;
struct keys;
struct tls;

/* What a spare is given to load. */
struct join_assignment {
    const char *model_id, *origin_url, *hash; /* hash: of the model, 64 hex digits, or "" */
    uint32_t first, last;
};

struct join_opts {
    const char *routers;    /* "HOST:PORT[,HOST:PORT...]"; http:// or grpc:// before one: in clear, https:// by TLS */
    const char *public_url; /* how routers reach this shard */
    const struct keys *keys; /* the first one is shown; NULL: none. Borrowed */
    struct tls *tls;         /* for "h2"; borrowed. Used for https:// and, if tls_always, without a scheme */
    bool tls_always;
    /* A spare: says that it is available instead of what it serves. on_assign: NULL, or why it
     * cannot (the router is told). */
    bool spare;
    uint64_t ram_bytes, disk_bytes;
    const char *store;
    const char *(*on_assign)(void *arg, const struct join_assignment *a);
    void *arg;
};

/* Announces from the next turn of the loop on. LQ_USAGE names what is wrong; LQ_NOMEM. */
enum lq_err join_new(struct shard *s, const struct join_opts *o, struct join **out, struct lq_fault *fault) LQ_MUST_CHECK;
void join_free(struct join *j); /* NULL is fine */

/* This shard stops: every router is told, and none is tried again. NULL is fine. */
void join_drain(struct join *j);
/* The assigned layers cannot be had: the router that assigned them is told. */
void join_refuse(struct join *j, const char *why);
/* Routers that have acknowledged this shard. NULL: 0. */
unsigned join_acked_n(const struct join *j);

#endif
