/* bench_input: what is fed: a prompt that the model goes on from, or a text in windows. */
#include <stdlib.h>
#include <string.h>

#include "client/bench.h"
#include "common/file.h"

enum { TEXT_BYTES_MAX = 64 << 20 };

static enum lq_err read_prompt(struct bench *b, struct lq_fault *fault)
{
    size_t n;
    const char *text = b->o->prompt ? b->o->prompt : "The capital of France is";
    enum lq_err rc = tokenizer_encode(b->tokenizer, text, strlen(text), true, false, &b->tokens, &n, fault);
    if (rc)
        return rc;
    if (n == 0)
        return lq_fail(fault, LQ_USAGE, "the prompt is empty and the model has no token to begin with");
    if (n > BENCH_STEPS_MAX)
        return lq_fail(fault, LQ_USAGE, "a prompt of %zu tokens; at most %d", n, BENCH_STEPS_MAX);
    if (!(b->passages = calloc(1, sizeof *b->passages)))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    b->steps_n = (size_t)b->o->steps;
    *b->passages =
        (struct bench_passage){.ids = b->tokens, .ids_n = n, .measured_from = n - 1, .steps_n = b->steps_n};
    b->passages_n = 1;
    b->free_passage = *b->passages;
    b->context_n = n + b->steps_n;
    return LQ_OK;
}

/* Does the model begin a text with a token of its own? */
static enum lq_err has_bos(const struct bench *b, bool *out, struct lq_fault *fault)
{
    uint32_t *ids = NULL;
    size_t n;
    enum lq_err rc = tokenizer_encode(b->tokenizer, "", 0, true, false, &ids, &n, fault);
    *out = rc == LQ_OK && n > 0 && (int64_t)ids[0] == tokenizer_bos(b->tokenizer);
    free(ids);
    return rc;
}

/* Cuts text_n tokens into passages, each of them begun anew. */
static enum lq_err cut(struct bench *b, const uint32_t *text, size_t text_n, bool bos, struct lq_fault *fault)
{
    size_t window = (size_t)b->o->window, each = window - bos, most = text_n / each + 1;
    size_t all = text_n + (bos ? most : 0), want = b->o->steps ? (size_t)b->o->steps : BENCH_STEPS_MAX;
    b->passages = calloc(most, sizeof *b->passages);
    b->tokens = malloc(all * sizeof *b->tokens);
    if (!b->passages || !b->tokens)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu tokens", all);
    uint32_t *to = b->tokens;
    for (size_t at = 0; at < text_n && b->steps_n < want; at += each) {
        size_t some = text_n - at < each ? text_n - at : each, n = 0;
        struct bench_passage *p = &b->passages[b->passages_n++];
        p->ids = to;
        p->step_at = b->steps_n;
        if (bos)
            to[n++] = (uint32_t)tokenizer_bos(b->tokenizer);
        memcpy(to + n, text + at, some * sizeof *text);
        n += some;
        p->ids_n = p->steps_n = n < want - b->steps_n ? n : want - b->steps_n;
        b->steps_n += p->steps_n;
        to += n;
    }
    if (b->steps_n < want && b->o->steps)
        return lq_fail(fault, LQ_USAGE, "%s makes %zu steps, --steps wants %zu (0: all there are)", b->o->text_path,
                       b->steps_n, want);
    return LQ_OK;
}

static enum lq_err read_text(struct bench *b, struct lq_fault *fault)
{
    char *text;
    size_t bytes_n, n = 0;
    uint32_t *ids = NULL;
    bool bos = false;
    enum lq_err rc = file_read(b->o->text_path, TEXT_BYTES_MAX, &text, &bytes_n, fault);
    if (rc)
        return rc;
    rc = has_bos(b, &bos, fault);
    if (!rc)
        rc = tokenizer_encode(b->tokenizer, text, bytes_n, false, false, &ids, &n, fault);
    free(text);
    if (!rc && n == 0)
        rc = lq_fail(fault, LQ_USAGE, "%s holds no text", b->o->text_path);
    if (!rc)
        rc = cut(b, ids, n, bos, fault);
    free(ids);
    if (rc)
        return rc;
    size_t first = b->passages[0].ids_n, begin = first < BENCH_FREE_PROMPT_N ? first : BENCH_FREE_PROMPT_N;
    size_t most = (size_t)b->o->window < b->steps_n ? (size_t)b->o->window : b->steps_n;
    b->free_passage =
        (struct bench_passage){.ids = b->tokens, .ids_n = begin, .measured_from = begin - 1, .steps_n = most};
    b->context_n = (size_t)b->o->window + BENCH_FREE_PROMPT_N;
    return LQ_OK;
}

enum lq_err bench_read_input(struct bench *b, struct lq_fault *fault)
{
    enum lq_err rc = b->o->text_path ? read_text(b, fault) : read_prompt(b, fault);
    if (!rc && b->context_n > b->arch.context_n)
        rc = lq_fail(fault, LQ_USAGE, "%zu tokens at once; %s was made for %u: %s", b->context_n, b->arch.name,
                     b->arch.context_n, b->o->text_path ? "choose a smaller --window" : "choose fewer --steps");
    return rc;
}
