/* health: asks every member's /v1/stats, again and again: every ten seconds while it is up,
 * every second while it is down, at once when a request, or the end of the connection of
 * its probes, made it suspect.
 * Owner : struct crew. Thread: the first loop's, but for the two that say otherwise.
 * A request that fails in transport ejects its shard at once (passive), a probe that is not
 * answered within two seconds as well (active); a probe or any answer brings it back. */
#ifndef LQ_ROUTER_HEALTH_H
#define LQ_ROUTER_HEALTH_H

#include "router/member.h"
#include "router/router.h"

/* why NULL: m may serve. Otherwise it may not; again: it will be asked again. May free m's
 * registration, not the health. */
typedef void (*health_on_probed)(void *arg, struct member *m, bool again, const char *why);

enum lq_err health_new(struct crew *crew, struct health **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* on_first: once every member of now was asked once (at once when there is none). */
void health_start(struct health *h, void (*on_first)(struct crew *crew));
void health_free(struct health *h);

/* Asks m now; fn after each probe of it until NULL is set. */
void health_watch(struct health *h, struct member *m, health_on_probed fn, void *arg);
/* m leaves: no probe any more. */
void health_forget(struct member *m);

/* Any thread: a request to m failed in transport. */
void health_ejected(struct crew *crew, struct member *m, const char *why);
/* Any thread: it may be dead; a probe shall tell. */
void health_suspect(struct crew *crew, struct member *m);

#endif
