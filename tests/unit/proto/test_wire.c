/* Bodies: the golden ones both ways on the scalar codec, the refused ones refused. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"
#include "tests/unit/support.h"

enum { VALUES_MAX = 64, BODY_MAX = 4096, LAYERS_MAX = 16 };

static json_t *load(const char *path)
{
    json_error_t err;
    json_t *v = json_load_file(path, 0, &err);
    ck_assert_msg(v != NULL, "%s: %s", path, err.text);
    return v;
}

static const char *text_of(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static uint32_t number_of(const json_t *o, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(o, key));
}

static float from_bits(const char *hex)
{
    uint32_t u = (uint32_t)strtoul(hex, NULL, 16);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static enum wire_format format_of(const json_t *o)
{
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++)
        if (strcmp(text_of(o, "content_type"), wire_content_type(f)) == 0)
            return f;
    ck_abort_msg("unknown content type");
}

static size_t floats_of(const json_t *list, float *out)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) out[i] = from_bits(json_string_value(v));
    return json_array_size(list);
}

static void check_request(const json_t *c)
{
    enum wire_format f = format_of(c);
    float x[VALUES_MAX], got[VALUES_MAX], want[VALUES_MAX];
    uint8_t body[BODY_MAX], made[BODY_MAX];
    uint32_t layers[LAYERS_MAX], layers_n = 1, hidden = number_of(c, "hidden"), seq = number_of(c, "seq_len");
    const json_t *list = json_object_get(c, "layers");
    bool batch = json_is_array(list);
    if (batch)
        layers_n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < layers_n; i++)
        layers[i] = (uint32_t)json_integer_value(batch ? json_array_get(list, i) : list);
    size_t n = floats_of(json_object_get(c, "values"), x), body_n = unhex(text_of(c, "body"), body);

    size_t head_n = wire_request_head_bytes(batch, layers_n);
    wire_request_head_encode(batch, layers, layers_n, seq, number_of(c, "top_k"), made);
    wire_payload_encode(&codec_ref, f, x, seq, hidden, made + head_n);
    ck_assert_uint_eq(head_n + wire_row_bytes(f, hidden) * seq, body_n);
    ck_assert_msg(memcmp(made, body, body_n) == 0, "%s %s: other bytes", wire_name(f), text_of(c, "name"));

    struct wire_head h;
    struct lq_fault fault;
    size_t values_n, more_n;
    for (size_t have = 0; have < head_n; have++) /* never an error for want of bytes that come */
        ck_assert_msg(wire_head_decode(body, have, body_n, &h, &more_n, &fault) == LQ_OK && more_n > have &&
                          more_n <= head_n,
                      "%zu of %zu bytes", have, head_n);
    ck_assert_int_eq(wire_head_decode(body, head_n, body_n, &h, &more_n, &fault), LQ_OK);
    ck_assert_uint_eq(more_n, 0);
    ck_assert_uint_eq(h.layers_n, layers_n);
    for (uint32_t i = 0; i < layers_n; i++)
        ck_assert_uint_eq(wire_head_layer(&h, i), layers[i]);
    ck_assert_uint_eq(h.seq_len, seq);
    ck_assert_int_eq(wire_payload_check(f, seq, hidden, body_n - h.payload_at, &values_n, &fault), LQ_OK);
    ck_assert_uint_eq(values_n, n);
    ck_assert_int_eq(wire_payload_decode(&codec_ref, f, body + h.payload_at, seq, hidden, got, "residual", &fault),
                     LQ_OK);
    /* What the codec makes of the values: encode and decode again. */
    wire_payload_encode(&codec_ref, f, x, seq, hidden, made);
    ck_assert_int_eq(wire_payload_decode(&codec_ref, f, made, seq, hidden, want, "residual", &fault), LQ_OK);
    ck_assert(memcmp(got, want, n * sizeof *got) == 0);
    if (f == WIRE_F32)
        ck_assert(memcmp(got, x, n * sizeof *got) == 0);
}

static void check_response(const json_t *c)
{
    enum wire_format f = format_of(c);
    float x[LAYERS_MAX][VALUES_MAX], out[LAYERS_MAX * VALUES_MAX], ms;
    uint8_t body[BODY_MAX], made[BODY_MAX], *p;
    uint32_t layers[LAYERS_MAX], hidden = number_of(c, "hidden"), seq = number_of(c, "seq_len");
    const json_t *entries = json_object_get(c, "entries");
    uint32_t entries_n = (uint32_t)json_array_size(entries);
    size_t n = 0, body_n = unhex(text_of(c, "body"), body);
    for (uint32_t i = 0; i < entries_n; i++) {
        layers[i] = number_of(json_array_get(entries, i), "layer");
        n = floats_of(json_object_get(json_array_get(entries, i), "values"), x[i]);
    }
    p = wire_answer_head_encode(entries_n, layers[0], seq, from_bits(text_of(c, "latency_ms")), made);
    for (uint32_t i = 0; i < entries_n; i++) {
        if (entries_n > 1)
            p = wire_entry_head_encode(layers[i], seq, (uint32_t)n, p);
        wire_payload_encode(&codec_ref, f, x[i], seq, hidden, p);
        p += wire_row_bytes(f, hidden) * seq;
    }
    ck_assert_uint_eq((size_t)(p - made), body_n);
    ck_assert_uint_eq(wire_answer_bytes(f, entries_n, seq, hidden), body_n);
    ck_assert_msg(memcmp(made, body, body_n) == 0, "%s %s: other bytes", wire_name(f), text_of(c, "name"));

    struct lq_fault fault;
    ck_assert_int_eq(
        wire_answer_decode(&codec_ref, f, body, body_n, layers, entries_n, seq, hidden, out, &ms, &fault), LQ_OK);
    ck_assert(ms == 1.5f);
    /* Any cut, any byte more, any other question is refused. */
    for (size_t cut = 0; cut < body_n; cut++) {
        uint8_t *copy = malloc(cut + 1); /* exact size: a read past the end is an ASan error */
        memcpy(copy, body, cut);
        ck_assert_int_eq(
            wire_answer_decode(&codec_ref, f, copy, cut, layers, entries_n, seq, hidden, out, &ms, &fault),
            LQ_BAD_ANSWER);
        free(copy);
    }
    ck_assert_int_eq(
        wire_answer_decode(&codec_ref, f, body, body_n + 1, layers, entries_n, seq, hidden, out, &ms, &fault),
        LQ_BAD_ANSWER);
    ck_assert_int_eq(
        wire_answer_decode(&codec_ref, f, body, body_n, layers, entries_n, seq + 1, hidden, out, &ms, &fault),
        LQ_BAD_ANSWER);
    layers[0]++;
    ck_assert_int_eq(
        wire_answer_decode(&codec_ref, f, body, body_n, layers, entries_n, seq, hidden, out, &ms, &fault),
        LQ_BAD_ANSWER);
}

START_TEST(golden_bodies)
{
    size_t i;
    json_t *all = load("tests/vectors/bodies.json"), *c;
    ck_assert_uint_eq(json_array_size(all), 27);
    json_array_foreach(all, i, c)
    {
        if (strncmp(text_of(c, "name"), "request", 7) == 0)
            check_request(c);
        else
            check_response(c);
    }
    json_decref(all);
}
END_TEST

START_TEST(single_answers_a_batch_of_one)
{
    uint32_t layer = 3;
    uint8_t body[WIRE_ANSWER_HEAD_BYTES + WIRE_ENTRY_HEAD_BYTES + 8];
    float x[2] = {1, 2}, out[2], ms;
    uint8_t *p = wire_answer_head_encode(1, layer, 1, 0.5f, body);
    wire_payload_encode(&codec_ref, WIRE_F32, x, 1, 2, p);
    ck_assert_int_eq(wire_answer_decode(&codec_ref, WIRE_F32, body, 20, &layer, 1, 1, 2, out, &ms, NULL), LQ_OK);
    /* and a batch form that holds one entry, too */
    p = wire_answer_head_encode(2, 0, 0, 0.5f, body);
    body[4] = 1;
    p = wire_entry_head_encode(layer, 1, 2, p);
    wire_payload_encode(&codec_ref, WIRE_F32, x, 1, 2, p);
    ck_assert_int_eq(wire_answer_decode(&codec_ref, WIRE_F32, body, 32, &layer, 1, 1, 2, out, &ms, NULL), LQ_OK);
    uint32_t two[2] = {3, 4};
    ck_assert_int_eq(wire_answer_decode(&codec_ref, WIRE_F32, body, 32, two, 2, 1, 2, out, &ms, NULL), LQ_BAD_ANSWER);
}
END_TEST

START_TEST(refused_bodies)
{
    size_t i;
    json_t *all = load("tests/vectors/refused_bodies.json"), *c;
    ck_assert_uint_ge(json_array_size(all), 23);
    json_array_foreach(all, i, c)
    {
        uint8_t body[BODY_MAX];
        float out[VALUES_MAX];
        struct wire_head h;
        struct lq_fault fault = {.text = ""};
        size_t n = unhex(text_of(c, "body"), body), values_n;
        uint8_t *exact = malloc(n + 1);
        memcpy(exact, body, n);
        uint32_t hidden = number_of(c, "hidden");
        enum lq_err rc = wire_head_decode(exact, n, n, &h, NULL, &fault);
        if (!rc)
            rc = wire_payload_check(format_of(c), h.seq_len, hidden, n - h.payload_at, &values_n, &fault);
        if (!rc)
            rc = wire_payload_decode(&codec_ref, format_of(c), exact + h.payload_at, h.seq_len, hidden, out,
                                     "residual", &fault);
        ck_assert_msg(rc != LQ_OK && lq_err_status(rc) == 400 && fault.text[0], "%s was taken", text_of(c, "name"));
        free(exact);
    }
    json_decref(all);
}
END_TEST

START_TEST(sizes_do_not_wrap)
{
    size_t n;
    struct lq_fault fault;
    ck_assert_uint_eq(wire_answer_bytes(WIRE_F32, 1024, UINT32_MAX, UINT32_MAX), UINT64_MAX);
    ck_assert_int_eq(wire_payload_check(WIRE_F32, UINT32_MAX, UINT32_MAX, 0, &n, &fault), LQ_BAD_BODY);
    ck_assert_str_eq(fault.text, "seq_len * hidden overflow");
    ck_assert_int_eq(wire_payload_check(WIRE_I8, 3, 6, 28, &n, &fault), LQ_BAD_BODY);
    ck_assert_str_eq(fault.text, "residual has 12 elements, expected 18 (seq_len=3 * hidden_size=6)");
    ck_assert_int_eq(wire_payload_check(WIRE_I8, 3, 6, 29, &n, &fault), LQ_BAD_BODY);
    ck_assert_str_eq(fault.text, "residual has 29 bytes, expected 42");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wire");
    TCase *t = tcase_create("wire");
    tcase_add_test(t, golden_bodies);
    tcase_add_test(t, single_answers_a_batch_of_one);
    tcase_add_test(t, refused_bodies);
    tcase_add_test(t, sizes_do_not_wrap);
    suite_add_tcase(s, t);
    return run_suite(s);
}
