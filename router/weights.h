/* weights: of each model of the grid the hashes of its layers' weights, as its shards told
 * them. A layer's hash stays known when its last shard is gone, so that another fine-tune
 * cannot take its place beside shards of the first.
 * Owner: registry; thread: the first loop's only. What nobody ever told is not compared. */
#ifndef LQ_ROUTER_WEIGHTS_H
#define LQ_ROUTER_WEIGHTS_H

#include "common/peer_stats.h"

struct weights;

struct weights *weights_new(void); /* NULL: out of memory */
void weights_free(struct weights *w);

/* False: the hash of *layer is known and another one. True without layer_hashes. */
bool weights_agree(const struct weights *w, const char *model, const struct peer_stats *s, uint32_t *layer);
/* Takes over what s tells; after weights_agree(). False: out of memory, some are not known. */
bool weights_learn(struct weights *w, const char *model, const struct peer_stats *s);
void weights_forget(struct weights *w, const char *model);

#endif
