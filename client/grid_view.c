/* grid_view: see grid_view.h. */
#include "client/grid_view.h"

#include <stdlib.h>
#include <string.h>

/* ---- what it means ----------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const Larql__Grid__V1__ServerInfo *const *x = a, *const *y = b;
    return strcmp((*x)->server_id, (*y)->server_id);
}

bool grid_server_is_live(const Larql__Grid__V1__ServerInfo *x)
{
    return strcmp(x->state, "serving") == 0 || strcmp(x->state, "new") == 0;
}

const Larql__Grid__V1__ServerInfo *grid_view_server(const struct grid_view *v, const char *id_or_url)
{
    Larql__Grid__V1__ServerInfo like = LARQL__GRID__V1__SERVER_INFO__INIT;
    const Larql__Grid__V1__ServerInfo *key = &like, **found;
    like.server_id = (char *)(uintptr_t)id_or_url;
    if (v->status->n_servers == 0)
        return NULL;
    found = bsearch(&key, v->servers, v->status->n_servers, sizeof *v->servers, by_id);
    for (size_t i = 0; !found && i < v->status->n_servers; i++)
        if (strcmp(v->servers[i]->listen_url, id_or_url) == 0)
            found = &v->servers[i];
    return found ? *found : NULL;
}

static void extend(uint32_t *layers_n, uint32_t last)
{
    uint32_t n = last < GRID_VIEW_LAYERS_MAX ? last + 1 : GRID_VIEW_LAYERS_MAX;
    if (n > *layers_n)
        *layers_n = n;
}

static bool add_gap(struct grid_model *g, uint32_t first, uint32_t last)
{
    struct grid_span *more = realloc(g->gaps, (g->gaps_n + 1) * sizeof *more);
    if (!more)
        return false;
    g->gaps = more;
    g->gaps[g->gaps_n++] = (struct grid_span){first, last};
    return true;
}

static uint32_t count_live(const struct grid_view *v, const Larql__Grid__V1__ShardInfo *s)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_server_ids; i++) {
        const Larql__Grid__V1__ServerInfo *x = grid_view_server(v, s->server_ids[i]);
        n += !x || grid_server_is_live(x); /* a router that lists it without a state knows best */
    }
    return n;
}

static bool read_model(const struct grid_view *v, const Larql__Grid__V1__ModelCoverage *m, struct grid_model *g)
{
    g->m = m;
    g->layers_n = m->num_layers < GRID_VIEW_LAYERS_MAX ? m->num_layers : GRID_VIEW_LAYERS_MAX;
    for (size_t i = 0; i < m->n_shards; i++)
        extend(&g->layers_n, m->shards[i]->layer_end);
    for (size_t i = 0; i < m->n_gaps; i++)
        extend(&g->layers_n, m->gaps[i]->layer_end);
    bool *covered = calloc(g->layers_n + 1, sizeof *covered), ok = true;
    g->live_n = calloc(m->n_shards + 1, sizeof *g->live_n);
    ok = covered && g->live_n;
    for (size_t i = 0; ok && i < m->n_shards; i++) {
        g->live_n[i] = count_live(v, m->shards[i]);
        for (uint32_t l = m->shards[i]->layer_start; g->live_n[i] && l <= m->shards[i]->layer_end && l < g->layers_n;
             l++)
            covered[l] = true;
    }
    for (size_t i = 0; ok && i < m->n_gaps; i++)
        for (uint32_t l = m->gaps[i]->layer_start; l <= m->gaps[i]->layer_end && l < g->layers_n; l++)
            covered[l] = false;
    for (uint32_t l = 0; ok && l < g->layers_n; l++) {
        uint32_t first = l;
        while (l < g->layers_n && !covered[l])
            l++;
        g->covered_n += l < g->layers_n;
        if (l > first)
            ok = add_gap(g, first, l - 1);
    }
    free(covered);
    return ok;
}

bool grid_view_init(struct grid_view *v, const Larql__Grid__V1__StatusResponse *s)
{
    *v = (struct grid_view){.status = s};
    v->servers = calloc(s->n_servers + 1, sizeof *v->servers);
    v->models = calloc(s->n_models + 1, sizeof *v->models);
    if (!v->servers || !v->models)
        return false;
    for (size_t i = 0; i < s->n_servers; i++)
        v->servers[i] = s->servers[i];
    qsort(v->servers, s->n_servers, sizeof *v->servers, by_id);
    for (size_t i = 0; i < s->n_models; i++) {
        v->models_n++; /* before: what it has by then is released */
        if (!read_model(v, s->models[i], &v->models[i]))
            return false;
    }
    return true;
}

void grid_view_release(struct grid_view *v)
{
    for (size_t i = 0; i < v->models_n; i++) {
        free(v->models[i].gaps);
        free(v->models[i].live_n);
    }
    free(v->models);
    free(v->servers);
    *v = (struct grid_view){0};
}

/* ---- for people ---------------------------------------------------------------------- */

const char *grid_shown(const char *text)
{
    enum { BUFFERS_N = 8 };
    static char buffers[BUFFERS_N][GRID_TEXT_BYTES_MAX + 1];
    static unsigned next;
    char *to = buffers[next++ % BUFFERS_N];
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && n < GRID_TEXT_BYTES_MAX; c++) {
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) { /* C1 controls, U+0080 to U+009F */
            to[n++] = '?';
            c++;
        } else {
            to[n++] = *c < 0x20 || *c == 0x7f ? '?' : (char)*c;
        }
    }
    to[n] = '\0';
    return to;
}

/* Rounded down: 100 is said of what is whole. */
const char *grid_coverage_text(const struct grid_model *m, char text[16])
{
    if (m->m->num_layers == 0)
        snprintf(text, 16, "unknown");
    else
        snprintf(text, 16, "%u%%", (unsigned)(100ull * m->covered_n / m->layers_n));
    return text;
}

static void print_model(const struct grid_model *g, FILE *to)
{
    char coverage[16];
    grid_coverage_text(g, coverage);
    fprintf(to, "Model: %s (%zu shard%s, coverage %s%s)\n", grid_shown(g->m->model_id), g->m->n_shards,
            g->m->n_shards == 1 ? "" : "s", *coverage == 'u' ? "" : "~", coverage);
    for (size_t i = 0; i < g->m->n_shards; i++) {
        const Larql__Grid__V1__ShardInfo *s = g->m->shards[i];
        fprintf(to, "  layers %3u-%-3u  servers=", s->layer_start, s->layer_end);
        for (size_t k = 0; k < s->n_server_ids; k++)
            fprintf(to, "%s%s", k ? "," : "", grid_shown(s->server_ids[k]));
        fprintf(to, "  replicas=%u\n", s->replica_count);
    }
    for (size_t i = 0; i < g->gaps_n; i++)
        fprintf(to, "  GAP layers %u-%u\n", g->gaps[i].first, g->gaps[i].last);
}

void grid_print_status(const struct grid_view *v, FILE *to)
{
    if (v->models_n == 0 && v->status->n_servers == 0) {
        fprintf(to, "Grid: empty (no servers registered).\n");
        return;
    }
    for (size_t i = 0; i < v->models_n; i++)
        print_model(&v->models[i], to);
    fprintf(to, "Servers:\n");
    for (size_t i = 0; i < v->status->n_servers; i++) {
        const Larql__Grid__V1__ServerInfo *x = v->status->servers[i];
        fprintf(to, "  %-24s %-28s state=%s model=", grid_shown(x->server_id), grid_shown(x->listen_url),
                grid_shown(x->state));
        if (*x->model_id)
            fprintf(to, "%s[%u-%u]", grid_shown(x->model_id), x->layer_start, x->layer_end);
        else
            fputc('-', to); /* a spare */
        fprintf(to, " cpu=%.0f%% ram=%lluMB inflight=%u\n", (double)x->cpu_pct,
                (unsigned long long)(x->ram_used / 1000000), x->requests_in_flight);
    }
}

bool grid_print_gaps(const struct grid_view *v, const char *model, FILE *to, size_t *gaps_n)
{
    bool found = false;
    *gaps_n = 0;
    for (size_t i = 0; i < v->models_n; i++) {
        const struct grid_model *g = &v->models[i];
        if (model && strcmp(model, g->m->model_id) != 0)
            continue;
        found = true;
        if (g->gaps_n && to)
            fprintf(to, "Model: %s\n", grid_shown(g->m->model_id));
        for (size_t k = 0; k < g->gaps_n && to; k++)
            fprintf(to, "  layers %u-%u\n", g->gaps[k].first, g->gaps[k].last);
        *gaps_n += g->gaps_n;
    }
    if (!model && v->models_n == 0) {
        if (to)
            fprintf(to, "Grid: empty (no servers registered).\n");
        *gaps_n = 1;
        return true;
    }
    if (found && *gaps_n == 0 && to)
        fprintf(to, "No gaps.\n");
    return found;
}

/* ---- for programs ------------------------------------------------------------------- */

static json_t *spans_json(const struct grid_model *g, const char *model)
{
    json_t *list = json_array();
    for (size_t i = 0; i < g->gaps_n; i++) {
        json_t *x = json_pack("{sI,sI}", "layer_start", (json_int_t)g->gaps[i].first, "layer_end",
                              (json_int_t)g->gaps[i].last);
        if (model)
            (void)json_object_set_new(x, "model_id", json_string(model));
        if (json_array_append_new(list, x) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *model_json(const struct grid_model *g)
{
    json_t *ranges = json_array();
    for (size_t i = 0; i < g->m->n_shards; i++) {
        const Larql__Grid__V1__ShardInfo *s = g->m->shards[i];
        json_t *ids = json_array();
        for (size_t k = 0; k < s->n_server_ids; k++)
            (void)json_array_append_new(ids, json_string(s->server_ids[k]));
        (void)json_array_append_new(ranges, json_pack("{sI,sI,sI,sI,so}", "layer_start", (json_int_t)s->layer_start,
                                                      "layer_end", (json_int_t)s->layer_end, "replicas",
                                                      (json_int_t)s->replica_count, "live", (json_int_t)g->live_n[i],
                                                      "server_ids", ids));
    }
    json_t *m = json_pack("{ss,sI,sI,so,so}", "model_id", g->m->model_id, "layers", (json_int_t)g->m->num_layers,
                          "covered_layers", (json_int_t)g->covered_n, "ranges", ranges, "gaps", spans_json(g, NULL));
    if (m && g->m->num_layers)
        (void)json_object_set_new(m, "coverage_pct", json_real(100.0 * g->covered_n / g->layers_n));
    return m;
}

static json_t *server_json(const Larql__Grid__V1__ServerInfo *x)
{
    json_t *layers = json_array();
    for (size_t i = 0; i < x->n_layer_stats; i++)
        (void)json_array_append_new(layers, json_pack("{sI,sf,sf}", "layer", (json_int_t)x->layer_stats[i]->layer,
                                                      "avg_ms", (double)x->layer_stats[i]->avg_ms, "p99_ms",
                                                      (double)x->layer_stats[i]->p99_ms));
    json_t *s = json_pack("{ss,ss,ss,sf,sI,sI,so}", "server_id", x->server_id, "url", x->listen_url, "state",
                          x->state, "cpu_pct", (double)x->cpu_pct, "ram_used",
                          (json_int_t)(x->ram_used <= INT64_MAX ? x->ram_used : INT64_MAX), "in_flight",
                          (json_int_t)x->requests_in_flight, "layer_stats", layers);
    if (s && *x->model_id) {
        (void)json_object_set_new(s, "model_id", json_string(x->model_id));
        (void)json_object_set_new(s, "layer_start", json_integer(x->layer_start));
        (void)json_object_set_new(s, "layer_end", json_integer(x->layer_end));
    }
    if (s && x->rtt_ms)
        (void)json_object_set_new(s, "rtt_ms", json_integer(x->rtt_ms));
    return s;
}

json_t *grid_status_json(const struct grid_view *v)
{
    json_t *models = json_array(), *servers = json_array();
    for (size_t i = 0; i < v->models_n; i++)
        (void)json_array_append_new(models, model_json(&v->models[i]));
    for (size_t i = 0; i < v->status->n_servers; i++)
        (void)json_array_append_new(servers, server_json(v->status->servers[i]));
    return json_pack("{so,so}", "models", models, "servers", servers);
}

json_t *grid_gaps_json(const struct grid_view *v, const char *model)
{
    json_t *all = json_array();
    for (size_t i = 0; i < v->models_n; i++) {
        if (model && strcmp(model, v->models[i].m->model_id) != 0)
            continue;
        json_t *some = spans_json(&v->models[i], v->models[i].m->model_id);
        (void)json_array_extend(all, some);
        json_decref(some);
    }
    return json_pack("{so}", "gaps", all);
}
