/* registry: who is in the grid, and the route tables made of that.
 * Owner : struct crew; thread: the first loop's only. What others see of it are members
 *         (atomic) and tables (immutable), handed over by registry_publish().
 * Rule  : a member gets requests only when its stats agree with its peers': hidden size,
 *         layer count, identity of the model, and of each layer the hash of the weights
 *         (weights.h), also with peers that do not answer now.
 *         Shards that tell no hashes (LARQL's) are compared by what they do tell; they join
 *         none that do. In a static map the operator may mix them. */
#ifndef LQ_ROUTER_REGISTRY_H
#define LQ_ROUTER_REGISTRY_H

#include "router/member.h"
#include "router/router.h"

enum { REGISTRY_MEMBERS_MAX = 16384 };

/* Takes all of the static map's URLs as members (map NULL: none), and publishes the first
 * table. grid: shards may join. *out is to be freed on failure too. LQ_NOMEM. */
enum lq_err registry_new(struct crew *crew, const struct route_map *map, bool grid, struct registry **out,
                         struct lq_fault *fault) LQ_MUST_CHECK;
/* Before the loops end: no probe and no table any more. Free after them. */
void registry_close(struct registry *r);
void registry_free(struct registry *r);

/* All members, in the order in which they came; valid until the next change. */
struct member *const *registry_members(const struct registry *r, size_t *n);
struct member *registry_find(const struct registry *r, const char *id_or_url); /* NULL: none */

/* A shard says that it serves these layers. It gets no requests until a probe of its URL
 * has answered and agrees; registry_probed() decides. tag: what it told as its identity
 * ("" fine). LQ_USAGE: why it cannot be (URL, range); LQ_NOMEM. */
struct join {
    const char *url, *model_id, *tag;
    uint32_t first, last;
};
enum lq_err registry_join(struct registry *r, const struct join *j, struct member **out,
                          struct lq_fault *fault) LQ_MUST_CHECK;
/* It leaves: no request from now on; those under way may end. */
void registry_leave(struct registry *r, struct member *m, const char *why);
/* No new requests, but it stays in the tables' list until it leaves. */
void registry_drain(struct registry *r, struct member *m, const char *why);

/* health.c's: a probe of m ended. stats: taken, NULL: it failed, why says how.
 * LQ_OK: m may serve (now, or already). Else why it may not; LQ_NOT_READY: perhaps later. */
enum lq_err registry_probed(struct registry *r, struct member *m, struct peer_stats *stats, const char *why,
                            struct lq_fault *fault);

/* Builds a table and hands it to every loop. Cheap when nothing changed. Changes made by the
 * functions above publish by themselves, once a turn of the loop. */
void registry_publish(struct registry *r);

#endif
