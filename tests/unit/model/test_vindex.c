/* vindex directories: JSON that is refused, blocks, padded rows, extraction that is stopped and
 * gone on with. Whole models against their GGUF files: tests/grid/test_vindex.py. */
#include "model/vindex.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/gguf_impl.h"
#include "model/mat.h"
#include "model/quant_blocks.h"
#include "model/quant_encode.h"
#include "model/vindex_impl.h"
#include "model/vindex_verify.h"
#include "model/vindex_write.h"
#include "tests/unit/model/model_maker.h"
#include "tests/unit/support.h"

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* The values by docs/vindex.md, from LARQL's order of bits. */
static void linear_values(const uint8_t *b, const float d, float out[QUANT_BLOCK_K])
{
    for (int i = 0; i < QUANT_BLOCK_K; i++) {
        int lo = b[i / 2] >> 4 * (i & 1) & 15, hi = b[128 + i / 4] >> 2 * (i & 3) & 3;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((lo | hi << 4) - 32);
    }
}

START_TEST(q6k_is_repacked_without_loss)
{
    uint32_t seed = 3;
    uint8_t block[sizeof(struct block_q6_k)], linear[sizeof block], back[sizeof block];
    float want[QUANT_BLOCK_K], got[QUANT_BLOCK_K];
    for (int turn = 0; turn < 100; turn++) {
        for (size_t i = 0; i < sizeof block; i++)
            block[i] = (uint8_t)next(&seed);
        block[208] = 0;
        block[209] = 0x3c; /* d = 1 */
        vindex_q6k_from_ggml(block, 1, linear);
        vindex_q6k_to_ggml(linear, 1, back);
        ck_assert_mem_eq(block, back, sizeof block);
        kern_ref.dequant[QUANT_Q6_K](block, QUANT_BLOCK_K, want);
        linear_values(linear, 1.0f, got);
        ck_assert_mem_eq(want, got, sizeof want);
    }
}
END_TEST

static float worst(enum quant_type type, const uint8_t *block, const float *x, float *most)
{
    float out[QUANT_BLOCK_K], off = 0;
    *most = 0;
    kern_ref.dequant[type](block, QUANT_BLOCK_K, out);
    for (int i = 0; i < QUANT_BLOCK_K; i++) {
        off = fmaxf(off, fabsf(out[i] - x[i]));
        *most = fmaxf(*most, fabsf(x[i]));
    }
    return off;
}

START_TEST(encoders_stay_near)
{
    uint32_t seed = 8;
    uint8_t q4[sizeof(struct block_q4_k)], q6[sizeof(struct block_q6_k)];
    float x[QUANT_BLOCK_K], most;
    for (int turn = 0; turn < 50; turn++) {
        float scale = powf(10, (float)(turn % 5) - 2), centre = turn % 3 ? 0 : scale;
        for (int i = 0; i < QUANT_BLOCK_K; i++)
            x[i] = centre + scale * ((float)next(&seed) / (float)(1 << 23) - 1);
        quant_encode_q4k(x, q4);
        quant_encode_q6k(x, q6);
        ck_assert_float_le(worst(QUANT_Q4_K, q4, x, &most), most / 10);
        ck_assert_float_le(worst(QUANT_Q6_K, q6, x, &most), most / 40);
    }
    memset(x, 0, sizeof x);
    quant_encode_q4k(x, q4);
    quant_encode_q6k(x, q6);
    ck_assert_float_eq(worst(QUANT_Q4_K, q4, x, &most), 0);
    ck_assert_float_eq(worst(QUANT_Q6_K, q6, x, &most), 0);
    for (int i = 0; i < QUANT_BLOCK_K; i++) /* one huge value, and none below zero */
        x[i] = i == 77 ? 1e4f : 1e-3f;
    quant_encode_q4k(x, q4);
    ck_assert_float_le(worst(QUANT_Q4_K, q4, x, &most), most / 10);
}
END_TEST

/* A padded matrix gives the bits of one that is stored with its zeros, over x with zeros. */
START_TEST(padded_rows)
{
    enum { ROWS = 40, COLS = 300, STORED = 512, X = 70 };
    static float x[X * COLS], wide[X * STORED], got[X * ROWS], want[X * ROWS], scratch[X * ROWS], act[X * ROWS];
    static uint8_t w[ROWS * 2 * sizeof(struct block_q4_k)];
    uint32_t seed = 5;
    for (size_t i = 0; i < sizeof w; i++)
        w[i] = (uint8_t)next(&seed);
    for (size_t i = 0; i < sizeof w; i += sizeof(struct block_q4_k)) {
        w[i + 1] = w[i + 3] = 0x20; /* scales that are finite and small */
    }
    for (int s = 0; s < X; s++)
        for (int i = 0; i < COLS; i++)
            wide[s * STORED + i] = x[s * COLS + i] = (float)next(&seed) / (float)(1 << 23) - 1;
    const struct mat padded = {w, QUANT_Q4_K, ROWS, COLS, 2 * sizeof(struct block_q4_k), STORED - COLS},
                     whole = {w, QUANT_Q4_K, ROWS, STORED, 2 * sizeof(struct block_q4_k), 0};
    for (int a = 0; a < MAT_ACTIVATIONS_N; a++) {
        struct compute *c;
        struct lq_fault fault;
        ck_assert_msg(compute_new(2, COLS, (enum mat_activations)a, &c, &fault) == LQ_OK, "%s", fault.text);
        for (size_t n = 1; n <= 64; n += n < 20 ? 1 : 44) {
            mat_mul(c, &padded, x, n, got);
            mat_mul(c, &whole, wide, n, want);
            ck_assert_mem_eq(got, want, n * ROWS * sizeof *got);
        }
        mat_mul(c, &padded, x, X, got); /* in turns of 64 */
        mat_mul(c, &padded, x + 64 * COLS, X - 64, want);
        ck_assert_mem_eq(got + 64 * ROWS, want, (X - 64) * ROWS * sizeof *got);
        for (size_t n = 1; n <= 3; n += 2) {
            mat_gate_up(c, &padded, &padded, compute_kern(c)->silu_mul, x, n, scratch, act);
            mat_gate_up(c, &whole, &whole, compute_kern(c)->silu_mul, wide, n, scratch, want);
            ck_assert_mem_eq(act, want, n * ROWS * sizeof *act);
        }
        compute_free(c);
    }
}
END_TEST

/* ---- JSON ------------------------------------------------------------------------------------------- */

#define CONFIG                                                                                                       \
    "\"model_config\":{\"model_type\":\"llama\",\"head_dim\":4,\"num_q_heads\":2,\"num_kv_heads\":1,\"rope_base\":"  \
    "1e4"
#define HEAD                                                                                                         \
    "{\"version\":2,\"model\":\"m\",\"family\":\"llama\",\"num_layers\":1,\"hidden_size\":8,\"intermediate_size\":"  \
    "4,"                                                                                                             \
    "\"vocab_size\":5,\"embed_scale\":1,\"down_top_k\":10,\"dtype\":\"f16\","
#define LAYERS "\"layers\":[{\"layer\":0,\"num_features\":4,\"offset\":0,\"length\":64}]"

static const struct {
    const char *text, *says; /* NULL: it is read */
} indexes[] = {
    {HEAD CONFIG "}," LAYERS "}", NULL},
    {HEAD CONFIG ",\"norm_eps\":1e-5,\"sliding_window\":null,\"x\":[]}," LAYERS ",\"new\":{\"a\":1}}", NULL},
    {"[]", "not an object"},
    {"{\"version\":2", "line 1"},
    {"{\"version\":2,\"version\":2}", "duplicate"},
    {"\xff", "line 1"},
    {"{\"version\":3}", "'version' is 3"},
    {HEAD CONFIG ",\"head_dim\":4}," LAYERS "}", "duplicate"},
    {HEAD CONFIG ",\"norm_eps\":-1}," LAYERS "}", "model_config.norm_eps' is -1"},
    {HEAD CONFIG ",\"norm_eps\":true}," LAYERS "}", "model_config.norm_eps' is no number"},
    {HEAD CONFIG ",\"moe\":{}}," LAYERS "}", "mixture of experts"},
    {HEAD "\"ffn_layout\":\"per_layer\"," CONFIG "}," LAYERS "}", "mixture of experts"},
    {HEAD "\"fp4\":{}," CONFIG "}," LAYERS "}", "FP4"},
    {HEAD "\"quant\":\"q5k\"," CONFIG "}," LAYERS "}", "'quant' is 'q5k'"},
    {HEAD "\"model_config\":3," LAYERS "}", "'model_config' is no object"},
    {HEAD LAYERS "}", "'model_config' is missing"},
    {HEAD CONFIG "},\"layers\":[{\"layer\":0,\"num_features\":4,\"offset\":0,\"length\":63}]}",
     "layers[0].length is 63"},
    {HEAD CONFIG "},\"layers\":[{\"layer\":0,\"num_features\":4,\"offset\":1,\"length\":64}]}",
     "layers[0].offset is 1"},
    {HEAD CONFIG "},\"layers\":[{\"layer\":0,\"num_features\":4,\"offset\":-8,\"length\":64}]}",
     "layers[0].offset' is -8"},
    {HEAD CONFIG "},\"layers\":[3]}", "layers[0] is no object"},
    {HEAD CONFIG "},\"layers\":[]}", "'layers' has 0 rows"},
    {HEAD CONFIG "}," LAYERS ",\"larql_grid\":{\"model_hash\":\"12\"}}", "model_hash"},
    {HEAD CONFIG "}," LAYERS ",\"larql_grid\":{\"context_length\":0}}", "context_length' is 0"},
    {HEAD CONFIG "}," LAYERS ",\"larql_grid\":{\"rope_scaling_factor\":1e9}}", "rope_scaling_factor"},
};

START_TEST(index_json)
{
    struct vindex_index x;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = vindex_index_read("index.json", indexes[_i].text, strlen(indexes[_i].text), &x, &fault);
    if (!indexes[_i].says) {
        ck_assert_msg(rc == LQ_OK, "%s", fault.text);
        ck_assert_uint_eq(x.layers_n, 1);
        ck_assert_uint_eq(x.gates[0].length, 64);
        vindex_index_release(&x);
        return;
    }
    ck_assert_msg(rc == LQ_BAD_MODEL || rc == LQ_UNSUPPORTED, "%d: '%s'", rc, fault.text);
    ck_assert_msg(strstr(fault.text, indexes[_i].says) && strstr(fault.text, "index.json"), "'%s' lacks '%s'",
                  fault.text, indexes[_i].says);
}
END_TEST

#define ROW(key, kind, shape, offset, length, file)                                                                  \
    "{\"key\":\"" key "\",\"kind\":\"" kind "\",\"shape\":" shape ",\"offset\":" #offset ",\"length\":" #length      \
    ",\"file\":" file "}"
static const struct {
    const char *text, *says;
    size_t rows_n;
} weights[] = {
    {"[]", NULL, 0},
    {"[" ROW("norm.weight", "vector", "[8]", 0, 32, "\"norms.bin\"") "]", NULL, 1},
    {"[" ROW("norm.weight", "vector", "[8]", 0, 16, "\"norms.bin\"") "]", NULL, 1},
    {"[" ROW("a", "tensor", "[4,8]", 64, 64, "\"\"") "," ROW("a", "tensor", "[4,8]", 0, 64, "null") "]", NULL, 1},
    {"[" ROW("a", "packed_bf16", "[1,2,3]", 0, 12, "\"experts_packed.bin\"") "]", NULL, 0},
    {"[" ROW("lm_head.weight", "tensor_q4k", "[2,512]", 0, 576, "\"lm_head_q4.bin\"") "]", NULL, 1},
    {"{}", "no list", 0},
    {"[3]", "row 0", 0},
    {"[" ROW("", "vector", "[8]", 0, 32, "\"n\"") "]", "row 0: 'key'", 0},
    {"[" ROW("a\\u0007", "vector", "[8]", 0, 32, "\"n\"") "]", "row 0: 'key'", 0},
    {"[" ROW("a", "matrix", "[8]", 0, 32, "\"n\"") "]", "kind 'matrix' is not known", 0},
    {"[" ROW("a", "vector", "[2,4]", 0, 32, "\"n\"") "]", "a vector of 2 dimensions", 0},
    {"[" ROW("a", "tensor", "[8]", 0, 32, "\"n\"") "]", "a tensor of 1 dimensions", 0},
    {"[" ROW("a", "tensor", "[2,2,2]", 0, 32, "\"n\"") "]", "'shape'", 0},
    {"[" ROW("a", "tensor", "[0,8]", 0, 0, "\"n\"") "]", "shape[0]", 0},
    {"[" ROW("a", "tensor", "[8,4294967296]", 0, 0, "\"n\"") "]", "shape[1]", 0},
    {"[" ROW("a", "tensor", "[4294967295,4294967295]", 0, 4, "\"n\"") "]", "length is 4", 0},
    {"[" ROW("a", "tensor", "[4,8]", 0, 96, "\"n\"") "]", "length is 96", 0},
    {"[" ROW("a", "tensor_f16", "[4,8]", 0, 128, "\"n\"") "]", "length is 128", 0},
    {"[" ROW("a", "tensor", "[4,8]", 1, 64, "\"n\"") "]", "offset 1 is odd", 0},
    {"[" ROW("a", "tensor", "[4,8]", -2, 64, "\"n\"") "]", "'offset'", 0},
    {"[" ROW("a", "tensor", "[4,8]", 9223372036854775806, 64, "\"n\"") "]", "'length'", 0},
    {"[" ROW("a", "tensor", "[4,8]", 0, 64, "\"../n\"") "]", "'file'", 0},
    {"[" ROW("a", "tensor", "[4,8]", 0, 64, "\".n\"") "]", "'file'", 0},
    {"[" ROW("a", "tensor", "[4,8]", 0, 64, "3") "]", "'file'", 0},
    {"[" ROW("b", "tensor_q4k", "[2,500]", 0, 576, "\"n\"") "]", "shape[1] is 500", 0},
    {"[" ROW("b", "tensor_q4k", "[2,512]", 0, 592, "\"n\"") "]", "length is 592",
     0}, /* blocks of 148 bytes, as once were */
};

START_TEST(weight_manifest)
{
    struct vindex_rows rows;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc =
        vindex_weights_read("weight_manifest.json", weights[_i].text, strlen(weights[_i].text), &rows, &fault);
    if (!weights[_i].says) {
        ck_assert_msg(rc == LQ_OK, "%s", fault.text);
        ck_assert_uint_eq(rows.n, weights[_i].rows_n);
        if (rows.n)
            ck_assert_uint_eq(rows.p[0].offset, 0); /* of two rows the last */
        vindex_rows_release(&rows);
        return;
    }
    ck_assert_int_eq(rc, LQ_BAD_MODEL);
    ck_assert_msg(strstr(fault.text, weights[_i].says) && strstr(fault.text, "weight_manifest.json"),
                  "'%s' lacks '%s'", fault.text, weights[_i].says);
}
END_TEST

START_TEST(names_of_both_kinds)
{
    static const struct {
        bool gemma;
        const char *key, *gguf;
    } pairs[] = {{false, "layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"},
                 {true, "layers.3.post_attention_layernorm.weight", "blk.3.post_attention_norm.weight"},
                 {true, "layers.0.pre_feedforward_layernorm.weight", "blk.0.ffn_norm.weight"},
                 {false, "layers.10.self_attn.q_proj.bias", "blk.10.attn_q.bias"},
                 {false, "norm.weight", "output_norm.weight"}};
    static const char *const none[] = {"layers.11.mlp.up_proj.weight",
                                       "layers.01.mlp.up_proj.weight",
                                       "layers.x.mlp.up_proj.weight",
                                       "layers.1",
                                       "layers.4294967297.mlp.up_proj.weight",
                                       "layers.1.mlp.up_proj.weight.",
                                       ""};
    char name[GGUF_NAME_BYTES_MAX], key[VINDEX_KEY_BYTES];
    uint32_t layer;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const struct vindex_index x = {.layers_n = 11, .gemma_norms = pairs[i].gemma};
        ck_assert(vindex_gguf_name(&x, pairs[i].key, name, &layer));
        ck_assert_str_eq(name, pairs[i].gguf);
        ck_assert(vindex_key_of(pairs[i].gemma, pairs[i].gguf, key));
        ck_assert_str_eq(key, pairs[i].key);
    }
    const struct vindex_index x = {.layers_n = 11};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        ck_assert_msg(!vindex_gguf_name(&x, none[i], name, &layer), "%s", none[i]);
    ck_assert(!vindex_gguf_name(&x, "layers.0.pre_feedforward_layernorm.weight", name, &layer)); /* gemma's */
}
END_TEST

/* ---- extraction ----------------------------------------------------------------------------------------- */

enum { HIDDEN = 8, FFN = 4, VOCAB = 6, LAYERS_N = 2 };

/* A llama of two layers in F32, with a vocabulary of six tokens; the values count up. */
static void make_llama(struct maker *m)
{
    static const struct {
        const char *name;
        uint64_t cols, rows; /* rows 0: a vector */
    } parts[] = {{"attn_norm", HIDDEN, 0},  {"ffn_norm", HIDDEN, 0}, {"attn_q", HIDDEN, HIDDEN},
                 {"attn_k", HIDDEN, 4},     {"attn_v", HIDDEN, 4},   {"attn_output", HIDDEN, HIDDEN},
                 {"ffn_gate", HIDDEN, FFN}, {"ffn_up", HIDDEN, FFN}, {"ffn_down", FFN, HIDDEN}};
    enum { PARTS_N = sizeof parts / sizeof *parts };
    static const char *const tokens[VOCAB] = {"<unk>",
                                              "a",
                                              "b",
                                              "ab",
                                              "\xe2\x96\x81",
                                              ("\xe2\x96\x81"
                                               "ab")};
    static const float scores[VOCAB] = {0, -9, -9, -1, -9, -2};
    uint64_t at = 0;
    m->n = 0;
    put_head(m, 3, 2 + PARTS_N * LAYERS_N, 10);
    put_kv_text(m, "general.architecture", "llama");
    put_kv_text(m, "general.name", "two \"layers\"");
    put_kv32(m, "llama.block_count", LAYERS_N);
    put_kv32(m, "llama.embedding_length", HIDDEN);
    put_kv32(m, "llama.feed_forward_length", FFN);
    put_kv32(m, "llama.attention.head_count", 2);
    put_kv32(m, "llama.attention.head_count_kv", 1);
    put_kv_text(m, "tokenizer.ggml.model", "llama");
    put_text(m, "tokenizer.ggml.tokens");
    put32(m, 9);
    put32(m, 8);
    put64(m, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        put_text(m, tokens[i]);
    put_text(m, "tokenizer.ggml.scores");
    put32(m, 9);
    put32(m, 6);
    put64(m, VOCAB);
    put(m, scores, sizeof scores);
    put_tensor(m, "token_embd.weight", 0, 2, (const uint64_t[]){HIDDEN, VOCAB}, at);
    at += HIDDEN * VOCAB * 4;
    put_tensor(m, "output_norm.weight", 0, 1, (const uint64_t[]){HIDDEN}, at);
    at += HIDDEN * 4;
    for (int l = 0; l < LAYERS_N; l++)
        for (size_t i = 0; i < PARTS_N; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[i].name);
            put_tensor(m, name, 0, parts[i].rows ? 2 : 1, (const uint64_t[]){parts[i].cols, parts[i].rows}, at);
            at += parts[i].cols * (parts[i].rows ? parts[i].rows : 1) * 4;
        }
    put_data(m, at);
    for (size_t i = 0; i < at / 4; i++) {
        float v = (float)i / 64;
        memcpy(m->p + m->n - at + 4 * i, &v, 4);
    }
}

struct stopper {
    int calls, stop_at;
    _Atomic bool stop;
};

static void stop_after(void *arg, const char *file, uint64_t done, uint64_t total)
{
    struct stopper *s = arg;
    ck_assert_uint_le(done, total);
    ck_assert(*file);
    if (++s->calls == s->stop_at)
        s->stop = true;
}

START_TEST(extraction_goes_on_where_it_was_stopped)
{
    static struct maker m;
    char folder[] = "/tmp/lq-vindex-XXXXXX", dir[64], path[96];
    struct gguf *g, *v;
    struct arch a;
    struct lq_fault fault = {.text = ""};
    struct vindex_write_report report;
    make_llama(&m);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(dir, sizeof dir, "%s/v", folder);
    ck_assert_msg(gguf_open_memory(m.p, m.n, "two.gguf", &g, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(arch_read(g, &a, &fault) == LQ_OK, "%s", fault.text);
    struct stopper s = {.stop_at = 5};
    struct vindex_write_opts o = {.dir = dir,
                                  .level = VINDEX_ALL,
                                  .dtype = VINDEX_F32,
                                  .layer_last = LAYERS_N - 1,
                                  .progress = stop_after,
                                  .arg = &s,
                                  .stop = &s.stop};
    ck_assert_int_eq(vindex_write(g, &a, &o, &report, &fault), LQ_CANCELLED);
    ck_assert_int_ne(access(dir, F_OK), 0);
    s.stop = false;
    o.dtype = VINDEX_F16;
    ck_assert_int_eq(vindex_write(g, &a, &o, &report, &fault), LQ_USAGE);
    ck_assert_msg(strstr(fault.text, "other options") != NULL, "%s", fault.text);
    o.dtype = VINDEX_F32;
    ck_assert_msg(vindex_write(g, &a, &o, &report, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_uint_eq(report.kept_n, 2); /* gates and ups, two tensors each; the fifth was the first down */
    ck_assert_int_eq(vindex_write(g, &a, &o, &report, &fault), LQ_USAGE); /* it is there */

    ck_assert_msg(model_open(dir, &model_want_all, &v, &fault) == LQ_OK, "%s", fault.text);
    for (size_t i = 0; i < gguf_tensors_n(g); i++) {
        const struct gguf_tensor *want = gguf_tensor_at(g, i), *got = gguf_tensor(v, want->name);
        ck_assert_msg(got && !got->hole && got->bytes == want->bytes && got->dims[0] == want->dims[0] &&
                          got->dims[1] == want->dims[1] && got->type == want->type,
                      "%s", want->name);
        bool turned = strstr(want->name, "attn_q") || strstr(want->name, "attn_k");
        ck_assert_msg((memcmp(got->data, want->data, want->bytes) == 0) != turned, "%s", want->name);
        if (turned) { /* heads of 4 rows: 0 2 1 3 of the converter's */
            const size_t row = HIDDEN * 4;
            static const size_t from[] = {0, 2, 1, 3};
            for (size_t r = 0; r < want->dims[1]; r++)
                ck_assert_mem_eq(got->data + r * row, want->data + (r / 4 * 4 + from[r % 4]) * row, row);
        }
    }
    gguf_free(v);
    struct vindex_verify_report verified;
    ck_assert_msg(vindex_verify(dir, NULL, NULL, &verified, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_uint_eq(verified.ffn_layers_n, LAYERS_N);
    ck_assert(verified.client && verified.unhashed_n == 0);
    snprintf(path, sizeof path, "rm -r %s", folder);
    ck_assert_int_eq(system(path), 0);
    gguf_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("vindex");
    TCase *t = tcase_create("vindex");
    tcase_add_test(t, q6k_is_repacked_without_loss);
    tcase_add_test(t, encoders_stay_near);
    tcase_add_test(t, padded_rows);
    tcase_add_loop_test(t, index_json, 0, sizeof indexes / sizeof *indexes);
    tcase_add_loop_test(t, weight_manifest, 0, sizeof weights / sizeof *weights);
    tcase_add_test(t, names_of_both_kinds);
    tcase_add_test(t, extraction_goes_on_where_it_was_stopped);
    suite_add_tcase(s, t);
    return run_suite(s);
}
