/* route: see route.h. */
#include "router/route.h"

#include <stdlib.h>
#include <string.h>

#include "common/args.h"

/* One blank-trimmed item of the map. */
struct item {
    const char *p;
    size_t n;
};

static struct item trimmed(const char *p, size_t n)
{
    args_trim(&p, &n);
    return (struct item){p, n};
}

/* Index of a URL, added when new; SIZE_MAX: out of memory. */
static size_t url_index(struct route_table *t, struct item url)
{
    while (url.n > 1 && url.p[url.n - 1] == '/')
        url.n--;
    for (size_t i = 0; i < t->urls_n; i++)
        if (strlen(t->urls[i]) == url.n && memcmp(t->urls[i], url.p, url.n) == 0)
            return i;
    char *copy = strndup(url.p, url.n);
    if (copy)
        t->urls[t->urls_n++] = copy;
    return copy ? t->urls_n - 1 : SIZE_MAX;
}

static enum lq_err add_replica(struct route *r, size_t url, const char *text, struct lq_fault *fault)
{
    for (uint32_t i = 0; i < r->replicas_n; i++)
        if (r->replicas[i] == url)
            return lq_fail(fault, LQ_USAGE, "layers %u-%u name %s twice", r->first, r->last, text);
    if (r->replicas_n == ROUTE_REPLICAS_MAX)
        return lq_fail(fault, LQ_USAGE, "layers %u-%u have over %d replicas", r->first, r->last, ROUTE_REPLICAS_MAX);
    r->replicas[r->replicas_n++] = (uint32_t)url;
    return LQ_OK;
}

static enum lq_err add_item(struct route_table *t, struct item x, struct lq_fault *fault)
{
    const char *eq = memchr(x.p, '=', x.n);
    if (!eq)
        return lq_fail(fault, LQ_USAGE, "expected 'START-END=URL', got '%.*s'", (int)x.n, x.p);
    struct item range = trimmed(x.p, (size_t)(eq - x.p)), url = trimmed(eq + 1, x.n - (size_t)(eq - x.p) - 1);
    if (url.n == 0)
        return lq_fail(fault, LQ_USAGE, "expected 'START-END=URL', got '%.*s'", (int)x.n, x.p);
    if (!memchr(range.p, '-', range.n))
        return lq_fail(fault, LQ_USAGE, "expected 'START-END', got '%.*s'", (int)range.n, range.p);
    struct route new = {0};
    enum lq_err rc = args_range(range.p, range.n, &new.first, &new.last, fault);
    if (rc)
        return rc;
    if (t->urls_n == ROUTE_SHARDS_MAX)
        return lq_fail(fault, LQ_USAGE, "over %d shards in one map", ROUTE_SHARDS_MAX);
    size_t at = url_index(t, url);
    if (at == SIZE_MAX)
        return lq_fail(fault, LQ_NOMEM, "out of memory for the shard map");
    for (size_t i = 0; i < t->routes_n; i++) {
        struct route *r = &t->routes[i];
        if (r->first == new.first && r->last == new.last)
            return add_replica(r, at, t->urls[at], fault);
        if (new.first <= r->last && r->first <= new.last)
            return lq_fail(fault, LQ_USAGE, "layers %u-%u overlap %u-%u in part; a replica repeats a range exactly",
                           new.first, new.last, r->first, r->last);
    }
    new.replicas[new.replicas_n++] = (uint32_t)at;
    t->routes[t->routes_n++] = new;
    return LQ_OK;
}

static int by_first(const void *a, const void *b)
{
    const struct route *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

enum lq_err route_table_parse(const char *map, struct route_table *t, struct lq_fault *fault)
{
    enum lq_err rc = LQ_OK;
    size_t items_n = 1;
    for (const char *p = map; *p; p++)
        items_n += *p == ',';
    *t = (struct route_table){.routes = calloc(items_n, sizeof *t->routes), .urls = calloc(items_n, sizeof *t->urls)};
    if (!t->routes || !t->urls)
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for the shard map");
    for (const char *p = map; !rc;) {
        size_t n = strcspn(p, ",");
        struct item x = trimmed(p, n);
        if (x.n > 0) /* blank items are skipped */
            rc = add_item(t, x, fault);
        if (!p[n])
            break;
        p += n + 1;
    }
    if (!rc && t->routes_n == 0)
        rc = lq_fail(fault, LQ_USAGE, "no shards specified");
    if (rc)
        route_table_release(t);
    else
        qsort(t->routes, t->routes_n, sizeof *t->routes, by_first);
    return rc;
}

void route_table_release(struct route_table *t)
{
    for (size_t i = 0; i < t->urls_n; i++)
        free(t->urls[i]);
    free(t->urls);
    free(t->routes);
    *t = (struct route_table){0};
}

const struct route *route_find(const struct route_table *t, uint32_t layer)
{
    size_t lo = 0, hi = t->routes_n;
    while (lo < hi) { /* the last one with first <= layer */
        size_t mid = lo + (hi - lo) / 2;
        if (t->routes[mid].first <= layer)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 && layer <= t->routes[lo - 1].last ? &t->routes[lo - 1] : NULL;
}
