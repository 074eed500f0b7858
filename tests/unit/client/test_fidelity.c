/* fidelity against numpy's figures (tests/golden/make_fidelity.py), and the ends of its range. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "client/fidelity.h"
#include "tests/unit/support.h"

static json_t *golden(void)
{
    size_t n;
    char *text = read_text("tests/golden/fidelity.json", &n);
    json_t *o = json_loadb(text, n, 0, NULL);
    free(text);
    ck_assert_ptr_nonnull(o);
    return o;
}

static float *floats(const json_t *o, const char *name, size_t *n)
{
    const json_t *list = json_object_get(o, name);
    *n = json_array_size(list);
    float *v = malloc(*n * sizeof *v);
    for (size_t i = 0; i < *n; i++)
        v[i] = (float)json_number_value(json_array_get(list, i));
    return v;
}

static double number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    ck_assert_msg(json_is_number(v), "%s", name);
    return json_number_value(v);
}

static void check_top(const json_t *o, const char *name, const float *v, size_t n, size_t k)
{
    uint32_t ids[FIDELITY_TOP_MAX];
    fidelity_top(v, n, k, ids);
    for (size_t i = 0; i < k; i++)
        ck_assert_uint_eq(ids[i], (unsigned long)json_integer_value(json_array_get(json_object_get(o, name), i)));
}

START_TEST(logits_as_numpy_has_them)
{
    json_t *o = golden(), *list = json_object_get(o, "logits");
    ck_assert_uint_gt(json_array_size(list), 4);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        size_t n, k = (size_t)number(c, "k");
        float *want = floats(c, "want", &n), *got = floats(c, "got", &n);
        check_top(c, "want_top", want, n, k);
        check_top(c, "got_top", got, n, k);
        double log_sum = fidelity_log_sum(want, n), kl = number(c, "kl");
        ck_assert_double_eq_tol(log_sum, number(c, "log_sum"), 1e-12 * (1 + fabs(log_sum)));
        ck_assert_double_eq_tol(fidelity_kl(want, log_sum, got, n), kl, 1e-12 + 1e-9 * kl);
        free(want);
        free(got);
    }
    json_decref(o);
}
END_TEST

START_TEST(rows_as_numpy_has_them)
{
    json_t *o = golden(), *list = json_object_get(o, "rows");
    ck_assert_uint_gt(json_array_size(list), 10);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        struct fidelity_row r;
        size_t n;
        float *row = floats(c, "row", &n), *got = floats(c, "got", &n), *scratch = malloc(n * sizeof *scratch);
        float median = fidelity_median(row, n, scratch);
        ck_assert_float_eq(median, (float)number(c, "median"));
        fidelity_row(row, got, n, median, &r);
        ck_assert_uint_eq(r.nonzero_n, (unsigned long)number(c, "nonzero"));
        ck_assert_uint_eq(r.zeroed_n, (unsigned long)number(c, "zeroed"));
        ck_assert_uint_eq(r.ordinary_n, (unsigned long)number(c, "ordinary"));
        ck_assert_double_eq_tol(r.error, number(c, "error"), 1e-12);
        free(row);
        free(got);
        free(scratch);
    }
    json_decref(o);
}
END_TEST

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

START_TEST(median_of_any_row)
{
    float row[40], scratch[40], sorted[40];
    srand(1);
    for (int round = 0; round < 20000; round++) {
        size_t n = 1 + (size_t)rand() % 40;
        int kinds = 1 + rand() % 50; /* few: many ties */
        for (size_t i = 0; i < n; i++) {
            row[i] = (float)(rand() % kinds) - (float)kinds / 2;
            sorted[i] = fabsf(row[i]);
        }
        qsort(sorted, n, sizeof *sorted, by_size);
        ck_assert_float_eq(fidelity_median(row, n, scratch), sorted[n / 2]);
    }
}
END_TEST

START_TEST(matches)
{
    const uint32_t a[] = {5, 1, 2}, swapped[] = {5, 2, 1}, other_first[] = {1, 5, 2}, other[] = {5, 1, 3};
    ck_assert(fidelity_top_match(a, a, 3, true));
    ck_assert(fidelity_top_match(a, swapped, 3, false) && !fidelity_top_match(a, swapped, 3, true));
    ck_assert(!fidelity_top_match(a, other_first, 3, false)); /* the same set, another choice */
    ck_assert(!fidelity_top_match(a, other, 3, false) && fidelity_top_match(a, other, 2, false));
}
END_TEST

START_TEST(logits_that_are_no_numbers)
{
    const float v[] = {NAN, 1, NAN, -INFINITY, 1}, fine[] = {1, 2, 3, 4, 5}, inf[] = {1, INFINITY, 3, 4, 5};
    uint32_t ids[5];
    fidelity_top(v, 5, 5, ids);
    const uint32_t want[] = {1, 4, 3, 0, 2};
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(ids[i], want[i]);
    ck_assert(isnan(fidelity_kl(fine, fidelity_log_sum(fine, 5), v, 5)));
    ck_assert(isnan(fidelity_kl(fine, fidelity_log_sum(fine, 5), inf, 5)));
    ck_assert_double_eq(fidelity_kl(fine, fidelity_log_sum(fine, 5), fine, 5), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fidelity");
    TCase *t = tcase_create("fidelity");
    tcase_add_test(t, logits_as_numpy_has_them);
    tcase_add_test(t, rows_as_numpy_has_them);
    tcase_add_test(t, median_of_any_row);
    tcase_add_test(t, matches);
    tcase_add_test(t, logits_that_are_no_numbers);
    suite_add_tcase(s, t);
    return run_suite(s);
}
