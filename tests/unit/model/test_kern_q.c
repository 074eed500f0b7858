/* Quantised activations: every instruction set equal to the scalar form bit for bit, any
 * length, one or many rows, and the scalar form near the exact sum. Links kern, quant and
 * proto alone, so that it runs under qemu as well (make check-arm64). */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "model/kern.h"
#include "model/kern_q.h"
#include "proto/cpu.h"
#include "tests/unit/support.h"

enum { N_MAX = 1056, ROWS = KERN_Q_ROWS_MAX, GUARD = 8 };

static const struct isa {
    const char *name;
    unsigned sets;
} isas[] = {{"ref", 0}, {"avx2", CPU_AVX2}, {"vnni", CPU_AVX2 | CPU_AVX512 | CPU_VNNI}, {"neon", CPU_NEON}};
enum { ISAS_N = sizeof isas / sizeof *isas };

static uint32_t seed = 1;

static uint32_t next(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Random bytes whose half-precision scales are ordinary numbers. */
static void random_weights(enum quant_type t, size_t n, uint8_t *w)
{
    static const int scales[QUANT_TYPES_N][2] = {
        [QUANT_Q4_0] = {0, -1}, [QUANT_Q4_1] = {0, 2}, [QUANT_Q5_0] = {0, -1}, [QUANT_Q5_1] = {0, 2},
        [QUANT_Q8_0] = {0, -1}, [QUANT_Q4_K] = {0, 2}, [QUANT_Q5_K] = {0, 2},  [QUANT_Q6_K] = {208, -1}};
    size_t bytes = quant_row_bytes(t, n);
    for (size_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)next();
    for (size_t b = 0; b < bytes; b += quant_info[t].block_bytes)
        for (int k = 0; k < 2 && scales[t][k] >= 0; k++) {
            uint8_t *high = &w[b + (size_t)scales[t][k] + 1];
            *high = (uint8_t)((*high & 0x83) | 0x20);
        }
}

static void random_row(size_t n, float *x)
{
    float size = ldexpf(1.0f, (int)(next() % 40) - 20);
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)(next() & 0xffff) - 32768.0f) * size * (next() % 50 == 0 ? 30.0f : 1.0f);
}


/* Room for n bytes that end where memory does: a read beyond them is a fault. */
static uint8_t *weights_end(size_t n)
{
    enum { ROOM = 1 << 18, GUARD_BYTES = 1 << 16 };
    static uint8_t *room;
    if (!room) {
        room = mmap(NULL, ROOM + GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert(room != MAP_FAILED && mprotect(room + ROOM, GUARD_BYTES, PROT_NONE) == 0);
    }
    ck_assert(n <= ROOM);
    return room + ROOM - n;
}

static float rows[ROWS][N_MAX];
static struct kern_q_x want_x[ROWS * (N_MAX / KERN_Q_GROUP + 1)], got_x[ROWS * (N_MAX / KERN_Q_GROUP + 1)];

static void compare(const struct kern_q_ops *k, enum quant_type t, size_t n, bool two)
{
    static float dequant[N_MAX];
    size_t groups_n = kern_q_groups(n);
    uint32_t begin = seed;
    uint8_t *w = weights_end(quant_row_bytes(t, n)); /* rows need no alignment */
    random_weights(t, n, w);
    kern_ref.dequant[t](w, n, dequant);
    for (size_t r = 0; r < ROWS; r++) {
        random_row(n, rows[r]);
        kern_q_ref.quantize(rows[r], n, two, want_x + r, ROWS);
        k->quantize(rows[r], n, two, got_x + r, ROWS);
    }
    ck_assert_msg(memcmp(want_x, got_x, ROWS * groups_n * sizeof *want_x) == 0, "%s: digits of %zu differ, seed %u",
                  quant_info[t].name, n, begin);
    float want[ROWS], got[ROWS * 3 + 2 * GUARD], clean[ROWS * 3 + 2 * GUARD];
    for (size_t r = 0; r < ROWS; r++) {
        double exact = 0, size = 0, top = 0;
        kern_q_ref.dot[t](w, n, want_x + r, ROWS, 1, two, &want[r], 1);
        for (size_t i = 0; i < n; i++) {
            exact += (double)dequant[i] * (double)rows[r][i];
            size += fabs((double)dequant[i]);
            top = fmax(top, fabs((double)rows[r][i]));
        }
        /* Half a step of the coarsest block for each value, and what floats round. */
        double bound = size * top * (0.5 / (two ? 16256 : 127) + 300 * (double)FLT_EPSILON * 64);
        ck_assert_msg(fabs((double)want[r] - exact) <= bound, "%s of %zu: %g, exact %g, bound %g", quant_info[t].name,
                      n, (double)want[r], exact, bound);
    }
    for (size_t rows_n = 1; rows_n <= ROWS; rows_n += rows_n < 4 ? 1 : 6) {
        memset(got, 0xff, sizeof got);
        memset(clean, 0xff, sizeof clean);
        for (size_t r = 0; r < rows_n; r++)
            clean[GUARD + 3 * r] = want[r];
        k->dot[t](w, n, got_x, ROWS, rows_n, two, got + GUARD, 3);
        ck_assert_msg(memcmp(got, clean, sizeof got) == 0,
                      "%s of %zu with %zu rows differs or wrote outside, seed %u", quant_info[t].name, n, rows_n,
                      begin);
    }
}

/* 16 weight rows at once, as so many dots of the scalar form. */
static void compare_tile(const struct kern_q_ops *k, enum quant_type t, size_t n, size_t rows_n, bool two)
{
    enum { STEP = KERN_Q_TILE_ROWS + 5, OUT_N = KERN_Q_TILE_X * STEP + 2 * GUARD };
    static struct kern_q_x x[KERN_Q_TILE_X * (N_MAX / KERN_Q_GROUP + 1)];
    static float want[OUT_N], got[OUT_N];
    size_t step = quant_row_bytes(t, n);
    uint32_t begin = seed;
    uint8_t *w = weights_end(KERN_Q_TILE_ROWS * step);
    for (size_t i = 0; i < KERN_Q_TILE_ROWS; i++)
        random_weights(t, n, w + i * step);
    for (size_t r = 0; r < rows_n; r++) {
        random_row(n, rows[0]);
        kern_q_ref.quantize(rows[0], n, two, x + r, rows_n);
    }
    memset(want, 0xff, sizeof want);
    memset(got, 0xff, sizeof got);
    for (size_t i = 0; i < KERN_Q_TILE_ROWS; i++)
        for (size_t r = 0; r < rows_n; r++)
            kern_q_ref.dot[t](w + i * step, n, x + r, rows_n, 1, two, &want[GUARD + r * STEP + i], 1);
    k->tile[t](w, step, n, x, rows_n, rows_n, two, got + GUARD, STEP);
    ck_assert_msg(memcmp(got, want, sizeof got) == 0,
                  "%s: tile of %zu with %zu rows differs or wrote outside, seed %u", quant_info[t].name, n, rows_n,
                  begin);
}

START_TEST(tiles_equal_dots_bit_for_bit)
{
    static const size_t rows_n[] = {1, 2, 7, KERN_Q_TILE_X};
    struct kern_q_ops k;
    if ((cpu_detect() & isas[_i].sets) != isas[_i].sets)
        return;
    kern_q_init(&k, isas[_i].sets);
    for (int t = 0; t < QUANT_TYPES_N; t++)
        for (size_t n = quant_info[t].block_n; k.tile[t] && n <= N_MAX; n += quant_info[t].block_n)
            for (size_t i = 0; i < 4; i++)
                compare_tile(&k, (enum quant_type)t, n, rows_n[i], (n / quant_info[t].block_n + i) % 2);
}
END_TEST

START_TEST(equal_scalar_bit_for_bit)
{
    struct kern_q_ops k;
    if ((cpu_detect() & isas[_i].sets) != isas[_i].sets) {
        fprintf(stderr, "SKIPPED: %s: this CPU lacks it\n", isas[_i].name);
        return;
    }
    kern_q_init(&k, isas[_i].sets);
    for (int t = 0; t < QUANT_TYPES_N; t++) {
        if (!k.dot[t])
            continue;
        for (size_t n = quant_info[t].block_n; n <= N_MAX; n += quant_info[t].block_n)
            for (int turn = 0; turn < 4; turn++)
                compare(&k, (enum quant_type)t, n, turn % 2);
    }
}
END_TEST

START_TEST(what_is_not_finite_stays_so)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    struct kern_q_ops k;
    if ((cpu_detect() & isas[_i].sets) != isas[_i].sets)
        return;
    kern_q_init(&k, isas[_i].sets);
    uint8_t *weights = weights_end(512 * 2);
    for (int t = 0; t < QUANT_TYPES_N; t++)
        for (size_t b = 0; b < 6 && k.dot[t]; b++) {
            float out;
            random_weights((enum quant_type)t, 512, weights);
            random_row(512, rows[0]);
            rows[0][next() % 512] = bad[b % 3];
            k.quantize(rows[0], 512, b / 3, got_x, 1);
            k.dot[t](weights, 512, got_x, 1, 1, b / 3, &out, 1);
            ck_assert_msg(!isfinite(out), "%s: %g", quant_info[t].name, (double)out);
        }
    float zeros[64] = {0}, tiny[64], out;
    for (int i = 0; i < 64; i++)
        tiny[i] = 1e-42f;
    for (int two = 0; two < 2; two++) {
        k.quantize(zeros, 64, two, got_x, 1);
        k.dot[QUANT_Q8_0](weights, 64, got_x, 1, 1, two, &out, 1);
        ck_assert(out == 0.0f);
        k.quantize(tiny, 64, two, got_x, 1);
        k.dot[QUANT_Q8_0](weights, 64, got_x, 1, 1, two, &out, 1);
        ck_assert(out == 0.0f);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kern_q");
    TCase *t = tcase_create("kern_q");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, equal_scalar_bit_for_bit, 0, ISAS_N);
    tcase_add_loop_test(t, tiles_equal_dots_bit_for_bit, 0, ISAS_N);
    tcase_add_loop_test(t, what_is_not_finite_stays_so, 0, ISAS_N);
    suite_add_tcase(s, t);
    return run_suite(s);
}
