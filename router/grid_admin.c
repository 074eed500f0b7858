/* grid_admin: what operators ask over gRPC: Status, DrainServer, AssignRange. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "router/event_log.h"
#include "router/grid_impl.h"
#include "router/registry.h"

/* Everything of one answer, in one allocation chain that ends with the call. */
struct arena {
    void **blocks;
    size_t n, cap;
    bool failed;
};

static void *take(struct arena *a, size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        void **more = realloc(a->blocks, cap * sizeof *more);
        if (more) {
            a->blocks = more;
            a->cap = cap;
        }
    }
    if (!p || a->n == a->cap) {
        free(p);
        a->failed = true;
        return NULL;
    }
    return a->blocks[a->n++] = p;
}

static void arena_release(struct arena *a)
{
    while (a->n > 0)
        free(a->blocks[--a->n]);
    free(a->blocks);
}

/* ---- Status ------------------------------------------------------------------------ */

static Larql__Grid__V1__ShardInfo *shard_info(struct arena *a, const struct route_table *t, const struct route *r)
{
    Larql__Grid__V1__ShardInfo *x = take(a, 1, sizeof *x);
    char **ids = take(a, r->replicas_n, sizeof *ids);
    if (!x || !ids)
        return NULL;
    larql__grid__v1__shard_info__init(x);
    x->layer_start = r->first;
    x->layer_end = r->last;
    x->server_ids = ids;
    x->n_server_ids = x->replica_count = r->replicas_n;
    for (uint32_t i = 0; i < r->replicas_n; i++)
        ids[i] = t->members[r->replicas[i]]->id;
    return x;
}

/* The layers that no route has, as runs. */
static void add_gaps(struct arena *a, const struct route_model *m, Larql__Grid__V1__ModelCoverage *to)
{
    uint32_t layers_n = m->stats.layers > m->mapped_n ? m->stats.layers : m->mapped_n;
    to->gaps = take(a, (size_t)m->routes_n + 1, sizeof *to->gaps);
    for (uint32_t l = 0; l < layers_n && !a->failed; l++) {
        uint32_t first = l;
        while (l < layers_n && !route_find(m, l))
            l++;
        if (l == first)
            continue;
        Larql__Grid__V1__Gap *g = take(a, 1, sizeof *g);
        if (!g)
            return;
        larql__grid__v1__gap__init(g);
        g->layer_start = first;
        g->layer_end = l - 1;
        to->gaps[to->n_gaps++] = g;
    }
}

static Larql__Grid__V1__ModelCoverage *coverage(struct arena *a, const struct route_table *t,
                                                const struct route_model *m)
{
    Larql__Grid__V1__ModelCoverage *x = take(a, 1, sizeof *x);
    if (!x)
        return NULL;
    larql__grid__v1__model_coverage__init(x);
    x->model_id = (char *)(uintptr_t)m->id;
    x->num_layers = m->stats.layers;
    x->shards = take(a, m->routes_n, sizeof *x->shards);
    for (size_t i = 0; i < m->routes_n && !a->failed; i++)
        x->shards[x->n_shards++] = shard_info(a, t, &m->routes[i]);
    if (!a->failed)
        add_gaps(a, m, x);
    return x;
}

static void add_layer_stats(struct arena *a, const struct session *s, Larql__Grid__V1__ServerInfo *to)
{
    Larql__Grid__V1__LayerLatency *all = take(a, s->layers_n, sizeof *all);
    to->layer_stats = take(a, s->layers_n, sizeof *to->layer_stats);
    for (size_t i = 0; i < s->layers_n && !a->failed; i++) {
        larql__grid__v1__layer_latency__init(&all[i]);
        all[i].layer = s->layers[i].layer;
        all[i].avg_ms = s->layers[i].avg_ms;
        all[i].p99_ms = s->layers[i].p99_ms;
        to->layer_stats[to->n_layer_stats++] = &all[i];
    }
}

static Larql__Grid__V1__ServerInfo *member_info(struct arena *a, struct member *m)
{
    Larql__Grid__V1__ServerInfo *x = take(a, 1, sizeof *x);
    if (!x)
        return NULL;
    larql__grid__v1__server_info__init(x);
    x->server_id = m->id;
    x->listen_url = m->url;
    x->state = (char *)(uintptr_t)(strcmp(member_state_name(m), "up") == 0 ? "serving" : member_state_name(m));
    x->requests_in_flight = m->inflight_n;
    return x;
}

static Larql__Grid__V1__ServerInfo *joined_info(struct arena *a, struct session *s)
{
    Larql__Grid__V1__ServerInfo *x = member_info(a, s->m);
    if (!x)
        return NULL;
    pthread_mutex_lock(&s->m->mu);
    x->cpu_pct = s->m->load.cpu_pct;
    x->ram_used = s->m->load.ram_used_bytes;
    pthread_mutex_unlock(&s->m->mu);
    x->model_id = s->model;
    x->layer_start = s->first;
    x->layer_end = s->last;
    add_layer_stats(a, s, x);
    return x;
}

/* The static map's shards, of several ranges the last one: the message has room for one. */
static void add_static(struct arena *a, const struct route_table *t, Larql__Grid__V1__StatusResponse *out)
{
    Larql__Grid__V1__ServerInfo **by = take(a, t->members_n, sizeof *by);
    for (size_t i = 0; i < t->members_n && !a->failed; i++)
        if (!t->members[i]->joined)
            out->servers[out->n_servers++] = by[i] = member_info(a, t->members[i]);
    for (size_t i = 0; i < t->claims_n && !a->failed; i++) {
        const struct route_claim *c = &t->claims[i];
        if (!by[c->member])
            continue;
        by[c->member]->model_id = t->models[c->model].id;
        by[c->member]->layer_start = c->first;
        by[c->member]->layer_end = c->last;
    }
}

static Larql__Grid__V1__ServerInfo *spare_info(struct arena *a, struct session *s)
{
    Larql__Grid__V1__ServerInfo *x = take(a, 1, sizeof *x);
    if (!x)
        return NULL;
    larql__grid__v1__server_info__init(x);
    x->server_id = s->id;
    x->listen_url = (char *)(uintptr_t)grpc_stream_peer(s->stream);
    x->state = (char *)(uintptr_t)(s->state == SESSION_SPARE ? "spare" : "loading");
    if (s->state == SESSION_ASSIGNED) {
        x->model_id = s->model;
        x->layer_start = s->first;
        x->layer_end = s->last;
    }
    return x;
}

void grid_on_status(struct grpc_stream *stream, const uint8_t *p, size_t n, void *arg)
{
    (void)p, (void)n; /* an empty message */
    struct grid *g = arg;
    const struct route_table *t = g->crew->routers->table;
    struct arena a = {0};
    Larql__Grid__V1__StatusResponse out = LARQL__GRID__V1__STATUS_RESPONSE__INIT;
    struct session *s;
    if (!grid_may(g, stream, "Status"))
        return;
    out.models = take(&a, t->models_n, sizeof *out.models);
    out.servers = take(&a, t->members_n + g->sessions_n, sizeof *out.servers);
    for (size_t i = 0; i < t->models_n && !a.failed; i++)
        out.models[out.n_models++] = coverage(&a, t, &t->models[i]);
    if (!a.failed)
        add_static(&a, t, &out);
    TAILQ_FOREACH(s, &g->sessions, entry)
    {
        if (s->m && !a.failed)
            out.servers[out.n_servers++] = joined_info(&a, s);
        else if ((s->state == SESSION_SPARE || s->state == SESSION_ASSIGNED) && !a.failed)
            out.servers[out.n_servers++] = spare_info(&a, s);
    }
    if (a.failed)
        grpc_stream_finish(stream, GRPC_RESOURCE_EXHAUSTED, "out of memory");
    else
        grid_msg_reply(stream, &out.base);
    arena_release(&a);
}

/* ---- DrainServer, AssignRange --------------------------------------------------------- */

static void ack(struct grpc_stream *stream, bool ok, const char *message)
{
    Larql__Grid__V1__AdminAck out = LARQL__GRID__V1__ADMIN_ACK__INIT;
    out.ok = ok;
    out.message = (char *)(uintptr_t)message;
    grid_msg_reply(stream, &out.base);
}

/* Layers that only m serves: draining it would make a gap. */
static bool is_last_replica(const struct route_table *t, const struct member *m, uint32_t *first, uint32_t *last)
{
    for (size_t i = 0; i < t->models_n; i++)
        for (size_t k = 0; k < t->models[i].routes_n; k++) {
            const struct route *r = &t->models[i].routes[k];
            bool has = false, other = false;
            for (uint32_t j = 0; j < r->replicas_n; j++) {
                const struct member *x = t->members[r->replicas[j]];
                has |= x == m;
                other |= x != m && x->standing == MEMBER_SERVING && x->health != MEMBER_DOWN;
            }
            if (has && !other) {
                *first = r->first;
                *last = r->last;
                return true;
            }
        }
    return false;
}

void grid_on_drain(struct grpc_stream *stream, const uint8_t *p, size_t n, void *arg)
{
    struct grid *g = arg;
    struct lq_fault fault;
    char text[512];
    uint32_t first, last;
    if (!grid_may(g, stream, "DrainServer"))
        return;
    Larql__Grid__V1__DrainRequest *in = grid_msg_parse(&larql__grid__v1__drain_request__descriptor, p, n, &fault);
    if (!in) {
        grpc_stream_finish(stream, GRPC_INVALID_ARGUMENT, fault.text);
        return;
    }
    struct session *s = session_find(g, in->server_id);
    const struct member *m = registry_find(g->crew->registry, in->server_id);
    if (m && !m->joined) {
        snprintf(text, sizeof text, "\"%s\" is of the static map: stop it with SIGTERM, which drains it", m->id);
        ack(stream, false, text);
    } else if (!s || s->state != SESSION_SERVING) {
        snprintf(text, sizeof text, "server_id \"%.200s\" is not currently serving", in->server_id);
        ack(stream, false, text);
    } else if (is_last_replica(g->crew->routers->table, s->m, &first, &last)) {
        snprintf(text, sizeof text,
                 "\"%s\" is the last replica of layers %u-%u: give another first, or stop the process itself", s->m->id,
                 first, last);
        ack(stream, false, text);
    } else {
        Larql__Grid__V1__UnassignMsg un = LARQL__GRID__V1__UNASSIGN_MSG__INIT;
        char admin[] = "admin_drain";
        un.model_id = s->model;
        un.layer_start = s->first;
        un.layer_end = s->last;
        un.reason = *in->reason ? in->reason : admin;
        registry_drain(g->crew->registry, s->m, un.reason);
        session_set_state(s, SESSION_LEAVING);
        session_send(s, LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_UNASSIGN, &un);
        snprintf(text, sizeof text, "drained %s", s->m->id);
        ack(stream, true, text);
    }
    grid_msg_free(in);
}

/* The spare that was named, or any. NULL: text says why none. */
static struct session *spare_asked(struct grid *g, const char *id, char *text, size_t text_n)
{
    struct session *s = *id ? session_find(g, id) : TAILQ_FIRST(&g->sessions);
    while (!*id && s && s->state != SESSION_SPARE)
        s = TAILQ_NEXT(s, entry);
    if (s && s->state == SESSION_SPARE)
        return s;
    if (*id)
        snprintf(text, text_n, "server_id \"%.200s\" is not in the available pool", id);
    else
        snprintf(text, text_n, "no available server matched the request");
    return NULL;
}

void grid_on_assign(struct grpc_stream *stream, const uint8_t *p, size_t n, void *arg)
{
    struct grid *g = arg;
    struct lq_fault fault;
    char text[512];
    if (!grid_may(g, stream, "AssignRange"))
        return;
    Larql__Grid__V1__AssignRangeRequest *in =
        grid_msg_parse(&larql__grid__v1__assign_range_request__descriptor, p, n, &fault);
    if (!in) {
        grpc_stream_finish(stream, GRPC_INVALID_ARGUMENT, fault.text);
        return;
    }
    struct session *s = spare_asked(g, in->target_server_id, text, sizeof text);
    if (!s) {
        ack(stream, false, text);
    } else if (!*in->model_id || strlen(in->model_id) >= ROUTE_MODEL_CHARS || in->layer_end >= ROUTE_LAYERS_MAX) {
        ack(stream, false, "model_id is missing or too long, or the layers are beyond 65535");
    } else if (spare_assign(g, s, in->model_id, in->layer_start, in->layer_end, in->explicit_origin_url,
                            in->explicit_origin_hash, &fault) != LQ_OK) {
        ack(stream, false, fault.text);
    } else {
        snprintf(text, sizeof text, "assigned %s", in->model_id);
        ack(stream, true, text);
    }
    grid_msg_free(in);
}
