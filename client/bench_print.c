/* bench_print: the table, the recommendation, failed assertions: for people. */
#include <string.h>

#include "client/bench.h"

/* "0-3, 5" of the layers with that advice; "none". */
static void print_layers(const struct bench *b, enum wire_format f, FILE *to)
{
    const char *between = "";
    for (uint32_t i = 0; i < b->arch.layers_n; i++) {
        uint32_t last = i;
        if (b->advice[i] != f)
            continue;
        while (last + 1 < b->arch.layers_n && b->advice[last + 1] == f)
            last++;
        fprintf(to, last > i ? "%s%u-%u" : "%s%u", between, i, last);
        between = ", ";
        i = last;
    }
    if (!*between)
        fputs("none", to);
}

static bool print_columns(const struct bench *b, FILE *to)
{
    struct bench_summary s;
    fprintf(to, "%-7s %8s %8s %8s %8s %7s %7s %8s %8s %7s %7s %7s %9s %9s  %s\n", "wire", "tok/s", "ms p50", "p95",
            "p99", "enc us", "dec us", "KB up", "KB down", "top-1", "top-5", "top-K", "KL mean", "KL max",
            "parts at");
    for (size_t i = 0; i < b->columns_n; i++) {
        const struct bench_column *c = &b->columns[i];
        if (!bench_summarize(b, c, &s))
            return false;
        fprintf(to, "%-7s %8.1f %8.2f %8.2f %8.2f ", c->name, s.tok_per_s, s.ms_p50, s.ms_p95, s.ms_p99);
        if (c->policy)
            fprintf(to, "%7s %7s ", "", "");
        else
            fprintf(to, "%7.1f %7.1f ", s.encode_us, s.decode_us);
        fprintf(to, "%8.1f %8.1f %6.1f%% %6.1f%% %6.1f%% %9.2g %9.2g  ", s.kb_up, s.kb_down, 100 * s.top1,
                100 * s.top5, 100 * s.topk, s.kl_mean, s.kl_max);
        if (i == 0)
            fputs("(reference)\n", to);
        else if (c->divergence >= 0)
            fprintf(to, "token %lld\n", (long long)c->divergence);
        else
            fprintf(to, "not in %zu\n", c->free_n);
    }
    return true;
}

static double share(const struct bench_trip *t)
{
    return t->nonzero_n ? (double)t->zeroed_n / (double)t->nonzero_n : 0;
}

static void print_layer_table(const struct bench *b, FILE *to)
{
    fprintf(to,
            "\nPer layer, request / answer: largest |value|; by format: values turned to zero, error of the ordinary "
            "ones in the worst row\n%-6s %21s",
            "layer", "max |value|");
    for (size_t i = 1; i < b->columns_n; i++)
        if (!b->columns[i].policy)
            fprintf(to, "  %5s zero  %19s", b->columns[i].name, "error");
    fputs("  advice\n", to);
    for (uint32_t i = 0; i < b->arch.layers_n; i++) {
        const struct bench_layer *l = &b->layers[i];
        fprintf(to, "%-6u %9.4g / %9.4g", i, (double)l->max_abs[0], (double)l->max_abs[1]);
        for (size_t k = 1; k < b->columns_n; k++) {
            enum wire_format f = b->columns[k].format;
            if (b->columns[k].policy)
                continue;
            fprintf(to, "  %4.1f%%/%4.1f%% %8.2g / %8.2g", 100 * share(&l->trip[0][f]), 100 * share(&l->trip[1][f]),
                    l->trip[0][f].error_max, l->trip[1][f].error_max);
        }
        fprintf(to, "  %s\n", wire_name(b->advice[i]));
    }
}

static void print_advice(const struct bench *b, FILE *to)
{
    fprintf(to,
            "\nSafe format: %s (the smallest of those tested with top-1 >= %g %% (one miss is allowed) and mean KL "
            "<= %g)\n"
            "By layer, worst row's ordinary error <= %g and nothing clipped:\n",
            b->safe->name, 100 * BENCH_TOP1_MIN, BENCH_KL_MAX, BENCH_LAYER_ERROR_MAX);
    for (size_t i = 0; i < b->columns_n; i++) {
        if (b->columns[i].policy)
            continue;
        fprintf(to, i == 0 ? "  need %s: " : "  %s is enough: ", b->columns[i].name);
        print_layers(b, b->columns[i].format, to);
        fputc('\n', to);
    }
}

bool bench_print(const struct bench *b, FILE *to)
{
    fprintf(to, "%s: %zu steps", b->arch.name, b->steps_n);
    if (b->o->text_path)
        fprintf(to, " of %s, windows of %lld tokens", b->o->text_path, (long long)b->o->window);
    fprintf(to,
            ", %zu at once, each format beside f32 over the same tokens\n"
            "top-5, top-%zu: the same first choice and the same %s\n\n",
            b->workers_n, b->top_n, b->o->ordered ? "list" : "set");
    if (!print_columns(b, to))
        return false;
    print_layer_table(b, to);
    print_advice(b, to);
    return true;
}

static void print_ids(const uint32_t *ids, size_t n, FILE *to)
{
    for (size_t i = 0; i < n; i++)
        fprintf(to, i ? " %u" : "%u", ids[i]);
}

size_t bench_print_mismatches(const struct bench *b, FILE *to)
{
    size_t n = 0;
    for (size_t i = 1; i < b->columns_n; i++) {
        const struct bench_column *c = &b->columns[i];
        if (!c->mismatch)
            continue;
        n++;
        fprintf(to, "larql bench: %s: top-%zu differs at step %zu (%zu of %zu steps): f32 [", c->name, b->top_n,
                c->mismatch->step, c->mismatches_n, b->steps_n);
        print_ids(c->mismatch->want, b->top_n, to);
        fprintf(to, "] %s [", c->name);
        print_ids(c->mismatch->got, b->top_n, to);
        fputs("]\n", to);
    }
    return n;
}
