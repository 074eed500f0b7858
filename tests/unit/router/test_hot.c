/* Which ranges are called hot, of loads that are known. */
#include <stdlib.h>

#include "router/event_log.h"
#include "router/hot.h"
#include "router/member.h"
#include "tests/unit/support.h"

/* Four members: two replicas of layers 0-1, one of 2-3, and another of 2-3. */
static struct route_table *table_of(const double *busy)
{
    struct member **members = calloc(5, sizeof *members);
    struct route_model *models = calloc(1, sizeof *models);
    struct route_claim *claims = calloc(5, sizeof *claims);
    struct route_table *t = NULL;
    for (uint32_t i = 0; i < 4; i++) {
        members[i] = member_new("http://h:1", "id", false, 1, NULL);
        members[i]->health = MEMBER_UP;
        members[i]->busy = busy[i];
        claims[i] = (struct route_claim){.member = i, .first = i / 2 * 2, .last = i / 2 * 2 + 1};
    }
    ck_assert_int_eq(route_table_new_take(members, 4, models, 1, claims, 4, &t, NULL), LQ_OK);
    return t;
}

START_TEST(load_is_the_mean_of_those_that_serve)
{
    struct route_table *t = table_of((const double[]){2, 4, 1, 9});
    const struct route_model *m = &t->models[0];
    ck_assert_double_eq(hot_range_load(t, route_find(m, 0)), 3);
    ck_assert_double_eq(hot_range_load(t, route_find(m, 2)), 5);
    ck_assert_double_eq(hot_model_load(t, m), 4);
    t->members[3]->health = MEMBER_DOWN;
    ck_assert_double_eq(hot_range_load(t, route_find(m, 2)), 1);
    t->members[2]->standing = MEMBER_DRAINING;
    ck_assert_double_eq(hot_range_load(t, route_find(m, 2)), 0);
    route_table_unref(t);
}
END_TEST

START_TEST(hot_is_a_queue_or_twice_the_rest)
{
    ck_assert(hot_is(4, 4, false)); /* all of them */
    ck_assert(!hot_is(3.9, 3.9, false));
    ck_assert(hot_is(1.5, 0.75, false));
    ck_assert(!hot_is(0.9, 0.1, false)); /* idle now and then */
    ck_assert(hot_is(2.1, 2.1, true));   /* it cools at half */
    ck_assert(!hot_is(1.9, 1.91, true));
    ck_assert(!hot_is(0, 0, true));
}
END_TEST

START_TEST(steps_become_events_once)
{
    struct router rt = {0};
    struct crew crew = {.routers = &rt, .routers_n = 1, .events = event_log_new(), .metrics = metrics_new()};
    rt.m.hot_ranges = metrics_gauge(crew.metrics, "hot", "test", "");
    struct route_table *t = table_of((const double[]){0, 0, 0, 0});
    struct hot *h = hot_new();
    t->members[0]->inflight_n = t->members[1]->inflight_n = 20;
    for (int i = 0; i < 600; i++) /* a minute */
        hot_tick(h, &crew, t);
    ck_assert_double_gt(t->members[0]->busy, 19.5);
    t->members[0]->inflight_n = t->members[1]->inflight_n = 0;
    for (int i = 0; i < 600; i++)
        hot_tick(h, &crew, t);
    json_t *events = event_log_json(crew.events, 10);
    ck_assert_uint_eq(json_array_size(events), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(events, 0), "event")), "cooled");
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(events, 1), "event")), "hot");
    json_decref(events);
    hot_free(h);
    route_table_unref(t);
    metrics_free(crew.metrics);
    event_log_free(crew.events);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hot");
    TCase *t = tcase_create("hot");
    tcase_add_test(t, load_is_the_mean_of_those_that_serve);
    tcase_add_test(t, hot_is_a_queue_or_twice_the_rest);
    tcase_add_test(t, steps_become_events_once);
    suite_add_tcase(s, t);
    return run_suite(s);
}
