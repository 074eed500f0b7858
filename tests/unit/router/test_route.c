/* The shard map: grammar, messages, overlap; the table made of it: look-up. */
#include "router/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/member.h"
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
    {"0-65536=http://a", "end (65536) is over the limit of 65535"},
    {"8-0=http://a", "end (0) must be >= start (8)"},
    {"0-8=http://a,8-9=http://b", "layers 8-9 overlap 0-8 in part; a replica repeats a range exactly"},
    {"0-8=http://a,0-8=http://a/", "layers 0-8 name http://a twice"},
};

START_TEST(map_is_read_or_refused_in_the_documented_words)
{
    struct route_map m;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = route_map_parse(maps[_i].map, &m, &fault);
    if (maps[_i].text) {
        ck_assert_int_eq(rc, LQ_USAGE);
        ck_assert_str_eq(fault.text, maps[_i].text);
        ck_assert_ptr_null(m.claims);
    } else {
        ck_assert_msg(rc == LQ_OK, "%s: %s", maps[_i].map, fault.text);
        route_map_release(&m);
    }
}
END_TEST

/* A table of one model from claims as text: one member an index. */
static struct route_table *table_of(const struct route_claim *claims, size_t claims_n, size_t members_n,
                                    size_t models_n)
{
    struct member **members = calloc(members_n, sizeof *members);
    struct route_model *models = calloc(models_n, sizeof *models);
    struct route_claim *copy = malloc(claims_n * sizeof *copy);
    struct route_table *t = NULL;
    memcpy(copy, claims, claims_n * sizeof *copy);
    for (size_t i = 0; i < members_n; i++)
        members[i] = member_new("http://h:1", "id", true, 1, NULL);
    for (size_t i = 0; i < models_n; i++)
        snprintf(models[i].id, sizeof models[i].id, "m%zu", i);
    ck_assert_int_eq(route_table_new_take(members, members_n, models, models_n, copy, claims_n, &t, NULL), LQ_OK);
    return t;
}

START_TEST(every_layer_finds_its_owner)
{
    struct route_map m;
    ck_assert_int_eq(route_map_parse("20-29=http://c/,0-8=http://a,9-17=http://b,0-8=http://c", &m, NULL), LQ_OK);
    ck_assert_uint_eq(m.urls_n, 3); /* http://c/ and http://c are one */
    struct route_table *t = table_of(m.claims, m.claims_n, m.urls_n, 1);
    const struct route_model *model = route_model_find(t, NULL);
    for (uint32_t l = 0; l < 40; l++) {
        const struct route *r = route_find(model, l);
        bool owned = l <= 17 || (l >= 20 && l <= 29);
        ck_assert_msg((r != NULL) == owned, "layer %u", l);
        if (r)
            ck_assert_msg(r->first <= l && l <= r->last, "layer %u in %u-%u", l, r->first, r->last);
    }
    ck_assert_uint_eq(route_find(model, 3)->replicas_n, 2);
    ck_assert_uint_eq(model->routes_n, 3);
    ck_assert_ptr_null(route_find(model, UINT32_MAX));
    route_table_unref(t);
    route_map_release(&m);
}
END_TEST

START_TEST(thousand_routes)
{
    char map[64 * 1024];
    size_t n = 0;
    for (int i = 0; i < 1000; i++)
        n += (size_t)snprintf(map + n, sizeof map - n, "%d-%d=http://h:%d,", i * 3, i * 3 + 1, i + 1);
    struct route_map m;
    ck_assert_int_eq(route_map_parse(map, &m, NULL), LQ_OK);
    struct route_table *t = table_of(m.claims, m.claims_n, m.urls_n, 1);
    for (uint32_t l = 0; l < 3000; l++) {
        const struct route *r = route_find(&t->models[0], l);
        ck_assert_msg((r != NULL) == (l % 3 != 2), "layer %u", l);
        if (r)
            ck_assert_uint_eq(r->replicas[0], l / 3);
    }
    route_table_unref(t);
    route_map_release(&m);
}
END_TEST

/* Ranges that overlap as they please, several models: each layer's replicas are exactly the
 * members whose range has it. */
START_TEST(any_ranges_of_several_models)
{
    enum { CLAIMS = 60, MODELS = 3, LAYERS = 50 };
    srand((unsigned)_i);
    struct route_claim claims[CLAIMS];
    for (uint32_t i = 0; i < CLAIMS; i++) {
        uint32_t first = (uint32_t)rand() % LAYERS, last = first + (uint32_t)rand() % (LAYERS - first);
        claims[i] = (struct route_claim){(uint32_t)rand() % MODELS, i, first, last};
    }
    struct route_table *t = table_of(claims, CLAIMS, CLAIMS, MODELS);
    for (uint32_t k = 0; k < MODELS; k++) {
        char id[8];
        snprintf(id, sizeof id, "m%u", k);
        const struct route_model *model = route_model_find(t, id);
        for (uint32_t l = 0; l < LAYERS; l++) {
            const struct route *r = route_find(model, l);
            uint32_t want_n = 0;
            for (uint32_t i = 0; i < CLAIMS; i++) {
                bool want = claims[i].model == k && claims[i].first <= l && l <= claims[i].last, has = false;
                want_n += want;
                for (uint32_t x = 0; r && x < r->replicas_n; x++)
                    has |= r->replicas[x] == i;
                ck_assert_msg(has == want, "seed %d model %u layer %u member %u", _i, k, l, i);
            }
            ck_assert_uint_eq(r ? r->replicas_n : 0, want_n);
        }
    }
    ck_assert_ptr_null(route_model_find(t, NULL)); /* several */
    ck_assert_ptr_null(route_model_find(t, "m9"));
    route_table_unref(t);
}
END_TEST

START_TEST(empty_grid)
{
    struct route_table *t = NULL;
    ck_assert_int_eq(route_table_new_take(calloc(1, sizeof(void *)), 0, calloc(1, sizeof(struct route_model)), 0,
                                          calloc(1, sizeof(struct route_claim)), 0, &t, NULL),
                     LQ_OK);
    ck_assert_ptr_null(route_model_find(t, NULL));
    ck_assert_ptr_null(route_model_find(t, "m"));
    route_table_unref(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("route");
    TCase *t = tcase_create("map");
    tcase_add_loop_test(t, map_is_read_or_refused_in_the_documented_words, 0, sizeof maps / sizeof *maps);
    tcase_add_test(t, every_layer_finds_its_owner);
    tcase_add_test(t, thousand_routes);
    tcase_add_loop_test(t, any_ranges_of_several_models, 0, 50);
    tcase_add_test(t, empty_grid);
    suite_add_tcase(s, t);
    return run_suite(s);
}
