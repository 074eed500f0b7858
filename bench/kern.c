/* Products with a weight matrix as a layer makes them (mat_mul: threads, digits and all)
 * beside llama.cpp's on the same blocks: W of 13,824 rows of 5,120, every type, as many
 * threads as CPUs. Copies of W are rotated so that 256 MB pass between two uses of one:
 * a token must fetch the weights from memory, and what memory gives at that moment is
 * sampled between the turns. Medians of interleaved turns.
 * LQ_BENCH_TYPES="Q4_K F16" measures those types only; LQ_BENCH_THREADS=1 that many threads. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/support/ggml.h"
#include "client/quantile.h"
#include "bench/support/report.h"
#include "bench/support/timer.h"
#include "model/mat.h"

enum {
    COLS = 5120,
    ROWS = 13824,
    MADE_ROWS = 64, /* quantised; the matrix repeats them */
    FEW = 8,
    MANY = 256,
    TURNS = 15,
    MANY_TURNS = 3,
    COPIES_MAX = 8,
    BETWEEN_MB = 256,
};

struct bench {
    struct ggml_judge *judge;
    struct compute *compute[MAT_ACTIVATIONS_N];
    int threads_n;
    size_t copies_n, bytes; /* bytes of one W */
    struct mat w[COPIES_MAX];
    uint8_t *memory;
    size_t at; /* the copy whose turn it is */
    float *x, *out;
    volatile uint64_t sink;
};

static void read_part(void *arg, size_t first, size_t end, size_t thread)
{
    struct bench *b = arg;
    const uint64_t *p = (const uint64_t *)(b->memory + b->at * b->bytes);
    uint64_t sum[32] = {0}; /* 64-byte lines, four at once */
    (void)thread;
    for (size_t i = first * 512; i + 32 <= end * 512; i += 32)
        for (size_t k = 0; k < 32; k++)
            sum[k] += p[i + k];
    for (size_t k = 1; k < 32; k++)
        sum[0] += sum[k];
    b->sink += sum[0];
}

static double read_ns(struct bench *b)
{
    b->at = (b->at + 1) % b->copies_n;
    uint64_t begin = timer_now_ns();
    pool_run(compute_pool(b->compute[MAT_8]), b->bytes / 4096, 16, read_part, b);
    return (double)(timer_now_ns() - begin);
}

static double ours_ns(struct bench *b, enum mat_activations a, size_t rows_n)
{
    b->at = (b->at + 1) % b->copies_n;
    uint64_t begin = timer_now_ns();
    mat_mul(b->compute[a], &b->w[b->at], b->x, rows_n, b->out);
    return (double)(timer_now_ns() - begin);
}

static double theirs_ns(struct ggml_job *job)
{
    uint64_t begin = timer_now_ns();
    bool ok = ggml_job_run(job);
    uint64_t end = timer_now_ns();
    return ok ? (double)(end - begin) : NAN;
}

/* Jobs of ggml for each copy; NULL in [0] when it refuses. */
static bool jobs_new(struct bench *b, enum quant_type t, size_t rows_n, struct ggml_job **jobs, size_t n)
{
    const char *why = NULL;
    for (size_t i = 0; i < n; i++) {
        jobs[i] =
            ggml_job_new(b->judge, quant_info[t].ggml_type, COLS, ROWS, b->w[i].data, rows_n, b->threads_n, &why);
        if (!jobs[i]) {
            report_fail("%s: %s", quant_info[t].name, why);
            return false;
        }
        memcpy(ggml_job_in(jobs[i]), b->x, rows_n * COLS * sizeof(float));
    }
    return true;
}

static void jobs_free(struct ggml_job **jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ggml_job_free(jobs[i]);
}

/* ns of each, medians: [a] ours, theirs last. */
struct times {
    double ours[MAT_ACTIVATIONS_N], theirs, read;
};

static bool measure(struct bench *b, enum quant_type t, size_t rows_n, size_t turns_n, struct times *out)
{
    static double ours[MAT_ACTIVATIONS_N][TURNS], theirs[TURNS], reads[TURNS];
    struct ggml_job *jobs[COPIES_MAX] = {0};
    const size_t jobs_n = rows_n == MANY ? 1 : b->copies_n;
    const bool digits = quant_info[t].block_n > 1;
    bool ok = jobs_new(b, t, rows_n, jobs, jobs_n);
    for (size_t turn = 0; turn < turns_n && ok; turn++) {
        reads[turn] = read_ns(b);
        ours[MAT_F32][turn] = ours_ns(b, MAT_F32, rows_n);
        ours[MAT_8][turn] = digits ? ours_ns(b, MAT_8, rows_n) : ours[MAT_F32][turn];
        ours[MAT_16][turn] = digits ? ours_ns(b, MAT_16, rows_n) : ours[MAT_F32][turn];
        theirs_ns(jobs[turn % jobs_n]); /* wakes its threads; the copy is not the timed one */
        theirs[turn] = theirs_ns(jobs[(turn + 1) % jobs_n]);
        ggml_judge_rest(b->judge);
    }
    jobs_free(jobs, COPIES_MAX);
    for (int a = 0; a < MAT_ACTIVATIONS_N; a++)
        out->ours[a] = quantile(ours[a], turns_n, 0.5);
    out->theirs = quantile(theirs, turns_n, 0.5);
    out->read = quantile(reads, turns_n, 0.5);
    return ok;
}

static bool copies_make(struct bench *b, enum quant_type t)
{
    static float source[MADE_ROWS * COLS];
    uint64_t state = 20;
    size_t row = quant_row_bytes(t, COLS);
    b->bytes = row * ROWS;
    b->copies_n = ((size_t)BETWEEN_MB << 20) / b->bytes + 2;
    b->at = 0;
    if (b->copies_n > COPIES_MAX || !(b->memory = aligned_alloc(4096, b->copies_n * ((b->bytes + 4095) & ~4095ul)))) {
        report_fail("%s: out of memory for %zu copies", quant_info[t].name, b->copies_n);
        return false;
    }
    for (size_t i = 0; i < MADE_ROWS * COLS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        source[i] = (float)((double)(int64_t)state / 9.3e18);
    }
    ggml_judge_quantize(b->judge, quant_info[t].ggml_type, source, MADE_ROWS, COLS, b->memory);
    for (size_t r = MADE_ROWS; r < ROWS; r++)
        memcpy(b->memory + r * row, b->memory + (r % MADE_ROWS) * row, row);
    for (size_t i = 0; i < b->copies_n; i++) {
        if (i > 0)
            memcpy(b->memory + i * b->bytes, b->memory, b->bytes);
        b->w[i] = (struct mat){b->memory + i * b->bytes, t, ROWS, COLS, row, 0};
    }
    return true;
}

static void report_type(struct bench *b, enum quant_type t)
{
    const bool heavy = t == QUANT_Q6_K || t == QUANT_Q8_0 || quant_info[t].block_n == 1;
    const bool digits = quant_info[t].block_n > 1, judged = t != QUANT_F32;
    static const struct {
        enum mat_activations mode;
        const char *name;
    } modes[] = {{MAT_8, "8 bit"}, {MAT_16, "16 bit"}, {MAT_F32, "f32"}};
    struct times one, few, many;
    if (!copies_make(b, t))
        return;
    if (!measure(b, t, 1, TURNS, &one) || !measure(b, t, FEW, TURNS / 2, &few) ||
        !measure(b, t, MANY, MANY_TURNS, &many))
        goto out;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const enum mat_activations a = modes[i].mode;
        const bool bar = judged && (digits ? a != MAT_F32 : a == MAT_F32); /* the exact form of blocks has none */
        char what[64];
        if (!digits && a != MAT_F32)
            continue;
        snprintf(what, sizeof what, "%s, %s: 1 row, x llama.cpp", quant_info[t].name, modes[i].name);
        report_row(what, one.theirs / one.ours[a],
                   !bar    ? REPORT_NO_BAR
                   : heavy ? 1.0
                           : 1.2,
                   REPORT_HIGHER, "ratio", "%.2f ms, theirs %.2f", one.ours[a] / 1e6, one.theirs / 1e6);
        snprintf(what, sizeof what, "%s, %s: 1 row, of bandwidth", quant_info[t].name, modes[i].name);
        report_row(what, one.read / one.ours[a],
                   !bar    ? REPORT_NO_BAR
                   : heavy ? 0.85
                           : 0.75,
                   REPORT_HIGHER, "ratio", "theirs %.2f; memory gave %.1f GB/s", one.read / one.theirs,
                   (double)b->bytes / one.read);
        snprintf(what, sizeof what, "%s, %s: 8 rows, x one", quant_info[t].name, modes[i].name);
        report_row(what, few.ours[a] / one.ours[a], bar ? 2.7 : REPORT_NO_BAR, REPORT_LOWER, "ratio", "theirs %.2f",
                   few.theirs / one.theirs);
        snprintf(what, sizeof what, "%s, %s: 256 rows, x llama.cpp", quant_info[t].name, modes[i].name);
        report_row(what, many.theirs / many.ours[a], bar ? 1.0 : REPORT_NO_BAR, REPORT_HIGHER, "ratio",
                   "%.0f ms, theirs %.0f", many.ours[a] / 1e6, many.theirs / 1e6);
    }
out:
    free(b->memory);
}

static bool wanted(enum quant_type t)
{
    const char *list = getenv("LQ_BENCH_TYPES");
    char word[24], all[256];
    snprintf(word, sizeof word, " %s ", quant_info[t].name);
    snprintf(all, sizeof all, " %s ", list ? list : "");
    return !list || strstr(all, word);
}

int main(int argc, char **argv)
{
    const char *why = NULL, *threads = getenv("LQ_BENCH_THREADS");
    struct lq_fault fault;
    struct bench b = {.threads_n = threads ? atoi(threads) : (int)sysconf(_SC_NPROCESSORS_ONLN)};
    report_begin("kern", argc, argv);
    b.threads_n = b.threads_n < 1 ? 1 : b.threads_n > GGML_JUDGE_THREADS_MAX ? GGML_JUDGE_THREADS_MAX : b.threads_n;
    b.x = malloc(MANY * COLS * sizeof *b.x);
    b.out = malloc(MANY * ROWS * sizeof *b.out);
    for (int a = 0; a < MAT_ACTIVATIONS_N; a++)
        if (compute_new((size_t)b.threads_n, COLS, (enum mat_activations)a, &b.compute[a], &fault)) {
            report_fail("%s", fault.text);
            goto out;
        }
    if (!b.x || !b.out || !(b.judge = ggml_judge_open(&why))) {
        report_fail("%s", why ? why : "out of memory");
        goto out;
    }
    for (size_t i = 0; i < MANY * COLS; i++)
        b.x[i] = (float)(int)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    for (int t = 0; t < QUANT_TYPES_N; t++)
        if (wanted((enum quant_type)t))
            report_type(&b, (enum quant_type)t);
out:
    ggml_judge_close(b.judge);
    for (int a = 0; a < MAT_ACTIVATIONS_N; a++)
        compute_free(b.compute[a]);
    free(b.x);
    free(b.out);
    return report_end();
}
