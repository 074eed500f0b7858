/* event_log: the last things that happened to the grid, for /v1/topology and the page.
 * Any thread adds; a ring under one mutex, off every request's path. */
#ifndef LQ_ROUTER_EVENT_LOG_H
#define LQ_ROUTER_EVENT_LOG_H

#include <jansson.h>

#include "proto/err.h"

struct event_log;

struct event_log *event_log_new(void); /* NULL: out of memory */
void event_log_free(struct event_log *l);

/* event: one word. id: of the shard, or "". l NULL: nothing. */
void event_log_add(struct event_log *l, const char *event, const char *id, const char *fmt, ...) LQ_PRINTF(4, 5);

/* New reference: [{"seq","at","event","server_id","text"}], newest first, at most max. */
json_t *event_log_json(struct event_log *l, size_t max);

#endif
