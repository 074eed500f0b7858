/* larql-router: options, then the parts in the order in which they need each
 * other, then the loop until a signal drains it. */
#include <event2/thread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/args.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/offload.h"
#include "common/serve.h"
#include "router/event_log.h"
#include "router/grid.h"
#include "router/health.h"
#include "router/link.h"
#include "router/registry.h"

enum {
    EXIT_USAGE = 2,
    THREADS_MAX = 64, /* each loop can have a request at each shard: link.c */
    JSON_TASKS_MAX = 256,
    JSON_BYTES_MAX = 256 << 20
};

struct router_opts {
    struct serve_opts serve;
    const char *shards, *origins;
    int64_t threads, grid_port, target_replicas; /* grid_port -1: nobody joins */
    bool hedge;
};

static enum opt_result read_options(struct router_opts *o, int argc, char **argv)
{
    enum { OWN_N = 6 };
    struct opt opts[OWN_N + SERVE_OPTS_N] = {
        {"shards", 's', OPT_TEXT, "MAP", NULL,
         "who owns which layers: A-B=URL[,A-B=URL...], inclusive; the same range again is a replica", 0, 0, &o->shards},
        {"threads", 't', OPT_INT, "N", NULL, "event loops, each on a thread of its own (default 1)", 1, THREADS_MAX,
         &o->threads},
        {"grid-port", 'g', OPT_INT, "PORT", NULL,
         "let shards join over gRPC on this port, 0: a free one (the reference uses 50052)", 0, 65535, &o->grid_port},
        {"target-replicas", 0, OPT_INT, "N", NULL, "shards that each layer shall have, as far as spares allow (default 1)",
         1, 64, &o->target_replicas},
        {"origins", 0, OPT_TEXT, "MODEL=URL,...", NULL,
         "model files for spares that get layers which no live shard has", 0, 0, &o->origins},
        {"hedge", 0, OPT_FLAG, NULL, NULL,
         "ask a second replica where the first is slower than 19 in 20 of its answers; costs up to a tenth more requests",
         0, 0, &o->hedge},
    };
    serve_opt_rows(&o->serve, opts + OWN_N);
    const struct opt_program program = {
        .name = "larql-router",
        .synopsis = "--shards MAP | --grid-port PORT [options]",
        .about = "Route a larql grid's requests to the shards that own their layers.\n"
                 "Binary bodies go to one shard untouched; JSON is also split over several and merged.\n"
                 "Prints one line, ready url=http://HOST:PORT, on stdout when it can serve; logs go to stderr.\n"
                 "A browser at that URL shows the grid: layers, replicas, load, latency, bytes, events.\n"
                 "SIGTERM finishes what is in flight and exits with 0; a second one exits at once.\n"
                 "Exit codes: 0 stopped, 1 cannot serve, 2 wrong use.",
        .examples = "  larql-router --shards \"0-8=http://10.0.0.2:8080,9-17=http://10.0.0.3:8080\"\n"
                    "  curl http://127.0.0.1:9090/v1/topology",
        .opts = opts,
        .opts_n = sizeof opts / sizeof *opts,
    };
    char **args;
    int args_n;
    enum opt_result rc = opt_parse(&program, argc, argv, &args, &args_n);
    if (rc == OPT_RUN && !o->shards && o->grid_port < 0) {
        fprintf(stderr, "larql-router: must provide --shards or --grid-port (or both)\nTry 'larql-router --help'.\n");
        return OPT_EXIT_USAGE;
    }
    return rc;
}

/* Every loop has asked every shard once: who did not answer is probed on, but no longer waited for. */
static void on_first_probes(struct crew *crew)
{
    serve_ready(crew->routers->server);
}

static void on_table(struct loop_msg *msg)
{
    struct router *rt = (struct router *)((char *)msg - offsetof(struct router, table_msg));
    rt->table_posted = false;
    (void)link_take_table(rt);
}

static void on_down(struct loop_msg *msg)
{
    struct router *rt = (struct router *)((char *)msg - offsetof(struct router, down_msg));
    rt->down_posted = false;
    link_tell_down(rt);
}

/* One loop, with all that it owns. */
static enum lq_err make_router(struct router *rt, const struct serve_opts *o, struct lq_fault *fault)
{
    const struct router *first = rt->crew->routers;
    unsigned loops_n = (unsigned)rt->crew->routers_n;
    if (!(rt->loop = loop_new()))
        return lq_fail(fault, LQ_NOMEM, "out of memory or file descriptors at start");
    enum lq_err rc = offload_new(rt->loop, "json", JSON_TASKS_MAX, JSON_BYTES_MAX, NULL, &rt->json_thread, fault);
    rt->table_msg.fn = on_table;
    rt->down_msg.fn = on_down;
    TAILQ_INIT(&rt->links);
    if (getrandom(&rt->random, sizeof rt->random, 0) != sizeof rt->random || rt->random == 0)
        rt->random = clock_us() | 1; /* spreads requests; keeps no secret */
    if (!rc)
        rc = serve_listen(rt->loop, o, &rt->crew->trust, rt == first ? NULL : first->server, loops_n,
                          "larql-router/" LQ_VERSION, admin_on_request, rt, &rt->server, fault);
    if (!rc)
        http_server_count_refused(rt->server, rt->m.books.refused);
    loop_busy_poll(rt->loop, (uint64_t)o->busy_poll_us, loops_n);
    return rc;
}

static enum lq_err make_crew(struct crew *crew, const struct router_opts *o, const struct route_map *map,
                             struct lq_fault *fault)
{
    crew->hedge = o->hedge;
    crew->routers = calloc(crew->routers_n, sizeof *crew->routers);
    crew->events = event_log_new();
    if (!crew->routers || !crew->events || !admin_metrics_init(crew))
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < crew->routers_n && !rc; i++) {
        struct router *rt = &crew->routers[i];
        rt->crew = crew;
        rt->index = i;
        rt->body_max = (uint64_t)o->serve.body_mb << 20;
        rt->json_max = (uint64_t)o->serve.json_mb << 20;
        rt->deadline_ms = (uint64_t)o->serve.deadline_ms;
        rc = make_router(rt, &o->serve, fault);
    }
    if (!rc)
        rc = registry_new(crew, map, o->grid_port >= 0, &crew->registry, fault);
    if (!rc)
        rc = health_new(crew, &crew->health, fault);
    for (size_t i = 0; i < crew->routers_n && !rc; i++)
        (void)link_take_table(&crew->routers[i]); /* before its first request */
    if (!rc && !crew->routers->table)
        rc = lq_fail(fault, LQ_NOMEM, "out of memory at start");
    static const char *const h2[] = {"h2", NULL};
    struct tls *tls = NULL;
    if (!rc && o->grid_port >= 0 && crew->trust.listen)
        rc = trust_tls(&crew->trust, TLS_SERVER, h2, NULL, &tls, fault);
    const struct grid_opts grid = {.tls = tls,
                                   .host = o->serve.host,
                                   .port = (int)o->grid_port,
                                   .target_replicas = (uint32_t)o->target_replicas,
                                   .origins = o->origins};
    if (!rc && o->grid_port >= 0)
        rc = grid_new(crew, &grid, &crew->grid, fault);
    return rc;
}

static void *run_loop(void *loop)
{
    loop_run(loop);
    return NULL;
}

/* Shards look for another router; those that have none stay until we end. */
static void on_drain(void *crew)
{
    if (((struct crew *)crew)->grid)
        grid_drain(((struct crew *)crew)->grid);
}

/* All loops, the first on this thread, which gets the signals; until each has drained. */
static enum lq_err run_loops(struct crew *crew, struct serve_drain *drains, const struct serve_opts *o,
                             struct lq_fault *fault)
{
    for (size_t i = 0; i < crew->routers_n; i++) {
        struct router *rt = &crew->routers[i];
        drains[i] = (struct serve_drain){.next = i + 1 < crew->routers_n ? &drains[i + 1] : NULL,
                                         .loop = rt->loop,
                                         .server = rt->server,
                                         .draining = &rt->draining,
                                         .drain_ms = (uint64_t)o->drain_ms};
    }
    drains->on_begin = on_drain;
    drains->arg = crew;
    drains->status = admin_status_text;
    drains->status_arg = crew->routers;
    enum lq_err rc = serve_drain_on_signals(drains, fault);
    if (!rc)
        rc = serve_reload_on_hup(crew->routers->loop, &crew->trust, fault);
    for (size_t i = 1; i < crew->routers_n && !rc; i++) {
        struct router *rt = &crew->routers[i];
        int error = pthread_create(&rt->thread, NULL, run_loop, rt->loop);
        if (error)
            rc = lq_fail(fault, LQ_IO, "cannot start thread %zu: %s", i, strerror(error));
        rt->has_thread = !error;
    }
    if (crew->grid)
        log_info("grid port=%d", grid_port(crew->grid));
    log_info("serving shards=%zu threads=%zu url=%s", crew->routers->table->members_n, crew->routers_n,
             http_server_url(crew->routers->server));
    if (!rc) {
        health_start(crew->health, on_first_probes);
        loop_run(crew->routers->loop);
    }
    for (size_t i = 1; i < crew->routers_n && crew->routers[i].has_thread; i++) {
        if (rc) {
            drains[i].next = NULL; /* it may have no thread to end it */
            serve_drain_tell(&drains[i]);
        }
        (void)pthread_join(crew->routers[i].thread, NULL);
    }
    for (size_t i = 0; i < crew->routers_n; i++) {
        drains[i].next = NULL;
        serve_drain_release(&drains[i]);
    }
    return rc;
}

static enum lq_err run(struct crew *crew, const struct router_opts *o, const struct route_map *map,
                       struct lq_fault *fault)
{
    enum lq_err rc = serve_log_init(&o->serve, fault);
    if (rc)
        return rc;
    args_raise_open_files();
    if (crew->routers_n > 1 && evthread_use_pthreads() != 0) /* what libevent keeps for the process */
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    rc = trust_init(&crew->trust, &o->serve.trust, false, fault);
    if (!rc && o->grid_port >= 0)
        rc = trust_may_join(&crew->trust, o->serve.host, fault);
    if (!rc)
        rc = make_crew(crew, o, map, fault);
    if (rc)
        return rc;
    crew->start_us = clock_us();
    struct serve_drain *drains = calloc(crew->routers_n, sizeof *drains);
    rc = drains ? run_loops(crew, drains, &o->serve, fault) : lq_fail(fault, LQ_NOMEM, "out of memory at start");
    free(drains);
    return rc;
}

static void router_release(struct router *rt)
{
    http_server_free(rt->server); /* requests end, and their calls with them */
    offload_free(rt->json_thread);
    if (rt->loop)
        link_retire_all(rt);
    route_table_unref(atomic_exchange(&rt->next_table, NULL));
    route_table_unref(rt->table);
    rt->table = NULL;
    loop_free(rt->loop);
}

static void release(struct crew *crew)
{
    grid_free(crew->grid); /* its shards leave the registry */
    registry_close(crew->registry);
    health_free(crew->health);
    for (size_t i = 0; crew->routers && i < crew->routers_n; i++)
        router_release(&crew->routers[i]);
    registry_free(crew->registry);
    free(crew->routers);
    event_log_free(crew->events);
    metrics_free(crew->metrics);
    trust_release(&crew->trust);
}

int main(int argc, char **argv)
{
    struct router_opts o = {.threads = 1, .grid_port = -1, .target_replicas = 1};
    serve_opts_init(&o.serve, 9090);
    enum opt_result parsed = read_options(&o, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : EXIT_USAGE;
    if (o.serve.connections_max > 0 && o.threads > o.serve.connections_max) /* each loop takes one at least */
        o.threads = o.serve.connections_max;

    struct route_map map = {0};
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = o.shards ? route_map_parse(o.shards, &map, &fault) : LQ_OK;
    if (!rc) {
        struct crew crew = {.routers_n = (size_t)o.threads};
        rc = run(&crew, &o, &map, &fault);
        release(&crew);
        route_map_release(&map);
    }
    if (rc)
        serve_say_failure("larql-router", &o.serve, &fault);
    return rc == LQ_OK ? EXIT_SUCCESS : rc == LQ_USAGE ? EXIT_USAGE : EXIT_FAILURE;
}
