/* The codec beside memcpy of the same f32 bytes, in one run, warm: 5,120 values each way,
 * then whole requests of other sizes, in MB/s of f32 bytes. ns are of this machine; the
 * ratios are what is to be kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/report.h"
#include "bench/support/timer.h"
#include "proto/cpu.h"
#include "proto/wire.h"

enum { N = 5120, HIDDEN_MOST = 5120, ROWS_MOST = 256, BATCH_LAYERS_N = 4, ROUNDS_N = 1500, SWEEP_MS = 12 };

static _Alignas(64) float x[HIDDEN_MOST * ROWS_MOST], y[HIDDEN_MOST * ROWS_MOST * BATCH_LAYERS_N];
static _Alignas(64) uint8_t body[WIRE_HEAD_BYTES_MAX + sizeof y];
static _Alignas(64) uint8_t f16[2 * N], i8[8 + N];

struct job {
    const struct codec_ops *ops; /* NULL: memcpy */
    enum op { F16_ENCODE, F16_DECODE, I8_ENCODE, I8_DECODE, OPS_N } op;
};
static const char *const op_name[OPS_N] = {"f16 encode", "f16 decode", "i8 encode", "i8 decode"};

static void run(const struct job *j)
{
    if (!j->ops)
        memcpy(y, x, N * sizeof *x);
    else if (j->op == F16_ENCODE)
        j->ops->f16_encode(x, N, f16);
    else if (j->op == F16_DECODE)
        j->ops->f16_decode(f16, N, y);
    else if (j->op == I8_ENCODE)
        j->ops->i8_encode_row(x, N, i8);
    else
        j->ops->i8_decode_row(i8, N, y);
    __asm__ volatile("" ::: "memory"); /* the copy is not dead */
}

/* Of short turns that alternate, each job's shortest: other load only ever adds. */
static void best_of(const struct job *jobs, size_t jobs_n, double *ns)
{
    enum { TURN_N = 16 };
    for (size_t k = 0; k < jobs_n; k++)
        ns[k] = 1e99;
    for (int round = 0; round < ROUNDS_N; round++) {
        for (size_t k = 0; k < jobs_n; k++) {
            run(&jobs[k]); /* its buffers are warm again */
            uint64_t begin = timer_now_ns();
            for (int i = 0; i < TURN_N; i++)
                run(&jobs[k]);
            double took = (double)(timer_now_ns() - begin) / TURN_N;
            ns[k] = took < ns[k] ? took : ns[k];
        }
    }
}

static void beside_memcpy(const struct codec_ops *best)
{
    static const double bar[OPS_N] = {1.0, 1.0, 2.2, 1.0};
    char what[64];
    for (int op = 0; op < OPS_N; op++) {
        struct job jobs[] = {{NULL, 0}, {best, (enum op)op}, {&codec_ref, (enum op)op}};
        double ns[3];
        best_of(jobs, 3, ns);
        snprintf(what, sizeof what, "%s, %d values, over memcpy", op_name[op], N);
        report_row(what, ns[1] / ns[0], bar[op], REPORT_LOWER, "ratio", "%s %.0f ns, memcpy %.0f ns", best->name,
                   ns[1], ns[0]);
        snprintf(what, sizeof what, "%s, scalar form over %s", op_name[op], best->name);
        report_row(what, ns[2] / ns[1], 4.0, REPORT_LOWER, "ratio", "%.0f ns", ns[2]);
    }
}

/* ---- whole bodies -------------------------------------------------------------- */

struct sweep {
    const struct codec_ops *ops;
    enum wire_format format;
    uint32_t hidden, rows, layers_n; /* layers_n > 1: the batch form */
    size_t answer_n;
    bool failed;
};
static const uint32_t layers[BATCH_LAYERS_N] = {0, 1, 2, 3};

/* A request as a client writes it. */
static void encode_request(void *arg)
{
    struct sweep *s = arg;
    bool batch = s->layers_n > 1;
    wire_request_head_encode(batch, layers, s->layers_n, s->rows, 0, body);
    wire_payload_encode(s->ops, s->format, x, s->rows, s->hidden, body + wire_request_head_bytes(batch, s->layers_n));
}

/* An answer as a shard writes it, in *body for the decoder. */
static void encode_answer(struct sweep *s)
{
    uint8_t *p = wire_answer_head_encode(s->layers_n, 0, s->rows, 1.0f, body);
    for (uint32_t k = 0; k < s->layers_n; k++) {
        if (s->layers_n > 1)
            p = wire_entry_head_encode(k, s->rows, s->rows * s->hidden, p);
        wire_payload_encode(s->ops, s->format, x, s->rows, s->hidden, p);
        p += wire_row_bytes(s->format, s->hidden) * s->rows;
    }
    s->answer_n = (size_t)(p - body);
}

static void decode_answer(void *arg)
{
    struct sweep *s = arg;
    float latency_ms;
    struct lq_fault fault;
    if (wire_answer_decode(s->ops, s->format, body, s->answer_n, layers, s->layers_n, s->rows, s->hidden, y,
                           &latency_ms, &fault) != LQ_OK)
        s->failed = true;
}

static void sweep_one(struct sweep *s)
{
    char what[64];
    double mb = 4e-6 * s->rows * s->hidden;
    double encode_ns = timer_best_ns(encode_request, s, SWEEP_MS);
    encode_answer(s);
    double decode_ns = timer_best_ns(decode_answer, s, SWEEP_MS);
    if (s->failed)
        report_fail("an answer of our own did not decode");
    snprintf(what, sizeof what, "%s request, %u x %u, %s, encode", wire_name(s->format), s->rows, s->hidden,
             s->layers_n > 1 ? "batch" : "single");
    report_row(what, mb / encode_ns * 1e9, REPORT_NO_BAR, REPORT_HIGHER, "MB/s", "%s", "");
    snprintf(what, sizeof what, "%s answer, %u x %u, %s, decode", wire_name(s->format), s->rows, s->hidden,
             s->layers_n > 1 ? "batch of 4" : "single");
    report_row(what, mb * s->layers_n / decode_ns * 1e9, REPORT_NO_BAR, REPORT_HIGHER, "MB/s", "%s", "");
}

static void sweep(const struct codec_ops *ops)
{
    static const uint32_t hidden[] = {2560, 4096, 5120}, rows[] = {1, 32, 256}, layers_n[] = {1, BATCH_LAYERS_N};
    for (int f = 0; f < WIRE_FORMATS_N; f++)
        for (size_t h = 0; h < 3; h++)
            for (size_t r = 0; r < 3; r++)
                for (size_t l = 0; l < 2; l++)
                    sweep_one(&(struct sweep){ops, (enum wire_format)f, hidden[h], rows[r], layers_n[l], 0, false});
}

int main(int argc, char **argv)
{
    struct codec_ops ops;
    unsigned sets;
    struct lq_fault fault;
    report_begin("codec", argc, argv);
    if (cpu_allowed(&sets, &fault) != LQ_OK) { /* LQ_CPU=avx2 measures that form */
        report_fail("%s", fault.text);
        return report_end();
    }
    codec_init(&ops, sets);
    srand(1);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(rand() % 20001 - 10000) / 1000.0f;
    ops.f16_encode(x, N, f16);
    ops.i8_encode_row(x, N, i8);
    beside_memcpy(&ops);
    sweep(&ops);
    return report_end();
}
