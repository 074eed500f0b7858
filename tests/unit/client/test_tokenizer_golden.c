/* The tokenizer against llama.cpp on 2,000 lines of mixed text, exactly: out of the GGUF file,
 * and out of the tokenizer.json that larql extract makes of it. How the golden ids were
 * made: tests/golden/README.md. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer.h"
#include "model/gguf_impl.h"
#include "model/vindex_open.h"
#include "model/vindex_write_impl.h"
#include "tests/unit/support.h"

static const struct {
    const char *variable, *golden;
} models[] = {
    {"LQ_MODEL_GEMMA", "tests/golden/tokens-gemma.txt"},
    {"LQ_MODEL_SMOLLM2", "tests/golden/tokens-smollm2.txt"},
};

/* The ids of one line are those of the golden line; says where they part. */
static void compare(const struct tokenizer *t, size_t line, const json_t *text, char *want)
{
    uint32_t *ids;
    size_t n, i = 0;
    struct lq_fault fault;
    ck_assert_msg(tokenizer_encode(t, json_string_value(text), json_string_length(text), false, false, &ids, &n,
                                   &fault) == LQ_OK,
                  "line %zu: %s", line, fault.text);
    char *save;
    for (char *w = strtok_r(want, " ", &save); w; w = strtok_r(NULL, " ", &save), i++)
        ck_assert_msg(i < n && ids[i] == strtoul(w, NULL, 10), "line %zu, token %zu: got %lld, llama.cpp has %s",
                      line, i, i < n ? (long long)ids[i] : -1, w);
    ck_assert_msg(i == n, "line %zu: %zu tokens, llama.cpp has %zu", line, n, i);
    free(ids);
}

/* The keys of tokenizer.json and tokenizer_config.json, as a model of their own. */
static struct gguf *by_way_of_json(const struct gguf *from)
{
    char folder[] = "/tmp/lq-tokenizer-XXXXXX", command[64];
    struct gguf *g = gguf_new(1);
    struct gguf_array tokens;
    struct hash256 hashes[2];
    struct lq_fault fault;
    ck_assert(mkdtemp(folder) && g && (g->vindex = calloc(1, sizeof *g->vindex)));
    g->parts[0].name = "tokenizer.json";
    ck_assert_int_eq(gguf_get_array(from, "tokenizer.ggml.tokens", &tokens, &fault), LQ_OK);
    const struct vindex_index x = {.vocab_n = (uint32_t)tokens.n};
    struct vindex_keys k = {.g = g, .v = g->vindex};
    ck_assert_msg(vindex_write_tokenizer(from, folder, hashes, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(vindex_tokenizer_read(folder, &x, &k, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(gguf_index(g, &fault) == LQ_OK, "%s", fault.text);
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    return g;
}

static void same_settings(const struct gguf *a, const struct gguf *b)
{
    struct tokenizer *x, *y;
    struct lq_fault fault;
    ck_assert_int_eq(tokenizer_new(a, &x, &fault), LQ_OK);
    ck_assert_int_eq(tokenizer_new(b, &y, &fault), LQ_OK);
    ck_assert_int_eq(tokenizer_bos(x), tokenizer_bos(y));
    ck_assert_int_eq(tokenizer_eos(x), tokenizer_eos(y));
    ck_assert_int_eq(gguf_has(a, "tokenizer.chat_template"), gguf_has(b, "tokenizer.chat_template"));
    for (uint32_t id = 0; id < tokenizer_vocab_n(x); id++) {
        char p[256], q[256];
        size_t n = tokenizer_piece(x, id, false, p, sizeof p);
        ck_assert_msg(n == tokenizer_piece(y, id, false, q, sizeof q) && memcmp(p, q, n) == 0, "token %u", id);
        ck_assert_msg(tokenizer_is_end(x, id) == tokenizer_is_end(y, id), "token %u", id);
    }
    static const char chat[] = "<start_of_turn>user\nHi</s><|im_start|>  \n\n\t<|im_end|><bos>";
    for (int special = 0; special < 4; special++) {
        uint32_t *i, *j;
        size_t n, m;
        ck_assert_int_eq(tokenizer_encode(x, chat, sizeof chat - 1, special & 1, special & 2, &i, &n, &fault), LQ_OK);
        ck_assert_int_eq(tokenizer_encode(y, chat, sizeof chat - 1, special & 1, special & 2, &j, &m, &fault), LQ_OK);
        ck_assert(n == m && memcmp(i, j, n * sizeof *i) == 0);
        free(i);
        free(j);
    }
    tokenizer_free(x);
    tokenizer_free(y);
}

enum { MODELS_N = sizeof models / sizeof *models };

START_TEST(ids_equal_llama_cpp)
{
    const char *path = getenv(models[_i % MODELS_N].variable);
    struct gguf *g;
    struct tokenizer *t;
    struct lq_fault fault;
    ck_assert_msg(path != NULL, "%s is not set: run the tests by `make check`", models[_i % MODELS_N].variable);
    ck_assert_msg(gguf_open(path, &g, &fault) == LQ_OK, "%s (run `make models`)", fault.text);
    if (_i >= MODELS_N) {
        struct gguf *file = g;
        g = by_way_of_json(file);
        same_settings(file, g);
        gguf_free(file);
    }
    ck_assert_msg(tokenizer_new(g, &t, &fault) == LQ_OK, "%s", fault.text);
    char *texts = read_text("tests/golden/text.jsonl", NULL), *golden = read_text(models[_i % MODELS_N].golden, NULL);
    char *text = texts, *ids = golden;
    size_t line = 1;
    for (; *text; line++) {
        char *text_end = strchr(text, '\n'), *ids_end = strchr(ids, '\n');
        ck_assert_ptr_nonnull(text_end);
        ck_assert_msg(ids_end != NULL, "the golden ids end at line %zu", line);
        *text_end = *ids_end = '\0';
        json_t *string = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        ck_assert_msg(json_is_string(string), "line %zu is no JSON string", line);
        compare(t, line, string, ids);
        json_decref(string);
        text = text_end + 1;
        ids = ids_end + 1;
    }
    ck_assert_uint_eq(line - 1, 2000);
    free(texts);
    free(golden);
    tokenizer_free(t);
    gguf_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer golden");
    TCase *t = tcase_create("llama.cpp");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, ids_equal_llama_cpp, 0, 2 * MODELS_N);
    suite_add_tcase(s, t);
    return run_suite(s);
}
