/* admin: what the router tells about itself and its shards (docs/protocol.md, 5). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/percent.h"
#include "router/link.h"

static size_t up_n(const struct route_table *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->members_n; i++)
        n += t->members[i]->standing == MEMBER_SERVING && t->members[i]->health == MEMBER_UP;
    return n;
}

static uint64_t served_n(const struct crew *crew)
{
    uint64_t n = 0;
    for (size_t i = 0; i < crew->routers_n; i++)
        n += crew->routers[i].m.books.served_n;
    return n;
}

static bool route_is_up(const struct route_table *t, const struct route *r)
{
    for (uint32_t i = 0; i < r->replicas_n; i++) {
        const struct member *m = t->members[r->replicas[i]];
        if (m->standing == MEMBER_SERVING && m->health == MEMBER_UP)
            return true;
    }
    return false;
}

/* Layers of all models, those that somebody claims, and of those the ones with a live replica. */
struct coverage {
    uint64_t layers, mapped, live;
};

static struct coverage coverage_of(const struct route_table *t)
{
    struct coverage c = {0};
    for (size_t i = 0; i < t->models_n; i++) {
        const struct route_model *m = &t->models[i];
        c.layers += m->stats.layers;
        for (size_t k = 0; k < m->routes_n; k++) {
            uint64_t n = (uint64_t)m->routes[k].last - m->routes[k].first + 1;
            c.mapped += n;
            c.live += route_is_up(t, &m->routes[k]) ? n : 0;
        }
    }
    return c;
}

/* ?coverage=full: ready only when every layer of every model has a live replica. ?coverage=none:
 * 200 whenever somebody is there to answer, which is what a restart can mend. */
static void answer_health(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    struct coverage c = coverage_of(rt->table);
    bool full = strcmp(http_req_query(r), "coverage=full") == 0,
         none = strcmp(http_req_query(r), "coverage=none") == 0;
    bool ok = c.live > 0 && (!full || (c.live == c.mapped && c.live >= c.layers));
    const char *status = rt->draining ? "draining" : ok ? "ok" : c.live > 0 ? "incomplete" : "loading";
    http_front_json_new(r, !none && (rt->draining || !ok) ? 503 : 200,
                        json_pack("{ss,sI,sI,s{sI,sI,sI}}", "status", status, "uptime_seconds",
                                  (json_int_t)((clock_us() - rt->crew->start_us) / 1000000), "requests_served",
                                  (json_int_t)served_n(rt->crew), "coverage", "layers", (json_int_t)c.layers,
                                  "mapped", (json_int_t)c.mapped, "live", (json_int_t)c.live));
}

void admin_status_text(const void *router, char *text, size_t text_n)
{
    const struct router *rt = router;
    struct coverage c = coverage_of(rt->table);
    snprintf(text, text_n, "%llu of %llu layers have a live shard, %zu of %zu shards are up",
             (unsigned long long)c.live, (unsigned long long)(c.layers > c.mapped ? c.layers : c.mapped),
             up_n(rt->table), rt->table->members_n);
}

static json_t *wire_list(const struct route_model *m)
{
    json_t *list = json_array();
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++)
        if (m->stats.wire[f])
            json_array_append_new(list, json_string(wire_name(f)));
    return list;
}

/* The model that ?model_id= names, else the first that is known. */
static const struct route_model *model_asked(const struct route_table *t, const char *query)
{
    char id[ROUTE_MODEL_CHARS];
    if (strncmp(query, "model_id=", 9) == 0)
        return percent_decode(id, sizeof id, query + 9) ? route_model_find(t, id) : NULL;
    for (size_t i = 0; i < t->models_n; i++)
        if (t->models[i].stats.hidden)
            return &t->models[i];
    return NULL;
}

static void answer_stats(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    const struct route_table *t = rt->table;
    const struct route_model *m = model_asked(t, http_req_query(r));
    if (!m && t->models_n > 0 && strncmp(http_req_query(r), "model_id=", 9) == 0) {
        http_front_refuse(r, LQ_NO_MODEL,
                          "the model of that model_id is not in this grid; /v1/models lists those that are");
        return;
    }
    if (!m || !m->stats.hidden) {
        http_front_refuse(r, LQ_NOT_READY, "no shard of it has answered yet; see /v1/topology");
        return;
    }
    const struct peer_stats *s = &m->stats;
    http_front_json_new(r, 200,
                        json_pack("{ss,ss,ss,si,si,si,sI,sI,ss,so,ss,s{sb,sI,sI}}", "model", s->model, "family",
                                  s->family, "mode", "ffn-service", "layers", (int)s->layers, "hidden_size",
                                  (int)s->hidden, "features_per_layer", (int)s->features, "layer_start",
                                  (json_int_t)(m->routes_n ? m->routes[0].first : 0), "layer_end",
                                  (json_int_t)(m->routes_n ? m->routes[m->routes_n - 1].last : 0), "dtype", s->dtype,
                                  "wire", wire_list(m), "kernels", "router", "loaded", "ffn_service", up_n(t) > 0,
                                  "shards", (json_int_t)t->members_n, "shards_up", (json_int_t)up_n(t)));
}

static void answer_models(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    json_t *data = json_array();
    json_int_t since = (json_int_t)(time(NULL) - (time_t)((clock_us() - rt->crew->start_us) / 1000000));
    for (size_t i = 0; i < rt->table->models_n; i++)
        if (rt->table->models[i].stats.hidden)
            json_array_append_new(data, json_pack("{ss,ss,sI,ss}", "id", rt->table->models[i].id, "object", "model",
                                                  "created", since, "owned_by", "larql-grid"));
    http_front_json_new(r, 200, json_pack("{ss,so}", "object", "list", "data", data));
}

static void answer_metrics(void *arg, struct http_req *r)
{
    struct router *rt = arg;
    uint64_t gap_n = 0;
    for (size_t i = 0; i < rt->table->models_n; i++)
        gap_n += topology_gap_layers(rt->table, &rt->table->models[i]);
    metric_set(rt->m.shards_up, (double)up_n(rt->table));
    metric_set(rt->m.shards, (double)rt->table->members_n);
    metric_set(rt->m.gap_layers, (double)gap_n);
    metric_set(rt->m.budget, (double)budget_left(&rt->crew->budget, clock_us()));
    size_t connections_n = 0;
    for (size_t i = 0; i < rt->crew->routers_n; i++)
        connections_n += http_server_connections_n(rt->crew->routers[i].server);
    metric_set(rt->m.connections, (double)connections_n);
    http_front_metrics(r, rt->crew->metrics);
}

void admin_on_request(struct http_req *r, void *router)
{
    static const struct http_page pages[] = {
        {"/v1/walk-ffn", "POST", flow_start, ACCESS_CLIENT},
        {"/v1/health", "GET", answer_health, ACCESS_ANY},
        {"/v1/stats", "GET", answer_stats, ACCESS_CLIENT},
        {"/v1/models", "GET", answer_models, ACCESS_CLIENT},
        {"/v1/topology", "GET", topology_answer, ACCESS_GRID},
        {"/metrics", "GET", answer_metrics, ACCESS_READER},
        {"/", "GET", page_answer, ACCESS_ANY},
    };
    struct router *rt = router;
    http_front_dispatch(pages, sizeof pages / sizeof *pages, &rt->crew->trust.access, rt, r);
}

bool admin_metrics_init(struct crew *crew)
{
    struct metrics *m = crew->metrics = metrics_new();
    struct router *rt = crew->routers;
    if (!m)
        return false;
    bool ok = http_front_series(m, "larql_router", &rt->m.books) &&
              access_metrics(&crew->trust.access, m, "larql_router_auth_failures_total");
    const struct {
        struct metric **to;
        struct metric *(*make)(struct metrics *, const char *, const char *, const char *);
        const char *name, *help;
    } rest[] = {
        {&rt->m.fan_outs, metrics_counter, "larql_router_fan_outs_total", "JSON requests split over several shards"},
        {&rt->m.retries, metrics_counter, "larql_router_retries_total", "requests sent again to another replica"},
        {&rt->m.hedges, metrics_counter, "larql_router_hedges_total",
         "second tries beside a slow first one (--hedge)"},
        {&rt->m.hedge_wins, metrics_counter, "larql_router_hedge_wins_total", "answers that came from the second"},
        {&rt->m.budget_spent, metrics_counter, "larql_router_retry_budget_spent_total",
         "retries and hedges not made, since a tenth of the last 10 s' requests (at least 64) had been"},
        {&rt->m.budget, metrics_gauge, "larql_router_retry_budget", "retries and hedges that may be made now"},
        {&rt->m.cut_answers, metrics_counter, "larql_router_cut_answers_total",
         "answers that a shard lost half-way; the client's connection was closed"},
        {&rt->m.joins, metrics_counter, "larql_router_joins_total", "shards that joined and agreed with their peers"},
        {&rt->m.refusals, metrics_counter, "larql_router_join_refusals_total",
         "shards refused for another model, identity, range or URL"},
        {&rt->m.leaves, metrics_counter, "larql_router_leaves_total", "joined shards that left or fell silent"},
        {&rt->m.gap_layers, metrics_gauge, "larql_router_gap_layers", "layers without a live shard"},
        {&rt->m.hot_ranges, metrics_gauge, "larql_router_hot_ranges",
         "ranges of layers with more requests than their replicas work off with ease"},
        {&rt->m.shards, metrics_gauge, "larql_router_shards", "shards known"},
        {&rt->m.shards_up, metrics_gauge, "larql_router_shards_up",
         "shards whose last probe or request was answered"},
        {&rt->m.connections, metrics_gauge, "larql_router_connections", "open client connections"},
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        *rest[i].to = rest[i].make(m, rest[i].name, rest[i].help, "");
        ok &= *rest[i].to != NULL;
    }
    static const char *const reason[] = {"request", "probe", "silence"};
    for (size_t i = 0; i < sizeof reason / sizeof *reason; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "reason=\"%s\"", reason[i]);
        rt->m.ejections[i] = metrics_counter(m, "larql_router_ejections_total",
                                             "shards taken out for a failed request, an unanswered probe, a silent "
                                             "stream",
                                             labels);
        ok &= rt->m.ejections[i] != NULL;
    }
    for (size_t i = 1; i < crew->routers_n; i++)
        crew->routers[i].m = rt->m;
    return ok;
}
