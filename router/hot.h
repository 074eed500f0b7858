/* hot: which ranges of layers have more requests than their replicas work off with ease,
 * so that somebody adds a replica (the log, /v1/topology and a metric say so; nothing is
 * done about it here).
 * Measure : of a member, its requests in flight from this router, as a moving mean over
 *           about ten seconds; of a range, the mean of that over the members that can serve
 *           it. One is a replica that is always busy, more is a queue.
 * Rule    : hot from 4 on; or from 1 on when that is twice the mean over all layers of the
 *           model. It cools at half of what makes it hot. */
#ifndef LQ_ROUTER_HOT_H
#define LQ_ROUTER_HOT_H

#include "router/router.h"

struct hot;

struct hot *hot_new(void); /* NULL: out of memory */
void hot_free(struct hot *h);

/* The first loop's, every 100 ms; t: its table. */
void hot_tick(struct hot *h, struct crew *crew, const struct route_table *t);

/* Any loop, of its own table. */
double hot_range_load(const struct route_table *t, const struct route *r);
double hot_model_load(const struct route_table *t, const struct route_model *m);
bool hot_is(double range_load, double model_load, bool was);

#endif
