/* route_map: the text of --shards. See route.h. */
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
static size_t url_index(struct route_map *t, struct item url)
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

/* LQ_OK: the range is new, or repeats one exactly and names another shard. */
static enum lq_err check_range(const struct route_map *t, const struct route_claim *new, struct lq_fault *fault)
{
    uint32_t replicas_n = 0;
    for (size_t i = 0; i < t->claims_n; i++) {
        const struct route_claim *c = &t->claims[i];
        bool same = c->first == new->first && c->last == new->last;
        if (!same && new->first <= c->last && c->first <= new->last)
            return lq_fail(fault, LQ_USAGE, "layers %u-%u overlap %u-%u in part; a replica repeats a range exactly",
                           new->first, new->last, c->first, c->last);
        if (same && c->member == new->member)
            return lq_fail(fault, LQ_USAGE, "layers %u-%u name %s twice", c->first, c->last, t->urls[c->member]);
        if (same && ++replicas_n == ROUTE_REPLICAS_MAX)
            return lq_fail(fault, LQ_USAGE, "layers %u-%u have over %d replicas", c->first, c->last,
                           ROUTE_REPLICAS_MAX);
    }
    return LQ_OK;
}

static enum lq_err add_item(struct route_map *t, struct item x, struct lq_fault *fault)
{
    const char *eq = memchr(x.p, '=', x.n);
    if (!eq)
        return lq_fail(fault, LQ_USAGE, "expected 'START-END=URL', got '%.*s'", (int)x.n, x.p);
    struct item range = trimmed(x.p, (size_t)(eq - x.p)), url = trimmed(eq + 1, x.n - (size_t)(eq - x.p) - 1);
    if (url.n == 0)
        return lq_fail(fault, LQ_USAGE, "expected 'START-END=URL', got '%.*s'", (int)x.n, x.p);
    if (!memchr(range.p, '-', range.n))
        return lq_fail(fault, LQ_USAGE, "expected 'START-END', got '%.*s'", (int)range.n, range.p);
    struct route_claim new = {0};
    enum lq_err rc = args_range(range.p, range.n, &new.first, &new.last, fault);
    if (rc)
        return rc;
    if (new.last >= ROUTE_LAYERS_MAX)
        return lq_fail(fault, LQ_USAGE, "end (%u) is over the limit of %d", new.last, ROUTE_LAYERS_MAX - 1);
    if (t->urls_n == ROUTE_MAP_SHARDS_MAX)
        return lq_fail(fault, LQ_USAGE, "over %d shards in one map", ROUTE_MAP_SHARDS_MAX);
    size_t at = url_index(t, url);
    if (at == SIZE_MAX)
        return lq_fail(fault, LQ_NOMEM, "out of memory for the shard map");
    new.member = (uint32_t)at;
    rc = check_range(t, &new, fault);
    if (!rc)
        t->claims[t->claims_n++] = new;
    return rc;
}

static int by_first(const void *a, const void *b)
{
    const struct route_claim *x = a, *y = b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first)
                                : (x->member > y->member) - (x->member < y->member);
}

enum lq_err route_map_parse(const char *text, struct route_map *map, struct lq_fault *fault)
{
    enum lq_err rc = LQ_OK;
    size_t items_n = 1;
    for (const char *p = text; *p; p++)
        items_n += *p == ',';
    *map = (struct route_map){.claims = calloc(items_n, sizeof *map->claims), .urls = calloc(items_n, sizeof *map->urls)};
    if (!map->claims || !map->urls)
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for the shard map");
    for (const char *p = text; !rc;) {
        size_t n = strcspn(p, ",");
        struct item x = trimmed(p, n);
        if (x.n > 0) /* blank items are skipped */
            rc = add_item(map, x, fault);
        if (!p[n])
            break;
        p += n + 1;
    }
    if (!rc && map->claims_n == 0)
        rc = lq_fail(fault, LQ_USAGE, "no shards specified");
    if (rc)
        route_map_release(map);
    else
        qsort(map->claims, map->claims_n, sizeof *map->claims, by_first);
    return rc;
}

void route_map_release(struct route_map *map)
{
    for (size_t i = 0; i < map->urls_n; i++)
        free(map->urls[i]);
    free(map->urls);
    free(map->claims);
    *map = (struct route_map){0};
}
