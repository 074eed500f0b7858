/* What `larql grid` makes of a router's answer: coverage, gaps, others' text. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "client/grid_view.h"
#include "tests/unit/support.h"

typedef Larql__Grid__V1__ServerInfo server_info;
typedef Larql__Grid__V1__ShardInfo shard_info;

static server_info server(const char *id, const char *state)
{
    server_info x = LARQL__GRID__V1__SERVER_INFO__INIT;
    x.server_id = x.listen_url = (char *)(uintptr_t)id;
    x.state = (char *)(uintptr_t)state;
    return x;
}

/* Two ranges, of "a" and of "b", of a model of layers_n, and a gap. */
static void with_view(uint32_t layers_n, uint32_t last_a, uint32_t first_b, uint32_t last_b, const char *state_b,
                      const Larql__Grid__V1__Gap *gap, void (*check)(const struct grid_view *v))
{
    server_info a = server("a", "serving"), b = server("b", state_b), *servers[] = {&b, &a};
    shard_info ra = LARQL__GRID__V1__SHARD_INFO__INIT, rb = ra, *ranges[] = {&ra, &rb};
    Larql__Grid__V1__Gap *gaps[] = {(Larql__Grid__V1__Gap *)(uintptr_t)gap};
    Larql__Grid__V1__ModelCoverage m = LARQL__GRID__V1__MODEL_COVERAGE__INIT, *models[] = {&m};
    Larql__Grid__V1__StatusResponse s = LARQL__GRID__V1__STATUS_RESPONSE__INIT;
    struct grid_view v;
    ra.server_ids = &a.server_id;
    rb.server_ids = &b.server_id;
    ra.n_server_ids = rb.n_server_ids = 1;
    ra.layer_end = last_a;
    rb.layer_start = first_b;
    rb.layer_end = last_b;
    m.model_id = (char *)(uintptr_t) "m\033]0;x";
    m.num_layers = layers_n;
    m.shards = ranges;
    m.n_shards = 2;
    m.gaps = gaps;
    m.n_gaps = gap != NULL;
    s.models = models;
    s.n_models = 1;
    s.servers = servers;
    s.n_servers = 2;
    ck_assert(grid_view_init(&v, &s));
    check(&v);
    grid_view_release(&v);
}

static void whole(const struct grid_view *v)
{
    char text[16];
    ck_assert_str_eq(grid_coverage_text(v->models, text), "100%");
    ck_assert_uint_eq(v->models->gaps_n, 0);
}

static void almost(const struct grid_view *v)
{
    char text[16];
    ck_assert_str_eq(grid_coverage_text(v->models, text), "99%"); /* 255 of 256: never called 100 */
    ck_assert_uint_eq(v->models->gaps_n, 1);
    ck_assert_uint_eq(v->models->gaps[0].first, 200);
    ck_assert_uint_eq(v->models->gaps[0].last, 200);
}

static void second_half_is_missing(const struct grid_view *v)
{
    char text[16];
    ck_assert_str_eq(grid_coverage_text(v->models, text), "50%");
    ck_assert_uint_eq(v->models->gaps_n, 1);
    ck_assert_uint_eq(v->models->gaps[0].first, 4);
    ck_assert_uint_eq(v->models->gaps[0].last, 7);
}

static void bounded(const struct grid_view *v)
{
    char text[16];
    ck_assert_str_eq(grid_coverage_text(v->models, text), "unknown");
    ck_assert_uint_eq(v->models->layers_n, GRID_VIEW_LAYERS_MAX);
    ck_assert_uint_eq(v->models->gaps[0].first, 4);
    ck_assert_uint_eq(v->models->gaps[0].last, 9);
}

START_TEST(test_coverage)
{
    Larql__Grid__V1__Gap gap = LARQL__GRID__V1__GAP__INIT;
    with_view(8, 3, 4, 7, "serving", NULL, whole);
    with_view(8, 3, 4, 7, "new", NULL, whole);
    with_view(256, 199, 201, 255, "serving", NULL, almost);
    with_view(8, 3, 4, 7, "down", NULL, second_half_is_missing);
    with_view(8, 3, 4, 7, "draining", NULL, second_half_is_missing);
    gap.layer_start = 4;
    gap.layer_end = 7;
    with_view(8, 3, 4, 7, "serving", &gap, second_half_is_missing);
    gap.layer_end = 9;
    with_view(0, 3, 4, UINT_MAX, "serving", &gap, bounded);
}
END_TEST

static void prints(const struct grid_view *v)
{
    char *text = NULL;
    size_t n, gaps_n;
    FILE *to = open_memstream(&text, &n);
    ck_assert_ptr_nonnull(to);
    grid_print_status(v, to);
    ck_assert(!grid_print_gaps(v, "none", to, &gaps_n));
    ck_assert(grid_print_gaps(v, v->models->m->model_id, to, &gaps_n));
    ck_assert_int_eq(fclose(to), 0);
    ck_assert_uint_eq(gaps_n, 1);
    ck_assert_ptr_null(strchr(text, '\033'));
    ck_assert_ptr_nonnull(strstr(text, "Model: m?]0;x (2 shards, coverage ~50%)\n"));
    ck_assert_ptr_nonnull(strstr(text, "  layers   4-7    servers=b  replicas=0\n  GAP layers 4-7\nServers:\n"));
    free(text);
    json_t *status = grid_status_json(v), *gaps = grid_gaps_json(v, NULL);
    ck_assert_uint_eq(json_array_size(json_object_get(status, "servers")), 2);
    ck_assert_uint_eq(json_array_size(json_object_get(gaps, "gaps")), 1);
    json_decref(status);
    json_decref(gaps);
}

START_TEST(test_print)
{
    with_view(8, 3, 4, 7, "down", NULL, prints);
}
END_TEST

START_TEST(test_shown)
{
    char longer[GRID_TEXT_BYTES_MAX + 100];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ck_assert_uint_eq(strlen(grid_shown(longer)), GRID_TEXT_BYTES_MAX);
    ck_assert_str_eq(grid_shown("a\tb\x7f"
                                "c\xc2\x9b"
                                "2J\xc3\xa9\xc2"),
                     "a?b?c?2J\xc3\xa9\xc2");
    ck_assert_str_eq(grid_shown(""), "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grid_view");
    TCase *t = tcase_create("all");
    tcase_add_test(t, test_coverage);
    tcase_add_test(t, test_print);
    tcase_add_test(t, test_shown);
    suite_add_tcase(s, t);
    return run_suite(s);
}
