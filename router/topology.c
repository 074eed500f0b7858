/* topology: the whole grid as JSON: models with their gaps, routes with their replicas,
 * every shard, bytes by format, the last events (docs/protocol.md, 5). From any loop: it
 * reads this loop's table and the members' atomics. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "router/event_log.h"
#include "router/hot.h"
#include "router/link.h"

enum { EVENTS_SHOWN = 100, REPLICAS_SHOWN = 64 };

/* Texts of peers may not be UTF-8. */
static json_t *text(const char *s)
{
    json_t *t = json_string(s);
    return t ? t : json_string("?");
}

static bool can_serve(const struct member *m)
{
    return m->standing == MEMBER_SERVING && m->health != MEMBER_DOWN;
}

static bool has_owner(const struct route_table *t, const struct route *r)
{
    for (uint32_t i = 0; r && i < r->replicas_n; i++)
        if (can_serve(t->members[r->replicas[i]]))
            return true;
    return false;
}

static uint32_t layers_of(const struct route_model *m)
{
    return m->stats.layers > m->mapped_n ? m->stats.layers : m->mapped_n;
}

uint64_t topology_gap_layers(const struct route_table *t, const struct route_model *m)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < layers_of(m); l++)
        n += !has_owner(t, route_find(m, l));
    return n;
}

static json_t *gaps(const struct route_table *t, const struct route_model *m)
{
    json_t *list = json_array();
    uint32_t layers_n = layers_of(m);
    for (uint32_t l = 0; l < layers_n; l++) {
        uint32_t first = l;
        while (l < layers_n && !has_owner(t, route_find(m, l)))
            l++;
        if (l > first)
            json_array_append_new(
                list, json_pack("{sI,sI}", "layer_start", (json_int_t)first, "layer_end", (json_int_t)l - 1));
    }
    return list;
}

/* What both lists say of a shard. */
static json_t *member_json(struct member *m)
{
    char why[sizeof m->why];
    json_t *o = json_pack("{ss,so,ss,sI,sf,sI}", "server_id", m->id, "url", text(m->url), "state",
                          member_state_name(m), "in_flight", (json_int_t)m->inflight_n, "latency_ms",
                          m->latency_us / 1000.0, "answers", (json_int_t)m->answers_n);
    if (o && (m->health == MEMBER_DOWN || m->standing != MEMBER_SERVING)) {
        member_why(m, why, sizeof why);
        json_object_set_new(o, "why", text(why));
    }
    return o;
}

/* What a member claims, in one pass over all claims. */
struct claimed {
    json_t *ranges;
    const char *model;
    uint32_t first, last;
};

static struct claimed *claims_by_member(const struct route_table *t)
{
    struct claimed *by = calloc(t->members_n + 1, sizeof *by);
    for (size_t i = 0; by && i < t->members_n; i++)
        by[i] = (struct claimed){.ranges = json_array(), .model = ""};
    for (size_t i = 0; by && i < t->claims_n; i++) {
        const struct route_claim *c = &t->claims[i];
        struct claimed *x = &by[c->member];
        if (json_array_size(x->ranges) == 0 || c->first < x->first)
            x->first = c->first;
        x->last = c->last > x->last ? c->last : x->last;
        x->model = t->models[c->model].id;
        json_array_append_new(x->ranges, json_pack("[II]", (json_int_t)c->first, (json_int_t)c->last));
    }
    return by;
}

static json_t *shard_json(struct member *m, const struct claimed *c)
{
    struct member_load load;
    json_t *o = member_json(m);
    pthread_mutex_lock(&m->mu);
    load = m->load;
    pthread_mutex_unlock(&m->mu);
    json_t *more =
        json_pack("{ss,so,sI,sI,so,sI,sf,s{sf,sI,sI,sf}}", "source", m->joined ? "joined" : "static", "model_id",
                  text(c->model), "layer_start", (json_int_t)c->first, "layer_end", (json_int_t)c->last, "ranges",
                  c->ranges, "failures", (json_int_t)m->failures_n, "p95_ms", m->p95_us / 1000.0, "load", "cpu_pct",
                  (double)load.cpu_pct, "ram_used", (json_int_t)load.ram_used_bytes, "requests_in_flight",
                  (json_int_t)load.in_flight, "req_per_sec", (double)load.requests_per_s);
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return o;
}

static json_t *model_json(const struct route_table *t, const struct route_model *m)
{
    char identity[HASH256_TEXT_BYTES] = "";
    if (m->stats.has_identity)
        hash256_text(&m->stats.identity, identity);
    return json_pack("{so,sI,sI,ss,so}", "model_id", text(m->id), "layers", (json_int_t)m->stats.layers,
                     "hidden_size", (json_int_t)m->stats.hidden, "identity", identity, "gaps", gaps(t, m));
}

static void add_routes(json_t *list, const struct route_table *t, const struct route_model *m)
{
    double mean = hot_model_load(t, m);
    for (size_t i = 0; i < m->routes_n; i++) {
        const struct route *r = &m->routes[i];
        json_t *replicas = json_array();
        for (uint32_t k = 0; k < r->replicas_n && k < REPLICAS_SHOWN; k++)
            json_array_append_new(replicas, member_json(t->members[r->replicas[k]]));
        double load = hot_range_load(t, r);
        json_array_append_new(list, json_pack("{so,sI,sI,sf,sb,sI,so}", "model_id", text(m->id), "layer_start",
                                              (json_int_t)r->first, "layer_end", (json_int_t)r->last, "load", load,
                                              "hot", (int)hot_is(load, mean, false), "replicas_n",
                                              (json_int_t)r->replicas_n, "replicas", replicas));
    }
}

void topology_answer(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    const struct route_table *t = rt->table;
    json_t *models = json_array(), *shards = json_array(), *routes = json_array();
    for (size_t i = 0; i < t->models_n; i++) {
        json_array_append_new(models, model_json(t, &t->models[i]));
        add_routes(routes, t, &t->models[i]);
    }
    struct claimed *by = claims_by_member(t);
    for (size_t i = 0; by && i < t->members_n; i++)
        json_array_append_new(shards, shard_json(t->members[i], &by[i]));
    free(by);
    http_front_json_new(r, 200,
                        json_pack("{s{ss,sI,sb},sI,so,so,so,so}", "router", "version", LQ_VERSION, "uptime_seconds",
                                  (json_int_t)((clock_us() - rt->crew->start_us) / 1000000), "draining",
                                  (int)rt->draining, "generation", (json_int_t)t->generation, "models", models,
                                  "shards", shards, "routes", routes, "events",
                                  event_log_json(rt->crew->events, EVENTS_SHOWN)));
}
