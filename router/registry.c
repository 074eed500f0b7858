/* registry: see registry.h. */
#include "router/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "router/event_log.h"
#include "router/health.h"
#include "router/link.h"
#include "router/weights.h"

enum { MEDIAN_OF_MAX = 101 };

struct layer_range {
    uint32_t first, last;
};

struct entry {
    struct member *m; /* a reference */
    char model[ROUTE_MODEL_CHARS], tag[80]; /* as announced; "": as its stats say */
    struct layer_range *ranges;
    uint32_t ranges_n;
};

struct registry {
    struct crew *crew;
    struct entry *entries;
    size_t entries_n, entries_cap;
    struct weights *weights;
    bool grid, dirty, closed;
    bool fresh; /* somebody serves whom the last table does not have */
    uint64_t generation, next_id;
};

/* ---- entries ------------------------------------------------------------------ */

static struct entry *entry_of(struct registry *r, const struct member *m)
{
    for (size_t i = 0; i < r->entries_n; i++)
        if (r->entries[i].m == m)
            return &r->entries[i];
    return NULL;
}

static enum lq_err check_url(const struct registry *r, const char *url, struct lq_fault *fault)
{
    struct http_pool_opts o;
    struct http_pool *p = NULL;
    http_pool_opts_init(&o);
    o.tls = r->crew->trust.dial;
    enum lq_err rc = http_pool_new(loop_base(r->crew->routers->loop), url, &o, &p, fault);
    http_pool_free(p);
    return rc;
}

static enum lq_err entry_add(struct registry *r, const char *url, bool joined, uint32_t ranges_n, struct entry **out,
                             struct lq_fault *fault)
{
    char id[48];
    enum lq_err rc = check_url(r, url, fault);
    if (rc)
        return rc;
    if (r->entries_n == r->entries_cap) {
        size_t cap = r->entries_cap ? 2 * r->entries_cap : 16;
        struct entry *more = realloc(r->entries, cap * sizeof *more);
        if (!more)
            return lq_fail(fault, LQ_NOMEM, "out of memory for shard %s", url);
        r->entries = more;
        r->entries_cap = cap;
    }
    if (joined) /* as the reference's: unique over restarts of the router */
        snprintf(id, sizeof id, "srv-%lld-%llu", (long long)time(NULL), (unsigned long long)++r->next_id);
    else
        snprintf(id, sizeof id, "static-%zu", r->entries_n);
    struct entry e = {.m = member_new(url, id, joined, r->crew->routers_n, r->crew->events),
                      .ranges = calloc(ranges_n, sizeof *e.ranges)};
    if (!e.m || !e.ranges) {
        member_unref(e.m);
        free(e.ranges);
        return lq_fail(fault, LQ_NOMEM, "out of memory for shard %s", url);
    }
    r->entries[r->entries_n] = e;
    *out = &r->entries[r->entries_n++];
    return LQ_OK;
}

static void entry_remove(struct registry *r, struct entry *e)
{
    member_unref(e->m);
    free(e->ranges);
    memmove(e, e + 1, (size_t)(r->entries + --r->entries_n - e) * sizeof *e);
}

struct member *const *registry_members(const struct registry *r, size_t *n)
{
    /* The current table's list is that of the entries. */
    const struct route_table *t = r->crew->routers->table;
    *n = t->members_n;
    return t->members;
}

struct member *registry_find(const struct registry *r, const char *id_or_url)
{
    for (size_t i = 0; i < r->entries_n; i++)
        if (strcmp(r->entries[i].m->id, id_or_url) == 0 || strcmp(r->entries[i].m->url, id_or_url) == 0)
            return r->entries[i].m;
    return NULL;
}

/* What the model of its shards is called: the announced id, else what its stats say; all of
 * a static map are one model, called by the first that has said, but for not_this ("": none). */
static const char *model_of(const struct registry *r, const struct entry *e, const struct member *not_this)
{
    if (e->m->joined)
        return e->model;
    for (size_t i = 0; i < r->entries_n; i++) {
        const struct member *m = r->entries[i].m;
        if (!m->joined && m->checked && m != not_this)
            return m->stats.model;
    }
    return "";
}

/* ---- do they agree? -------------------------------------------------------------- */

/* A peer, also one that does not answer now: it was there first. */
static bool counts(const struct registry *r, const struct entry *e, const struct member *not_this, const char *model)
{
    return e->m != not_this && e->m->checked && strcmp(model_of(r, e, not_this), model) == 0;
}

static enum lq_err compare_shape(const struct entry *mine, const struct peer_stats *a, const struct entry *theirs,
                                 struct lq_fault *fault)
{
    const struct peer_stats *b = &theirs->m->stats;
    const char *peer = theirs->m->url;
    char x[HASH256_TEXT_BYTES], y[HASH256_TEXT_BYTES];
    if (a->hidden != b->hidden)
        return lq_fail(fault, LQ_USAGE, "hidden_size is %u, and %u at %s", a->hidden, b->hidden, peer);
    if (a->layers && b->layers && a->layers != b->layers)
        return lq_fail(fault, LQ_USAGE, "the model has %u layers, and %u at %s", a->layers, b->layers, peer);
    if (a->has_identity != b->has_identity && !mine->m->joined && !theirs->m->joined)
        return LQ_OK; /* the operator's own word, in a static map */
    if (a->has_identity != b->has_identity)
        return lq_fail(fault, LQ_USAGE, "%s tells no identity, so that it cannot be compared with %s",
                       a->has_identity ? peer : "it", a->has_identity ? "it" : peer);
    if (a->has_identity && b->has_identity && !hash256_equal(&a->identity, &b->identity))
        return lq_fail(fault, LQ_USAGE, "identity is %.12s..., and %.12s... at %s: another model under one name",
                       hash256_text(&a->identity, x), hash256_text(&b->identity, y), peer);
    if (!a->has_identity && mine->tag[0] && theirs->tag[0] && strcmp(mine->tag, theirs->tag) != 0)
        return lq_fail(fault, LQ_USAGE, "vindex_hash is %.64s, and %.64s at %s", mine->tag, theirs->tag, peer);
    return LQ_OK;
}

/* The peer that has the layer, for a message; NULL: it is gone. */
static const char *peer_with(const struct registry *r, const struct member *m, const char *model, uint32_t layer)
{
    for (size_t i = 0; i < r->entries_n; i++) {
        const struct entry *e = &r->entries[i];
        const struct peer_stats *s = &e->m->stats;
        if (counts(r, e, m, model) && s->layer_hashes && s->layer_first <= layer && layer <= s->layer_last)
            return e->m->url;
    }
    return NULL;
}

/* Peers agree among each other, so that one is enough for the shape; but where some tell an
 * identity and some do not (a static map), one of its own kind as well. */
static enum lq_err check_peers(struct registry *r, const struct entry *e, const char *model,
                               const struct peer_stats *s, struct lq_fault *fault)
{
    enum lq_err rc = LQ_OK;
    bool any = false, alike = false;
    uint32_t layer;
    for (size_t i = 0; i < r->entries_n && !rc && !(any && alike); i++) {
        const struct entry *peer = &r->entries[i];
        if (!counts(r, peer, e->m, model) || (any && peer->m->stats.has_identity != s->has_identity))
            continue;
        rc = compare_shape(e, s, peer, fault);
        any = true;
        alike |= peer->m->stats.has_identity == s->has_identity;
    }
    if (!any) /* it is alone: what was known of those before it counts no more */
        weights_forget(r->weights, model);
    if (rc || weights_agree(r->weights, model, s, &layer))
        return rc;
    const char *peer = peer_with(r, e->m, model, layer);
    return lq_fail(fault, LQ_USAGE, "the weights of layer %u are not those %s%s (another fine-tune?)", layer,
                   peer ? "at " : "that this grid had", peer ? peer : "");
}

static enum lq_err check_self(const struct entry *e, const struct peer_stats *s, struct lq_fault *fault)
{
    if (!e->m->joined) /* the map says who; what a shard lacks it refuses itself */
        return LQ_OK;
    if (strcmp(s->model, e->model) != 0)
        return lq_fail(fault, LQ_USAGE, "it announced model '%s', and its /v1/stats says '%s'", e->model, s->model);
    for (uint32_t i = 0; i < e->ranges_n; i++) {
        const struct layer_range *x = &e->ranges[i];
        if (s->layers && x->last >= s->layers)
            return lq_fail(fault, LQ_USAGE, "it announced layers %u-%u of a model of %u", x->first, x->last,
                           s->layers);
        if (x->first < s->layer_first || x->last > s->layer_last)
            return lq_fail(fault, LQ_USAGE, "it announced layers %u-%u, and its /v1/stats says %u-%u", x->first,
                           x->last, s->layer_first, s->layer_last);
    }
    return LQ_OK;
}

/* ---- life --------------------------------------------------------------------------- */

static void on_later(void *arg)
{
    struct registry *r = arg;
    if (!r->closed)
        registry_publish(r);
}

static void changed(struct registry *r)
{
    if (!r->dirty)
        loop_later(r->crew->routers->loop, on_later, r);
    r->dirty = true;
}

/* Before somebody goes, who came in the same turn must be in a table: it may be the one
 * that the other waited for. */
static void publish_fresh(struct registry *r)
{
    if (r->fresh)
        registry_publish(r);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A fresh replica begins at the median of those that serve the same layers: at nothing it
 * would draw every request at once. */
static void start_at_median(const struct registry *r, const struct entry *e)
{
    double us[MEDIAN_OF_MAX];
    size_t n = 0;
    const char *model = model_of(r, e, NULL);
    for (size_t i = 0; i < r->entries_n && n < MEDIAN_OF_MAX; i++) {
        const struct entry *peer = &r->entries[i];
        if (counts(r, peer, e->m, model) && peer->m->latency_us > 0 &&
            peer->ranges[0].first <= e->ranges[0].last && e->ranges[0].first <= peer->ranges[0].last)
            us[n++] = peer->m->latency_us;
    }
    if (n > 0) {
        qsort(us, n, sizeof *us, by_value);
        e->m->latency_us = us[n / 2];
    }
}

enum lq_err registry_join(struct registry *r, const struct join *j, struct member **out, struct lq_fault *fault)
{
    if (r->entries_n == REGISTRY_MEMBERS_MAX)
        return lq_fail(fault, LQ_USAGE, "this grid has %d shards already", REGISTRY_MEMBERS_MAX);
    if (j->last < j->first || j->last >= ROUTE_LAYERS_MAX)
        return lq_fail(fault, LQ_USAGE, "layers %u-%u: not a range below %d", j->first, j->last, ROUTE_LAYERS_MAX);
    if (!*j->model_id || strlen(j->model_id) >= ROUTE_MODEL_CHARS)
        return lq_fail(fault, LQ_USAGE, "model_id has %zu bytes, not 1 to %d", strlen(j->model_id),
                       ROUTE_MODEL_CHARS - 1);
    struct entry *e;
    enum lq_err rc = entry_add(r, j->url, true, 1, &e, fault);
    if (rc)
        return rc;
    snprintf(e->model, sizeof e->model, "%s", j->model_id);
    snprintf(e->tag, sizeof e->tag, "%s", j->tag);
    e->ranges[e->ranges_n++] = (struct layer_range){j->first, j->last};
    *out = e->m;
    changed(r);
    return LQ_OK;
}

/* The last of a joined model's shards: nothing of it is kept. */
static void forget_alone(struct registry *r, const struct entry *gone)
{
    for (size_t i = 0; i < r->entries_n; i++)
        if (&r->entries[i] != gone && strcmp(model_of(r, &r->entries[i], NULL), gone->model) == 0)
            return;
    weights_forget(r->weights, gone->model);
}

void registry_leave(struct registry *r, struct member *m, const char *why)
{
    struct entry *e = entry_of(r, m);
    if (!e)
        return;
    log_info("shard_left server_id=%s url=%s why=%s", m->id, m->url, log_q(why));
    event_log_add(r->crew->events, "left", m->id, "%s: %s", m->url, why);
    health_forget(m);
    publish_fresh(r);
    (void)member_set_standing(m, MEMBER_DRAINING, ""); /* loops that still have the old table see this */
    forget_alone(r, e);
    entry_remove(r, e);
    changed(r);
}

void registry_drain(struct registry *r, struct member *m, const char *why)
{
    publish_fresh(r);
    if (member_set_standing(m, MEMBER_DRAINING, why))
        changed(r);
}

enum lq_err registry_probed(struct registry *r, struct member *m, struct peer_stats *stats, const char *why,
                            struct lq_fault *fault)
{
    struct entry *e = entry_of(r, m);
    if (!e || !stats)
        return lq_fail(fault, LQ_NOT_READY, "%s", e ? why : "it has left");
    const char *said = model_of(r, e, m);
    char model[ROUTE_MODEL_CHARS];
    snprintf(model, sizeof model, "%s", *said ? said : stats->model);
    enum lq_err rc = check_self(e, stats, fault);
    if (!rc)
        rc = check_peers(r, e, model, stats, fault);
    if (!rc && !weights_learn(r->weights, model, stats))
        return lq_fail(fault, LQ_NOT_READY, "out of memory for the hashes of its weights");
    bool same = m->checked && !rc && m->stats.hidden == stats->hidden && m->stats.layers == stats->layers &&
                strcmp(m->stats.model, stats->model) == 0 &&
                memcmp(m->stats.wire, stats->wire, sizeof stats->wire) == 0;
    m->checked = rc == LQ_OK;
    peer_stats_release(&m->stats);
    m->stats = *stats;
    *stats = (struct peer_stats){0};
    if (rc) {
        if (member_set_standing(m, MEMBER_REFUSED, fault->text)) {
            metric_add(r->crew->routers->m.refusals, 1);
            changed(r);
        }
        return rc;
    }
    if (m->standing == MEMBER_JOINING || m->standing == MEMBER_REFUSED) {
        if (m->joined && m->standing == MEMBER_JOINING) {
            start_at_median(r, e);
            metric_add(r->crew->routers->m.joins, 1);
        }
        (void)member_set_standing(m, MEMBER_SERVING, "agrees with its peers");
        same = false;
        r->fresh = true;
    }
    if (!same)
        changed(r);
    return LQ_OK;
}

/* ---- tables --------------------------------------------------------------------------- */

/* Everybody reads formats that all of a model's shards have. */
static void add_stats(struct route_model *to, const struct peer_stats *s)
{
    if (to->stats.hidden == 0) {
        to->stats = *s;
        to->stats.layer_hashes = NULL; /* the member's */
        return;
    }
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++)
        to->stats.wire[f] &= s->wire[f];
}

static struct name model_name(const void *ctx, size_t i)
{
    const char *id = ((const struct route_model *)ctx)[i].id;
    return (struct name){id, strlen(id)};
}

/* The parts of a table, of all entries. False: out of memory. */
static bool collect(const struct registry *r, struct route_table *t)
{
    size_t claims_max = 1;
    for (size_t i = 0; i < r->entries_n; i++)
        claims_max += r->entries[i].ranges_n;
    t->members = calloc(r->entries_n + 1, sizeof *t->members);
    t->models = calloc(r->entries_n + 1, sizeof *t->models);
    t->claims = calloc(claims_max, sizeof *t->claims);
    if (!t->members || !t->models || !t->claims ||
        !name_index_init(&t->by_id, r->entries_n + 1, model_name, t->models))
        return false;
    const char *static_id = NULL;
    bool named = false;
    for (size_t i = 0; i < r->entries_n; i++)
        named |= r->entries[i].m->joined && r->entries[i].m->standing == MEMBER_SERVING;
    for (size_t i = 0; i < r->entries_n; i++) {
        const struct entry *e = &r->entries[i];
        t->members[t->members_n++] = member_ref(e->m);
        if (e->m->joined && e->m->standing != MEMBER_SERVING)
            continue;
        const char *id = e->m->joined ? e->model : static_id ? static_id : (static_id = model_of(r, e, NULL));
        if (named && !*id) /* a static map that has not said what it serves is no second model */
            continue;
        size_t at = name_index_find(&t->by_id, id, strlen(id));
        if (at == SIZE_MAX) {
            at = t->models_n++;
            snprintf(t->models[at].id, sizeof t->models[at].id, "%s", id);
            (void)name_index_put(&t->by_id, at);
        }
        if (e->m->checked)
            add_stats(&t->models[at], &e->m->stats);
        for (uint32_t k = 0; k < e->ranges_n; k++)
            t->claims[t->claims_n++] = (struct route_claim){(uint32_t)at, (uint32_t)i, e->ranges[k].first,
                                                            e->ranges[k].last};
    }
    return true;
}

static void hand_over(struct registry *r, struct route_table *t)
{
    for (size_t i = 0; i < r->crew->routers_n; i++) {
        struct router *rt = &r->crew->routers[i];
        struct route_table *old = atomic_exchange(&rt->next_table, route_table_ref(t));
        route_table_unref(old); /* it has not looked yet */
        if (!atomic_exchange(&rt->table_posted, true))
            loop_post(rt->loop, &rt->table_msg);
    }
}

void registry_publish(struct registry *r)
{
    struct route_table parts = {.grid = r->grid}, *t;
    struct lq_fault fault = {.text = "out of memory"};
    r->dirty = r->fresh = false;
    bool ok = collect(r, &parts);
    name_index_release(&parts.by_id);
    if (!ok) {
        for (size_t i = 0; i < parts.members_n; i++)
            member_unref(parts.members[i]);
        free(parts.members);
        free(parts.models);
        free(parts.claims);
    }
    if (!ok || route_table_new_take(parts.members, parts.members_n, parts.models, parts.models_n, parts.claims,
                                    parts.claims_n, &t, &fault) != LQ_OK) {
        log_error("route_table kept=old why=%s", log_q(fault.text)); /* the next change tries again */
        return;
    }
    t->grid = r->grid;
    t->generation = ++r->generation;
    hand_over(r, t);
    route_table_unref(t);
}

enum lq_err registry_new(struct crew *crew, const struct route_map *map, bool grid, struct registry **out,
                         struct lq_fault *fault)
{
    struct registry *r = calloc(1, sizeof *r);
    if (!r)
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    r->crew = crew;
    r->grid = grid;
    *out = r;
    if (!(r->weights = weights_new()))
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    for (size_t i = 0; map && i < map->urls_n; i++) {
        struct entry *e;
        enum lq_err rc = entry_add(r, map->urls[i], false, (uint32_t)map->claims_n, &e, fault);
        if (rc)
            return rc;
        for (size_t k = 0; k < map->claims_n; k++)
            if (map->claims[k].member == i)
                e->ranges[e->ranges_n++] = (struct layer_range){map->claims[k].first, map->claims[k].last};
    }
    registry_publish(r);
    return LQ_OK;
}

void registry_close(struct registry *r)
{
    for (size_t i = 0; r && i < r->entries_n; i++)
        health_forget(r->entries[i].m);
    if (r)
        r->closed = true;
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    while (r->entries_n > 0)
        entry_remove(r, &r->entries[r->entries_n - 1]);
    free(r->entries);
    weights_free(r->weights);
    free(r);
}
