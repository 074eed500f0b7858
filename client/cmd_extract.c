/* larql extract: a GGUF file as a vindex directory. The work is in model/vindex_write.c. */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cmd.h"
#include "common/args.h"
#include "common/clock.h"
#include "common/opt.h"
#include "model/vindex_write.h"

enum { BAR_CELLS = 30, BAR_EVERY_US = 100000, PATH_BYTES = 4096 };

struct extract {
    const char *model, *out, *level, *dtype, *layers;
    bool quiet;
    struct gguf *gguf;
    struct arch arch;
};

static _Atomic bool interrupted;

static void on_signal(int sig)
{
    (void)sig;
    atomic_store(&interrupted, true);
}

/* ---- the bar, on a terminal ------------------------------------------------------------------ */

struct bar {
    uint64_t start_us, drawn_us;
};

static void draw(void *arg, const char *file, uint64_t done, uint64_t total)
{
    struct bar *b = arg;
    uint64_t now = clock_us();
    char cells[BAR_CELLS + 1];
    if (now - b->drawn_us < BAR_EVERY_US && done < total)
        return;
    b->drawn_us = now;
    size_t full = total ? (size_t)((double)done / (double)total * BAR_CELLS) : BAR_CELLS;
    memset(cells, '#', full);
    memset(cells + full, '.', BAR_CELLS - full);
    cells[BAR_CELLS] = '\0';
    double s = (double)(now - b->start_us) / 1e6;
    fprintf(stderr, "\r\033[K[%s] %3.0f %%  %.0f of %.0f MB  %.0f MB/s  %s", cells,
            total ? 100.0 * (double)done / (double)total : 100.0, (double)done / 1e6, (double)total / 1e6,
            s > 0 ? (double)done / 1e6 / s : 0.0, file);
}

/* ---- options ------------------------------------------------------------------------------------ */

/* The word's place; -1, said on stderr: none. */
static int choose(const char *option, const char *word, const char *const names[3])
{
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    fprintf(stderr, "larql extract: --%s %.40s: use %s, %s or %s\n", option, word, names[0], names[1], names[2]);
    return -1;
}

/* False, said on stderr: wrong use. */
static bool read_choices(const struct extract *x, struct vindex_write_opts *o)
{
    struct lq_fault fault;
    int level = choose("level", x->level, vindex_level_name), dtype = choose("dtype", x->dtype, vindex_dtype_name);
    if (level < 0 || dtype < 0)
        return false;
    o->level = (enum vindex_level)level;
    o->dtype = (enum vindex_dtype)dtype;
    o->layer_last = UINT32_MAX;
    if (!x->layers)
        return true;
    if (o->level == VINDEX_CLIENT)
        fprintf(stderr, "larql extract: --layers chooses whose FFN is written; --level client has none\n");
    else if (args_range(x->layers, strlen(x->layers), &o->layer_first, &o->layer_last, &fault) != LQ_OK)
        fprintf(stderr, "larql extract: --layers %.60s: %s\n", x->layers, fault.text);
    else
        return true;
    return false;
}

static int code_of(enum lq_err rc)
{
    return rc == LQ_USAGE                               ? CMD_EXIT_USAGE
           : rc == LQ_BAD_MODEL || rc == LQ_UNSUPPORTED ? CMD_EXIT_MODEL
           : rc == LQ_CANCELLED                         ? CMD_EXIT_INTERRUPTED
                                                        : CMD_EXIT_FAILED;
}

static void say(const struct extract *x, const struct vindex_write_opts *o, const struct vindex_write_report *r)
{
    printf("%s: %zu files, %.1f MB of weights in %s, level %s", o->dir, r->files_n, (double)r->bytes / 1e6, x->dtype,
           x->level);
    if (o->level != VINDEX_CLIENT)
        printf(", FFN of layers %" PRIu32 "-%" PRIu32 " of %" PRIu32, o->layer_first, o->layer_last,
               x->arch.layers_n);
    if (r->kept_n)
        printf(", %zu of the files kept from the run before", r->kept_n);
    putchar('\n');
    if (r->rounded_n)
        printf("rounded to f16: %" PRIu64 " of %" PRIu64 " values; --dtype f32 keeps them\n", r->rounded_n,
               r->values_n);
    if (r->requantised_n)
        printf("quantised anew, with loss: %zu matrices (the first: %s)\n", r->requantised_n, r->requantised);
}

/* ---- the run ---------------------------------------------------------------------------------------- */

static enum lq_err extract(struct extract *x, struct vindex_write_opts *o, struct lq_fault *fault)
{
    struct vindex_write_report report;
    struct bar bar = {.start_us = clock_us()};
    bool show = !x->quiet && isatty(STDERR_FILENO);
    enum lq_err rc = gguf_open(x->model, &x->gguf, fault);
    if (!rc)
        rc = arch_read(x->gguf, &x->arch, fault);
    if (rc)
        return rc;
    if (o->layer_last == UINT32_MAX)
        o->layer_last = x->arch.layers_n - 1;
    if (o->layer_last >= x->arch.layers_n)
        return lq_fail(fault, LQ_USAGE, "--layers %s: the model has layers 0-%" PRIu32, x->layers,
                       x->arch.layers_n - 1);
    o->progress = show ? draw : NULL;
    o->arg = &bar;
    o->stop = &interrupted;
    rc = vindex_write(x->gguf, &x->arch, o, &report, fault);
    if (show)
        fputs("\r\033[K", stderr);
    if (!rc && !x->quiet)
        say(x, o, &report);
    return rc;
}

int cmd_extract(int argc, char **argv)
{
    struct extract x = {.level = "all", .dtype = "f16"};
    const struct opt opts[] = {
        {"output", 'o', OPT_TEXT, "DIR", NULL, "directory to make; it must not be there", 0, 0, &x.out},
        {"level", 0, OPT_TEXT, "ffn|client|all", NULL,
         "what a shard needs, what a client needs, or both (default all)", 0, 0, &x.level},
        {"layers", 'l', OPT_TEXT, "A-B", NULL, "layers whose FFN is written, inclusive (default: all)", 0, 0,
         &x.layers},
        {"dtype", 0, OPT_TEXT, "f16|f32|q4k", NULL,
         "form of the weights; q4k keeps Q4_K and Q6_K blocks as they are (default f16)", 0, 0, &x.dtype},
        {"quiet", 'q', OPT_FLAG, NULL, NULL, "no progress, no summary", 0, 0, &x.quiet},
    };
    const struct opt_program program = {
        .name = "larql extract",
        .synopsis = "MODEL.gguf -o DIR [--level ffn|client|all] [--layers A-B] [--dtype f16|f32|q4k]",
        .about = "Write a GGUF model as a vindex directory, which LARQL loads and which larql-shard, larql run and\n"
                 "larql info take where they take a GGUF file.\n"
                 "It is written to DIR.tmp, which becomes DIR when it is whole; the same command again goes on with\n"
                 "a DIR.tmp that was left half-way. larql verify checks a directory.\n"
                 "Exit codes: 0 done, 1 failed, 2 wrong use, 4 the model cannot be written so.",
        .examples = "  larql extract llama-q4_k_m.gguf -o llama.vindex --dtype q4k\n"
                    "  larql extract gemma.gguf -o shard0.vindex --level ffn --layers 0-8",
        .opts = opts,
        .opts_n = sizeof opts / sizeof *opts,
        .args_min = 1,
        .args_max = 1,
    };
    char **args, dir[PATH_BYTES];
    int args_n;
    enum opt_result parsed = opt_parse(&program, argc, argv, &args, &args_n);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : CMD_EXIT_USAGE;
    struct vindex_write_opts o = {.dir = dir};
    size_t n = x.out ? strlen(x.out) : 0;
    while (n > 1 && x.out[n - 1] == '/')
        n--;
    if (n == 0 || n >= sizeof dir) {
        fprintf(stderr, "larql extract: say where to: -o DIR\n");
        return CMD_EXIT_USAGE;
    }
    snprintf(dir, sizeof dir, "%.*s", (int)n, x.out);
    if (!read_choices(&x, &o))
        return CMD_EXIT_USAGE;
    x.model = args[0];
    const struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = extract(&x, &o, &fault);
    if (rc)
        fprintf(stderr, "larql extract: %s\n", fault.text);
    gguf_free(x.gguf);
    return rc ? code_of(rc) : EXIT_SUCCESS;
}
