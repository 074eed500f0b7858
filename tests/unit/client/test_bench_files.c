/* Files that `larql bench` reads: a wire policy and a baseline, whatever they hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/bench_baseline.h"
#include "client/wire_policy.h"
#include "tests/unit/support.h"

/* ---- policies ---- */

#define POLICY(layers) "{\"larql_wire_policy\":1,\"model\":\"m\",\"hidden_size\":6,\"layers\":" layers "}"

static enum lq_err parse(const char *text, size_t n, enum wire_format **out, struct lq_fault *fault)
{
    return wire_policy_parse("p.json", text, n, 3, 6, out, fault);
}

START_TEST(policy_is_read)
{
    static const char text[] = POLICY("[\"f16\",\"f32\",\"i8\"]");
    enum wire_format *formats = NULL;
    struct lq_fault fault;
    ck_assert_msg(parse(text, sizeof text - 1, &formats, &fault) == LQ_OK, "%s", fault.text);
    ck_assert(formats[0] == WIRE_F16 && formats[1] == WIRE_F32 && formats[2] == WIRE_I8);
    free(formats);
}
END_TEST

static const struct {
    const char *text, *says;
} bad_policies[] = {
    {"", "p.json"},
    {"[]", "p.json"},
    {"{", "p.json"},
    {"\xff\xfe", "p.json"},
    {POLICY("[\"f16\",\"f32\"]"), "2 layers"},
    {POLICY("[\"f16\",\"f32\",\"i8\",\"i8\"]"), "4 layers"},
    {POLICY("[\"f16\",\"f32\",\"i9\"]"), "layer 2"},
    {POLICY("[\"f16\",\"\",\"i8\"]"), "layer 1"},
    {POLICY("[\"f16\",\"f32\\u0000\",\"i8\"]"), "p.json"},
    {POLICY("[\"f16\",7,\"i8\"]"), "layer 1"},
    {POLICY("{\"0\":\"f16\"}"), "layers"},
    {POLICY("\"f16\""), "layers"},
    {"{\"larql_wire_policy\":2,\"model\":\"m\",\"hidden_size\":6,\"layers\":[\"f16\",\"f16\",\"f16\"]}", "version 2"},
    {"{\"larql_wire_policy\":1,\"model\":\"m\",\"hidden_size\":7,\"layers\":[\"f16\",\"f16\",\"f16\"]}",
     "hidden size 7"},
    {"{\"larql_wire_policy\":1,\"model\":\"m\",\"hidden_size\":6,\"layer\":[\"f16\",\"f16\",\"f16\"]}", "layers"},
    {"{\"larql_wire_policy\":1,\"model\":\"m\",\"hidden_size\":6,\"layers\":[\"f16\",\"f16\",\"f16\"],\"x\":1}",
     "p.json"},
    {"{\"larql_wire_policy\":1,\"model\":7,\"hidden_size\":6,\"layers\":[\"f16\",\"f16\",\"f16\"]}", "p.json"},
    {"{\"larql_wire_policy\":1,\"larql_wire_policy\":1,\"model\":\"m\",\"hidden_size\":6,\"layers\":[]}", "p.json"},
};

START_TEST(bad_policy_is_refused)
{
    enum wire_format *formats = NULL;
    struct lq_fault fault;
    const char *text = bad_policies[_i].text;
    ck_assert_int_eq(parse(text, strlen(text), &formats, &fault), LQ_USAGE);
    ck_assert_msg(strstr(fault.text, bad_policies[_i].says), "%s", fault.text);
    ck_assert_ptr_null(formats);
}
END_TEST

START_TEST(any_cut_or_flipped_policy_is_no_trap)
{
    char text[] = POLICY("[\"f16\",\"f32\",\"i8\"]");
    for (size_t i = 0; i < sizeof text - 1; i++) {
        enum wire_format *formats = NULL;
        ck_assert_int_eq(parse(text, i, &formats, NULL), LQ_USAGE);
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            if (parse(text, sizeof text - 1, &formats, NULL) == LQ_OK)
                free(formats);
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    }
    size_t deep = 100000;
    char *nested = malloc(deep);
    memset(nested, '[', deep);
    enum wire_format *formats = NULL;
    ck_assert_int_eq(parse(nested, deep, &formats, NULL), LQ_USAGE);
    free(nested);
}
END_TEST

START_TEST(policy_is_written_as_it_is_read)
{
    const enum wire_format wrote[3] = {WIRE_I8, WIRE_F32, WIRE_F16};
    enum wire_format *read = NULL;
    struct lq_fault fault;
    char path[] = "/tmp/lq-policy-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_msg(wire_policy_write(path, "bytes that are \xff no text", 6, wrote, 3, &fault) == LQ_OK, "%s",
                  fault.text);
    ck_assert_msg(wire_policy_read(path, 3, 6, &read, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_mem_eq(read, wrote, sizeof wrote);
    free(read);
    unlink(path);
    ck_assert_int_eq(wire_policy_read(path, 3, 6, &read, &fault), LQ_IO);
}
END_TEST

/* ---- baselines ---- */

static const char result[] =
    "{\"schema\":\"larql-bench\",\"version\":1,\"model\":{\"name\":\"m\"},\"input\":{\"steps\":4},"
    "\"topk\":{\"k\":5,\"ordered\":false},\"formats\":[{\"wire\":\"f16\",\"bytes_per_token\":{\"up\":100.0,\"down\":"
    "90.0},"
    "\"agreement\":{\"top1\":1.0,\"top5\":0.98,\"topk\":0.97},\"kl\":{\"mean\":0.001,\"max\":0.1},"
    "\"ms_per_token\":{\"p50\":10.0}}]}";

/* The result with one member of f16's changed. */
static json_t *changed(const char *group, const char *name, json_t *v)
{
    json_t *o = json_loads(result, 0, NULL), *f16 = json_array_get(json_object_get(o, "formats"), 0);
    if (group)
        json_object_set_new(json_object_get(f16, group), name, v);
    else
        json_decref(v);
    return o;
}

static size_t worse(const char *ratios, const char *group, const char *name, double v)
{
    struct baseline b = {.then = json_loads(result, 0, NULL), .ratios = {.bytes = 1, .agreement = 0.99, .kl = 2}};
    struct lq_fault fault;
    size_t n = 99;
    FILE *nowhere = fopen("/dev/null", "w");
    json_t *now = changed(group, name, json_real(v));
    if (ratios)
        ck_assert_int_eq(baseline_ratios_parse(ratios, &b.ratios, &fault), LQ_OK);
    ck_assert_msg(baseline_compare(&b, now, nowhere, &n, &fault) == LQ_OK, "%s", fault.text);
    fclose(nowhere);
    json_decref(now);
    baseline_release(&b);
    return n;
}

START_TEST(baseline_finds_what_is_worse)
{
    ck_assert_uint_eq(worse(NULL, NULL, NULL, 0), 0);
    ck_assert_uint_eq(worse(NULL, "bytes_per_token", "up", 101), 1);
    ck_assert_uint_eq(worse(NULL, "bytes_per_token", "down", 80), 0);
    ck_assert_uint_eq(worse("bytes=1.02", "bytes_per_token", "up", 101), 0);
    ck_assert_uint_eq(worse(NULL, "agreement", "top1", 0.991), 0);
    ck_assert_uint_eq(worse(NULL, "agreement", "top1", 0.98), 1);
    ck_assert_uint_eq(worse("agreement=0.9,kl=2", "agreement", "top1", 0.98), 0);
    ck_assert_uint_eq(worse(NULL, "kl", "mean", 0.0021), 1);
    ck_assert_uint_eq(worse(NULL, "kl", "max", 5), 0);
    ck_assert_uint_eq(worse("kl=3", "kl", "mean", 0.0021), 0);
    ck_assert_uint_eq(worse(NULL, "ms_per_token", "p50", 1000), 0); /* times only where asked */
    ck_assert_uint_eq(worse("ms=1.5", "ms_per_token", "p50", 16), 1);
}
END_TEST

START_TEST(baseline_figure_that_is_none_now_is_worse)
{
    struct baseline b = {.then = json_loads(result, 0, NULL), .ratios = {.bytes = 1, .agreement = 0.99, .kl = 2}};
    json_t *now = changed("kl", "mean", json_null());
    FILE *nowhere = fopen("/dev/null", "w");
    size_t n = 0;
    ck_assert_int_eq(baseline_compare(&b, now, nowhere, &n, NULL), LQ_OK);
    ck_assert_uint_eq(n, 1);
    fclose(nowhere);
    json_decref(now);
    baseline_release(&b);
}
END_TEST

static const struct {
    const char *member, *value, *says;
} others[] = {{"model", "{\"name\":\"n\"}", "another model"},
              {"input", "{\"steps\":5}", "other tokens"},
              {"formats", "[]", "no formats"},
              {"formats", "7", "no formats"},
              {"formats", "[7]", "without a name"},
              {"formats", "[{\"wire\":\"i8\"}]", "i8"}};

START_TEST(baseline_of_something_else_is_refused)
{
    struct baseline b = {.then = json_loads(result, 0, NULL)};
    struct lq_fault fault;
    size_t n;
    json_object_set_new(b.then, others[_i].member, json_loads(others[_i].value, JSON_DECODE_ANY, NULL));
    json_t *now = changed(NULL, NULL, NULL);
    ck_assert_int_eq(baseline_compare(&b, now, stderr, &n, &fault), LQ_USAGE);
    ck_assert_msg(strstr(fault.text, others[_i].says), "%s", fault.text);
    json_decref(now);
    baseline_release(&b);
}
END_TEST

START_TEST(ratios_are_checked)
{
    static const char *const bad[] = {"",         "bytes",         "bytes=",    "bytes=x",
                                      "bytes=0",  "bytes=-1",      "bytes=inf", "bytes=nan",
                                      "bytes=1,", "bytes=1 ,kl=2", "speed=1",   "bytes=1;kl=2"};
    struct baseline_ratios r = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(baseline_ratios_parse(bad[i], &r, NULL) == LQ_USAGE, "'%s'", bad[i]);
    ck_assert_int_eq(baseline_ratios_parse("kl=3,bytes=1.5,ms=2,agreement=0.5", &r, NULL), LQ_OK);
    ck_assert(r.kl > 2.9 && r.bytes > 1.4 && r.ms > 1.9 && r.agreement < 0.6);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("bench_files");
    TCase *t = tcase_create("bench_files");
    tcase_add_test(t, policy_is_read);
    tcase_add_loop_test(t, bad_policy_is_refused, 0, sizeof bad_policies / sizeof *bad_policies);
    tcase_add_test(t, any_cut_or_flipped_policy_is_no_trap);
    tcase_add_test(t, policy_is_written_as_it_is_read);
    tcase_add_test(t, baseline_finds_what_is_worse);
    tcase_add_test(t, baseline_figure_that_is_none_now_is_worse);
    tcase_add_loop_test(t, baseline_of_something_else_is_refused, 0, sizeof others / sizeof *others);
    tcase_add_test(t, ratios_are_checked);
    suite_add_tcase(s, t);
    return run_suite(s);
}
