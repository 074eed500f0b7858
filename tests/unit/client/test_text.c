/* Sampler, chat forms, and tokenizers on texts that no golden line holds: any bytes, very
 * long words, special tokens. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/chat.h"
#include "client/sampler.h"
#include "client/tokenizer.h"
#include "tests/unit/model/model_maker.h"
#include "tests/unit/support.h"

/* ---- sampler ---- */

static struct sampler *sampler(float temperature, uint32_t top_k, float top_p, uint64_t seed, size_t n)
{
    struct sampler *s;
    struct lq_fault fault;
    const struct sampler_opts o = {temperature, top_k, top_p, seed};
    ck_assert_msg(sampler_new(&o, n, &s, &fault) == LQ_OK, "%s", fault.text);
    return s;
}

START_TEST(greedy_takes_the_first_best)
{
    struct sampler *s = sampler(0, 0, 1, 0, 5);
    ck_assert_uint_eq(sampler_pick(s, (float[]){1, 3, 2, 3, 0}), 1);
    ck_assert_uint_eq(sampler_pick(s, (float[]){NAN, -INFINITY, 2, NAN, 0}), 2);
    ck_assert_uint_eq(sampler_pick(s, (float[]){NAN, NAN, NAN, NAN, NAN}), 0);
    sampler_free(s);
}
END_TEST

START_TEST(samples_follow_the_distribution)
{
    enum { DRAWS = 40000 };
    float logits[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    const double want[4][4] = {{0.5, 0.3, 0.15, 0.05},    /* all */
                               {0.625, 0.375, 0, 0},      /* top-k 2 */
                               {0.526, 0.316, 0.158, 0},  /* top-p 0.9: three reach it */
                               {0.690, 0.248, 0.062, 0}}; /* temperature 1/2: squares, the last one at -inf */
    for (int k = 0; k < 4; k++) {
        struct sampler *s = sampler(k == 3 ? 0.5f : 1, k == 1 ? 2 : 0, k == 2 ? 0.9f : 1, 42, 4);
        double seen[4] = {0};
        if (k == 3)
            logits[3] = -INFINITY;
        for (int i = 0; i < DRAWS; i++)
            seen[sampler_pick(s, logits)] += 1.0 / DRAWS;
        for (int i = 0; i < 4; i++) /* five standard deviations of the draw */
            ck_assert_msg(want[k][i] == 0 ? seen[i] == 0 : fabs(seen[i] - want[k][i]) < 0.013,
                          "case %d, token %d: %.4f", k, i, seen[i]);
        sampler_free(s);
    }
}
END_TEST

START_TEST(same_seed_same_draws)
{
    float logits[100];
    for (int i = 0; i < 100; i++)
        logits[i] = (float)(i % 7);
    struct sampler *a = sampler(1, 0, 1, 7, 100), *b = sampler(1, 0, 1, 7, 100), *c = sampler(1, 0, 1, 8, 100);
    int other = 0;
    for (int i = 0; i < 200; i++) {
        uint32_t x = sampler_pick(a, logits);
        ck_assert_uint_eq(x, sampler_pick(b, logits));
        other += x != sampler_pick(c, logits);
    }
    ck_assert_int_gt(other, 0);
    sampler_free(a), sampler_free(b), sampler_free(c);
    struct lq_fault fault;
    const struct sampler_opts bad[] = {{-1, 0, 1, 0}, {NAN, 0, 1, 0}, {1, 0, 0, 0}, {1, 0, 1.5f, 0}};
    for (size_t i = 0; i < 4; i++)
        ck_assert_int_eq(sampler_new(&bad[i], 4, &a, &fault), LQ_USAGE);
}
END_TEST

/* ---- chat ---- */

static const struct {
    const char *template, *system, *want; /* want NULL: refused */
} chats[] = {
    {"{% x %}<start_of_turn>{{role}}", NULL, "<start_of_turn>user\nHi {}%s<end_of_turn>\n<start_of_turn>model\n"},
    {"{% x %}<start_of_turn>{{role}}", "Be.",
     "<start_of_turn>user\nBe.\n\nHi {}%s<end_of_turn>\n<start_of_turn>model\n"},
    {"<|im_start|>", "Be.",
     "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nHi {}%s<|im_end|>\n<|im_start|>assistant\n"},
    {"<|im_start|>", NULL, "<|im_start|>user\nHi {}%s<|im_end|>\n<|im_start|>assistant\n"},
    {"<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>", NULL,
     "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
     "<|im_start|>user\nHi {}%s<|im_end|>\n<|im_start|>assistant\n"},
    {"<|start_header_id|>", NULL,
     "<|start_header_id|>user<|end_header_id|>\n\nHi "
     "{}%s<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"[INST]", "Be.", "[INST] Be.\n\nHi {}%s [/INST]"},
    {"{{ messages }}", NULL, NULL},
};

START_TEST(chat_forms)
{
    static struct maker m;
    struct gguf *g;
    struct lq_fault fault;
    char *out;
    m.n = 0;
    put_head(&m, 3, 0, 1);
    put_kv_text(&m, "tokenizer.chat_template", chats[_i].template);
    put_data(&m, 32);
    ck_assert_msg(gguf_open_memory(m.p, m.n, "t.gguf", &g, &fault) == LQ_OK, "%s", fault.text);
    enum lq_err rc = chat_format(g, chats[_i].system, "Hi {}%s", &out, &fault);
    if (chats[_i].want) {
        ck_assert_msg(rc == LQ_OK, "%s", fault.text);
        ck_assert_str_eq(out, chats[_i].want);
        free(out);
    } else {
        ck_assert_int_eq(rc, LQ_UNSUPPORTED);
    }
    gguf_free(g);
}
END_TEST

/* ---- tokenizers on the real vocabularies ---- */

static const char *const variables[] = {"LQ_MODEL_GEMMA", "LQ_MODEL_SMOLLM2"};

static struct tokenizer *real(int i, struct gguf **g)
{
    struct tokenizer *t;
    struct lq_fault fault;
    const char *path = getenv(variables[i]);
    ck_assert_msg(path != NULL, "%s is not set: run the tests by `make check`", variables[i]);
    ck_assert_msg(gguf_open(path, g, &fault) == LQ_OK, "%s (run `make models`)", fault.text);
    ck_assert_msg(tokenizer_new(*g, &t, &fault) == LQ_OK, "%s", fault.text);
    return t;
}

/* The pieces of a text's tokens, joined, are the text. */
static void check_round_trip(const struct tokenizer *t, const char *text, size_t n)
{
    uint32_t *ids;
    size_t ids_n, at = 0;
    struct lq_fault fault;
    ck_assert_msg(tokenizer_encode(t, text, n, false, false, &ids, &ids_n, &fault) == LQ_OK, "%s", fault.text);
    for (size_t i = 0; i < ids_n; i++) {
        char piece[512];
        size_t piece_n = tokenizer_piece(t, ids[i], true, piece, sizeof piece);
        ck_assert_msg(at + piece_n <= n && memcmp(text + at, piece, piece_n) == 0,
                      "token %zu (id %u) at byte %zu of %zu", i, ids[i], at, n);
        at += piece_n;
    }
    ck_assert_uint_eq(at, n);
    free(ids);
}

/* Bytes that the vocabulary has: SmolLM2's lacks some, and drops them as llama.cpp does. */
static size_t known_bytes(const struct tokenizer *t, char known[256])
{
    size_t n = 0, ids_n;
    for (int b = 0; b < 256; b++) {
        uint32_t *ids;
        char byte = (char)b;
        ck_assert_int_eq(tokenizer_encode(t, &byte, 1, false, false, &ids, &ids_n, NULL), LQ_OK);
        if (ids_n > 0)
            known[n++] = byte;
        free(ids);
    }
    ck_assert_uint_ge(n, 230);
    return n;
}

START_TEST(any_bytes_come_back)
{
    struct gguf *g;
    struct tokenizer *t = real(_i, &g);
    char text[300], known[256];
    size_t known_n = known_bytes(t, known);
    uint32_t seed = 1;
    for (int turn = 0; turn < 2000; turn++) {
        size_t n = 0;
        for (; n < sizeof text && (turn % 300 == 0 || n < (size_t)turn % 300); n++) {
            seed = seed * 1664525u + 1013904223u;
            text[n] = turn % 3 == 0   ? known[(seed >> 16) % known_n]
                      : turn % 3 == 1 ? (char)('a' + (seed >> 16) % 4)
                                      : " \n\t\0<|>s"[(seed >> 16) % 8];
        }
        check_round_trip(t, text, n);
    }
    tokenizer_free(t);
    gguf_free(g);
}
END_TEST

START_TEST(long_words_are_no_trap)
{
    enum { N = 1 << 18 };
    struct gguf *g;
    struct tokenizer *t = real(_i, &g);
    char *text = malloc(N);
    const char fills[] = "a \n0=\xe4\x80<";
    for (size_t k = 0; k < sizeof fills - 1; k++) { /* a quarter of a megabyte of each */
        memset(text, fills[k], N);
        check_round_trip(t, text, N);
    }
    for (size_t i = 0; i < N; i++)
        text[i] = "ab"[i % 3 == 0];
    check_round_trip(t, text, N);
    free(text);
    tokenizer_free(t);
    gguf_free(g);
}
END_TEST

START_TEST(control_tokens_are_parsed_only_when_asked)
{
    static const char *const marks[] = {"<start_of_turn>", "<|im_start|>"};
    struct gguf *g;
    struct tokenizer *t = real(_i, &g);
    uint32_t *ids;
    size_t n;
    char text[64], piece[64];
    snprintf(text, sizeof text, "a%sb", marks[_i]);
    ck_assert_int_eq(tokenizer_encode(t, text, strlen(text), false, true, &ids, &n, NULL), LQ_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_uint_eq(tokenizer_piece(t, ids[1], true, piece, sizeof piece), strlen(marks[_i]));
    ck_assert_uint_eq(tokenizer_piece(t, ids[1], false, piece, sizeof piece), 0);
    free(ids);
    ck_assert_int_eq(tokenizer_encode(t, text, strlen(text), false, false, &ids, &n, NULL), LQ_OK);
    ck_assert_uint_gt(n, 3);
    free(ids);
    ck_assert_int_eq(tokenizer_encode(t, "", 0, true, false, &ids, &n, NULL), LQ_OK);
    ck_assert_uint_eq(n, _i == 0); /* gemma begins with a bos, SmolLM2 does not */
    free(ids);
    ck_assert(tokenizer_is_end(t, (uint32_t)tokenizer_eos(t)));
    ck_assert(!tokenizer_is_end(t, 500) && !tokenizer_is_end(t, UINT32_MAX));
    ck_assert_uint_eq(tokenizer_piece(t, UINT32_MAX, true, piece, sizeof piece), 0);
    tokenizer_free(t);
    gguf_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("text");
    TCase *t = tcase_create("text");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, greedy_takes_the_first_best);
    tcase_add_test(t, samples_follow_the_distribution);
    tcase_add_test(t, same_seed_same_draws);
    tcase_add_loop_test(t, chat_forms, 0, sizeof chats / sizeof *chats);
    tcase_add_loop_test(t, any_bytes_come_back, 0, 2);
    tcase_add_loop_test(t, long_words_are_no_trap, 0, 2);
    tcase_add_loop_test(t, control_tokens_are_parsed_only_when_asked, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
