/* JSON bodies: what is taken and refused, in the documented words; exact numbers; merges. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"
#include "proto/wire_json.h"
#include "tests/unit/support.h"

static const struct {
    const char *text, *part; /* part of the message; NULL: taken */
} requests[] = {
    {"{\"layer\":1,\"residual\":[1,2]}", NULL},
    {"{\"layers\":[1,2,1],\"layer\":9,\"residual\":[],\"seq_len\":4294967295}", NULL},
    {"{\"layer\":4294967295,\"residual\":[100000000000000000000, -1e38, 0.0]}", NULL},
    {"{\"layer\":1,\"residual\":[1],\"model_id\":\"a\\\"1234567890123456789012\"}", NULL},
    {"{\"layer\":1,\"residual\":[1],\"other\":123456789012345678901234567890}", NULL},
    {"", "invalid JSON: "},
    {"{\"layer\":1,\n \"residual\":[1,]}", "at line 2, column"},
    {"{\"layer\":1,\"residual\":[1]} x", "invalid JSON: "},
    {"[1]", "invalid JSON: expected an object"},
    {"{\"layer\":1,\"residual\":[NaN]}", "invalid JSON: "},
    {"{\"layer\":1,\"layer\":2,\"residual\":[1]}", "duplicate"},
    {"{\"residual\":[1]}", "must provide 'layer' or 'layers'"},
    {"{\"layers\":[],\"residual\":[1]}", "empty layer list"},
    {"{\"layers\":1,\"residual\":[1]}", "'layers' must be a list"},
    {"{\"layers\":[1,\"2\"],\"residual\":[1]}", "'layers[1]' must be a whole number"},
    {"{\"layer\":1.0,\"residual\":[1]}", "'layer' must be a whole number"},
    {"{\"layer\":-1,\"residual\":[1]}", "'layer' must be a whole number"},
    {"{\"layer\":true,\"residual\":[1]}", "'layer' must be a whole number"},
    {"{\"layer\":4294967296,\"residual\":[1]}", "'layer' must be a whole number"},
    {"{\"layer\":100000000000000000000,\"residual\":[1]}", "'layer' must be a whole number"},
    {"{\"layer\":1,\"seq_len\":1e1,\"residual\":[1]}", "'seq_len' must be a whole number"},
    {"{\"layer\":1,\"top_k\":null,\"residual\":[1]}", "'top_k' must be a whole number"},
    {"{\"layer\":1,\"full_output\":1,\"residual\":[1]}", "'full_output' must be true or false"},
    {"{\"layer\":1,\"model_id\":1,\"residual\":[1]}", "'model_id' must be a string"},
    {"{\"layer\":1}", "missing field 'residual'"},
    {"{\"layer\":1,\"residual\":5}", "'residual' must be a list"},
    {"{\"layer\":1,\"residual\":[1,null]}", "residual[1] is not a number"},
};

START_TEST(requests_are_taken_or_refused)
{
    struct wire_json_request r;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = wire_json_request_decode(requests[_i].text, strlen(requests[_i].text), &r, &fault);
    if (!requests[_i].part) {
        ck_assert_msg(rc == LQ_OK, "%s: %s", requests[_i].text, fault.text);
        wire_json_request_release(&r);
        return;
    }
    ck_assert_msg(rc != LQ_OK && lq_err_status(rc) == 400, "%s was taken", requests[_i].text);
    ck_assert_msg(strstr(fault.text, requests[_i].part) != NULL, "%s: %s", requests[_i].text, fault.text);
}
END_TEST

START_TEST(fields_and_defaults)
{
    static const char text[] = "{\"layers\":[7,3],\"residual\":[1e20,100000000000000000000,-0.1],\"x\":{\"y\":[]}}";
    struct wire_json_request r;
    ck_assert_int_eq(wire_json_request_decode(text, sizeof text - 1, &r, NULL), LQ_OK);
    ck_assert(r.batch && !r.full_output && !r.model_id);
    ck_assert_uint_eq(r.seq_len, 1);
    ck_assert_uint_eq(r.top_k, 8092);
    ck_assert_uint_eq(r.layers[0], 7);
    ck_assert(r.residual[0] == 1e20f && r.residual[1] == 1e20f && r.residual[2] == -0.1f);
    struct lq_fault fault;
    ck_assert_int_eq(wire_json_residual_check(&r, 3, &fault), LQ_OK);
    ck_assert_int_eq(wire_json_residual_check(&r, 4, &fault), LQ_BAD_BODY);
    ck_assert_str_eq(fault.text, "residual has 3 elements, expected 4 (seq_len=1 * hidden_size=4)");
    r.residual[2] = INFINITY;
    ck_assert_int_eq(wire_json_residual_check(&r, 3, &fault), LQ_BAD_BODY);
    ck_assert_str_eq(fault.text, "residual is not finite at row 0, index 2");
    r.seq_len = 3;
    ck_assert_int_eq(wire_json_residual_check(&r, 1, &fault), LQ_BAD_BODY); /* features: one row */
    r.full_output = true;
    r.residual[2] = 1;
    ck_assert_int_eq(wire_json_residual_check(&r, 1, &fault), LQ_OK);
    wire_json_request_release(&r);
}
END_TEST

START_TEST(floats_survive_json_exactly)
{
    enum { N = 4096 };
    static float x[N];
    uint32_t layer = 5, seed = 3;
    for (int i = 0; i < N;) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t bits = seed ^ seed << 13;
        memcpy(&x[i], &bits, 4);
        i += isfinite(x[i]) != 0;
    }
    size_t n;
    char *text = wire_json_output_encode(&layer, 1, 1, N, x, 1.26, &n);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(strlen(text), n);
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(o);
    for (size_t i = 0; i < N; i++) {
        float back = (float)json_number_value(json_array_get(json_object_get(o, "output"), i));
        ck_assert_msg(back == x[i] && signbit(back) == signbit(x[i]), "%a came back as %a", (double)x[i],
                      (double)back);
    }
    ck_assert_ptr_nonnull(strstr(text, "\"latency_ms\":1.3"));
    json_decref(o);
    free(text);
}
END_TEST

START_TEST(shapes_of_answers)
{
    uint32_t layers[2] = {4, 1}, ids[2] = {9, 2};
    float x[4] = {1, 2, 3, 4}, scores[2] = {-1.005f, 0.5f};
    struct wire_features f[2] = {{2, ids, scores}, {1, ids, scores}};
    size_t n;
    char *t = wire_json_output_encode(layers, 1, 2, 2, x, 0.0, &n);
    ck_assert_str_eq(t, "{\"layer\":4,\"output\":[1,2,3,4],\"seq_len\":2,\"latency_ms\":0.0}");
    free(t);
    t = wire_json_output_encode(layers, 2, 1, 2, x, 2.0, &n);
    ck_assert_str_eq(
        t, "{\"results\":[{\"layer\":4,\"output\":[1,2],\"seq_len\":1},{\"layer\":1,\"output\":[3,4],\"seq_len\":1}],"
           "\"seq_len\":1,\"latency_ms\":2.0}");
    free(t);
    t = wire_json_features_encode(layers, 1, f, 0.5, &n);
    ck_assert_str_eq(t, "{\"layer\":4,\"features\":[9,2],\"scores\":[-1.00,0.50],\"latency_ms\":0.5}");
    free(t);
    t = wire_json_features_encode(layers, 2, f, 0.5, &n);
    ck_assert_str_eq(t, "{\"results\":[{\"layer\":4,\"features\":[9,2],\"scores\":[-1.00,0.50]},"
                        "{\"layer\":1,\"features\":[9],\"scores\":[-1.00]}],\"latency_ms\":0.5}");
    free(t);
    t = wire_json_error("bad \"\x01\xff\xed\xa0\x80\xc3\xa9\"", "id", &n);
    ck_assert_str_eq(
        t, "{\"error\":\"bad "
           "\\\"\\u0001\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9\\\"\",\"request_id\":\"id\"}");
    free(t);
    char buf[16];
    static const char long_error[] = "{\"error\":\"a long text of an error\"}";
    wire_json_error_text(long_error, sizeof long_error - 1, buf, sizeof buf);
    ck_assert_str_eq(buf, "a long text of ");
    wire_json_error_text("no json", 7, buf, sizeof buf);
    ck_assert_str_eq(buf, "no json");
}
END_TEST

static const struct {
    const char *a, *b, *part; /* answers of two shards, asked for {1, 3} and {5}; part: of the error */
} merges[] = {
    {"{\"results\":[{\"layer\":1,\"output\":[1]},{\"layer\":3,\"output\":[3]}],\"seq_len\":1,\"latency_ms\":2}",
     "{\"layer\":5,\"output\":[0.1],\"seq_len\":1,\"latency_ms\":7.25}", NULL},
    {"{\"results\":[{\"layer\":1,\"output\":[1]}],\"latency_ms\":2}", "{\"layer\":5,\"output\":[5],\"latency_ms\":7}",
     "lacks layer 1"},
    {"{\"results\":[{\"layer\":3,\"output\":[1]},{\"layer\":1,\"output\":[3]}],\"latency_ms\":2}",
     "{\"layer\":5,\"output\":[5],\"latency_ms\":7}", "shard A: its answer lacks layer 1"},
    {"{\"results\":[{\"layer\":1,\"output\":[1]},{\"layer\":3,\"output\":[3]}],\"latency_ms\":2}",
     "{\"error\":\"x\"}", "shard B: its answer lacks layer 5"},
    {"{\"results\":[{\"layer\":1,\"output\":[1]},{\"layer\":3,\"output\":[3]}],\"latency_ms\":2}", "[]",
     "shard B: its answer is no JSON object"},
    {"{\"results\":[{\"layer\":1,\"output\":[1]},{\"layer\":3,\"output\":[3]}]}",
     "{\"layer\":5,\"output\":[5],\"latency_ms\":7}", "lacks latency_ms"},
    {"{\"results\":[{\"layer\":1,\"features\":[1]},{\"layer\":3,\"output\":[3]}],\"latency_ms\":2}",
     "{\"layer\":5,\"output\":[5],\"latency_ms\":7}", "lacks layer 1"},
};

START_TEST(parts_are_merged_or_named)
{
    uint32_t asked[4] = {5, 1, 5, 3}, first[2] = {1, 3}, second[1] = {5};
    struct wire_json_part parts[2] = {{merges[_i].a, strlen(merges[_i].a), first, 2, "A"},
                                      {merges[_i].b, strlen(merges[_i].b), second, 1, "B"}};
    char *out = NULL;
    size_t n;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = wire_json_merge(asked, 4, parts, 2, &out, &n, &fault);
    if (merges[_i].part) {
        ck_assert_int_eq(rc, LQ_BAD_ANSWER);
        ck_assert_msg(strstr(fault.text, merges[_i].part) != NULL, "%s", fault.text);
        return;
    }
    ck_assert_msg(rc == LQ_OK, "%s", fault.text);
    ck_assert_str_eq(out, "{\"results\":[{\"layer\":5,\"output\":[0.1],\"seq_len\":1},{\"layer\":1,\"output\":[1]},"
                          "{\"layer\":5,\"output\":[0.1],\"seq_len\":1},{\"layer\":3,\"output\":[3]}],\"seq_len\":1,"
                          "\"latency_ms\":7.2}");
    free(out);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wire_json");
    TCase *t = tcase_create("json");
    tcase_add_loop_test(t, requests_are_taken_or_refused, 0, sizeof requests / sizeof *requests);
    tcase_add_test(t, fields_and_defaults);
    tcase_add_test(t, floats_survive_json_exactly);
    tcase_add_test(t, shapes_of_answers);
    tcase_add_loop_test(t, parts_are_merged_or_named, 0, sizeof merges / sizeof *merges);
    suite_add_tcase(s, t);
    return run_suite(s);
}
