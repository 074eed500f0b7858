/* Codecs: the golden bytes on every path of this machine, and each SIMD form against
 * the scalar one on every length, any alignment, with guards around. */
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "proto/cpu.h"
#include "tests/unit/support.h"

static const struct path {
    const char *name;
    unsigned need, sets;
} paths[] = {{"ref", 0, 0},
             {"avx2", CPU_AVX2, CPU_AVX2},
             {"avx512", CPU_AVX512, CPU_AVX2 | CPU_AVX512},
             {"neon", CPU_NEON, CPU_NEON}};
enum { PATHS_N = sizeof paths / sizeof *paths, LENGTH_MAX = 257, GUARD = 16, GUARD_BYTE = 0xa5 };

/* False, and says so aloud, where this CPU lacks the set. */
static bool path_init(int i, struct codec_ops *ops)
{
    if ((cpu_detect() & paths[i].need) != paths[i].need) {
        fprintf(stderr, "SKIPPED: %s codecs: this CPU lacks %s\n", paths[i].name, paths[i].name);
        return false;
    }
    codec_init(ops, paths[i].sets);
    ck_assert_str_eq(ops->name, paths[i].name);
    return true;
}

static float from_bits(const char *hex)
{
    uint32_t u = (uint32_t)strtoul(hex, NULL, 16);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static json_t *vectors(const char *name)
{
    char path[128];
    json_error_t err;
    snprintf(path, sizeof path, "tests/vectors/%s", name);
    json_t *v = json_load_file(path, 0, &err);
    ck_assert_msg(v != NULL, "%s: %s", path, err.text);
    return v;
}

START_TEST(f16_golden_scalars)
{
    struct codec_ops ops;
    size_t i;
    json_t *all = vectors("f16_scalars.json"), *one;
    if (path_init(_i, &ops)) {
        json_array_foreach(all, i, one)
        {
            /* In each place of a long array, so that vector bodies and tails both see it. */
            float x[40], back[40];
            uint8_t out[80];
            uint16_t want = (uint16_t)strtoul(text_of(one, "f16"), NULL, 16);
            for (int k = 0; k < 40; k++)
                x[k] = from_bits(text_of(one, "f32"));
            size_t clipped = ops.f16_encode(x, 40, out);
            ck_assert_uint_eq(clipped, fabsf(x[0]) > 65504.0f ? 40 : 0);
            ck_assert_uint_eq(ops.f16_saturates(x, 40), clipped);
            ops.f16_decode(out, 40, back);
            for (int k = 0; k < 40; k++) {
                ck_assert_msg(out[2 * k] == (want & 255) && out[2 * k + 1] == want >> 8,
                              "%s at %d: %02x%02x, want %04x", text_of(one, "value"), k, out[2 * k + 1], out[2 * k],
                              want);
                float exact = f16_to_f32(want);
                ck_assert(memcmp(&back[k], &exact, 4) == 0);
            }
        }
    }
    json_decref(all);
}
END_TEST

START_TEST(i8_golden_rows)
{
    struct codec_ops ops;
    size_t i, k;
    json_t *all = vectors("i8_positions.json"), *one, *v;
    if (path_init(_i, &ops)) {
        json_array_foreach(all, i, one)
        {
            json_t *list = json_object_get(one, "f32"), *decoded = json_object_get(one, "decoded");
            size_t n = json_array_size(list);
            float x[64], back[64];
            uint8_t out[72], want[72];
            json_array_foreach(list, k, v) x[k] = from_bits(json_string_value(v));
            ck_assert_uint_eq(unhex(text_of(one, "wire"), want), 8 + n);
            ops.i8_encode_row(x, n, out);
            ck_assert_msg(memcmp(out, want, 8 + n) == 0, "%s", text_of(one, "name"));
            ops.i8_decode_row(want, n, back);
            json_array_foreach(decoded, k, v)
            {
                float exact = from_bits(json_string_value(v));
                ck_assert_msg(back[k] == exact, "%s: value %zu", text_of(one, "name"), k);
            }
        }
    }
    json_decref(all);
}
END_TEST

/* Every finite magnitude, denormals, ties of both codecs. */
static float any_float(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    uint32_t r = *seed, u = r ^ r << 13;
    float f;
    memcpy(&f, &u, sizeof f);
    if (!isfinite(f) || r % 7 == 0)
        f = (float)((int)(r >> 8 & 0xffff) - 32768) / 64.0f; /* ordinary values */
    if (r % 11 == 0)
        f = 65504.0f + (float)(r >> 20 & 31); /* near the saturation */
    if (r % 13 == 0)
        f = 0.0f;
    return f;
}

static void check_guards(const uint8_t *p, size_t n, const char *what, size_t length)
{
    for (size_t i = 0; i < GUARD; i++)
        ck_assert_msg(p[i] == GUARD_BYTE && p[GUARD + n + i] == GUARD_BYTE, "%s wrote outside at length %zu", what,
                      length);
}

static void compare_length(const struct codec_ops *ops, size_t n, size_t shift, uint32_t *seed)
{
    static float x[LENGTH_MAX + 4], f_got[LENGTH_MAX + 64], f_want[LENGTH_MAX + 64];
    static uint8_t got[4 * LENGTH_MAX + 128], want[4 * LENGTH_MAX + 128];
    for (size_t i = 0; i < n; i++)
        x[i] = any_float(seed);
    memset(got, GUARD_BYTE, sizeof got);
    memset(want, GUARD_BYTE, sizeof want);
    uint8_t *g = got + shift, *w = want + shift; /* misaligned on purpose */
    ck_assert_uint_eq(ops->f16_encode(x, n, g + GUARD), codec_ref.f16_encode(x, n, w + GUARD));
    ck_assert_msg(memcmp(g + GUARD, w + GUARD, 2 * n) == 0, "f16_encode differs at length %zu", n);
    check_guards(g, 2 * n, "f16_encode", n);
    memset(f_got, 0xff, sizeof f_got); /* NaN */
    memset(f_want, 0xff, sizeof f_want);
    ops->f16_decode(g + GUARD, n, f_got);
    codec_ref.f16_decode(g + GUARD, n, f_want);
    ck_assert_msg(memcmp(f_got, f_want, sizeof f_got) == 0, "f16_decode differs at length %zu", n);

    memset(got, GUARD_BYTE, sizeof got);
    ops->i8_encode_row(x, n, g + GUARD);
    codec_ref.i8_encode_row(x, n, w + GUARD);
    ck_assert_msg(memcmp(g + GUARD, w + GUARD, 8 + n) == 0, "i8_encode_row differs at length %zu", n);
    check_guards(g, 8 + n, "i8_encode_row", n);
    memset(f_got, 0xff, sizeof f_got);
    memset(f_want, 0xff, sizeof f_want);
    ops->i8_decode_row(g + GUARD, n, f_got);
    codec_ref.i8_decode_row(g + GUARD, n, f_want);
    ck_assert_msg(memcmp(f_got, f_want, sizeof f_got) == 0, "i8_decode_row differs at length %zu", n);

    ck_assert_uint_eq(ops->finite(x, n), n);
    if (n > 0) {
        size_t at = *seed % n;
        x[at] = *seed & 1 ? NAN : -INFINITY;
        ck_assert_uint_eq(ops->finite(x, n), at);
    }
}

START_TEST(simd_equals_scalar_on_every_length)
{
    struct codec_ops ops;
    uint32_t seed = 12345;
    if (!path_init(_i, &ops))
        return;
    for (int round = 0; round < 40; round++)
        for (size_t n = 0; n <= LENGTH_MAX; n++)
            compare_length(&ops, n, (size_t)round % 4, &seed);
}
END_TEST

/* Around every tie of i8, a few steps of f32 to both sides, for scales of all sizes: where a
 * product with the reciprocal would round the wrong way. */
START_TEST(i8_ties_round_as_the_division)
{
    enum { STEPS_N = 9, N = 1 + 127 * STEPS_N };
    struct codec_ops ops;
    static float x[N];
    static uint8_t got[8 + N], want[8 + N];
    uint32_t seed = 99;
    if (!path_init(_i, &ops))
        return;
    for (int e = -149; e <= 120; e++) {
        for (int round = 0; round < 6; round++) {
            seed = seed * 1664525u + 1013904223u;
            float most = ldexpf(1.0f + (float)(seed >> 9) * 0x1p-23f, e), scale = most / 127.0f;
            x[0] = most;
            for (int k = 0; k < 127; k++) {
                float at = ((float)k + 0.5f) * scale;
                for (int step = 0; step < STEPS_N / 2; step++)
                    at = nextafterf(at, 0.0f);
                for (int step = 0; step < STEPS_N; step++, at = nextafterf(at, INFINITY))
                    x[1 + k * STEPS_N + step] = (k ^ step) & 1 ? -at : at;
            }
            ops.i8_encode_row(x, N, got);
            codec_ref.i8_encode_row(x, N, want);
            ck_assert_msg(memcmp(got, want, sizeof got) == 0, "greatest value %a", (double)most);
        }
    }
}
END_TEST

/* One value that saturates, in any place among many that do not. */
START_TEST(f16_counts_a_single_saturation)
{
    enum { N = 200 };
    struct codec_ops ops;
    float x[N];
    uint8_t got[2 * N], want[2 * N];
    if (!path_init(_i, &ops))
        return;
    for (size_t at = 0; at < N; at++) {
        for (size_t i = 0; i < N; i++)
            x[i] = (float)i * -327.0f;
        x[at] = at & 1 ? -65505.0f : FLT_MAX;
        ck_assert_uint_eq(ops.f16_encode(x, N, got), 1);
        ck_assert_uint_eq(codec_ref.f16_encode(x, N, want), 1);
        ck_assert_msg(memcmp(got, want, sizeof got) == 0, "at %zu", at);
    }
}
END_TEST

START_TEST(every_half_decodes_and_encodes_back)
{
    struct codec_ops ops;
    if (!path_init(_i, &ops))
        return;
    static uint8_t bytes[2 * 65536], again[2 * 65536];
    static float x[65536];
    for (unsigned h = 0; h < 65536; h++) {
        bytes[2 * h] = (uint8_t)h;
        bytes[2 * h + 1] = (uint8_t)(h >> 8);
    }
    ops.f16_decode(bytes, 65536, x);
    for (unsigned h = 0; h < 65536; h++) {
        int e = (int)(h >> 10 & 31), sign = h & 0x8000 ? -1 : 1;
        double m = h & 1023, want = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        if (e < 31)
            ck_assert_msg((double)x[h] == sign * want && !!signbit(x[h]) == (sign < 0), "half %04x", h);
        else
            ck_assert_msg(m == 0 ? isinf(x[h]) : isnan(x[h]), "half %04x", h);
        if (e == 31)
            x[h] = 0.0f;
    }
    ck_assert_uint_eq(ops.f16_encode(x, 65536, again), 0);
    for (unsigned h = 0; h < 65536; h++)
        if ((h >> 10 & 31) < 31)
            ck_assert_msg(memcmp(bytes + 2 * h, again + 2 * h, 2) == 0, "half %04x does not come back", h);
}
END_TEST

/* f16 of many f32 patterns, against the definition in double: the nearest half, ties to even. */
START_TEST(f16_encode_rounds_to_nearest_even)
{
    for (uint64_t u = 0; u < 0x7f800000u; u += 977) {
        float x;
        uint32_t bits = (uint32_t)u;
        memcpy(&x, &bits, sizeof x);
        double d = fabs((double)x), step;
        uint16_t want;
        if (d > 65504.0) {
            want = 0x7bff;
        } else {
            int e;
            (void)frexp(d, &e);
            step = ldexp(1.0, d < 0x1p-14 ? -24 : e - 11);
            double units = nearbyint(d / step) * step; /* the default mode is nearest even */
            (void)frexp(units, &e);
            int code = units < 0x1p-14   ? (int)(units * 0x1p24)
                       : units > 65504.0 ? 0x7bff
                                         : (e + 14) << 10 | ((int)ldexp(units, 11 - e) & 1023);
            want = (uint16_t)code;
        }
        ck_assert_msg(f16_from_f32(x) == want, "%a: %04x, want %04x", (double)x, f16_from_f32(x), want);
        ck_assert_uint_eq(f16_from_f32(-x), want | 0x8000);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("codec");
    TCase *t = tcase_create("codec");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, f16_golden_scalars, 0, PATHS_N);
    tcase_add_loop_test(t, i8_golden_rows, 0, PATHS_N);
    tcase_add_loop_test(t, simd_equals_scalar_on_every_length, 0, PATHS_N);
    tcase_add_loop_test(t, i8_ties_round_as_the_division, 0, PATHS_N);
    tcase_add_loop_test(t, f16_counts_a_single_saturation, 0, PATHS_N);
    tcase_add_loop_test(t, every_half_decodes_and_encodes_back, 0, PATHS_N);
    tcase_add_test(t, f16_encode_rounds_to_nearest_even);
    suite_add_tcase(s, t);
    return run_suite(s);
}
