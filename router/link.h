/* link: one member as one loop of the router reaches it: its connections and the
 * requests that are under way on them.
 * Owner : counted, by the loop's list and by each request; thread: its loop only.
 * Life  : made by the first request of this loop to that member; retired when a route
 *         table without the member comes, and gone when its last request has ended. */
#ifndef LQ_ROUTER_LINK_H
#define LQ_ROUTER_LINK_H

#include <sys/queue.h>

#include "router/member.h"
#include "router/router.h"

/* A request under way at a member. on_down: the member is found dead (its probe was not
 * answered) while the request waits; it may cancel its call and go elsewhere. */
struct link_use {
    TAILQ_ENTRY(link_use) entry;
    struct link *link;
    uint64_t start_us, told; /* told: the last round of link_tell_down() */
    void (*on_down)(struct link_use *u);
};
TAILQ_HEAD(link_uses, link_use);

struct link {
    TAILQ_ENTRY(link) entry; /* router->links */
    struct router *router;
    struct member *member; /* a reference */
    struct http_pool *pool;
    struct link_uses uses;
    unsigned refs;
    uint64_t generation; /* of the last table that had it */
};

/* This loop's link to m, made if there is none. NULL: fault says why. */
struct link *link_of(struct router *rt, struct member *m, struct lq_fault *fault);

/* A request begins and ends there: counted at the member. u->on_down is the caller's. */
void link_use_begin(struct link *l, struct link_use *u);
void link_use_end(struct link_use *u);

/* The request was answered (any status), or failed in transport. */
void link_answered(const struct link_use *u);
void link_failed(const struct link_use *u, const char *why);
/* It said 503: others first for as long as it asks (Retry-After, or NULL), up to five seconds. */
void link_busy(const struct link_use *u, const char *retry_after);
/* A status that is about our own key, not the client's: the shard is of no use (LQ_SHARD_DOWN). */
bool link_refuses_key(int status, struct lq_fault *fault);

/* Takes the table that the first loop handed over, if it did (true): links to members that it
 * lacks are retired. The old table and its members stay until this turn ends. */
bool link_take_table(struct router *rt);
void link_retire_all(struct router *rt);
/* Tells the requests of every member that is DOWN. */
void link_tell_down(struct router *rt);

#endif
