/* Retries and hedges: a tenth of ten seconds' requests, at least 64. */
#include "router/budget.h"

#include "tests/unit/support.h"

static const uint64_t second_us = 1000000;

START_TEST(floor_of_64)
{
    struct retry_budget b = {0};
    uint64_t now = 100 * second_us;
    budget_request(&b, now);
    for (int i = 0; i < BUDGET_FLOOR; i++)
        ck_assert_msg(budget_take(&b, now), "number %d", i);
    ck_assert(!budget_take(&b, now));
    ck_assert(!budget_take(&b, now + 9 * second_us));
    ck_assert(budget_take(&b, now + 10 * second_us)); /* they are forgotten */
}
END_TEST

START_TEST(tenth_of_many)
{
    struct retry_budget b = {0};
    uint64_t now = 1000 * second_us, taken_n = 0;
    for (int s = 0; s < 10; s++)
        for (int i = 0; i < 1000; i++)
            budget_request(&b, now + (uint64_t)s * second_us);
    now += 9 * second_us;
    while (budget_take(&b, now))
        taken_n++;
    ck_assert_uint_eq(taken_n, 1000);
    ck_assert_uint_eq(budget_left(&b, now), 0);
    /* Each second a thousand requests fall out, the retries only with theirs. */
    ck_assert(!budget_take(&b, now + second_us));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("budget");
    TCase *t = tcase_create("budget");
    tcase_add_test(t, floor_of_64);
    tcase_add_test(t, tenth_of_many);
    suite_add_tcase(s, t);
    return run_suite(s);
}
