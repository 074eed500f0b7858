/* larql-router: options, then the parts in the order in which they need each
 * other, then the loop until a signal drains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/offload.h"
#include "common/serve.h"
#include "router/link.h"

enum { EXIT_USAGE = 2, JSON_TASKS_MAX = 256, JSON_BYTES_MAX = 256 << 20 };

static enum opt_result read_options(struct serve_opts *o, const char **shards, int argc, char **argv)
{
    struct opt opts[1 + SERVE_OPTS_N] = {
        {"shards", 's', OPT_TEXT, "MAP", NULL,
         "who owns which layers: A-B=URL[,A-B=URL...], inclusive; the same range again is a replica", 0, 0, shards},
    };
    serve_opt_rows(o, opts + 1);
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

/* Every shard was asked once: who did not answer is probed on, but no longer waited for. */
static void on_first_probes(struct router *rt)
{
    serve_ready(rt->server);
}

static enum lq_err make_links(struct router *rt, struct lq_fault *fault)
{
    rt->links = calloc(rt->table->urls_n, sizeof *rt->links);
    if (!rt->links)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu shards", rt->table->urls_n);
    rt->first_probes_left = rt->table->urls_n;
    for (; rt->links_n < rt->table->urls_n; rt->links_n++) {
        enum lq_err rc = link_init(&rt->links[rt->links_n], rt, rt->table->urls[rt->links_n], fault);
        if (rc)
            return rc;
    }
    return LQ_OK;
}

static enum lq_err run(struct router *rt, const struct serve_opts *o, struct lq_fault *fault)
{
    enum lq_err rc = log_level_set(o->log_level, fault);
    if (rc)
        return rc;
    args_raise_open_files();
    if (!(rt->loop = loop_new()) || !admin_metrics_init(rt))
        return lq_fail(fault, LQ_NOMEM, "out of memory or file descriptors at start");
    rc = offload_new(rt->loop, "json", JSON_TASKS_MAX, JSON_BYTES_MAX, NULL, &rt->json_thread, fault);
    if (!rc)
        rc = make_links(rt, fault);
    if (!rc)
        rc = serve_listen(rt->loop, o, "larql-router/" LQ_VERSION, admin_on_request, rt, &rt->server, fault);
    struct serve_drain drain = {
        .loop = rt->loop, .server = rt->server, .draining = &rt->draining, .drain_ms = (uint64_t)o->drain_ms};
    if (!rc)
        rc = serve_drain_on_signals(&drain, fault);
    if (rc)
        return rc;
    rt->start_us = clock_us();
    log_info("serving shards=%zu routes=%zu url=%s", rt->links_n, rt->table->routes_n, http_server_url(rt->server));
    loop_run(rt->loop);
    return LQ_OK;
}

static void release(struct router *rt)
{
    http_server_free(rt->server); /* requests end, and their calls with them */
    offload_free(rt->json_thread);
    for (size_t i = 0; i < rt->links_n; i++)
        link_release(&rt->links[i]);
    free(rt->links);
    loop_free(rt->loop);
    metrics_free(rt->metrics);
}

int main(int argc, char **argv)
{
    struct serve_opts o;
    const char *shards = NULL;
    serve_opts_init(&o, 9090);
    enum opt_result parsed = read_options(&o, &shards, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : EXIT_USAGE;

    struct route_table table;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = route_table_parse(shards, &table, &fault);
    if (!rc) {
        struct router rt = {.table = &table,
                            .on_first_probes = on_first_probes,
                            .body_max = (uint64_t)o.body_mb << 20,
                            .json_max = (uint64_t)o.json_mb << 20,
                            .deadline_ms = (uint64_t)o.deadline_ms};
        rc = run(&rt, &o, &fault);
        release(&rt);
        route_table_release(&table);
    }
    if (rc)
        fprintf(stderr, "larql-router: %s\n", fault.text);
    return rc == LQ_OK ? EXIT_SUCCESS : rc == LQ_USAGE ? EXIT_USAGE : EXIT_FAILURE;
}
