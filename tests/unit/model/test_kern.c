/* Kernels: the `gguf` package's values exactly, and every instruction set equal to the
 * scalar form bit for bit. Links kern, quant and proto alone, so that it runs under
 * qemu as well (make check-arm64). */
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/kern.h"
#include "proto/bytes.h"
#include "proto/cpu.h"
#include "tests/unit/support.h"

static const struct isa {
    const char *name;
    unsigned need, sets;
} isas[] = {{"ref", 0, 0},
            {"avx2", CPU_AVX2, CPU_AVX2},
            {"avx512", CPU_AVX512, CPU_AVX2 | CPU_AVX512},
            {"neon", CPU_NEON, CPU_NEON}};
enum { ISAS_N = sizeof isas / sizeof *isas, GUARD = 16, BYTES_MAX = 4096, VALUES_MAX = 1024 };

static bool isa_init(int i, struct kern_ops *k)
{
    if ((cpu_detect() & isas[i].need) != isas[i].need) {
        fprintf(stderr, "SKIPPED: %s kernels: this CPU lacks %s\n", isas[i].name, isas[i].name);
        return false;
    }
    kern_init(k, isas[i].sets);
    ck_assert_str_eq(k->name, isas[i].name);
    return true;
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Random blocks; each half or float in them finite and ordinary, so that sums are too. */
static void random_weights(enum quant_type t, size_t n, uint8_t *w, uint32_t *seed)
{
    static const struct {
        int at[3]; /* offsets of f16 scales; -1: none */
    } scales[QUANT_TYPES_N] = {
        [QUANT_Q4_0] = {{0, -1, -1}}, [QUANT_Q4_1] = {{0, 2, -1}},   [QUANT_Q5_0] = {{0, -1, -1}},
        [QUANT_Q5_1] = {{0, 2, -1}},  [QUANT_Q8_0] = {{0, -1, -1}},  [QUANT_Q4_K] = {{0, 2, -1}},
        [QUANT_Q5_K] = {{0, 2, -1}},  [QUANT_Q6_K] = {{208, -1, -1}}};
    size_t bytes = quant_row_bytes(t, n);
    for (size_t i = 0; i < bytes; i++)
        w[i] = (uint8_t)next(seed);
    for (size_t i = 0; i < n && t == QUANT_F32; i++)
        lef32_put(w + 4 * i, (float)((int)(next(seed) & 0xffff) - 32768) / 4096.0f);
    for (size_t i = 0; i < n && (t == QUANT_F16 || t == QUANT_BF16); i++)
        w[2 * i + 1] = (uint8_t)((w[2 * i + 1] & 0x87) | 0x38); /* |value| below 4 */
    for (size_t b = 0; b < bytes && quant_info[t].block_n > 1; b += quant_info[t].block_bytes)
        for (int k = 0; k < 3 && scales[t].at[k] >= 0; k++)
            w[b + (size_t)scales[t].at[k] + 1] = (uint8_t)((w[b + (size_t)scales[t].at[k] + 1] & 0x83) | 0x20);
}

START_TEST(dequant_equals_the_gguf_package)
{
    struct kern_ops k;
    json_error_t err;
    if (!isa_init(_i, &k))
        return;
    json_t *all = json_load_file("tests/golden/dequant.json", 0, &err), *c;
    ck_assert_msg(all != NULL, "tests/golden/dequant.json: %s", err.text);
    size_t i;
    json_array_foreach(json_object_get(all, "cases"), i, c)
    {
        static uint8_t w[BYTES_MAX], want[4 * BYTES_MAX];
        static float out[BYTES_MAX];
        const char *name = json_string_value(json_object_get(c, "type"));
        int t = 0;
        while (t < QUANT_TYPES_N && strcmp(quant_info[t].name, name) != 0)
            t++;
        ck_assert_msg(t < QUANT_TYPES_N, "unknown type %s", name);
        size_t bytes = unhex(json_string_value(json_object_get(c, "bytes")), w);
        size_t n = unhex(json_string_value(json_object_get(c, "f32")), want) / 4;
        ck_assert_uint_eq(quant_row_bytes((enum quant_type)t, n), bytes);
        k.dequant[t](w, n, out);
        for (size_t v = 0; v < n; v++) {
            uint32_t bits;
            memcpy(&bits, &out[v], 4);
            ck_assert_msg(bits == le32_get(want + 4 * v), "%s value %zu: %a, gguf has bits %08x", name, v,
                          (double)out[v], le32_get(want + 4 * v));
        }
    }
    ck_assert_uint_eq(i, QUANT_TYPES_N - 1); /* all but F32 */
    json_decref(all);
}
END_TEST

/* One length of one type against the scalar form: bits, guards, and dot = dequant + dot_f32. */
static void compare(const struct kern_ops *k, enum quant_type t, size_t n, uint32_t *seed)
{
    static uint8_t w[4 * VALUES_MAX + 64];
    static float x[VALUES_MAX], got[VALUES_MAX + 2 * GUARD], want[VALUES_MAX + 2 * GUARD];
    uint8_t *p = w + (next(seed) & 3); /* rows need no alignment */
    uint32_t begin = *seed;
    random_weights(t, n, p, seed);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(next(seed) & 0xfff) - 2048) / 512.0f;
    memset(got, 0xff, sizeof got);
    memset(want, 0xff, sizeof want);
    k->dequant[t](p, n, got + GUARD);
    kern_ref.dequant[t](p, n, want + GUARD);
    ck_assert_msg(memcmp(got, want, sizeof got) == 0, "%s dequant %s of %zu differs or wrote outside, seed %u",
                  k->name, quant_info[t].name, n, begin);
    float a = k->dot[t](p, x, n), b = kern_ref.dot[t](p, x, n), c = kern_ref.dot_f32(want + GUARD, x, n);
    ck_assert_msg(memcmp(&a, &b, 4) == 0, "%s dot %s of %zu: %a, ref %a, seed %u", k->name, quant_info[t].name, n,
                  (double)a, (double)b, begin);
    ck_assert_msg(memcmp(&b, &c, 4) == 0, "dot %s of %zu is not dequant + dot_f32: %a, %a, seed %u",
                  quant_info[t].name, n, (double)b, (double)c, begin);
    double exact = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        exact += (double)want[GUARD + i] * (double)x[i];
        size += fabs((double)want[GUARD + i] * (double)x[i]);
    }
    ck_assert_msg(fabs((double)b - exact) <= (double)(n + 32) * FLT_EPSILON * size, "dot %s of %zu: %g, exact %g",
                  quant_info[t].name, n, (double)b, exact);
}

START_TEST(rows_equal_scalar_bit_for_bit)
{
    struct kern_ops k;
    uint32_t seed = 99;
    if (!isa_init(_i, &k))
        return;
    for (int t = 0; t < QUANT_TYPES_N; t++) {
        size_t block = quant_info[t].block_n, last = block == 1 ? 257 : VALUES_MAX;
        for (size_t n = 0; n <= last; n += block)
            for (int turn = 0; turn < (block == 1 ? 2 : 30); turn++)
                compare(&k, (enum quant_type)t, n, &seed);
    }
}
END_TEST

START_TEST(vectors_equal_scalar_on_every_length)
{
    struct kern_ops k;
    uint32_t seed = 7;
    if (!isa_init(_i, &k))
        return;
    for (size_t n = 0; n <= 257; n++) {
        float a[257 + 2 * GUARD], b[257 + 2 * GUARD], x[257], y[257];
        for (size_t i = 0; i < n; i++) {
            x[i] = (float)((int)(next(&seed) & 0xffff) - 32768) / (next(&seed) & 1 ? 1024.0f : 300.0f);
            y[i] = (float)((int)(next(&seed) & 0xffff) - 32768) / 8192.0f;
        }
        float da = k.dot_f32(x, y, n), db = kern_ref.dot_f32(x, y, n);
        ck_assert_msg(memcmp(&da, &db, 4) == 0, "dot_f32 of %zu", n);
        for (int what = 0; what < 4; what++) {
            memset(a, 0xff, sizeof a);
            memset(b, 0xff, sizeof b);
            memcpy(a + GUARD, x, n * 4);
            memcpy(b + GUARD, x, n * 4);
            for (int r = 0; r < 2; r++) {
                const struct kern_ops *f = r ? &kern_ref : &k;
                float *out = (r ? b : a) + GUARD;
                if (what == 0)
                    f->axpy(0.37f, y, n, out);
                else if (what == 1)
                    f->scale_mul(x, 1.7f, y, n, out);
                else if (what == 2)
                    f->silu_mul(out, y, n);
                else
                    f->gelu_tanh_mul(out, y, n);
            }
            ck_assert_msg(memcmp(a, b, sizeof a) == 0, "vector kernel %d of %zu differs or wrote outside", what, n);
        }
    }
}
END_TEST

START_TEST(activations_against_libm)
{
    for (int i = -4000; i <= 4000; i++) {
        float x = (float)i / 100.0f, one = 1.0f, s = x, g = x;
        double silu = (double)x / (1 + exp(-(double)x));
        double gelu = 0.5 * (double)x * (1 + tanh(sqrt(2 / M_PI) * ((double)x + 0.044715 * pow((double)x, 3))));
        kern_ref.silu_mul(&s, &one, 1);
        kern_ref.gelu_tanh_mul(&g, &one, 1);
        ck_assert_msg(fabs((double)s - silu) <= 1e-6 * fabs(silu) + 1e-30, "silu(%g) = %g, libm %g", (double)x,
                      (double)s, silu);
        /* gelu's argument grows with x^3: so does what rounding it costs */
        ck_assert_msg(fabs((double)g - gelu) <=
                          1e-6 * (1 + fabs((double)x * (double)x * (double)x)) * fabs(gelu) + 1e-15,
                      "gelu(%g) = %g, libm %g", (double)x, (double)g, gelu);
    }
    float big[4] = {1e30f, -1e30f, 3e38f, -3e38f}, ones[4] = {1, 1, 1, 1};
    kern_ref.silu_mul(big, ones, 4);
    ck_assert(big[0] == 1e30f && fabsf(big[1]) < 1e-6f);
    ck_assert(isfinite(big[2]) && isfinite(big[3]));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kern");
    TCase *t = tcase_create("kern");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, dequant_equals_the_gguf_package, 0, ISAS_N);
    tcase_add_loop_test(t, rows_equal_scalar_bit_for_bit, 0, ISAS_N);
    tcase_add_loop_test(t, vectors_equal_scalar_on_every_length, 0, ISAS_N);
    tcase_add_test(t, activations_against_libm);
    suite_add_tcase(s, t);
    return run_suite(s);
}
