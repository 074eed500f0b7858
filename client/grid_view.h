/* grid_view: what a StatusResponse means: which layers somebody can answer for now, and
 * how that is told to people and to programs.
 * A layer is covered when a replica of its range is neither down, draining nor refused;
 * what the router itself calls a gap is one. */
#ifndef LQ_CLIENT_GRID_VIEW_H
#define LQ_CLIENT_GRID_VIEW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/grid_msg.h"

enum { GRID_VIEW_LAYERS_MAX = 65536 };

struct grid_span {
    uint32_t first, last;
};

struct grid_model {
    const Larql__Grid__V1__ModelCoverage *m;
    uint32_t layers_n; /* at least so many; exact when the router told them (m->num_layers) */
    uint32_t covered_n;
    struct grid_span *gaps;
    size_t gaps_n;
    uint32_t *live_n; /* of m->shards[i]: replicas that can answer */
};

struct grid_view {
    const Larql__Grid__V1__StatusResponse *status;
    const Larql__Grid__V1__ServerInfo **servers; /* by server_id */
    struct grid_model *models;                   /* in the router's order */
    size_t models_n;
};

/* Borrows s. False: out of memory; to be released either way. */
bool grid_view_init(struct grid_view *v, const Larql__Grid__V1__StatusResponse *s) LQ_MUST_CHECK;
void grid_view_release(struct grid_view *v);

const Larql__Grid__V1__ServerInfo *grid_view_server(const struct grid_view *v, const char *id_or_url);
bool grid_server_is_live(const Larql__Grid__V1__ServerInfo *x);
/* "94%"; "unknown" where the router does not tell how many layers there are. */
const char *grid_coverage_text(const struct grid_model *m, char text[16]);

/* Others' text for a terminal: control characters become '?'. One of eight buffers. */
const char *grid_shown(const char *text);

/* model NULL: all. *gaps_n: how many runs of layers; a grid without models counts as one.
 * False: no such model. */
void grid_print_status(const struct grid_view *v, FILE *to);
bool grid_print_gaps(const struct grid_view *v, const char *model, FILE *to, size_t *gaps_n);
json_t *grid_status_json(const struct grid_view *v); /* NULL: out of memory */
json_t *grid_gaps_json(const struct grid_view *v, const char *model);

#endif
