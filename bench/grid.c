/* A grid of 10,000 shards, with the router's own registry, tables and choice: what one
 * routing decision costs, and how long a join keeps the first loop (check against the peers,
 * two new tables, hand-over to both loops), at several shapes of ranges. */
#include <event2/event.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/quantile.h"
#include "bench/support/report.h"
#include "bench/support/timer.h"
#include "common/log.h"
#include "router/event_log.h"
#include "router/link.h"
#include "router/registry.h"

enum {
    SHARDS = 10000,
    LAYERS = 126, /* Llama 3.1 405B */
    LOOPS = 2,
    CHOICES = 4096, /* a turn of the clock */
    CHOICES_MS = 400,
    JOINS = 60,
    NS_BAR = 200,
    MS_BAR = 10,
};

struct shape {
    const char *name;
    uint32_t ranges_n; /* 0: at random, overlapping */
};

static const char model[] = "Llama-3.1-405B.gguf";
static struct hash256 layer_hash[LAYERS];
static uint32_t asked[CHOICES];
static struct crew crew;

static uint32_t random_below(uint32_t n)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (uint32_t)(x >> 32) % n;
}

/* ---- a router without sockets ------------------------------------------------------- */

static void on_table(struct loop_msg *msg)
{
    struct router *rt = (struct router *)((char *)msg - offsetof(struct router, table_msg));
    rt->table_posted = false;
    (void)link_take_table(rt);
}

static bool make_crew(void)
{
    struct lq_fault fault;
    crew = (struct crew){.routers_n = LOOPS,
                         .routers = calloc(LOOPS, sizeof *crew.routers),
                         .events = event_log_new(),
                         .metrics = NULL};
    if (!crew.routers || !crew.events || !admin_metrics_init(&crew))
        return false;
    for (size_t i = 0; i < LOOPS; i++) {
        struct router *rt = &crew.routers[i];
        rt->crew = &crew;
        rt->index = i;
        rt->random = 1234567 + i;
        rt->table_msg.fn = on_table;
        TAILQ_INIT(&rt->links);
        if (!(rt->loop = loop_new()))
            return false;
    }
    return registry_new(&crew, NULL, true, &crew.registry, &fault) == LQ_OK;
}

/* What was put off, the new table and its hand-over. */
static void turn(void)
{
    for (size_t i = 0; i < LOOPS; i++)
        while (crew.routers[i].table_posted || i == 0) {
            event_base_loop(loop_base(crew.routers[i].loop), EVLOOP_NONBLOCK);
            if (!crew.routers[i].table_posted)
                break;
        }
}

static void free_crew(void)
{
    registry_close(crew.registry);
    for (size_t i = 0; i < LOOPS; i++) {
        struct router *rt = &crew.routers[i];
        route_table_unref(atomic_exchange(&rt->next_table, NULL));
        route_table_unref(rt->table);
        loop_free(rt->loop);
    }
    registry_free(crew.registry);
    free(crew.routers);
    event_log_free(crew.events);
    metrics_free(crew.metrics);
}

/* ---- its shards ------------------------------------------------------------------------ */

static void range_of(const struct shape *s, uint32_t i, uint32_t *first, uint32_t *last)
{
    if (s->ranges_n == 0) {
        *first = random_below(LAYERS);
        *last = *first + random_below(LAYERS - *first < 32 ? LAYERS - *first : 32);
        return;
    }
    uint32_t k = i % s->ranges_n;
    *first = k * LAYERS / s->ranges_n;
    *last = (k + 1) * LAYERS / s->ranges_n - 1;
}

/* As grid.c and health.c do it; between the two a turn of the loop. */
static struct member *join(const struct shape *s, uint32_t i)
{
    struct lq_fault fault;
    struct member *m;
    char url[64];
    uint32_t first, last;
    range_of(s, i, &first, &last);
    snprintf(url, sizeof url, "http://10.%u.%u.%u:8080", i >> 16, i >> 8 & 255, i & 255);
    const struct join j = {.url = url, .model_id = model, .tag = "", .first = first, .last = last};
    struct peer_stats stats = {.hidden = 16384,
                               .layers = LAYERS,
                               .layer_first = first,
                               .layer_last = last,
                               .wire = {true, true, true},
                               .has_identity = true,
                               .layer_hashes = malloc((last - first + 1) * sizeof *layer_hash)};
    if (!stats.layer_hashes || registry_join(crew.registry, &j, &m, &fault) != LQ_OK)
        return NULL;
    snprintf(stats.model, sizeof stats.model, "%s", model);
    memcpy(stats.layer_hashes, layer_hash + first, (last - first + 1) * sizeof *layer_hash);
    (void)member_set_health(m, MEMBER_UP, "answers /v1/stats");
    if (registry_probed(crew.registry, m, &stats, NULL, &fault) != LQ_OK)
        m = NULL;
    peer_stats_release(&stats);
    return m;
}

static bool fill(const struct shape *s)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        struct member *m = join(s, i);
        if (!m)
            return false;
        m->latency_us = 500 + random_below(1000);
        m->inflight_n = random_below(8);
    }
    turn();
    return crew.routers[1].table->members_n == SHARDS && crew.routers[1].table->models_n == 1;
}

/* ---- what is measured --------------------------------------------------------------------- */

static void choose(void *arg)
{
    struct member *chosen[1], *one;
    struct lq_fault fault;
    for (size_t i = 0; i < CHOICES; i++) {
        if (flow_choose(arg, model, &asked[i], 1, NULL, chosen, &one, &fault) != LQ_OK)
            report_fail("layer %u has no route: %s", asked[i], fault.text);
        __asm__ volatile("" : : "r"(one) : "memory");
    }
}

static double ms_since(uint64_t begin_ns)
{
    return (double)(timer_now_ns() - begin_ns) / 1e6;
}

static void measure(const struct shape *s)
{
    char what[80];
    double join_ms[JOINS], leave_ms[JOINS], probe_ms[JOINS];
    uint64_t begin = timer_now_ns();
    if (!make_crew() || !fill(s)) {
        report_fail("cannot make a grid of %d shards", SHARDS);
        return;
    }
    double fill_s = ms_since(begin) / 1000;
    for (size_t i = 0; i < CHOICES; i++)
        do
            asked[i] = random_below(LAYERS);
        while (!route_find(&crew.routers->table->models[0], asked[i]));
    double ns = timer_best_ns(choose, crew.routers, CHOICES_MS) / CHOICES;
    for (uint32_t i = 0; i < JOINS; i++) {
        struct lq_fault fault;
        begin = timer_now_ns();
        struct member *m = join(s, SHARDS + i);
        turn();
        registry_publish(crew.registry); /* a real join has a turn between announcement and probe */
        turn();
        join_ms[i] = ms_since(begin);
        if (!m) {
            report_fail("a join was refused");
            break;
        }
        begin = timer_now_ns();
        struct peer_stats again = m->stats;
        again.layer_hashes = malloc((again.layer_last - again.layer_first + 1) * sizeof *layer_hash);
        memcpy(again.layer_hashes, m->stats.layer_hashes, (again.layer_last - again.layer_first + 1) * sizeof *layer_hash);
        if (registry_probed(crew.registry, m, &again, NULL, &fault) != LQ_OK)
            report_fail("a probe was refused: %s", fault.text);
        peer_stats_release(&again);
        probe_ms[i] = ms_since(begin);
        begin = timer_now_ns();
        registry_leave(crew.registry, m, "bench");
        turn();
        leave_ms[i] = ms_since(begin);
    }
    snprintf(what, sizeof what, "route, %s", s->name);
    report_row(what, ns, NS_BAR, REPORT_LOWER, "ns", "one layer of %d shards", SHARDS);
    snprintf(what, sizeof what, "join, %s", s->name);
    double join_p50 = quantile(join_ms, JOINS, 0.5), join_most = quantile(join_ms, JOINS, 1);
    report_row(what, join_p50, MS_BAR, REPORT_LOWER, "ms",
               "longest %.2f; leave %.2f, probe %.3f ms; all %d joins in %.1f s", join_most,
               quantile(leave_ms, JOINS, 0.5), quantile(probe_ms, JOINS, 0.5), SHARDS, fill_s);
    free_crew();
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {"1 range", 1}, {"8 ranges", 8}, {"126 ranges", LAYERS}, {"overlapping ranges", 0}};
    struct lq_fault fault;
    report_begin("grid", argc, argv);
    if (log_level_set("error", &fault) != LQ_OK)
        report_fail("%s", fault.text);
    for (size_t i = 0; i < LAYERS; i++)
        memset(&layer_hash[i], (int)i, sizeof layer_hash[i]);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        measure(&shapes[i]);
    return report_end();
}
