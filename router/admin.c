/* admin: what the router tells about itself and its shards (docs/protocol.md, 5). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "router/link.h"

static size_t up_n(const struct router *rt)
{
    size_t n = 0;
    for (size_t i = 0; i < rt->links_n; i++)
        n += rt->links[i].view->state == LINK_UP;
    return n;
}

static uint64_t served_n(const struct crew *crew)
{
    uint64_t n = 0;
    for (size_t i = 0; i < crew->routers_n; i++)
        n += crew->routers[i].m.books.served_n;
    return n;
}

/* Over all loops. */
static uint32_t inflight_n(const struct link *l)
{
    const struct crew *crew = l->router->crew;
    uint32_t n = 0;
    for (size_t i = 0; i < crew->routers_n; i++)
        n += http_pool_inflight_n(crew->routers[i].links[l - l->router->links].pool);
    return n;
}

/* The first link that has told its shape, in the map's order; NULL: none yet. */
static const struct link *known_link(const struct router *rt)
{
    for (size_t i = 0; i < rt->links_n; i++)
        if (rt->links[i].stats.hidden)
            return &rt->links[i];
    return NULL;
}

static bool route_is_up(const struct router *rt, const struct route *r)
{
    for (uint32_t i = 0; i < r->replicas_n; i++)
        if (rt->links[r->replicas[i]].view->state == LINK_UP)
            return true;
    return false;
}

/* Layers of the map, and of those the ones with a live replica. */
static void count_layers(const struct router *rt, uint64_t *mapped, uint64_t *live)
{
    *mapped = *live = 0;
    for (size_t i = 0; i < rt->table->routes_n; i++) {
        const struct route *r = &rt->table->routes[i];
        uint64_t n = (uint64_t)r->last - r->first + 1;
        *mapped += n;
        *live += route_is_up(rt, r) ? n : 0;
    }
}

static void answer_health(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    uint64_t mapped, live;
    count_layers(rt, &mapped, &live);
    const struct link *known = known_link(rt);
    const char *status = rt->draining ? "draining" : live > 0 ? "ok" : "loading";
    http_front_json_new(r, rt->draining || live == 0 ? 503 : 200,
                        json_pack("{ss,sI,sI,s{sI,sI,sI}}", "status", status, "uptime_seconds",
                                  (json_int_t)((clock_us() - rt->crew->start_us) / 1000000), "requests_served",
                                  (json_int_t)served_n(rt->crew), "coverage", "layers",
                                  (json_int_t)(known ? known->stats.layers : 0), "mapped", (json_int_t)mapped, "live",
                                  (json_int_t)live));
}

void admin_status_text(const void *router, char *text, size_t text_n)
{
    const struct router *rt = router;
    uint64_t mapped, live;
    count_layers(rt, &mapped, &live);
    snprintf(text, text_n, "%llu of %llu layers have a live shard, %zu of %zu shards are up",
             (unsigned long long)live, (unsigned long long)mapped, up_n(rt), rt->links_n);
}

static json_t *wire_intersection(const struct router *rt)
{
    json_t *list = json_array();
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++) {
        bool all = true;
        for (size_t i = 0; i < rt->links_n; i++)
            all &= !rt->links[i].stats.hidden || rt->links[i].stats.wire[f];
        if (all)
            json_array_append_new(list, json_string(wire_name(f)));
    }
    return list;
}

static void answer_stats(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    const struct link *l = known_link(rt);
    if (!l) {
        http_front_refuse(r, LQ_NOT_READY, "no shard has answered yet; see /v1/topology");
        return;
    }
    const struct route_table *t = rt->table;
    http_front_json_new(r, 200,
                        json_pack("{ss,ss,ss,si,si,si,sI,sI,ss,so,ss,s{sb,sI,sI}}", "model", l->stats.model, "family",
                                  l->stats.family, "mode", "ffn-service", "layers", (int)l->stats.layers,
                                  "hidden_size", (int)l->stats.hidden, "features_per_layer", (int)l->stats.features,
                                  "layer_start", (json_int_t)t->routes[0].first, "layer_end",
                                  (json_int_t)t->routes[t->routes_n - 1].last, "dtype", l->stats.dtype, "wire",
                                  wire_intersection(rt), "kernels", "router", "loaded", "ffn_service", up_n(rt) > 0,
                                  "shards", (json_int_t)rt->links_n, "shards_up", (json_int_t)up_n(rt)));
}

static void answer_models(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    const struct link *l = known_link(rt);
    json_t *data = json_array();
    if (l)
        json_array_append_new(
            data, json_pack("{ss,ss,sI,ss}", "id", l->stats.model, "object", "model", "created",
                            (json_int_t)(time(NULL) - (time_t)((clock_us() - rt->crew->start_us) / 1000000)),
                            "owned_by", "larql-grid"));
    http_front_json_new(r, 200, json_pack("{ss,so}", "object", "list", "data", data));
}

static json_t *replica(const struct link *l)
{
    struct shard_view *v = l->view;
    enum link_state state = v->state;
    json_t *o =
        json_pack("{ss,ss,si,sf,sI}", "url", l->url, "state", link_state_name(state), "in_flight", (int)inflight_n(l),
                  "latency_ms", v->latency_us / 1000.0, "answers", (json_int_t)v->answers_n);
    if (o && state == LINK_DOWN) {
        pthread_mutex_lock(&v->mu);
        json_object_set_new(o, "why", json_stringn_nocheck(v->why, strlen(v->why)));
        pthread_mutex_unlock(&v->mu);
    }
    return o;
}

static void answer_topology(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    json_t *routes = json_array();
    for (size_t i = 0; i < rt->table->routes_n; i++) {
        const struct route *t = &rt->table->routes[i];
        json_t *list = json_array();
        for (uint32_t k = 0; k < t->replicas_n; k++)
            json_array_append_new(list, replica(&rt->links[t->replicas[k]]));
        json_array_append_new(routes, json_pack("{sI,sI,so}", "layer_start", (json_int_t)t->first, "layer_end",
                                                (json_int_t)t->last, "replicas", list));
    }
    http_front_json_new(r, 200, json_pack("{so}", "routes", routes));
}

static void answer_metrics(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    metric_set(rt->m.shards_up, (double)up_n(rt));
    size_t connections_n = 0;
    for (size_t i = 0; i < rt->crew->routers_n; i++)
        connections_n += http_server_connections_n(rt->crew->routers[i].server);
    metric_set(rt->m.connections, (double)connections_n);
    http_front_metrics(r, rt->crew->metrics);
}

void admin_on_request(struct http_req *r, void *router)
{
    static const struct http_page pages[] = {
        {"/v1/walk-ffn", "POST", flow_start},     {"/v1/health", "GET", answer_health},
        {"/v1/stats", "GET", answer_stats},       {"/v1/models", "GET", answer_models},
        {"/v1/topology", "GET", answer_topology}, {"/metrics", "GET", answer_metrics},
    };
    http_front_dispatch(pages, sizeof pages / sizeof *pages, router, r);
}

bool admin_metrics_init(struct crew *crew)
{
    struct metrics *m = crew->metrics = metrics_new();
    struct router *rt = crew->routers;
    if (!m)
        return false;
    bool ok = http_front_request_series(m, "larql_router_requests_total", &rt->m.books);
    const struct {
        struct metric **to;
        struct metric *(*make)(struct metrics *, const char *, const char *, const char *);
        const char *name, *help;
    } rest[] = {
        {&rt->m.books.seconds, metrics_histogram, "larql_router_request_seconds",
         "walk-ffn, header read to answer handed over"},
        {&rt->m.books.bytes_in, metrics_counter, "larql_router_body_bytes_received_total", "walk-ffn request bodies"},
        {&rt->m.books.bytes_out, metrics_counter, "larql_router_body_bytes_sent_total", "walk-ffn answer bodies"},
        {&rt->m.fan_outs, metrics_counter, "larql_router_fan_outs_total", "JSON requests split over several shards"},
        {&rt->m.retries, metrics_counter, "larql_router_retries_total", "requests sent again to another replica"},
        {&rt->m.cut_answers, metrics_counter, "larql_router_cut_answers_total",
         "answers that a shard lost half-way; the client's connection was closed"},
        {&rt->m.shards_up, metrics_gauge, "larql_router_shards_up",
         "shards whose last probe or request was answered"},
        {&rt->m.connections, metrics_gauge, "larql_router_connections", "open client connections"},
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        *rest[i].to = rest[i].make(m, rest[i].name, rest[i].help, "");
        ok &= *rest[i].to != NULL;
    }
    for (size_t i = 1; i < crew->routers_n; i++)
        crew->routers[i].m = rt->m;
    return ok;
}
