/* larql bench: options. The work is in bench*.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench.h"
#include "client/bench_baseline.h"
#include "client/cmd.h"
#include "client/wire_policy.h"
#include "common/file.h"
#include "common/opt.h"
#include "common/spin.h"

static enum opt_result wrong(const char *text)
{
    fprintf(stderr, "larql bench: %s\nTry 'larql bench --help'.\n", text);
    return OPT_EXIT_USAGE;
}

/* What the table of options cannot say. */
static enum opt_result check_options(const struct bench_options *o)
{
    if (o->prompt && o->text_path)
        return wrong("give one of --prompt and --text");
    if (!o->text_path && o->steps == 0)
        return wrong("--steps 0 (the whole text) needs --text");
    if (strcmp(o->output, "table") != 0 && strcmp(o->output, "json") != 0 && strcmp(o->output, "baseline") != 0)
        return wrong("--output: use table, json or baseline");
    if (o->output_file && strcmp(o->output, "table") == 0)
        return wrong("--output-file needs --output json or baseline");
    if (o->ordered && !o->assert_k)
        return wrong("--ordered needs --assert-topk-match");
    if (o->baseline_ratios && !o->baseline_path)
        return wrong("--baseline-ratios needs --baseline");
    if (strcmp(o->ffn, "local") == 0)
        return wrong("--ffn local has no wire; give the URL of a router or shard");
    return OPT_RUN;
}

static enum opt_result read_options(struct bench_options *o, int argc, char **argv)
{
    const struct opt opts[] = {
        {"ffn", 'f', OPT_TEXT, "URL", NULL, "router or shard that serves the FFN (default http://127.0.0.1:9090)", 0,
         0, &o->ffn},
        {"wire", 'w', OPT_TEXT, "LIST", NULL,
         "formats to compare, commas between; f32 is always there, as the reference (default f32,f16,i8)", 0, 0,
         &o->wire},
        {"wire-policy", 0, OPT_TEXT, "FILE", NULL, "compare what a policy of --write-policy does, too", 0, 0,
         &o->wire_policy},
        {"steps", 's', OPT_INT, "N", NULL, "tokens to measure; 0: the whole --text (default 50)", 0, BENCH_STEPS_MAX,
         &o->steps},
        {"prompt", 'p', OPT_TEXT, "TEXT", NULL,
         "text to go on from; all formats get f32's choices (default \"The capital of France is\")", 0, 0,
         &o->prompt},
        {"text", 0, OPT_TEXT, "FILE", NULL, "feed this text instead, in windows that each begin anew", 0, 0,
         &o->text_path},
        {"window", 0, OPT_INT, "N", NULL, "tokens of such a window (default 256)", 2, 1 << 20, &o->window},
        {"assert-topk-match", 0, OPT_INT, "K", NULL,
         "fail where a format's K likeliest are not f32's: as a set, and the likeliest itself", 1, FIDELITY_TOP_MAX,
         &o->assert_k},
        {"ordered", 0, OPT_FLAG, NULL, NULL, "their order counts", 0, 0, &o->ordered},
        {"concurrent", 'c', OPT_INT, "N", NULL, "sequences at once, each with connections of its own (default 1)", 1,
         BENCH_WORKERS_MAX, &o->concurrent},
        {"warmup", 0, OPT_INT, "N", NULL, "tokens fed before anything counts (default 4)", 0, 1 << 20, &o->warmup},
        {"output", 'o', OPT_TEXT, "table|json|baseline", NULL,
         "what is written; baseline: JSON without what depends on the machine (default table)", 0, 0, &o->output},
        {"output-file", 0, OPT_TEXT, "FILE", NULL, "where the JSON goes; the table is then printed too", 0, 0,
         &o->output_file},
        {"plot", 0, OPT_TEXT, "FILE", NULL, "draw latencies, bytes and agreement (SVG)", 0, 0, &o->plot_path},
        {"baseline", 0, OPT_TEXT, "FILE", NULL, "fail where the figures are worse than those of this JSON", 0, 0,
         &o->baseline_path},
        {"baseline-ratios", 0, OPT_TEXT, "LIST", NULL,
         "how much worse is allowed: bytes=, agreement=, kl=, ms= (default bytes=1,agreement=0.99,kl=2)", 0, 0,
         &o->baseline_ratios},
        {"write-policy", 0, OPT_TEXT, "FILE", NULL, "store the recommendation for `larql run --wire-policy`", 0, 0,
         &o->write_policy},
        {"threads", 't', OPT_INT, "N", NULL,
         "threads for attention, of all sequences together; 0: all CPUs, with --concurrent one each (default 0)", 0,
         1024, &o->threads},
        {"activations", 0, OPT_TEXT, "8|16|f32", NULL,
         "what quantised weights are multiplied with here: digits of 8 or 16 bit, or f32 (default 16)", 0, 0,
         &o->activations},
        {"deadline-ms", 0, OPT_INT, "MS", NULL, "time one call to the grid may take (default 30000)", 1, 3600000,
         &o->deadline_ms},
        {"busy-poll", 0, OPT_INT, "US", NULL, "poll for so long for each answer before sleeping (default 0)", 0,
         SPIN_US_MAX, &o->busy_poll_us},
        {"model-id", 0, OPT_TEXT, "NAME", NULL, "which model of a grid that serves several (see larql grid status)", 0, 0,
         &o->model_id},
        {"api-key-file", 0, OPT_TEXT, "FILE", NULL,
         "file whose first key is sent (or the key itself in LARQL_API_KEY)", 0, 0, &o->api_key_file},
        {"tls-ca", 0, OPT_TEXT, "FILE", NULL,
         "PEM, whom an https:// URL must be certified by (default: the system's)", 0, 0, &o->tls_ca},
        {"tls-cert", 0, OPT_TEXT, "FILE", NULL, "PEM, shown to a server that asks for a client's certificate", 0, 0,
         &o->tls_cert},
        {"tls-key", 0, OPT_TEXT, "FILE", NULL, "its private key, PEM", 0, 0, &o->tls_key},
        {"quiet", 'q', OPT_FLAG, NULL, NULL, "no progress on stderr", 0, 0, &o->quiet},
    };
    const struct opt_program program = {
        .name = "larql bench",
        .synopsis = "MODEL.gguf [--ffn URL] [--steps N] [--wire f32,f16,i8] [options]",
        .about =
            "Run a model through a grid once per wire format, side by side, and tell speed, bytes and agreement\n"
            "with f32; per layer, what each format does to the ordinary values; and which format is safe.\n"
            "Exit codes: 0 ok, 1 failed, or an assertion or a baseline was missed, 2 wrong use, 3 the grid failed\n"
            "or cannot be reached, 4 the model file cannot be used.",
        .examples =
            "  larql bench model.gguf --ffn http://10.0.0.1:9090 --steps 50 --wire f32,f16 --assert-topk-match 5\n"
            "  larql bench model.gguf --text book.txt --steps 1000 --output json --output-file b.json --plot b.svg",
        .opts = opts,
        .opts_n = sizeof opts / sizeof *opts,
        .args_min = 1,
        .args_max = 1,
    };
    char **args;
    int args_n;
    enum opt_result rc = opt_parse(&program, argc, argv, &args, &args_n);
    if (rc != OPT_RUN)
        return rc;
    o->model_path = args[0];
    return check_options(o);
}

static int fail(const struct lq_fault *fault)
{
    fprintf(stderr, "larql bench: %s\n", fault->text);
    return fault->code == LQ_USAGE ? CMD_EXIT_USAGE : CMD_EXIT_FAILED;
}

static enum lq_err write_json(const struct bench *b, struct lq_fault *fault)
{
    json_t *o = bench_json(b, strcmp(b->o->output, "json") == 0);
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    enum lq_err rc = LQ_OK;
    if (!text)
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for the JSON");
    else if (b->o->output_file)
        rc = file_output(b->o->output_file, text, strlen(text), fault);
    else
        puts(text);
    free(text);
    json_decref(o);
    return rc;
}

static enum lq_err write_all(const struct bench *b, struct lq_fault *fault)
{
    bool json = strcmp(b->o->output, "table") != 0;
    enum lq_err rc = LQ_OK;
    if ((!json || b->o->output_file) && !bench_print(b, stdout))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory");
    if (!rc && json)
        rc = write_json(b, fault);
    if (!rc && b->o->plot_path)
        rc = bench_plot(b, b->o->plot_path, fault);
    if (!rc && b->o->write_policy)
        rc =
            wire_policy_write(b->o->write_policy, b->arch.name, b->arch.hidden_n, b->advice, b->arch.layers_n, fault);
    if (!rc && (fflush(stdout) != 0 || ferror(stdout)))
        rc = lq_fail(fault, LQ_IO, "cannot write to stdout");
    return rc;
}

static int run(struct bench *b, struct baseline *base)
{
    struct lq_fault fault;
    int code = bench_open(b);
    if (!code)
        code = bench_play(b);
    if (code)
        return code;
    if (bench_advise(b, &fault) != LQ_OK || write_all(b, &fault) != LQ_OK)
        return fail(&fault);
    if (b->o->assert_k && bench_print_mismatches(b, stderr) > 0)
        code = CMD_EXIT_FAILED;
    if (!b->o->baseline_path)
        return code;
    json_t *now = bench_json(b, true);
    size_t worse_n = 0;
    enum lq_err rc =
        now ? baseline_compare(base, now, stderr, &worse_n, &fault) : lq_fail(&fault, LQ_NOMEM, "out of memory");
    json_decref(now);
    return rc ? fail(&fault) : worse_n > 0 ? CMD_EXIT_FAILED : code;
}

int cmd_bench(int argc, char **argv)
{
    struct bench_options o = {.ffn = "http://127.0.0.1:9090",
                              .wire = "f32,f16,i8",
                              .steps = 50,
                              .window = 256,
                              .concurrent = 1,
                              .warmup = 4,
                              .output = "table",
                              .deadline_ms = 30000,
                              .activations = "16"};
    struct bench b = {.o = &o};
    struct baseline base = {0};
    struct lq_fault fault;
    enum opt_result parsed = read_options(&o, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : CMD_EXIT_USAGE;
    /* Before minutes of work: a baseline that cannot be read is a mistake in the command. */
    if (o.baseline_path && baseline_read(o.baseline_path, o.baseline_ratios, &base, &fault) != LQ_OK) {
        fprintf(stderr, "larql bench: %s\n", fault.text);
        return CMD_EXIT_USAGE;
    }
    int code = run(&b, &base);
    bench_release(&b);
    baseline_release(&base);
    return code;
}
