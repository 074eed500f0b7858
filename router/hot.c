/* hot: see hot.h. */
#include "router/hot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "router/event_log.h"
#include "router/member.h"

enum { LOOK_TICKS = 10 }; /* a second */

static const double MEAN_STEP = 0.01; /* ten seconds of ticks */
static const double QUEUE = 4, BUSY = 1, TIMES_MEAN = 2;

struct hot_range {
    char model[ROUTE_MODEL_CHARS];
    uint32_t first, last;
};

struct hot {
    struct hot_range *ranges; /* those that were hot at the last look */
    size_t ranges_n;
    unsigned ticks;
};

struct hot *hot_new(void)
{
    return calloc(1, sizeof(struct hot));
}

void hot_free(struct hot *h)
{
    if (h)
        free(h->ranges);
    free(h);
}

double hot_range_load(const struct route_table *t, const struct route *r)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->replicas_n; i++) {
        const struct member *m = t->members[r->replicas[i]];
        if (m->standing != MEMBER_SERVING || m->health == MEMBER_DOWN)
            continue;
        sum += atomic_load_explicit(&m->busy, memory_order_relaxed);
        n++;
    }
    return n ? sum / n : 0;
}

double hot_model_load(const struct route_table *t, const struct route_model *m)
{
    double sum = 0, layers_n = 0;
    for (size_t i = 0; i < m->routes_n; i++) {
        double n = (double)m->routes[i].last - m->routes[i].first + 1;
        sum += n * hot_range_load(t, &m->routes[i]);
        layers_n += n;
    }
    return layers_n > 0 ? sum / layers_n : 0;
}

bool hot_is(double range_load, double model_load, bool was)
{
    double part = was ? 0.5 : 1;
    return range_load >= QUEUE * part || (range_load >= BUSY * part && range_load >= TIMES_MEAN * part * model_load);
}

static bool was_hot(const struct hot *h, const char *model, const struct route *r)
{
    for (size_t i = 0; i < h->ranges_n; i++)
        if (h->ranges[i].first == r->first && h->ranges[i].last == r->last && strcmp(h->ranges[i].model, model) == 0)
            return true;
    return false;
}

static void say(struct crew *crew, const char *what, const struct route_model *m, const struct route *r, double load)
{
    log_warn("range_load state=%s model=%s layers=%u-%u replicas=%u in_flight_per_replica=%.1f", what, log_q(m->id),
             r->first, r->last, r->replicas_n, load);
    event_log_add(crew->events, what, "", "layers %u-%u of %s: %.1f requests in flight per replica (%u)", r->first,
                  r->last, m->id, load, r->replicas_n);
}

/* A new list instead of the old one; a range that changed its bounds counts as another. */
static void look(struct hot *h, struct crew *crew, const struct route_table *t)
{
    size_t routes_n = 0, n = 0;
    for (size_t i = 0; i < t->models_n; i++)
        routes_n += t->models[i].routes_n;
    struct hot_range *now = calloc(routes_n + 1, sizeof *now);
    if (!now)
        return; /* the next look is in a second */
    for (size_t i = 0; i < t->models_n; i++) {
        const struct route_model *m = &t->models[i];
        double mean = hot_model_load(t, m);
        for (size_t k = 0; k < m->routes_n; k++) {
            const struct route *r = &m->routes[k];
            double load = hot_range_load(t, r);
            bool was = was_hot(h, m->id, r), is = hot_is(load, mean, was);
            if (is != was)
                say(crew, is ? "hot" : "cooled", m, r, load);
            if (!is)
                continue;
            now[n] = (struct hot_range){.first = r->first, .last = r->last};
            snprintf(now[n++].model, sizeof now->model, "%s", m->id);
        }
    }
    free(h->ranges);
    h->ranges = now;
    h->ranges_n = n;
    metric_set(crew->routers->m.hot_ranges, (double)n);
}

void hot_tick(struct hot *h, struct crew *crew, const struct route_table *t)
{
    for (size_t i = 0; i < t->members_n; i++) {
        struct member *m = t->members[i];
        double busy = atomic_load_explicit(&m->busy, memory_order_relaxed), n = m->inflight_n;
        atomic_store_explicit(&m->busy, busy + MEAN_STEP * (n - busy), memory_order_relaxed);
    }
    if (++h->ticks % LOOK_TICKS == 0)
        look(h, crew, t);
}
