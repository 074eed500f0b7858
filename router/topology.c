/* topology: the whole grid as JSON: models with their gaps, routes with their replicas,
 * every shard, bytes by format, the last events (docs/protocol.md, 5). From any loop: it
 * reads this loop's table and the members' atomics.
 * Cost: linear in shards and replicas; ?shards=N bounds what is written. */
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

static bool is_up(const struct member *m)
{
    return m->standing == MEMBER_SERVING && m->health == MEMBER_UP;
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

/* The first claim of a member, or of one behind it. */
static size_t claims_of(const struct route_table *t, size_t member)
{
    size_t low = 0, high = t->claims_n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (t->claims[mid].member < member)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static json_t *shard_json(const struct route_table *t, size_t at)
{
    struct member *m = t->members[at];
    struct member_load load;
    json_t *o = member_json(m), *ranges = json_array();
    const char *model = "";
    uint32_t first = 0, last = 0;
    for (size_t i = claims_of(t, at); i < t->claims_n && t->claims[i].member == at; i++) {
        const struct route_claim *c = &t->claims[i];
        if (json_array_size(ranges) == 0 || c->first < first)
            first = c->first;
        last = c->last > last ? c->last : last;
        model = t->models[c->model].id;
        json_array_append_new(ranges, json_pack("[II]", (json_int_t)c->first, (json_int_t)c->last));
    }
    pthread_mutex_lock(&m->mu);
    load = m->load;
    pthread_mutex_unlock(&m->mu);
    json_t *more =
        json_pack("{ss,so,sI,sI,so,sI,sf,s{sf,sI,sI,sf}}", "source", m->joined ? "joined" : "static", "model_id",
                  text(model), "layer_start", (json_int_t)first, "layer_end", (json_int_t)last, "ranges", ranges,
                  "failures", (json_int_t)m->failures_n, "p95_ms", m->p95_us / 1000.0, "load", "cpu_pct",
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

/* latency_ms: the mean of its live replicas'. */
static json_t *route_json(const struct route_table *t, const struct route_model *m, const struct route *r,
                          double model_load, bool brief)
{
    double load = hot_range_load(t, r);
    uint64_t up_n = 0, in_flight = 0;
    double latency_us = 0;
    json_t *replicas = json_array();
    for (uint32_t k = 0; k < r->replicas_n; k++) {
        struct member *x = t->members[r->replicas[k]];
        if (!brief && k < REPLICAS_SHOWN)
            json_array_append_new(replicas, member_json(x));
        in_flight += x->inflight_n;
        if (!is_up(x))
            continue;
        up_n++;
        latency_us += x->latency_us;
    }
    return json_pack("{so,sI,sf,sb,sI,sI,sI,sI,sf,so}", "model_id", text(m->id), "layer_start", (json_int_t)r->first,
                     "load", load, "hot", (int)hot_is(load, model_load, false), "layer_end", (json_int_t)r->last,
                     "replicas_n", (json_int_t)r->replicas_n, "up_n", (json_int_t)up_n, "in_flight",
                     (json_int_t)in_flight, "latency_ms", up_n ? latency_us / 1000.0 / (double)up_n : 0, "replicas",
                     replicas);
}

/* All in their order; or max of them, those who are not up first. */
static json_t *shards_json(const struct route_table *t, size_t max)
{
    json_t *list = json_array();
    bool all = t->members_n <= max;
    for (int up = 0; up < (all ? 1 : 2); up++)
        for (size_t i = 0; i < t->members_n && json_array_size(list) < max; i++)
            if (all || is_up(t->members[i]) == up)
                json_array_append_new(list, shard_json(t, i));
    return list;
}

static json_t *wire_json(const struct http_front_books *b)
{
    json_t *o = json_object();
    for (unsigned f = 0; f < HTTP_FRONT_FORMATS_N; f++)
        json_object_set_new(o, layer_books_format(f),
                            json_pack("{sI,sI}", "bytes_in", (json_int_t)metric_count(b->bytes[HTTP_FRONT_IN][f]),
                                      "bytes_out", (json_int_t)metric_count(b->bytes[HTTP_FRONT_OUT][f])));
    return o;
}

/* ?shards=N: at most N shards, and routes without their list of replicas. */
static size_t shards_asked(const char *query)
{
    char *end;
    if (strncmp(query, "shards=", 7) != 0 || query[7] < '0' || query[7] > '9')
        return SIZE_MAX;
    unsigned long n = strtoul(query + 7, &end, 10);
    return *end ? SIZE_MAX : n;
}

void topology_answer(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    const struct route_table *t = rt->table;
    json_t *models = json_array(), *routes = json_array();
    size_t shards_max = shards_asked(http_req_query(r)), up_n = 0, in_flight = 0;
    for (size_t i = 0; i < t->models_n; i++) {
        const struct route_model *m = &t->models[i];
        double load = hot_model_load(t, m);
        json_array_append_new(models, model_json(t, m));
        for (size_t k = 0; k < m->routes_n; k++)
            json_array_append_new(routes, route_json(t, m, &m->routes[k], load, shards_max != SIZE_MAX));
    }
    for (size_t i = 0; i < t->members_n; i++) {
        up_n += is_up(t->members[i]);
        in_flight += t->members[i]->inflight_n;
    }
    http_front_json_new(r, 200,
                        json_pack("{s{ss,sI,sb},sI,so,sI,sI,sI,so,so,so,so}", "router", "version", LQ_VERSION,
                                  "uptime_seconds", (json_int_t)((clock_us() - rt->crew->start_us) / 1000000),
                                  "draining", (int)rt->draining, "generation", (json_int_t)t->generation, "models",
                                  models, "shards_n", (json_int_t)t->members_n, "shards_up", (json_int_t)up_n,
                                  "in_flight", (json_int_t)in_flight, "shards", shards_json(t, shards_max), "routes",
                                  routes, "wire", wire_json(&rt->m.books), "events",
                                  event_log_json(rt->crew->events, EVENTS_SHOWN)));
}
