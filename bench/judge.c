/* Is the judge of the kernels one? ggml's product, as bench/support/ggml.h sets it up,
 * beside a plain one in double precision over the weights that we dequantise: for every
 * type, for 1 and 8 rows and 1 and 2 threads. What it is off by is ggml's rounding of
 * activations to 8 bit (nothing like it for F32, F16 and BF16, whose sums are longer). */
#include <stdlib.h>

#include "bench/support/ggml.h"
#include "bench/support/report.h"
#include "model/kern.h"

enum { COLS = 1024, ROWS = 256, SEQ_MOST = 8 };
static _Alignas(64) unsigned char weights[COLS * ROWS * 4];
static float source[COLS * ROWS], plain[COLS * ROWS], x[SEQ_MOST * COLS];

static float noise(void) /* -1 to 1, three bytes of randomness summed: a bell */
{
    static unsigned long long state = 20;
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (int)(state >> 56) - 127;
    }
    return (float)sum / 384.0f;
}

/* Root of the squared distance from the plain product over its own square. */
static double distance(const float *got, size_t seq_n)
{
    double off = 0, all = 0;
    for (size_t s = 0; s < seq_n; s++) {
        for (size_t r = 0; r < ROWS; r++) {
            double want = 0;
            for (size_t c = 0; c < COLS; c++)
                want += (double)plain[r * COLS + c] * x[s * COLS + c];
            double d = got[s * ROWS + r] - want;
            off += d * d;
            all += want * want;
        }
    }
    return sqrt(off / all);
}

static void check_type(struct ggml_judge *judge, enum quant_type t)
{
    static const struct {
        size_t seq_n;
        int threads_n;
    } turns[] = {{1, 1}, {1, 2}, {SEQ_MOST, 2}};
    const char *why = NULL, *layout = "";
    double worst = 0;
    ggml_judge_quantize(judge, quant_info[t].ggml_type, source, ROWS, COLS, weights);
    for (size_t r = 0; r < ROWS; r++)
        kern_ref.dequant[t](weights + r * quant_row_bytes(t, COLS), COLS, plain + r * COLS);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct ggml_job *job = ggml_job_new(judge, quant_info[t].ggml_type, COLS, ROWS, weights, turns[i].seq_n,
                                            turns[i].threads_n, &why);
        if (!job) {
            report_fail("%s: %s", quant_info[t].name, why);
            return;
        }
        for (size_t k = 0; k < turns[i].seq_n * COLS; k++)
            ggml_job_in(job)[k] = x[k];
        if (!ggml_job_run(job))
            report_fail("%s: ggml failed", quant_info[t].name);
        worst = fmax(worst, distance(ggml_job_out(job), turns[i].seq_n));
        layout = ggml_job_layout(job);
        ggml_job_free(job);
    }
    report_row(quant_info[t].name, worst, 0.01, REPORT_LOWER, "rel", "%s, weights in %s", ggml_judge_variant(judge),
               layout);
}

int main(int argc, char **argv)
{
    const char *why = NULL;
    report_begin("judge", argc, argv);
    struct ggml_judge *judge = ggml_judge_open(&why);
    if (!judge) {
        report_fail("%s", why);
        return report_end();
    }
    for (size_t i = 0; i < COLS * ROWS; i++)
        source[i] = noise();
    for (size_t i = 0; i < SEQ_MOST * COLS; i++)
        x[i] = noise();
    for (int t = 0; t < QUANT_TYPES_N; t++)
        check_type(judge, (enum quant_type)t);
    ggml_judge_close(judge);
    return report_end();
}
