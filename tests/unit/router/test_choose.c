/* Which replica is asked: the cheaper of two, not one that was tried; the newest table
 * before a no. */
#include <event2/event.h>
#include <stdlib.h>

#include "router/link.h"
#include "tests/unit/support.h"

enum { DRAWS = 2000 };

/* All of one model's layers 0-3, serving and up. */
static struct route_table *table_of(uint32_t members_n)
{
    struct member **members = calloc(members_n + 1, sizeof *members);
    struct route_model *models = calloc(1, sizeof *models);
    struct route_claim *claims = calloc(members_n + 1, sizeof *claims);
    struct route_table *t = NULL;
    for (uint32_t i = 0; i < members_n; i++) {
        members[i] = member_new("http://h:1", "id", false, 1, NULL);
        members[i]->health = MEMBER_UP;
        members[i]->checked = true;
        members[i]->latency_us = 100;
        claims[i] = (struct route_claim){.member = i, .last = 3};
    }
    ck_assert_int_eq(route_table_new_take(members, members_n, models, 1, claims, members_n, &t, NULL), LQ_OK);
    t->grid = true;
    return t;
}

static void begin(struct router *rt, uint32_t members_n)
{
    *rt = (struct router){.random = 42, .loop = loop_new(), .table = table_of(members_n)};
    TAILQ_INIT(&rt->links);
}

static void end(struct router *rt)
{
    route_table_unref(rt->table);
    loop_free(rt->loop);
}

static struct member *ask(struct router *rt, const struct tried *tried)
{
    const uint32_t layer = 2;
    struct member *chosen[1], *one = NULL;
    struct lq_fault fault;
    return flow_choose(rt, NULL, &layer, 1, tried, chosen, &one, &fault) == LQ_OK ? one : NULL;
}

START_TEST(one_that_stands_still_collects_nothing)
{
    struct router rt;
    begin(&rt, 2);
    rt.table->members[_i]->inflight_n = 1;
    for (int i = 0; i < DRAWS; i++)
        ck_assert_ptr_eq(ask(&rt, NULL), rt.table->members[1 - _i]);
    end(&rt);
}
END_TEST

START_TEST(any_two_of_many_are_drawn)
{
    struct router rt;
    uint32_t n[5] = {0};
    begin(&rt, 5);
    rt.table->members[4]->inflight_n = 9; /* worse than any other */
    for (int i = 0; i < DRAWS; i++) {
        struct member *m = ask(&rt, NULL);
        for (uint32_t k = 0; k < 5; k++)
            n[k] += rt.table->members[k] == m;
    }
    ck_assert_uint_eq(n[4], 0);
    for (uint32_t k = 0; k < 4; k++)
        ck_assert_uint_gt(n[k], DRAWS / 8);
    end(&rt);
}
END_TEST

START_TEST(tried_is_known_by_number_not_by_address)
{
    struct router rt;
    struct tried tried = {.n = 0};
    begin(&rt, 2);
    tried_add(&tried, rt.table->members[0]);
    for (int i = 0; i < DRAWS; i++)
        ck_assert_ptr_eq(ask(&rt, &tried), rt.table->members[1]);
    rt.table->members[0]->serial += 1000000; /* freed, and another one at its address */
    ck_assert(!tried_has(&tried, rt.table->members[0]));
    end(&rt);
}
END_TEST

START_TEST(next_table_is_taken_before_a_no)
{
    struct router rt;
    begin(&rt, 1);
    rt.table->members[0]->standing = MEMBER_DRAINING;
    ck_assert_ptr_null(ask(&rt, NULL));
    struct route_table *old = rt.table, *next = table_of(2);
    next->generation = 1;
    rt.next_table = next;
    ck_assert_ptr_nonnull(ask(&rt, NULL));
    ck_assert_ptr_eq(rt.table, next);
    ck_assert_uint_eq(old->refs, 1); /* who holds its members may go on, this turn */
    event_base_loop(loop_base(rt.loop), EVLOOP_NONBLOCK);
    end(&rt);
}
END_TEST

static struct router *told;

static void asks_again(struct link_use *u)
{
    (void)u;
    ck_assert_ptr_null(ask(told, NULL));
}

/* A host dies: one of its shards is found dead, both have left, and who is told asks for
 * another replica, for which the loop takes the table that has neither. */
START_TEST(telling_may_take_a_table)
{
    struct router rt;
    struct crew crew = {.routers = &rt, .routers_n = 1};
    struct lq_fault fault;
    begin(&rt, 2);
    told = &rt;
    rt.crew = &crew;
    struct member *a = rt.table->members[0], *b = rt.table->members[1];
    struct link *la = link_of(&rt, a, &fault), *lb = link_of(&rt, b, &fault);
    ck_assert(la && lb);
    struct link_use use = {.on_down = asks_again};
    link_use_begin(la, &use);
    a->health = MEMBER_DOWN;
    a->standing = b->standing = MEMBER_DRAINING;
    rt.next_table = table_of(0);
    rt.next_table->generation = 1;
    link_tell_down(&rt);
    ck_assert_uint_eq(use.told, 1);
    ck_assert(TAILQ_EMPTY(&rt.links));
    link_use_end(&use);
    event_base_loop(loop_base(rt.loop), EVLOOP_NONBLOCK);
    end(&rt);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("choose");
    TCase *t = tcase_create("choose");
    tcase_add_loop_test(t, one_that_stands_still_collects_nothing, 0, 2);
    tcase_add_test(t, any_two_of_many_are_drawn);
    tcase_add_test(t, tried_is_known_by_number_not_by_address);
    tcase_add_test(t, next_table_is_taken_before_a_no);
    tcase_add_test(t, telling_may_take_a_table);
    suite_add_tcase(s, t);
    return run_suite(s);
}
