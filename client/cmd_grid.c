/* larql grid: what an operator asks of a router, and tells it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"
#include "client/grid_link.h"
#include "client/grid_top.h"
#include "client/grid_view.h"
#include "common/args.h"
#include "common/clock.h"
#include "common/opt.h"

enum { LEAVE_POLL_MS = 200, LEAVE_LAST_S = 90 /* a shard finishes for 30 s; a silent one is dropped after 25 */ };

struct grid_options {
    struct grid_link_opts link;
    const char *model, *layers, *server, *origin_url, *origin_hash, *reason;
    bool json, no_wait;
    const char *verb, *shard;
};

/* ---- what all of them need ------------------------------------------------------------ */

static int say_failure(const struct grid_answer *a)
{
    fprintf(stderr, "error: %s\n", grid_shown(a->text));
    return a->exit_code;
}

static int usage_error(const char *why)
{
    fprintf(stderr, "larql grid: %s\nTry 'larql grid --help'.\n", why);
    return CMD_EXIT_USAGE;
}

/* Prints o and takes it; NULL: out of memory. */
static int print_json(json_t *o, int code)
{
    bool ok = o && json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER) == 0;
    json_decref(o);
    if (!ok) {
        fprintf(stderr, "larql grid: out of memory, or stdout is closed\n");
        return CMD_EXIT_FAILED;
    }
    putchar('\n');
    return code;
}

static int ask_status(struct grid_link *l, Larql__Grid__V1__StatusResponse **out)
{
    static const Larql__Grid__V1__StatusRequest in = LARQL__GRID__V1__STATUS_REQUEST__INIT;
    struct grid_answer a;
    grid_link_wait(l, GRID_ASK_STATUS, &in.base, &a);
    *out = a.msg;
    return a.msg ? EXIT_SUCCESS : say_failure(&a);
}

/* The router's yes or no, which the caller frees. */
static int ask_ack(struct grid_link *l, const struct grid_options *o, enum grid_question q,
                   const ProtobufCMessage *in, Larql__Grid__V1__AdminAck **out)
{
    struct grid_answer a;
    grid_link_wait(l, q, in, &a);
    *out = a.msg;
    if (!a.msg)
        return say_failure(&a);
    if ((*out)->ok)
        return EXIT_SUCCESS;
    fprintf(stderr, "error: %s\n", grid_shown((*out)->message));
    if (o->json)
        (void)print_json(json_pack("{sb,ss}", "ok", 0, "message", (*out)->message), 0);
    return GRID_EXIT_REFUSED;
}

static int say_ok(const struct grid_options *o, const char *message)
{
    if (o->json)
        return print_json(json_pack("{sb,ss}", "ok", 1, "message", message), EXIT_SUCCESS);
    printf("ok: %s\n", grid_shown(message));
    return EXIT_SUCCESS;
}

/* ---- status, gaps ----------------------------------------------------------------------- */

static int show_gaps(const struct grid_options *o, const struct grid_view *v)
{
    size_t gaps_n;
    if (!grid_print_gaps(v, o->model, o->json ? NULL : stdout, &gaps_n)) {
        fprintf(stderr, "error: model '%s' is not in this grid\n", grid_shown(o->model));
        return GRID_EXIT_REFUSED;
    }
    int code = gaps_n ? GRID_EXIT_GAPS : EXIT_SUCCESS;
    return o->json ? print_json(grid_gaps_json(v, o->model), code) : code;
}

static int show_status(const struct grid_options *o, const struct grid_view *v)
{
    if (o->json)
        return print_json(grid_status_json(v), EXIT_SUCCESS);
    grid_print_status(v, stdout);
    return EXIT_SUCCESS;
}

static int show(struct grid_link *l, const struct grid_options *o,
                int (*how)(const struct grid_options *o, const struct grid_view *v))
{
    Larql__Grid__V1__StatusResponse *s;
    struct grid_view v;
    int code = ask_status(l, &s);
    if (code)
        return code;
    if (grid_view_init(&v, s)) {
        code = how(o, &v);
    } else {
        fprintf(stderr, "larql grid: out of memory\n");
        code = CMD_EXIT_FAILED;
    }
    grid_view_release(&v);
    grid_msg_free(s);
    return code;
}

/* ---- drain ---------------------------------------------------------------------------------- */

/* Of an id or a URL; NULL: not there. It lives in s. */
static const Larql__Grid__V1__ServerInfo *find_server(const Larql__Grid__V1__StatusResponse *s, const char *id_or_url)
{
    for (size_t i = 0; i < s->n_servers; i++)
        if (strcmp(s->servers[i]->server_id, id_or_url) == 0 || strcmp(s->servers[i]->listen_url, id_or_url) == 0)
            return s->servers[i];
    return NULL;
}

static void on_poll(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    *(bool *)arg = true;
}

static bool pause_ms(struct grid_link *l, unsigned ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    bool over = false;
    if (event_base_once(grid_link_base(l), -1, EV_TIMEOUT, on_poll, &over, &tv) != 0)
        return false;
    while (!over)
        event_base_loop(grid_link_base(l), EVLOOP_ONCE);
    return true;
}

/* Until the router has it no more; says how many requests it still has, when that changes. */
static int wait_left(struct grid_link *l, const char *id)
{
    uint64_t until_us = clock_us() + (uint64_t)LEAVE_LAST_S * 1000000;
    int64_t told = -1;
    for (;;) {
        Larql__Grid__V1__StatusResponse *s;
        int code = ask_status(l, &s);
        if (code)
            return code;
        const Larql__Grid__V1__ServerInfo *x = find_server(s, id);
        bool left = !x;
        if (x && x->requests_in_flight != told) {
            told = x->requests_in_flight;
            fprintf(stderr, "draining %s: %u in flight\n", grid_shown(id), x->requests_in_flight);
        }
        grid_msg_free(s);
        if (left)
            return EXIT_SUCCESS;
        if (clock_us() > until_us || !pause_ms(l, LEAVE_POLL_MS)) {
            fprintf(stderr, "error: %s gets no new requests, but has not left after %d s\n", grid_shown(id),
                    LEAVE_LAST_S);
            return CMD_EXIT_FAILED;
        }
    }
}

static int drain(struct grid_link *l, const struct grid_options *o)
{
    Larql__Grid__V1__StatusResponse *s;
    Larql__Grid__V1__AdminAck *ack = NULL;
    Larql__Grid__V1__DrainRequest in = LARQL__GRID__V1__DRAIN_REQUEST__INIT;
    int code = ask_status(l, &s);
    if (code)
        return code;
    /* An id also where a URL was given: what comes back under that URL is another. Who is
     * not there is asked for all the same: the router says it better. */
    const Larql__Grid__V1__ServerInfo *x = find_server(s, o->shard);
    in.server_id = x ? x->server_id : (char *)(uintptr_t)o->shard;
    in.reason = (char *)(uintptr_t)(o->reason ? o->reason : "admin_drain");
    code = ask_ack(l, o, GRID_ASK_DRAIN, &in.base, &ack);
    if (!code && !o->no_wait)
        code = wait_left(l, in.server_id);
    if (!code)
        code = say_ok(o, ack->message);
    grid_msg_free(ack);
    grid_msg_free(s);
    return code;
}

/* ---- assign --------------------------------------------------------------------------------- */

static int assign(struct grid_link *l, const struct grid_options *o)
{
    Larql__Grid__V1__AdminAck *ack = NULL;
    Larql__Grid__V1__AssignRangeRequest in = LARQL__GRID__V1__ASSIGN_RANGE_REQUEST__INIT;
    struct lq_fault fault;
    if (!o->model || !o->layers)
        return usage_error("assign needs --model and --layers");
    if (args_range(o->layers, strlen(o->layers), &in.layer_start, &in.layer_end, &fault) != LQ_OK)
        return usage_error(fault.text);
    in.model_id = (char *)(uintptr_t)o->model;
    if (o->server)
        in.target_server_id = (char *)(uintptr_t)o->server;
    if (o->origin_url)
        in.explicit_origin_url = (char *)(uintptr_t)o->origin_url;
    if (o->origin_hash)
        in.explicit_origin_hash = (char *)(uintptr_t)o->origin_hash;
    int code = ask_ack(l, o, GRID_ASK_ASSIGN, &in.base, &ack);
    if (!code)
        code = say_ok(o, ack->message);
    grid_msg_free(ack);
    return code;
}

/* ---- options ----------------------------------------------------------------------------------- */

static enum opt_result read_options(struct grid_options *o, int argc, char **argv)
{
    const struct opt opts[] = {
        {"router", 'r', OPT_TEXT, "HOST:PORT", "LARQL_ROUTER",
         "the router's --grid-port; with https:// before it over TLS (default 127.0.0.1:50052)", 0, 0,
         &o->link.router},
        {"grid-key-file", 0, OPT_TEXT, "FILE", NULL,
         "file whose first key is shown (or the key itself in LARQL_GRID_KEY)", 0, 0, &o->link.grid_key_file},
        {"tls-ca", 0, OPT_TEXT, "FILE", NULL, "PEM, whom the router must be certified by; means TLS", 0, 0,
         &o->link.tls_ca},
        {"pin", 0, OPT_TEXT, "sha256:HEX", NULL,
         "the router's certificate must be this one, whoever signed it; means TLS", 0, 0, &o->link.pin},
        {"tls-cert", 0, OPT_TEXT, "FILE", NULL, "PEM, shown to a router that asks for a client's certificate", 0, 0,
         &o->link.tls_cert},
        {"tls-key", 0, OPT_TEXT, "FILE", NULL, "its private key, PEM", 0, 0, &o->link.tls_key},
        {"json", 'j', OPT_FLAG, NULL, NULL, "one JSON object on stdout (not for top)", 0, 0, &o->json},
        {"model", 'm', OPT_TEXT, "ID", NULL, "gaps: of this model only; assign: whose layers", 0, 0, &o->model},
        {"layers", 'l', OPT_TEXT, "A-B", NULL, "assign: first and last layer", 0, 0, &o->layers},
        {"server", 0, OPT_TEXT, "ID", NULL, "assign: to this spare (default: any); drain: SHARD", 0, 0, &o->server},
        {"origin-url", 0, OPT_TEXT, "URL", NULL, "assign: where to fetch the model file (default: a replica)", 0, 0,
         &o->origin_url},
        {"origin-hash", 0, OPT_TEXT, "HEX", NULL, "assign: the identity that the model must have", 0, 0,
         &o->origin_hash},
        {"reason", 0, OPT_TEXT, "TEXT", NULL, "drain: for the logs (default admin_drain)", 0, 0, &o->reason},
        {"no-wait", 0, OPT_FLAG, NULL, NULL, "drain: do not wait until it has left", 0, 0, &o->no_wait},
    };
    const struct opt_program program = {
        .name = "larql grid",
        .synopsis = "status|gaps|drain SHARD|assign|top [options]",
        .about =
            "See and steer a grid, through its router's --grid-port.\n\n"
            "status  models, their layers and replicas, and every shard\n"
            "gaps    layers that nobody can answer for now\n"
            "drain   takes a shard (its id, or its URL) out without a failed request, and waits until it has\n"
            "        left; it stays out until it is started again. The last replica of a layer is refused.\n"
            "assign  gives layers to a spare, which fetches them and joins\n"
            "top     the same as status on the full screen, each second; q quits\n\n"
            "Exit codes: 0 ok, 1 no answer from the router, 2 refused or wrong use, 3 there are gaps (gaps; a grid\n"
            "without any model is one).",
        .examples = "  larql grid status --router 10.0.0.1:50052\n"
                    "  larql grid gaps --json || page-somebody\n"
                    "  larql grid drain http://10.0.0.7:8080 --reason \"new kernel\"\n"
                    "  larql grid assign --model model.gguf --layers 0-17",
        .opts = opts,
        .opts_n = sizeof opts / sizeof *opts,
        .args_min = 1,
        .args_max = 2,
    };
    char **args;
    int args_n;
    enum opt_result rc = opt_parse(&program, argc, argv, &args, &args_n);
    if (rc != OPT_RUN)
        return rc;
    o->verb = args[0];
    o->shard = args_n > 1 ? args[1] : NULL;
    return OPT_RUN;
}

enum verb { STATUS, GAPS, DRAIN, ASSIGN, TOP, VERBS_N };

/* VERBS_N: it said what is wrong. */
static enum verb read_verb(struct grid_options *o)
{
    static const char *const names[VERBS_N] = {"status", "gaps", "drain", "assign", "top"};
    enum verb v = STATUS;
    while (v < VERBS_N && strcmp(names[v], o->verb) != 0)
        v++;
    const struct {
        bool given, fits;
        const char *name;
    } rules[] = {
        {o->model, v == GAPS || v == ASSIGN, "--model is for gaps and assign"},
        {o->layers, v == ASSIGN, "--layers is for assign"},
        {o->server, v == ASSIGN || v == DRAIN, "--server is for assign and drain"},
        {o->origin_url, v == ASSIGN, "--origin-url is for assign"},
        {o->origin_hash, v == ASSIGN, "--origin-hash is for assign"},
        {o->reason, v == DRAIN, "--reason is for drain"},
        {o->no_wait, v == DRAIN, "--no-wait is for drain"},
        {o->json, v != TOP, "--json is not for top: ask for status"},
        {o->shard, v == DRAIN, "only drain takes an argument"},
    };
    const char *why = v == VERBS_N ? "give one of status, gaps, drain SHARD, assign and top" : NULL;
    for (size_t i = 0; !why && i < sizeof rules / sizeof *rules; i++)
        if (rules[i].given && !rules[i].fits)
            why = rules[i].name;
    if (!why && v == DRAIN && !o->shard == !o->server)
        why = "drain needs SHARD, once: an id or a URL that status shows";
    if (why) {
        (void)usage_error(why);
        return VERBS_N;
    }
    o->shard = o->shard ? o->shard : o->server;
    return v;
}

static int run(struct grid_link *l, const struct grid_options *o, enum verb v)
{
    switch (v) {
    case STATUS:
        return show(l, o, show_status);
    case GAPS:
        return show(l, o, show_gaps);
    case DRAIN:
        return drain(l, o);
    case ASSIGN:
        return assign(l, o);
    case TOP:
        return grid_top(l, o->link.router);
    case VERBS_N:
        break;
    }
    return CMD_EXIT_USAGE;
}

int cmd_grid(int argc, char **argv)
{
    struct grid_options o = {.link = {.router = "127.0.0.1:50052"}};
    struct grid_link *l = NULL;
    struct lq_fault fault;
    enum opt_result parsed = read_options(&o, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : CMD_EXIT_USAGE;
    enum verb v = read_verb(&o);
    if (v == VERBS_N)
        return CMD_EXIT_USAGE;
    enum lq_err rc = grid_link_new(&o.link, &l, &fault);
    int code;
    if (rc) {
        fprintf(stderr, "larql grid: %s\n", fault.text);
        code = rc == LQ_USAGE ? CMD_EXIT_USAGE : CMD_EXIT_FAILED;
    } else {
        code = run(l, &o, v);
    }
    grid_link_free(l);
    if (fflush(stdout) != 0 && code == EXIT_SUCCESS) {
        fprintf(stderr, "larql grid: cannot write to stdout\n");
        code = CMD_EXIT_FAILED;
    }
    return code;
}
