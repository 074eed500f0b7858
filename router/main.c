/* larql-router: options, then the parts in the order in which they need each
 * other, then the loop until a signal drains it. */
#include <event2/thread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/offload.h"
#include "common/serve.h"
#include "router/link.h"

enum {
    EXIT_USAGE = 2,
    THREADS_MAX = 64, /* each loop can have a request at each shard: link.c */
    JSON_TASKS_MAX = 256,
    JSON_BYTES_MAX = 256 << 20
};

static enum opt_result read_options(struct serve_opts *o, const char **shards, int64_t *threads, int argc,
                                    char **argv)
{
    enum { OWN_N = 2 };
    struct opt opts[OWN_N + SERVE_OPTS_N] = {
        {"shards", 's', OPT_TEXT, "MAP", NULL,
         "who owns which layers: A-B=URL[,A-B=URL...], inclusive; the same range again is a replica", 0, 0, shards},
        {"threads", 't', OPT_INT, "N", NULL, "event loops, each on a thread of its own (default 1)", 1, THREADS_MAX,
         threads},
    };
    serve_opt_rows(o, opts + OWN_N);
    const struct opt_program program = {
        .name = "larql-router",
        .synopsis = "--shards MAP [--port P] [options]",
        .about = "Route a larql grid's requests to the shards that own their layers.\n"
                 "Binary bodies go to one shard untouched; JSON is also split over several and merged.\n"
                 "Prints one line, ready url=http://HOST:PORT, on stdout when it can serve; logs go to stderr.\n"
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
    if (rc == OPT_RUN && !*shards) {
        fprintf(stderr, "larql-router: --shards is missing\nTry 'larql-router --help'.\n");
        return OPT_EXIT_USAGE;
    }
    return rc;
}

/* Every loop has asked every shard once: who did not answer is probed on, but no longer waited for. */
static void on_first_probes(struct crew *crew)
{
    serve_ready(crew->routers->server);
}

static enum lq_err make_links(struct router *rt, struct lq_fault *fault)
{
    rt->links = calloc(rt->table->urls_n, sizeof *rt->links);
    if (!rt->links)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu shards", rt->table->urls_n);
    for (; rt->links_n < rt->table->urls_n; rt->links_n++) {
        enum lq_err rc = link_init(&rt->links[rt->links_n], rt, rt->table->urls[rt->links_n], fault);
        if (rc)
            return rc;
    }
    return LQ_OK;
}

/* One loop, with all that it owns. */
static enum lq_err make_router(struct router *rt, const struct serve_opts *o, struct lq_fault *fault)
{
    const struct router *first = rt->crew->routers;
    unsigned loops_n = (unsigned)rt->crew->routers_n;
    if (!(rt->loop = loop_new()))
        return lq_fail(fault, LQ_NOMEM, "out of memory or file descriptors at start");
    enum lq_err rc = offload_new(rt->loop, "json", JSON_TASKS_MAX, JSON_BYTES_MAX, NULL, &rt->json_thread, fault);
    if (!rc)
        rc = make_links(rt, fault);
    if (!rc)
        rc = serve_listen(rt->loop, o, rt == first ? NULL : first->server, loops_n, "larql-router/" LQ_VERSION,
                          admin_on_request, rt, &rt->server, fault);
    loop_busy_poll(rt->loop, (uint64_t)o->busy_poll_us, loops_n);
    return rc;
}

static enum lq_err make_crew(struct crew *crew, const struct serve_opts *o, struct lq_fault *fault)
{
    crew->routers = calloc(crew->routers_n, sizeof *crew->routers);
    crew->views = calloc(crew->table->urls_n, sizeof *crew->views);
    if (!crew->routers || !crew->views || !admin_metrics_init(crew))
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    for (size_t i = 0; i < crew->table->urls_n; i++)
        shard_view_init(&crew->views[i]);
    crew->first_probes_left = crew->table->urls_n * crew->routers_n;
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < crew->routers_n && !rc; i++) {
        struct router *rt = &crew->routers[i];
        rt->crew = crew;
        rt->table = crew->table;
        rt->body_max = (uint64_t)o->body_mb << 20;
        rt->json_max = (uint64_t)o->json_mb << 20;
        rt->deadline_ms = (uint64_t)o->deadline_ms;
        rc = make_router(rt, o, fault);
    }
    return rc;
}

static void *run_loop(void *loop)
{
    loop_run(loop);
    return NULL;
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
    drains->status = admin_status_text;
    drains->status_arg = crew->routers;
    enum lq_err rc = serve_drain_on_signals(drains, fault);
    for (size_t i = 1; i < crew->routers_n && !rc; i++) {
        struct router *rt = &crew->routers[i];
        int error = pthread_create(&rt->thread, NULL, run_loop, rt->loop);
        if (error)
            rc = lq_fail(fault, LQ_IO, "cannot start thread %zu: %s", i, strerror(error));
        rt->has_thread = !error;
    }
    log_info("serving shards=%zu routes=%zu threads=%zu url=%s", crew->table->urls_n, crew->table->routes_n,
             crew->routers_n, http_server_url(crew->routers->server));
    if (!rc)
        loop_run(crew->routers->loop);
    for (size_t i = 1; i < crew->routers_n && crew->routers[i].has_thread; i++) {
        if (rc) {
            drains[i].next = NULL; /* it may have no thread to end it */
            serve_drain_tell(&drains[i]);
        }
        (void)pthread_join(crew->routers[i].thread, NULL);
    }
    return rc;
}

static enum lq_err run(struct crew *crew, const struct serve_opts *o, struct lq_fault *fault)
{
    enum lq_err rc = log_level_set(o->log_level, fault);
    if (rc)
        return rc;
    args_raise_open_files();
    if (crew->routers_n > 1 && evthread_use_pthreads() != 0) /* what libevent keeps for the process */
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    rc = make_crew(crew, o, fault);
    if (rc)
        return rc;
    crew->start_us = clock_us();
    struct serve_drain *drains = calloc(crew->routers_n, sizeof *drains);
    rc = drains ? run_loops(crew, drains, o, fault) : lq_fail(fault, LQ_NOMEM, "out of memory at start");
    free(drains);
    return rc;
}

static void router_release(struct router *rt)
{
    http_server_free(rt->server); /* requests end, and their calls with them */
    offload_free(rt->json_thread);
    for (size_t i = 0; i < rt->links_n; i++)
        link_release(&rt->links[i]);
    free(rt->links);
    loop_free(rt->loop);
}

static void release(struct crew *crew)
{
    for (size_t i = 0; crew->routers && i < crew->routers_n; i++)
        router_release(&crew->routers[i]);
    for (size_t i = 0; crew->views && i < crew->table->urls_n; i++)
        shard_view_release(&crew->views[i]);
    free(crew->routers);
    free(crew->views);
    metrics_free(crew->metrics);
}

int main(int argc, char **argv)
{
    struct serve_opts o;
    const char *shards = NULL;
    int64_t threads = 1;
    serve_opts_init(&o, 9090);
    enum opt_result parsed = read_options(&o, &shards, &threads, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : EXIT_USAGE;
    if (o.connections_max > 0 && threads > o.connections_max) /* each loop takes one at least */
        threads = o.connections_max;

    struct route_table table;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = route_table_parse(shards, &table, &fault);
    if (!rc) {
        struct crew crew = {.table = &table, .routers_n = (size_t)threads, .on_first_probes = on_first_probes};
        rc = run(&crew, &o, &fault);
        release(&crew);
        route_table_release(&table);
    }
    if (rc)
        fprintf(stderr, "larql-router: %s\n", fault.text);
    return rc == LQ_OK ? EXIT_SUCCESS : rc == LQ_USAGE ? EXIT_USAGE : EXIT_FAILURE;
}
