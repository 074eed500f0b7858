/* The shard map: grammar, messages, overlap, look-up. */
#include "router/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support.h"

static const struct {
    const char *map, *text; /* text NULL: accepted */
} maps[] = {
    {"0-8=http://a:1,9-17=http://b:2", NULL},
    {" 0 - 8 = http://a:1 , , 9-17=http://b:2/ ,", NULL},
    {"9-17=http://b,0-8=http://a", NULL},
    {"0-8=http://a,0-8=http://b", NULL},
    {"0-3=http://a,8-11=http://a", NULL},
    {"0-0=unix:/run/s", NULL},
    {"", "no shards specified"},
    {" , ", "no shards specified"},
    {"0-8", "expected 'START-END=URL', got '0-8'"},
    {"0-8=", "expected 'START-END=URL', got '0-8='"},
    {"5=http://a", "expected 'START-END', got '5'"},
    {"=http://a", "expected 'START-END', got ''"},
    {"x-8=http://a", "invalid start 'x'"},
    {"-1-8=http://a", "invalid start ''"},
    {"+1-8=http://a", "invalid start '+1'"},
    {"0-8x=http://a", "invalid end '8x'"},
    {"0-=http://a", "invalid end ''"},
    {"0-4294967295=http://a", "invalid end '4294967295'"},
    {"0-99999999999=http://a", "invalid end '99999999999'"},
    {"8-0=http://a", "end (0) must be >= start (8)"},
    {"0-8=http://a,8-9=http://b", "layers 8-9 overlap 0-8 in part; a replica repeats a range exactly"},
    {"0-8=http://a,0-8=http://a/", "layers 0-8 name http://a twice"},
};

START_TEST(map_is_read_or_refused_in_the_documented_words)
{
    struct route_table t;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = route_table_parse(maps[_i].map, &t, &fault);
    if (maps[_i].text) {
        ck_assert_int_eq(rc, LQ_USAGE);
        ck_assert_str_eq(fault.text, maps[_i].text);
        ck_assert_ptr_null(t.routes);
    } else {
        ck_assert_msg(rc == LQ_OK, "%s: %s", maps[_i].map, fault.text);
        route_table_release(&t);
    }
}
END_TEST

START_TEST(every_layer_finds_its_owner)
{
    struct route_table t;
    ck_assert_int_eq(route_table_parse("20-29=http://c/,0-8=http://a,9-17=http://b,0-8=http://c", &t, NULL), LQ_OK);
    ck_assert_uint_eq(t.urls_n, 3); /* http://c/ and http://c are one */
    for (uint32_t l = 0; l < 40; l++) {
        const struct route *r = route_find(&t, l);
        bool owned = l <= 17 || (l >= 20 && l <= 29);
        ck_assert_msg((r != NULL) == owned, "layer %u", l);
        if (r)
            ck_assert_msg(r->first <= l && l <= r->last, "layer %u in %u-%u", l, r->first, r->last);
    }
    ck_assert_uint_eq(route_find(&t, 3)->replicas_n, 2);
    ck_assert_str_eq(t.urls[route_find(&t, 3)->replicas[1]], "http://c");
    ck_assert_ptr_null(route_find(&t, UINT32_MAX));
    route_table_release(&t);
}
END_TEST

START_TEST(thousand_routes)
{
    char map[64 * 1024];
    size_t n = 0;
    for (int i = 0; i < 1000; i++)
        n += (size_t)snprintf(map + n, sizeof map - n, "%d-%d=http://h:%d,", i * 3, i * 3 + 1, i + 1);
    struct route_table t;
    ck_assert_int_eq(route_table_parse(map, &t, NULL), LQ_OK);
    for (uint32_t l = 0; l < 3000; l++) {
        const struct route *r = route_find(&t, l);
        ck_assert_msg((r != NULL) == (l % 3 != 2), "layer %u", l);
        if (r)
            ck_assert_uint_eq(r->replicas[0], l / 3);
    }
    route_table_release(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("route");
    TCase *t = tcase_create("map");
    tcase_add_loop_test(t, map_is_read_or_refused_in_the_documented_words, 0, sizeof maps / sizeof *maps);
    tcase_add_test(t, every_layer_finds_its_owner);
    tcase_add_test(t, thousand_routes);
    suite_add_tcase(s, t);
    return run_suite(s);
}
