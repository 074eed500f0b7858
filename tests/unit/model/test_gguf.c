/* GGUF files: a good one reads; each kind of bad one is refused with the field's name. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/arch.h"
#include "model/gguf.h"
#include "model/mat.h"
#include "tests/unit/model/model_maker.h"
#include "tests/unit/support.h"

static const uint64_t dims_2x3[2] = {2, 3}, dims_4[1] = {4};

/* Two F32 tensors and a key of each kind. */
static void make_good(struct maker *m)
{
    m->n = 0;
    put_head(m, 3, 2, 5);
    put_kv32(m, "a.number", 7);
    put_kv_text(m, "a.text", "hello");
    put_text(m, "a.list"), put32(m, 9), put32(m, 4), put64(m, 3), put32(m, 1), put32(m, 2), put32(m, 3);
    put_text(m, "a.words"), put32(m, 9), put32(m, 8), put64(m, 2), put_text(m, "x"), put_text(m, "");
    put_text(m, "a.minus"), put32(m, 5), put32(m, (uint32_t)-1);
    put_tensor(m, "one", 0, 2, dims_2x3, 0);
    put_tensor(m, "two", 0, 1, dims_4, 32);
    put_data(m, 48);
}

/* Opens a copy of exactly n bytes, so that ASan sees a read past its end. */
static enum lq_err open_copy(const struct maker *m, size_t n, struct lq_fault *fault, struct gguf **out,
                             uint8_t **copy)
{
    *copy = malloc(n ? n : 1);
    memcpy(*copy, m->p, n);
    return gguf_open_memory(*copy, n, "test.gguf", out, fault);
}

START_TEST(good_file_reads)
{
    static struct maker m;
    struct gguf *g;
    struct lq_fault fault;
    uint8_t *copy;
    make_good(&m);
    ck_assert_msg(open_copy(&m, m.n, &fault, &g, &copy) == LQ_OK, "%s", fault.text);
    uint32_t v;
    struct gguf_string s;
    struct gguf_array a;
    ck_assert_int_eq(gguf_get_u32(g, "a.number", &v, &fault), LQ_OK);
    ck_assert_uint_eq(v, 7);
    ck_assert_int_eq(gguf_get_string(g, "a.text", &s, &fault), LQ_OK);
    ck_assert_uint_eq(s.n, 5);
    ck_assert_int_eq(gguf_get_array(g, "a.words", &a, &fault), LQ_OK);
    ck_assert_uint_eq(a.n, 2);
    ck_assert_uint_eq(a.strings[1].n, 0);
    ck_assert_int_eq(gguf_get_u32(g, "a.minus", &v, &fault), LQ_BAD_MODEL);
    ck_assert_int_eq(gguf_get_u32(g, "a.text", &v, &fault), LQ_BAD_MODEL);
    ck_assert_int_eq(gguf_get_u32(g, "none", &v, &fault), LQ_BAD_MODEL);
    ck_assert_str_eq(fault.text, "test.gguf: key 'none' is missing");
    const struct gguf_tensor *t = gguf_tensor(g, "two");
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(t->bytes, 16);
    ck_assert_ptr_eq(t->data, copy + m.n - 48 + 32);
    ck_assert_ptr_null(gguf_tensor(g, "three"));
    gguf_free(g);
    free(copy);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    static struct maker m;
    struct lq_fault fault;
    make_good(&m);
    for (size_t n = 0; n < m.n; n++) {
        struct gguf *g;
        uint8_t *copy;
        ck_assert_msg(open_copy(&m, n, &fault, &g, &copy) == LQ_BAD_MODEL, "%zu of %zu bytes were taken", n, m.n);
        ck_assert_msg(strncmp(fault.text, "test.gguf: ", 11) == 0, "%s", fault.text);
        free(copy);
    }
}
END_TEST

/* A header with these counts and nothing behind, or one wrong field; part of the message. */
static void bad_version(struct maker *m)
{
    put_head(m, 1, 0, 0), put_data(m, 64);
}
static void big_endian(struct maker *m)
{
    put_head(m, 0x03000000, 0, 0), put_data(m, 64);
}
static void no_magic(struct maker *m)
{
    put(m, "GGML", 4), put_data(m, 64);
}
static void many_tensors(struct maker *m)
{
    put_head(m, 3, UINT64_MAX, 0), put_data(m, 64);
}
static void many_tensors_32(struct maker *m)
{
    put_head(m, 3, UINT32_MAX, 0), put_data(m, 64);
}
static void many_keys(struct maker *m)
{
    put_head(m, 3, 0, UINT64_MAX / 2), put_data(m, 64);
}
static void long_key(struct maker *m)
{
    put_head(m, 3, 0, 1), put64(m, UINT64_MAX - 7), put_data(m, 64);
}
static void long_string(struct maker *m)
{
    put_head(m, 3, 0, 1), put_text(m, "k"), put32(m, 8), put64(m, UINT64_MAX), put_data(m, 64);
}
static void long_array(struct maker *m)
{
    put_head(m, 3, 0, 1), put_text(m, "k"), put32(m, 9), put32(m, 4), put64(m, 1ull << 62), put_data(m, 64);
}
static void long_words(struct maker *m)
{
    put_head(m, 3, 0, 1), put_text(m, "k"), put32(m, 9), put32(m, 8), put64(m, 1ull << 61), put_data(m, 64);
}
static void nested_array(struct maker *m)
{
    put_head(m, 3, 0, 1), put_text(m, "k"), put32(m, 9), put32(m, 9), put64(m, 1), put_data(m, 64);
}
static void bad_value_type(struct maker *m)
{
    put_head(m, 3, 0, 1), put_text(m, "k"), put32(m, 13), put_data(m, 64);
}
static void same_key(struct maker *m)
{
    put_head(m, 3, 0, 2), put_kv32(m, "k", 1), put_kv32(m, "k", 2), put_data(m, 64);
}
static void alignment_0(struct maker *m)
{
    put_head(m, 3, 0, 1), put_kv32(m, "general.alignment", 0), put_data(m, 64);
}
static void alignment_24(struct maker *m)
{
    put_head(m, 3, 0, 1), put_kv32(m, "general.alignment", 24), put_data(m, 64);
}

static void one_tensor(struct maker *m, const char *name, uint32_t type, uint32_t dims_n, uint64_t a, uint64_t b,
                       uint64_t offset)
{
    uint64_t dims[5] = {a, b, 1, 1, 1};
    put_head(m, 3, 1, 0);
    put_tensor(m, name, type, dims_n, dims, offset);
    put_data(m, 64);
}
static void dim_0(struct maker *m)
{
    one_tensor(m, "t", 0, 2, 4, 0, 0);
}
static void dims_wrap(struct maker *m)
{
    one_tensor(m, "t", 0, 2, 1ull << 33, 1ull << 33, 0);
}
static void bytes_wrap(struct maker *m)
{
    one_tensor(m, "t", 0, 2, 1ull << 31, 1ull << 31, 0);
}
static void dims_5(struct maker *m)
{
    one_tensor(m, "t", 0, 5, 1, 1, 0);
}
static void dims_none(struct maker *m)
{
    one_tensor(m, "t", 0, 0, 1, 1, 0);
}
static void part_block(struct maker *m)
{
    one_tensor(m, "t", 12, 1, 255, 1, 0);
}
static void past_end(struct maker *m)
{
    one_tensor(m, "t", 0, 1, 16, 1, 32);
}
static void far_offset(struct maker *m)
{
    one_tensor(m, "t", 0, 1, 4, 1, UINT64_MAX - 31);
}
static void crooked_offset(struct maker *m)
{
    one_tensor(m, "t", 0, 1, 4, 1, 4);
}
static void no_name(struct maker *m)
{
    one_tensor(m, "", 0, 1, 4, 1, 0);
}

static void two_tensors(struct maker *m, const char *second, uint64_t offset)
{
    uint64_t n[1] = {16};
    put_head(m, 3, 2, 0);
    put_tensor(m, "a", 0, 1, n, 0);
    put_tensor(m, second, 0, 1, n, offset);
    put_data(m, 256);
}
static void overlap(struct maker *m)
{
    two_tensors(m, "b", 32);
}
static void same_name(struct maker *m)
{
    two_tensors(m, "a", 64);
}

static const struct {
    void (*make)(struct maker *m);
    const char *part;
} bad[] = {
    {bad_version, "GGUF version 1 is not read"},
    {big_endian, "a big-endian file"},
    {no_magic, "not a GGUF file"},
    {many_tensors, "tensor count 18446744073709551615"},
    {many_tensors_32, "tensor count 4294967295"},
    {many_keys, "key count 9223372036854775807"},
    {long_key, "key 0: its length"},
    {long_string, "its length 18446744073709551615"},
    {long_array, "key 'k': 4611686018427387904 values"},
    {long_words, "key 'k': 2305843009213693952 values"},
    {nested_array, "arrays of arrays"},
    {bad_value_type, "unknown value type 13"},
    {same_key, "key 'k' is there twice"},
    {alignment_0, "general.alignment is 0"},
    {alignment_24, "general.alignment is 24"},
    {dim_0, "'t': dimension 1 is 0"},
    {dims_wrap, "'t': dimension 1 = 8589934592 makes too many values"},
    {bytes_wrap, "has too many bytes"},
    {dims_5, "5 dimensions"},
    {dims_none, "0 dimensions"},
    {part_block, "rows of 255 values are no whole Q4_K blocks"},
    {past_end, "offset 32 + 64 bytes is past the end of the data (64)"},
    {far_offset, "past the end of the data"},
    {crooked_offset, "offset 4 is not aligned to 32"},
    {no_name, "a name of 0 bytes"},
    {overlap, "tensors 'a' and 'b' overlap"},
    {same_name, "tensor 'a' is there twice"},
};

START_TEST(bad_files_name_the_field)
{
    static struct maker m;
    struct gguf *g;
    struct lq_fault fault = {.text = ""};
    uint8_t *copy;
    m.n = 0;
    bad[_i].make(&m);
    ck_assert_msg(open_copy(&m, m.n, &fault, &g, &copy) == LQ_BAD_MODEL, "taken; wanted: %s", bad[_i].part);
    ck_assert_msg(strstr(fault.text, bad[_i].part) != NULL, "%s, wanted: %s", fault.text, bad[_i].part);
    free(copy);
}
END_TEST

START_TEST(no_flip_of_a_byte_crashes)
{
    static struct maker m;
    make_good(&m);
    for (size_t i = 0; i < m.n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct gguf *g;
            struct arch a;
            struct lq_fault fault;
            uint8_t *copy;
            m.p[i] ^= (uint8_t)(1 << bit);
            if (open_copy(&m, m.n, &fault, &g, &copy) == LQ_OK) {
                (void)!arch_read(g, &a, &fault);
                gguf_free(g);
            }
            free(copy);
            m.p[i] ^= (uint8_t)(1 << bit);
        }
    }
}
END_TEST

/* ---- files by tests/tools/make_model.py ---- */

static void make_file(const char *path, const char *args)
{
    char command[512];
    snprintf(command, sizeof command, "/usr/bin/python3 tests/tools/make_model.py %s %s", path, args);
    ck_assert_msg(system(command) == 0, "%s", command);
}

START_TEST(split_files_open_by_any_part)
{
    char folder[] = "/tmp/lq-split-XXXXXX", path[128];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    make_file(path, "--split 3 --layers 2");
    for (int i = 1; i <= 3; i++) {
        struct gguf *g;
        struct arch a;
        struct lq_fault fault;
        snprintf(path, sizeof path, "%s/m-%05d-of-00003.gguf", folder, i);
        ck_assert_msg(gguf_open(path, &g, &fault) == LQ_OK, "%s", fault.text);
        ck_assert_msg(arch_read(g, &a, &fault) == LQ_OK, "%s", fault.text);
        ck_assert_uint_eq(gguf_tensors_n(g), 2 + 2 * 9);
        ck_assert_ptr_nonnull(gguf_tensor(g, "blk.1.ffn_down.weight"));
        gguf_free(g);
    }
    snprintf(path, sizeof path, "%s/m-00002-of-00003.gguf", folder);
    ck_assert_int_eq(unlink(path), 0);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", folder);
    struct gguf *g;
    struct lq_fault fault;
    ck_assert_int_eq(gguf_open(path, &g, &fault), LQ_IO);
    ck_assert_msg(strstr(fault.text, "m-00002-of-00003.gguf") != NULL, "%s", fault.text);
    snprintf(path, sizeof path, "rm -r %s", folder);
    ck_assert_int_eq(system(path), 0);
}
END_TEST

static const struct {
    const char *name, *args;
    enum arch_act act;
    enum arch_rope rope;
    bool qk_norm, post_norms, bias;
} archs[] = {
    {"llama", "--arch llama", ARCH_SILU, ARCH_ROPE_PAIRS, false, false, false},
    {"gemma3", "--arch gemma3 --head-dim 4 --window 16 --rope-base 1000000", ARCH_GELU_TANH, ARCH_ROPE_HALVES, true,
     true, false},
    {"qwen2", "--arch qwen2", ARCH_SILU, ARCH_ROPE_HALVES, false, false, true},
    {"qwen3", "--arch qwen3 --head-dim 4 --rope-factor 4", ARCH_SILU, ARCH_ROPE_HALVES, true, false, false},
};

START_TEST(architectures_are_read)
{
    char path[64];
    struct gguf *g;
    struct arch a;
    struct lq_fault fault;
    snprintf(path, sizeof path, "/tmp/lq-arch-%d-%d.gguf", getpid(), _i);
    make_file(path, archs[_i].args);
    ck_assert_msg(gguf_open(path, &g, &fault) == LQ_OK && arch_read(g, &a, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_str_eq(a.family, archs[_i].name);
    ck_assert_int_eq(a.act, archs[_i].act);
    ck_assert_int_eq(a.rope, archs[_i].rope);
    ck_assert(a.qk_norm == archs[_i].qk_norm && a.post_norms == archs[_i].post_norms &&
              a.attn_bias == archs[_i].bias);
    ck_assert_uint_eq(a.layers_n, 8);
    ck_assert_uint_eq(a.hidden_n, 6);
    ck_assert_uint_eq(a.ffn_n, 8);
    if (strcmp(a.family, "gemma3") == 0) {
        ck_assert_uint_eq(a.window, 16);
        ck_assert(arch_layer_is_local(&a, 4) && !arch_layer_is_local(&a, 5) && arch_layer_is_local(&a, 6));
        ck_assert(a.rope_base == 1e6f && a.rope_base_local == 1e4f);
        ck_assert_uint_eq(a.head_dim, 4);
    } else {
        ck_assert(!arch_layer_is_local(&a, 0));
    }
    if (strcmp(a.family, "qwen3") == 0)
        ck_assert(a.rope_scale == 0.25f);
    gguf_free(g);
    unlink(path);
}
END_TEST

static const struct {
    const char *key;
    uint32_t value;
    enum lq_err rc;
    const char *part;
} wrong[] = {
    {"llama.block_count", 0, LQ_BAD_MODEL, "'llama.block_count' is 0"},
    {"llama.block_count", 5000, LQ_BAD_MODEL, "'llama.block_count' is 5000"},
    {"llama.embedding_length", 0xffffffff, LQ_BAD_MODEL, "'llama.embedding_length' is 4294967295"},
    {"llama.attention.head_count", 0, LQ_BAD_MODEL, "'llama.attention.head_count' is 0"},
    {"llama.attention.head_count_kv", 2, LQ_BAD_MODEL, "3 heads do not share 2 key-value heads"},
    {"llama.rope.dimension_count", 3, LQ_BAD_MODEL, "'llama.rope.dimension_count' is 3"},
    {"llama.expert_count", 8, LQ_UNSUPPORTED, "mixture of experts"},
    {"llama.attention.value_length", 1, LQ_UNSUPPORTED, "value heads"},
};

/* A model of numbers alone, with one of them wrong. */
START_TEST(wrong_shapes_name_the_key)
{
    static struct maker m;
    static const struct {
        const char *key;
        uint32_t value;
    } right[] = {{"llama.block_count", 2},
                 {"llama.embedding_length", 6},
                 {"llama.feed_forward_length", 8},
                 {"llama.attention.head_count", 3},
                 {"llama.attention.head_count_kv", 3}};
    struct gguf *g;
    struct arch a;
    struct lq_fault fault = {.text = ""};
    bool known = false;
    for (size_t i = 0; i < 5; i++)
        known |= strcmp(right[i].key, wrong[_i].key) == 0;
    m.n = 0;
    put_head(&m, 3, 0, known ? 6 : 7);
    put_kv_text(&m, "general.architecture", "llama");
    for (size_t i = 0; i < 5; i++)
        put_kv32(&m, right[i].key, strcmp(right[i].key, wrong[_i].key) == 0 ? wrong[_i].value : right[i].value);
    if (!known)
        put_kv32(&m, wrong[_i].key, wrong[_i].value);
    put_data(&m, 32);
    ck_assert_msg(gguf_open_memory(m.p, m.n, "t.gguf", &g, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(arch_read(g, &a, &fault) == wrong[_i].rc, "%s", fault.text);
    ck_assert_msg(strstr(fault.text, wrong[_i].part) != NULL, "%s, wanted: %s", fault.text, wrong[_i].part);
    gguf_free(g);
}
END_TEST

START_TEST(unknown_architecture_is_named)
{
    static struct maker m;
    struct gguf *g;
    struct arch a;
    struct lq_fault fault;
    m.n = 0;
    put_head(&m, 2, 0, 1); /* version 2 reads alike */
    put_kv_text(&m, "general.architecture", "mamba");
    put_data(&m, 32);
    ck_assert_int_eq(gguf_open_memory(m.p, m.n, "t.gguf", &g, &fault), LQ_OK);
    ck_assert_int_eq(arch_read(g, &a, &fault), LQ_UNSUPPORTED);
    ck_assert_msg(strstr(fault.text, "architecture 'mamba' is not read") != NULL, "%s", fault.text);
    gguf_free(g);
}
END_TEST

START_TEST(unread_tensor_type_is_named_when_it_is_needed)
{
    static struct maker m;
    struct gguf *g;
    struct mat w;
    struct lq_fault fault;
    m.n = 0;
    one_tensor(&m, "t", 16, 2, 256, 1, 0);
    ck_assert_msg(gguf_open_memory(m.p, m.n, "t.gguf", &g, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_int_eq(mat_bind(&w, g, "t", 1, 256, &fault), LQ_UNSUPPORTED);
    ck_assert_str_eq(fault.text, "t.gguf: tensor 't' has type IQ2_XXS (16), which is not read");
    ck_assert_int_eq(mat_bind(&w, g, "u", 1, 256, &fault), LQ_BAD_MODEL);
    ck_assert_str_eq(fault.text, "t.gguf: tensor 'u' is missing");
    gguf_free(g);
    m.n = 0;
    one_tensor(&m, "t", 0, 2, 4, 3, 0);
    ck_assert_msg(gguf_open_memory(m.p, m.n, "t.gguf", &g, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_int_eq(mat_bind(&w, g, "t", 4, 3, &fault), LQ_BAD_MODEL);
    ck_assert_str_eq(fault.text, "t.gguf: tensor 't' is [4, 3], expected [3, 4]");
    ck_assert_int_eq(mat_bind(&w, g, "t", 3, 4, &fault), LQ_OK);
    gguf_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("gguf");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, good_file_reads);
    tcase_add_test(t, every_truncation_is_refused);
    tcase_add_loop_test(t, bad_files_name_the_field, 0, sizeof bad / sizeof *bad);
    tcase_add_test(t, no_flip_of_a_byte_crashes);
    tcase_add_test(t, split_files_open_by_any_part);
    tcase_add_loop_test(t, architectures_are_read, 0, sizeof archs / sizeof *archs);
    tcase_add_loop_test(t, wrong_shapes_name_the_key, 0, sizeof wrong / sizeof *wrong);
    tcase_add_test(t, unknown_architecture_is_named);
    tcase_add_test(t, unread_tensor_type_is_named_when_it_is_needed);
    suite_add_tcase(s, t);
    return run_suite(s);
}
