/* The tokenizer against llama.cpp on 2,000 lines of mixed text, exactly. How the
 * golden ids were made: tests/golden/README.md. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer.h"
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

START_TEST(ids_equal_llama_cpp)
{
    const char *path = getenv(models[_i].variable);
    struct gguf *g;
    struct tokenizer *t;
    struct lq_fault fault;
    ck_assert_msg(path != NULL, "%s is not set: run the tests by `make check`", models[_i].variable);
    ck_assert_msg(gguf_open(path, &g, &fault) == LQ_OK, "%s (run `make models`)", fault.text);
    ck_assert_msg(tokenizer_new(g, &t, &fault) == LQ_OK, "%s", fault.text);
    char *texts = read_text("tests/golden/text.jsonl", NULL), *golden = read_text(models[_i].golden, NULL);
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
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, ids_equal_llama_cpp, 0, sizeof models / sizeof *models);
    suite_add_tcase(s, t);
    return run_suite(s);
}
