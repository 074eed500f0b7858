/* grid_spare: who gets which layers. First what nobody serves, then what fewer than
 * --target-replicas do; one assignment a spare. A spare loads from a live replica that has
 * all of the layers, else from the origin that --origins names for the model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "router/event_log.h"
#include "router/grid_impl.h"
#include "router/registry.h"

enum { REFUSED_PAUSE_US = 60000000, EXPECTED_US = 60000000 };

/* ---- origins -------------------------------------------------------------------- */

enum lq_err spare_origins_parse(struct grid *g, const char *text, struct lq_fault *fault)
{
    for (const char *p = text; p && *p;) {
        size_t n = strcspn(p, ",");
        const char *eq = memchr(p, '=', n);
        if (n > 0) {
            if (!eq || eq == p || eq + 1 == p + n)
                return lq_fail(fault, LQ_USAGE, "--origins: expected 'MODEL=URL', got '%.*s'", (int)n, p);
            struct origin *more = realloc(g->origins, (g->origins_n + 1) * sizeof *more);
            if (!more)
                return lq_fail(fault, LQ_NOMEM, "out of memory for --origins");
            g->origins = more;
            struct origin *o = &g->origins[g->origins_n++];
            *o = (struct origin){strndup(p, (size_t)(eq - p)), strndup(eq + 1, (size_t)(p + n - eq) - 1)};
            if (!o->model || !o->url)
                return lq_fail(fault, LQ_NOMEM, "out of memory for --origins");
        }
        p += n + (p[n] == ',');
    }
    return LQ_OK;
}

void spare_release(struct grid *g)
{
    for (size_t i = 0; i < g->origins_n; i++) {
        free(g->origins[i].model);
        free(g->origins[i].url);
    }
    free(g->origins);
    free(g->models);
}

static const char *configured_origin(const struct grid *g, const char *model)
{
    for (size_t i = 0; i < g->origins_n; i++)
        if (strcmp(g->origins[i].model, model) == 0)
            return g->origins[i].url;
    return NULL;
}

/* ---- what there is ---------------------------------------------------------------- */

static const struct route_table *table(const struct grid *g)
{
    return g->crew->routers->table;
}

static void remember_models(struct grid *g)
{
    const struct route_table *t = table(g);
    for (size_t i = 0; i < t->models_n; i++) {
        const struct route_model *m = &t->models[i];
        size_t k = 0;
        while (k < g->models_n && strcmp(g->models[k].id, m->id) != 0)
            k++;
        if (!m->stats.layers)
            continue;
        if (k == g->models_n) {
            struct known_model *more = realloc(g->models, (g->models_n + 1) * sizeof *more);
            if (!more)
                return; /* the next tick tries again */
            g->models = more;
            g->models_n++;
        }
        struct known_model *x = &g->models[k]; /* again each time: other weights may have its name now */
        *x = (struct known_model){.layers_n = m->stats.layers,
                                  .identity = m->stats.identity,
                                  .has_identity = m->stats.has_identity};
        snprintf(x->id, sizeof x->id, "%s", m->id);
    }
}

static bool has(const char *of, uint32_t first, uint32_t last, const char *model, uint32_t layer)
{
    return first <= layer && layer <= last && strcmp(of, model) == 0;
}

/* Shards that serve the layer or soon will: static members that live; sessions that serve
 * (they may be newer than the table) or are on their way; spares that load it. */
static uint32_t owners_n(const struct grid *g, const char *model, uint32_t layer)
{
    const struct route_model *m = route_model_find(table(g), model);
    const struct route *r = m ? route_find(m, layer) : NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; r && i < r->replicas_n; i++) {
        const struct member *x = table(g)->members[r->replicas[i]];
        n += !x->joined && x->standing == MEMBER_SERVING && x->health != MEMBER_DOWN;
    }
    const struct session *s;
    TAILQ_FOREACH(s, &g->sessions, entry)
    {
        bool serves = s->state == SESSION_SERVING && s->m->health != MEMBER_DOWN;
        if ((serves || s->state == SESSION_ASSIGNED || s->state == SESSION_JOINING) &&
            has(s->model, s->first, s->last, model, layer))
            n++;
    }
    for (size_t i = 0; i < EXPECTED_MAX; i++)
        n += clock_us() < g->expected[i].until_us &&
             has(g->expected[i].model, g->expected[i].first, g->expected[i].last, model, layer);
    return n;
}

void spare_expect(struct grid *g, const struct session *s)
{
    struct expected *oldest = &g->expected[0];
    for (size_t i = 1; i < EXPECTED_MAX; i++)
        if (g->expected[i].until_us < oldest->until_us)
            oldest = &g->expected[i];
    *oldest = (struct expected){.first = s->first, .last = s->last, .until_us = clock_us() + EXPECTED_US};
    memcpy(oldest->model, s->model, sizeof oldest->model);
}

void spare_arrived(struct grid *g, const struct session *s)
{
    for (size_t i = 0; i < EXPECTED_MAX; i++) {
        struct expected *x = &g->expected[i];
        if (x->until_us && x->first == s->first && x->last == s->last && strcmp(x->model, s->model) == 0) {
            *x = (struct expected){.until_us = 0};
            return;
        }
    }
}

/* A joined shard that is up and has all of them. */
static const struct member *live_replica(const struct grid *g, const char *model, uint32_t first, uint32_t last)
{
    const struct session *s;
    TAILQ_FOREACH(s, &g->sessions, entry)
    {
        if (s->state == SESSION_SERVING && s->m->health == MEMBER_UP && s->first <= first && last <= s->last &&
            strcmp(s->model, model) == 0)
            return s->m;
    }
    return NULL;
}

/* ---- assigning ------------------------------------------------------------------------ */

enum lq_err spare_assign(struct grid *g, struct session *s, const char *model, uint32_t first, uint32_t last,
                         const char *origin, const char *hash, struct lq_fault *fault)
{
    char url[600] = "", identity[HASH256_TEXT_BYTES] = "";
    const struct member *from = live_replica(g, model, first, last);
    const char *configured = configured_origin(g, model);
    if (*origin)
        snprintf(url, sizeof url, "%s", origin);
    else if (from)
        snprintf(url, sizeof url, "%s/v1/model/file", from->url);
    else if (configured)
        snprintf(url, sizeof url, "%s", configured);
    else
        return lq_fail(fault, LQ_USAGE, "no live replica covers %s[%u-%u] and --origins names none: give an origin",
                       model, first, last);
    for (size_t i = 0; i < g->models_n; i++)
        if (g->models[i].has_identity && strcmp(g->models[i].id, model) == 0)
            hash256_text(&g->models[i].identity, identity);
    Larql__Grid__V1__AssignMsg msg = LARQL__GRID__V1__ASSIGN_MSG__INIT;
    msg.model_id = (char *)(uintptr_t)model;
    msg.layer_start = first;
    msg.layer_end = last;
    msg.origin_url = url;
    msg.shard_hash = *hash ? (char *)(uintptr_t)hash : identity;
    snprintf(s->model, sizeof s->model, "%s", model);
    s->first = first;
    s->last = last;
    session_set_state(s, SESSION_ASSIGNED);
    log_info("assigned id=%s model=%s layers=%u-%u origin=%s", s->id, log_q(model), first, last, log_q(url));
    event_log_add(g->crew->events, "assigned", s->id, "layers %u-%u of %s, from %s", first, last, model, url);
    session_send(s, LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ASSIGN, &msg);
    return LQ_OK;
}

static struct session *idle_spare(struct grid *g, const char *model, uint32_t first, uint32_t last)
{
    char what[sizeof ((struct session *)0)->refused];
    struct session *s;
    snprintf(what, sizeof what, "%s/%u-%u", model, first, last);
    TAILQ_FOREACH(s, &g->sessions, entry)
    {
        bool paused = strcmp(s->refused, what) == 0 && clock_us() - s->refused_us < REFUSED_PAUSE_US;
        if (s->state == SESSION_SPARE && !paused)
            return s;
    }
    return NULL;
}

/* The runs of layers with fewer than `wanted` owners, while a spare is left. */
static void fill(struct grid *g, const struct known_model *m, uint32_t wanted)
{
    struct lq_fault fault;
    for (uint32_t l = 0; l < m->layers_n && g->spares_n > 0; l++) {
        if (owners_n(g, m->id, l) >= wanted)
            continue;
        const struct route_model *now = route_model_find(table(g), m->id);
        const struct route *r = now ? route_find(now, l) : NULL;
        uint32_t last = l; /* a run has one set of owners: one route, or none */
        while (last + 1 < m->layers_n && owners_n(g, m->id, last + 1) < wanted &&
               (now ? route_find(now, last + 1) : NULL) == r)
            last++;
        struct session *s = idle_spare(g, m->id, l, last); /* NULL: each refused this run just now */
        if (s && spare_assign(g, s, m->id, l, last, "", "", &fault) != LQ_OK)
            log_debug("not_assigned model=%s layers=%u-%u why=%s", log_q(m->id), l, last, log_q(fault.text));
        l = last;
    }
}

void spare_tick(struct grid *g)
{
    remember_models(g);
    for (uint32_t wanted = 1; wanted <= g->opts.target_replicas; wanted++)
        for (size_t i = 0; i < g->models_n && g->spares_n > 0; i++)
            fill(g, &g->models[i], wanted);
}
