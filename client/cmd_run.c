/* larql run: options. The work is in run.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"
#include "client/run.h"
#include "common/opt.h"
#include "common/spin.h"

static enum opt_result read_options(struct run_options *o, int argc, char **argv)
{
    const struct opt opts[] = {
        {"ffn", 'f', OPT_TEXT, "URL|local", NULL,
         "router or shard to send the FFN to, or local (default http://127.0.0.1:9090)", 0, 0, &o->ffn},
        {"prompt", 'p', OPT_TEXT, "TEXT", NULL, "text to go on from", 0, 0, &o->prompt},
        {"prompt-file", 0, OPT_TEXT, "FILE", NULL, "the same from a file, - for standard input", 0, 0,
         &o->prompt_file},
        {"tokens", 'n', OPT_INT, "N", NULL, "tokens to make at most (default 64)", 0, 1 << 20, &o->tokens},
        {"wire", 'w', OPT_TEXT, "f32|f16|i8", NULL,
         "format on the wire, both ways, where the server has it (default f16; LARQL_F16_WIRE=0: f32, "
         "LARQL_I8_WIRE=1: i8)",
         0, 0, &o->wire},
        {"model-id", 0, OPT_TEXT, "NAME", NULL, "which model of a grid that serves several (see larql grid status)", 0, 0,
         &o->model_id},
        {"wire-policy", 0, OPT_TEXT, "FILE", NULL, "a format for each layer, as `larql bench --write-policy` stores it",
         0, 0, &o->wire_policy},
        {"chat", 'c', OPT_FLAG, NULL, NULL, "put the prompt in the model's chat form", 0, 0, &o->chat},
        {"system", 0, OPT_TEXT, "TEXT", NULL, "system text of the chat", 0, 0, &o->system},
        {"temperature", 0, OPT_REAL, "T", NULL, "0: the likeliest token always (default 0)", 0, 100, &o->temperature},
        {"top-k", 0, OPT_INT, "K", NULL, "sample among the K likeliest, 0: all (default 0)", 0, 1 << 24, &o->top_k},
        {"top-p", 0, OPT_REAL, "P", NULL, "sample among the likeliest that make up this share (default 1)", 1e-6, 1,
         &o->top_p},
        {"seed", 0, OPT_INT, "N", NULL, "seed of the sampling: the same gives the same text (default 0)", 0, 9e15,
         &o->seed},
        {"threads", 't', OPT_INT, "N", NULL, "threads for attention, 0: all CPUs (default 0)", 0, 1024, &o->threads},
        {"activations", 0, OPT_TEXT, "8|16|f32", NULL,
         "what quantised weights are multiplied with here: digits of 8 or 16 bit, or f32 (default 16)", 0, 0,
         &o->activations},
        {"context", 0, OPT_INT, "N", NULL, "tokens of the KV cache (default: prompt and --tokens)", 1, 1 << 24,
         &o->context},
        {"chunk", 0, OPT_INT, "N", NULL, "tokens of the prompt that go through at once (default 256)", 1, 4096,
         &o->chunk},
        {"deadline-ms", 0, OPT_INT, "MS", NULL, "time one call to the grid may take (default 30000)", 1, 3600000,
         &o->deadline_ms},
        {"busy-poll", 0, OPT_INT, "US", NULL,
         "poll for so long for each answer before sleeping: saves a wake-up, costs the core (default 0)", 0,
         SPIN_US_MAX,
         &o->busy_poll_us},
        {"api-key-file", 0, OPT_TEXT, "FILE", NULL,
         "file whose first key is sent (or the key itself in LARQL_API_KEY)", 0, 0, &o->api_key_file},
        {"tls-ca", 0, OPT_TEXT, "FILE", NULL, "PEM, whom an https:// URL must be certified by (default: the system's)",
         0, 0, &o->tls_ca},
        {"tls-cert", 0, OPT_TEXT, "FILE", NULL, "PEM, shown to a server that asks for a client's certificate", 0, 0,
         &o->tls_cert},
        {"tls-key", 0, OPT_TEXT, "FILE", NULL, "its private key, PEM", 0, 0, &o->tls_key},
        {"ignore-eos", 0, OPT_FLAG, NULL, NULL, "go on after the end token", 0, 0, &o->ignore_eos},
        {"quiet", 'q', OPT_FLAG, NULL, NULL, "no summary on stderr", 0, 0, &o->quiet},
        {"stats-json", 0, OPT_TEXT, "FILE", NULL, "write token ids, times and wire counters as JSON", 0, 0,
         &o->stats_path},
        {"teacher", 0, OPT_TEXT, "FILE", NULL, "feed these token ids (text, blanks between) and make none", 0, 0,
         &o->teacher_path},
        {"logits-out", 0, OPT_TEXT, "FILE", NULL, "write the logits of every position fed (layout: client/run.h)", 0,
         0, &o->logits_path},
    };
    const struct opt_program program = {
        .name = "larql run",
        .synopsis = "MODEL --prompt TEXT [--ffn URL|local] [options]",
        .about = "Generate text with a model, a GGUF file or a vindex directory: attention, KV cache and embeddings here,\n"
                 "the feed-forward layers on a larql grid.\n"
                 "The text goes to stdout as it is made, a summary to stderr.\n"
                 "Exit codes: 0 ok, 1 failed, 2 wrong use, 3 the grid failed or cannot be reached, 4 the model file\n"
                 "cannot be used, 130 interrupted.",
        .examples =
            "  larql run model.gguf --ffn http://10.0.0.1:9090 --prompt \"The capital of France is\"\n"
            "  larql run model.gguf --ffn local --chat --prompt \"Name three rivers.\" --temperature 0.7 --seed 1",
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
    int sources = (o->prompt != NULL) + (o->prompt_file != NULL) + (o->teacher_path != NULL);
    if (o->wire && o->wire_policy) {
        fprintf(stderr, "larql run: give one of --wire and --wire-policy\nTry 'larql run --help'.\n");
        return OPT_EXIT_USAGE;
    }
    if (sources == 1)
        return OPT_RUN;
    fprintf(stderr, "larql run: give one of --prompt, --prompt-file and --teacher\nTry 'larql run --help'.\n");
    return OPT_EXIT_USAGE;
}

int cmd_run(int argc, char **argv)
{
    struct run_options o = {
        .ffn = "http://127.0.0.1:9090", .tokens = 64, .chunk = 256, .top_p = 1.0, .deadline_ms = 30000, .activations = "16"};
    enum opt_result parsed = read_options(&o, argc, argv);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : CMD_EXIT_USAGE;
    struct run r = {.o = &o};
    int code = run_all(&r);
    run_release(&r);
    return code;
}
