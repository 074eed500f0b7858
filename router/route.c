/* route: see route.h. */
#include "router/route.h"

#include <stdlib.h>
#include <string.h>

#include "router/member.h"

static struct name model_name(const void *ctx, size_t i)
{
    const char *id = ((const struct route_model *)ctx)[i].id;
    return (struct name){id, strlen(id)};
}

/* A route begins where a claim begins or the layer after one ends. mapped_n + 1 marks. */
static size_t mark_edges(const struct route_claim *const *claims, size_t claims_n, uint8_t *edge, uint32_t mapped_n)
{
    size_t routes_max = 0;
    for (size_t i = 0; i < claims_n; i++)
        edge[claims[i]->first] = edge[claims[i]->last + 1] = 1;
    for (uint32_t l = 0; l < mapped_n; l++)
        routes_max += edge[l];
    return routes_max;
}

/* Routes of the layers that somebody owns; replicas_n counted, not filled. Sum returned. */
static size_t cut_routes(struct route_model *m, const uint8_t *edge, const int32_t *owners_step)
{
    int64_t owners_n = 0;
    size_t sum = 0;
    for (uint32_t l = 0; l < m->mapped_n; l++) {
        owners_n += owners_step[l];
        if (owners_n == 0) {
            m->by_layer[l] = ROUTE_NONE;
            continue;
        }
        if (edge[l]) {
            m->routes[m->routes_n++] = (struct route){.first = l};
            sum += (size_t)owners_n;
        }
        m->by_layer[l] = (uint32_t)m->routes_n - 1;
        m->routes[m->routes_n - 1].last = l;
        m->routes[m->routes_n - 1].replicas_n = (uint32_t)owners_n;
    }
    return sum;
}

static void fill_replicas(struct route_model *m, const struct route_claim *const *claims, size_t claims_n)
{
    uint32_t *next = m->replicas;
    for (size_t r = 0; r < m->routes_n; r++) {
        m->routes[r].replicas = next;
        next += m->routes[r].replicas_n;
        m->routes[r].replicas_n = 0;
    }
    for (size_t i = 0; i < claims_n; i++)
        for (uint32_t r = m->by_layer[claims[i]->first]; r < m->routes_n && m->routes[r].first <= claims[i]->last; r++)
            m->routes[r].replicas[m->routes[r].replicas_n++] = claims[i]->member;
}

static bool build_model(struct route_model *m, const struct route_claim *const *claims, size_t claims_n)
{
    m->mapped_n = 0;
    for (size_t i = 0; i < claims_n; i++)
        if (claims[i]->last >= m->mapped_n)
            m->mapped_n = claims[i]->last + 1;
    if (m->mapped_n == 0)
        return true;
    uint8_t *edge = calloc((size_t)m->mapped_n + 1, 1);
    int32_t *owners_step = calloc((size_t)m->mapped_n + 1, sizeof *owners_step);
    m->by_layer = malloc(m->mapped_n * sizeof *m->by_layer);
    bool ok = edge && owners_step && m->by_layer;
    if (ok) {
        for (size_t i = 0; i < claims_n; i++) {
            owners_step[claims[i]->first]++;
            owners_step[claims[i]->last + 1]--;
        }
        m->routes = calloc(mark_edges(claims, claims_n, edge, m->mapped_n), sizeof *m->routes);
        ok = m->routes && (m->replicas = malloc(cut_routes(m, edge, owners_step) * sizeof *m->replicas));
    }
    if (ok)
        fill_replicas(m, claims, claims_n);
    free(edge);
    free(owners_step);
    return ok;
}

static void release(struct route_table *t)
{
    for (size_t i = 0; i < t->models_n; i++) {
        free(t->models[i].by_layer);
        free(t->models[i].routes);
        free(t->models[i].replicas);
    }
    for (size_t i = 0; i < t->members_n; i++)
        member_unref(t->members[i]);
    name_index_release(&t->by_id);
    free(t->members);
    free(t->models);
    free(t->claims);
}

/* Claims sorted by model: those of m are sorted[start[m]] .. sorted[start[m + 1] - 1].
 * start: models_n + 2 zeros. */
static void sort_claims(const struct route_claim *claims, size_t claims_n, size_t models_n, size_t *start,
                        const struct route_claim **sorted)
{
    for (size_t i = 0; i < claims_n; i++)
        start[claims[i].model + 2]++;
    for (size_t m = 2; m < models_n + 2; m++)
        start[m] += start[m - 1];
    for (size_t i = 0; i < claims_n; i++)
        sorted[start[claims[i].model + 1]++] = &claims[i];
}

enum lq_err route_table_new_take(struct member **members, size_t members_n, struct route_model *models,
                                 size_t models_n, struct route_claim *claims, size_t claims_n,
                                 struct route_table **out, struct lq_fault *fault)
{
    struct route_table t = {.refs = 1,
                            .members = members,
                            .members_n = members_n,
                            .models = models,
                            .models_n = models_n,
                            .claims = claims,
                            .claims_n = claims_n};
    size_t *start = calloc(models_n + 2, sizeof *start);
    const struct route_claim **sorted = malloc((claims_n + 1) * sizeof *sorted);
    struct route_table *made = malloc(sizeof *made);
    bool ok = start && sorted && made && name_index_init(&t.by_id, models_n, model_name, models);
    if (ok)
        sort_claims(claims, claims_n, models_n, start, sorted);
    for (size_t i = 0; i < models_n && ok; i++) {
        (void)name_index_put(&t.by_id, i);
        ok = build_model(&models[i], sorted + start[i], start[i + 1] - start[i]);
    }
    free(start);
    free(sorted);
    if (!ok) {
        free(made);
        release(&t);
        return lq_fail(fault, LQ_NOMEM, "out of memory for a route table of %zu shards", members_n);
    }
    *made = t;
    *out = made;
    return LQ_OK;
}

struct route_table *route_table_ref(struct route_table *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void route_table_unref(struct route_table *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    release(t);
    free(t);
}

const struct route_model *route_model_find(const struct route_table *t, const char *id)
{
    if (!id || !*id)
        return t->models_n == 1 ? &t->models[0] : NULL;
    size_t at = name_index_find(&t->by_id, id, strlen(id));
    return at == SIZE_MAX ? NULL : &t->models[at];
}
