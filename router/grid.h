/* grid: shards that join over gRPC (docs/protocol.md, 7), and what operators ask.
 * Owner : struct crew. Thread: the first loop's, all of it.
 * A session is one Join stream. A shard that announced is a member of the registry while
 * its stream is open and it speaks; one that has nothing yet is a spare, and may be given
 * layers to load.
 *   open -> announce -> [its URL answers a probe, and agrees] -> Ack -> heartbeats
 *        -> Dropping, end of the stream, 25 s of silence: gone
 * Files : grid.c the sessions; grid_spare.c who gets which layers; grid_admin.c Status,
 *         DrainServer, AssignRange. */
#ifndef LQ_ROUTER_GRID_H
#define LQ_ROUTER_GRID_H

#include "router/router.h"

/* Who may join and administrate: the crew's trust says. */
struct grid_opts {
    const char *host;
    int port;                /* 0: a free one */
    struct ssl_ctx_st *tls;  /* NULL: cleartext */
    uint32_t target_replicas; /* of each layer, as far as spares allow */
    const char *origins;     /* "MODEL=URL,...": where spares get layers that nobody has */
};

/* Needs crew's registry and health. LQ_USAGE, LQ_IO, LQ_NOMEM. */
enum lq_err grid_new(struct crew *crew, const struct grid_opts *o, struct grid **out, struct lq_fault *fault) LQ_MUST_CHECK;
void grid_free(struct grid *g);
int grid_port(const struct grid *g);
/* No new streams; open ones stay until their shards have found another router, or we end. */
void grid_drain(struct grid *g);

#endif
