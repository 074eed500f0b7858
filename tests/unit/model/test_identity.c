/* The identity of a model in memory: what it depends on, and what not. The bytes that are
 * hashed are held against another implementation in tests/grid/test_identity.py. */
#include "model/identity.h"

#include "tests/unit/model/model_maker.h"
#include "tests/unit/support.h"

struct told { /* one tensor of F32 */
    const char *name;
    uint64_t dims[2];
    uint64_t offset;
};

/* The FFN tensors of layer 0 with their data at 0, 32 and 64; other: a fourth. */
static void make(struct maker *m, const struct told *t, size_t n, const char *key)
{
    m->n = 0;
    put_head(m, 3, n, 1);
    put_kv32(m, key, 1);
    for (size_t i = 0; i < n; i++)
        put_tensor(m, t[i].name, 0, 2, t[i].dims, t[i].offset);
    put_data(m, 128);
    for (uint8_t i = 0; i < 128; i++)
        m->p[m->n - 128 + i] = i;
}

static const struct told sorted[] = {{"blk.0.ffn_down.weight", {2, 3}, 0},
                                     {"blk.0.ffn_gate.weight", {3, 2}, 32},
                                     {"blk.0.ffn_up.weight", {3, 2}, 64}},
                         moved[] = {{"blk.0.ffn_up.weight", {3, 2}, 64},
                                    {"blk.0.ffn_down.weight", {2, 3}, 0},
                                    {"blk.0.ffn_gate.weight", {3, 2}, 32}},
                         other_bytes[] = {{"blk.0.ffn_down.weight", {2, 3}, 0},
                                          {"blk.0.ffn_gate.weight", {3, 2}, 64},
                                          {"blk.0.ffn_up.weight", {3, 2}, 32}},
                         other_shape[] = {{"blk.0.ffn_down.weight", {3, 2}, 0},
                                          {"blk.0.ffn_gate.weight", {3, 2}, 32},
                                          {"blk.0.ffn_up.weight", {3, 2}, 64}},
                         one_more[] = {{"blk.0.ffn_down.weight", {2, 3}, 0},
                                       {"blk.0.ffn_gate.weight", {3, 2}, 32},
                                       {"blk.0.ffn_up.weight", {3, 2}, 64},
                                       {"output.weight", {1, 1}, 96}};

static void identity_of(const struct told *t, size_t n, const char *key, struct identity *out)
{
    static struct maker m;
    struct gguf *g;
    struct lq_fault fault = {.text = ""};
    make(&m, t, n, key);
    ck_assert_msg(gguf_open_memory(m.p, m.n, "memory.gguf", &g, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(identity_read(g, 0, 0, NULL, NULL, out, &fault) == LQ_OK, "%s", fault.text);
    gguf_free(g);
}

static const struct {
    const struct told *t;
    size_t n;
    const char *key;
    bool same_model, same_layer;
} cases[] = {
    {sorted, 3, "a.key", true, true},        {moved, 3, "a.key", true, true},
    {sorted, 3, "another.key", true, true},  {other_bytes, 3, "a.key", true, false},
    {other_shape, 3, "a.key", false, false}, {one_more, 4, "a.key", false, true},
};

START_TEST(depends_on_names_shapes_types_and_bytes)
{
    struct identity a, b;
    identity_of(sorted, 3, "a.key", &a);
    identity_of(cases[_i].t, cases[_i].n, cases[_i].key, &b);
    ck_assert_int_eq(hash256_equal(&a.model, &b.model), cases[_i].same_model);
    ck_assert_int_eq(hash256_equal(&a.layers[0], &b.layers[0]), cases[_i].same_layer);
    identity_release(&a);
    identity_release(&b);
}
END_TEST

START_TEST(absent_layer_is_named)
{
    static struct maker m;
    struct gguf *g;
    struct identity id;
    struct lq_fault fault = {.text = ""};
    make(&m, sorted, 3, "a.key");
    ck_assert_int_eq(gguf_open_memory(m.p, m.n, "memory.gguf", &g, &fault), LQ_OK);
    ck_assert_int_eq(identity_read(g, 0, 1, NULL, NULL, &id, &fault), LQ_BAD_MODEL);
    ck_assert_str_eq(fault.text, "memory.gguf: tensor 'blk.1.ffn_down.weight' is not there to be hashed");
    _Atomic bool stop = true;
    ck_assert_int_eq(identity_read(g, 0, 0, NULL, &stop, &id, &fault), LQ_CANCELLED);
    ck_assert_ptr_null(id.layers);
    gguf_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("identity");
    TCase *t = tcase_create("identity");
    tcase_add_loop_test(t, depends_on_names_shapes_types_and_bytes, 0, sizeof cases / sizeof *cases);
    tcase_add_test(t, absent_layer_is_named);
    suite_add_tcase(s, t);
    return run_suite(s);
}
