/* join: tells routers that this shard is there (docs/protocol.md, 7): one stream to each,
 * every one on its own. A router that is gone is tried again after 0.1 s, then twice as
 * long each time up to 30 s, with jitter; one that refuses us after half a minute.
 * Owner: struct shard; thread: loop. */
#ifndef LQ_SHARD_JOIN_H
#define LQ_SHARD_JOIN_H

#include <stdbool.h>

#include "proto/err.h"

struct shard;
struct join;
struct keys;
struct ssl_ctx_st;

struct join_opts {
    const char *routers;    /* "HOST:PORT[,HOST:PORT...]"; http:// and grpc:// before them are skipped */
    const char *public_url; /* how routers reach this shard */
    const struct keys *keys; /* the first one is shown; NULL: none. Borrowed */
    struct ssl_ctx_st *tls;  /* NULL: cleartext. Referenced */
    bool tls_pinned;         /* tls checks a fingerprint: the name does not matter */
};

/* Announces from the next turn of the loop on. LQ_USAGE names what is wrong; LQ_NOMEM. */
enum lq_err join_new(struct shard *s, const struct join_opts *o, struct join **out, struct lq_fault *fault) LQ_MUST_CHECK;
void join_free(struct join *j); /* NULL is fine */

/* This shard stops: every router is told, and none is tried again. NULL is fine. */
void join_drain(struct join *j);
/* Routers that have acknowledged this shard. NULL: 0. */
unsigned join_acked_n(const struct join *j);

#endif
