/* Dot products of one row, every weight type: each instruction set beside the scalar
 * form, in one run. A row of 5,120 weights in L1: what the arithmetic alone costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/support/timer.h"
#include "model/kern.h"
#include "proto/cpu.h"

enum { N = 5120, ROWS = 64, MS = 40 };

struct job {
    float (*dot)(const void *w, const float *x, size_t n);
    const void *w;
    const float *x;
    volatile float sink;
};

static void run(void *arg)
{
    struct job *j = arg;
    float sum = 0;
    for (int i = 0; i < ROWS; i++)
        sum += j->dot(j->w, j->x, N);
    j->sink = sum;
}

int main(void)
{
    static float x[N];
    static unsigned char w[N * 4];
    static const struct {
        const char *name;
        unsigned need, sets;
    } isas[] = {
        {"avx2", CPU_AVX2, CPU_AVX2}, {"avx512", CPU_AVX512, CPU_AVX2 | CPU_AVX512}, {"neon", CPU_NEON, CPU_NEON}};
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 17) / 16.0f - 0.5f;
    for (size_t i = 0; i < sizeof w; i++)
        w[i] = (unsigned char)(0x30 + (i * 37 & 0x0b)); /* every 2 or 4 bytes an ordinary number */
    printf("%-5s %14s", "type", "ref ns/row");
    for (size_t k = 0; k < 3; k++)
        printf(" %10s x", isas[k].name);
    putchar('\n');
    for (int t = 0; t < QUANT_TYPES_N; t++) {
        struct job j = {.dot = kern_ref.dot[t], .w = w, .x = x};
        double ref = timer_best_ns(run, &j, MS) / ROWS;
        printf("%-5s %14.0f", quant_info[t].name, ref);
        for (size_t k = 0; k < 3; k++) {
            struct kern_ops ops;
            if ((cpu_detect() & isas[k].need) != isas[k].need) {
                printf(" %12s", "-");
                continue;
            }
            kern_init(&ops, isas[k].sets);
            j.dot = ops.dot[t];
            printf(" %12.2f", ref / (timer_best_ns(run, &j, MS) / ROWS));
        }
        putchar('\n');
    }
    return 0;
}
