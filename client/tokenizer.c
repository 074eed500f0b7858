/* tokenizer: the vocabulary out of the metadata, special tokens, the API. */
#include "client/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer_impl.h"
#include "proto/bytes.h"

enum { VOCAB_MAX = 1 << 24, TEXT_BYTES_MAX = 1 << 30, SPECIAL_LEN_MAX = 1024 };
/* Texts that end a turn or a text. Some files type them as words (Gemma 3's "</s>"); by
 * llama.cpp's rule they are control tokens whatever the file says. */
static const char *const ends[] = {"<|eot_id|>",      "<|im_end|>",         "<|end|>",       "<|return|>",
                                   "<|call|>",        "<end_of_turn>",      "<|endoftext|>", "<|eom_id|>",
                                   "< EOT >",         "_< EOT >",           "[EOT]",         "[EOS]",
                                   "<|end_of_text|>", "<end_of_utterance>", "<eos>",         "</s>"};
static const char word_start[] = "\xe2\x96\x81"; /* U+2581, SentencePiece's space */

void ids_push(struct ids *l, uint32_t id)
{
    if (l->n == l->cap && !l->failed) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        uint32_t *p = realloc(l->p, cap * sizeof *p);
        l->failed = !p;
        if (p) {
            l->p = p;
            l->cap = cap;
        }
    }
    if (!l->failed)
        l->p[l->n++] = id;
}

/* ---- the vocabulary --------------------------------------------------------------------------- */

static struct name text_at(const void *t, size_t i)
{
    return ((const struct tokenizer *)t)->text[i];
}

static struct name special_at(const void *t, size_t i)
{
    const struct tokenizer *tok = t;
    return tok->text[tok->special[i]];
}

/* Byte-level texts are decoded once, so that words are compared as bytes. A text with a
 * character that is no byte (a special token's) stays as it is. */
static void decode_texts(struct tokenizer *t)
{
    char *to = t->arena;
    for (uint32_t i = 0; i < t->vocab_n; i++) {
        char *begin = to;
        bool bytes = t->type[i] != TOKEN_CONTROL && t->type[i] != TOKEN_USER;
        for (size_t at = 0, used; at < t->text[i].n && bytes; at += used) {
            int b = bpe_byte_of(t->text[i].p + at, t->text[i].n - at, &used);
            bytes = b >= 0;
            if (bytes)
                *to++ = (char)b;
        }
        if (bytes)
            t->text[i] = (struct name){begin, (size_t)(to - begin)};
        else
            to = begin;
    }
}

static bool looks_like_end(struct name s)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (s.n == strlen(ends[i]) && memcmp(s.p, ends[i], s.n) == 0)
            return true;
    return false;
}

static enum lq_err read_tokens(const struct gguf *g, struct tokenizer *t, struct lq_fault *fault)
{
    struct gguf_array tokens, types, scores;
    size_t bytes = 0;
    enum lq_err rc = gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, fault);
    if (rc)
        return rc;
    if (tokens.type != GGUF_STRING || tokens.n == 0 || tokens.n > VOCAB_MAX)
        return lq_fail(fault, LQ_BAD_MODEL,
                       "%s: tokenizer.ggml.tokens holds %" PRIu64 " values, expected 1 to %d strings", gguf_path(g),
                       tokens.n, VOCAB_MAX);
    t->vocab_n = (uint32_t)tokens.n;
    t->text = calloc(t->vocab_n, sizeof *t->text);
    t->type = malloc(t->vocab_n);
    if (!t->text || !t->type)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %" PRIu32 " tokens", t->vocab_n);
    for (uint32_t i = 0; i < t->vocab_n; i++) {
        t->text[i] = (struct name){tokens.strings[i].p, (size_t)tokens.strings[i].n};
        bytes += t->text[i].n;
    }
    memset(t->type, TOKEN_NORMAL, t->vocab_n);
    if (gguf_has(g, "tokenizer.ggml.token_type")) {
        rc = gguf_get_array(g, "tokenizer.ggml.token_type", &types, fault);
        if (rc || types.n != tokens.n || (types.type != GGUF_I32 && types.type != GGUF_U32))
            return rc ? rc
                      : lq_fail(fault, LQ_BAD_MODEL, "%s: tokenizer.ggml.token_type does not fit the tokens",
                                gguf_path(g));
        for (uint32_t i = 0; i < t->vocab_n; i++) {
            uint32_t type = le32_get(types.p + 4 * (size_t)i);
            t->type[i] = type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_NORMAL;
        }
    }
    for (uint32_t i = 0; i < t->vocab_n; i++)
        if (looks_like_end(t->text[i]))
            t->type[i] = TOKEN_CONTROL;
    if (t->is_spm) {
        rc = gguf_get_array(g, "tokenizer.ggml.scores", &scores, fault);
        if (rc || scores.n != tokens.n || scores.type != GGUF_F32)
            return rc ? rc
                      : lq_fail(fault, LQ_BAD_MODEL, "%s: tokenizer.ggml.scores does not fit the tokens",
                                gguf_path(g));
        t->scores = scores.p;
    } else {
        if (!(t->arena = malloc(bytes + 1)))
            return lq_fail(fault, LQ_NOMEM, "out of memory for the vocabulary");
        decode_texts(t);
    }
    return LQ_OK;
}

static int by_length(const void *a, const void *b, void *tok)
{
    const struct tokenizer *t = tok;
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    return t->text[i].n != t->text[k].n ? (t->text[i].n < t->text[k].n) - (t->text[i].n > t->text[k].n)
                                        : (i > k) - (i < k);
}

static enum lq_err make_indexes(struct tokenizer *t, struct lq_fault *fault)
{
    size_t special_n = 0;
    for (uint32_t i = 0; i < t->vocab_n; i++)
        special_n += t->type[i] >= TOKEN_UNKNOWN && t->type[i] <= TOKEN_USER;
    t->special = malloc((special_n + 1) * sizeof *t->special);
    if (!t->special || !name_index_init(&t->by_text, t->vocab_n, text_at, t) ||
        !name_index_init(&t->by_special, special_n, special_at, t))
        return lq_fail(fault, LQ_NOMEM, "out of memory for the vocabulary");
    for (uint32_t i = 0; i < t->vocab_n; i++) {
        name_index_put(&t->by_text, i);
        if (t->type[i] >= TOKEN_UNKNOWN && t->type[i] <= TOKEN_USER && t->text[i].n > 0 &&
            t->text[i].n <= SPECIAL_LEN_MAX)
            t->special[t->special_n++] = i;
    }
    qsort_r(t->special, t->special_n, sizeof *t->special, by_length, t);
    t->special_len_max = t->special_n ? t->text[t->special[0]].n : 0;
    for (size_t i = 0; i < t->special_n; i++)
        name_index_put(&t->by_special, i);
    for (unsigned b = 0; b < 256; b++) {
        char name[8], byte = (char)b;
        snprintf(name, sizeof name, "<0x%02X>", b);
        t->byte_id[b] = t->is_spm ? token_find(t, name, 6) : TOKEN_NONE;
        if (t->byte_id[b] == TOKEN_NONE)
            t->byte_id[b] = token_find(t, &byte, 1);
    }
    return LQ_OK;
}

/* A token id of the metadata; -1 when absent. */
static enum lq_err read_id(const struct gguf *g, const struct tokenizer *t, const char *key, int32_t *out,
                           struct lq_fault *fault)
{
    uint32_t id;
    *out = -1;
    if (!gguf_has(g, key))
        return LQ_OK;
    enum lq_err rc = gguf_get_u32(g, key, &id, fault);
    if (!rc && id >= t->vocab_n)
        rc = lq_fail(fault, LQ_BAD_MODEL, "%s: key '%s' is %" PRIu32 ", the vocabulary has %" PRIu32, gguf_path(g),
                     key, id, t->vocab_n);
    if (!rc)
        *out = (int32_t)id;
    return rc;
}

static enum lq_err read_flag(const struct gguf *g, const char *key, bool otherwise, bool *out, struct lq_fault *fault)
{
    *out = otherwise;
    return gguf_has(g, key) ? gguf_get_bool(g, key, out, fault) : LQ_OK;
}

static enum lq_err read_settings(const struct gguf *g, struct tokenizer *t, struct lq_fault *fault)
{
    enum lq_err rc = read_id(g, t, "tokenizer.ggml.bos_token_id", &t->bos, fault);
    if (!rc)
        rc = read_id(g, t, "tokenizer.ggml.eos_token_id", &t->eos, fault);
    if (!rc)
        rc = read_id(g, t, "tokenizer.ggml.unknown_token_id", &t->unk, fault);
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.add_bos_token", t->is_spm, &t->add_bos, fault);
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.add_eos_token", false, &t->add_eos, fault);
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.add_space_prefix", t->is_spm, &t->add_space_prefix, fault);
    return rc;
}

enum lq_err tokenizer_new(const struct gguf *g, struct tokenizer **out, struct lq_fault *fault)
{
    struct gguf_string model;
    enum lq_err rc = gguf_get_string(g, "tokenizer.ggml.model", &model, fault);
    if (rc)
        return rc;
    bool is_spm = model.n == 5 && memcmp(model.p, "llama", 5) == 0,
         is_bpe = model.n == 4 && memcmp(model.p, "gpt2", 4) == 0;
    if (!is_spm && !is_bpe)
        return lq_fail(fault, LQ_UNSUPPORTED, "%s: tokenizer model '%.*s' is not read, only llama and gpt2",
                       gguf_path(g), model.n > 60 ? 60 : (int)model.n, model.p);
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    t->is_spm = is_spm;
    rc = read_tokens(g, t, fault);
    if (!rc)
        rc = make_indexes(t, fault);
    if (!rc)
        rc = read_settings(g, t, fault);
    if (!rc && is_bpe)
        rc = bpe_new(g, t, &t->bpe, fault);
    if (rc)
        tokenizer_free(t);
    else
        *out = t;
    return rc;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_free(t->bpe);
    name_index_release(&t->by_text);
    name_index_release(&t->by_special);
    free(t->text);
    free(t->type);
    free(t->arena);
    free(t->special);
    free(t);
}

/* ---- encode --------------------------------------------------------------------------------------- */

/* Raw text between two special tokens, or the text's ends: each begins a word. */
static enum lq_err encode_raw(const struct tokenizer *t, const char *p, size_t n, struct ids *out,
                              struct lq_fault *fault)
{
    if (n == 0)
        return LQ_OK;
    if (!t->is_spm)
        return bpe_encode(t, p, n, out, fault);
    char *escaped = malloc(3 * (n + 1)), *to = escaped;
    if (!escaped)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a text of %zu bytes", n);
    if (t->add_space_prefix)
        to = (char *)memcpy(to, word_start, 3) + 3;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == ' ')
            to = (char *)memcpy(to, word_start, 3) + 3;
        else
            *to++ = p[i];
    }
    enum lq_err rc = spm_encode(t, escaped, (size_t)(to - escaped), out, fault);
    free(escaped);
    return rc;
}

struct hit { /* a special token at a place in the text */
    size_t at;
    uint32_t order; /* in t->special: longest first */
};

static int by_order(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    return x->order != y->order ? (x->order > y->order) - (x->order < y->order) : (x->at > y->at) - (x->at < y->at);
}

static int by_place(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static bool may_match(const struct tokenizer *t, uint32_t order, bool parse_special)
{
    return parse_special || t->type[t->special[order]] == TOKEN_USER;
}

/* Every occurrence of a special token, by its first bytes' length classes. */
static enum lq_err find_all(const struct tokenizer *t, const char *text, size_t n, bool parse_special,
                            struct hit **hits, size_t *hits_n, struct lq_fault *fault)
{
    bool first[256] = {false}, *length = calloc(t->special_len_max + 1, sizeof *length);
    size_t cap = 0;
    *hits = NULL;
    *hits_n = 0;
    if (!length)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    for (uint32_t i = 0; i < t->special_n; i++)
        if (may_match(t, i, parse_special))
            first[(unsigned char)t->text[t->special[i]].p[0]] = length[t->text[t->special[i]].n] = true;
    for (size_t at = 0; at < n; at++) {
        if (!first[(unsigned char)text[at]])
            continue;
        for (size_t len = 1; len <= t->special_len_max && len <= n - at; len++) {
            size_t order = length[len] ? name_index_find(&t->by_special, text + at, len) : SIZE_MAX;
            if (order == SIZE_MAX || !may_match(t, (uint32_t)order, parse_special))
                continue;
            if (*hits_n == cap) {
                cap = cap ? 2 * cap : 64;
                struct hit *grown = realloc(*hits, cap * sizeof *grown);
                if (!grown) {
                    free(length);
                    return lq_fail(fault, LQ_NOMEM, "out of memory");
                }
                *hits = grown;
            }
            (*hits)[(*hits_n)++] = (struct hit){at, (uint32_t)order};
        }
    }
    free(length);
    return LQ_OK;
}

/* Keeps what one pass per token, longest first, would cut out: none overlaps a kept one.
 * All that was kept before is at least as long, so its ends tell. */
static size_t keep_apart(const struct tokenizer *t, struct hit *hits, size_t n, bool *taken)
{
    size_t kept = 0;
    if (n == 0)
        return 0;
    qsort(hits, n, sizeof *hits, by_order);
    for (size_t i = 0; i < n; i++) {
        size_t len = t->text[t->special[hits[i].order]].n;
        if (taken[hits[i].at] || taken[hits[i].at + len - 1])
            continue;
        memset(taken + hits[i].at, true, len);
        hits[kept++] = hits[i];
    }
    qsort(hits, kept, sizeof *hits, by_place);
    return kept;
}

enum lq_err tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                             bool parse_special, uint32_t **ids, size_t *ids_n, struct lq_fault *fault)
{
    struct ids out = {0};
    struct hit *hits = NULL;
    size_t hits_n = 0, at = 0;
    if (n > TEXT_BYTES_MAX)
        return lq_fail(fault, LQ_USAGE, "a text of %zu bytes is over the limit of %d", n, TEXT_BYTES_MAX);
    bool *taken = calloc(n + 1, sizeof *taken);
    enum lq_err rc = taken ? find_all(t, text, n, parse_special, &hits, &hits_n, fault)
                           : lq_fail(fault, LQ_NOMEM, "out of memory for a text of %zu bytes", n);
    if (rc)
        goto out;
    hits_n = keep_apart(t, hits, hits_n, taken);
    if (add_special && t->add_bos && t->bos >= 0)
        ids_push(&out, (uint32_t)t->bos);
    for (size_t i = 0; i < hits_n && !rc; i++) {
        uint32_t id = t->special[hits[i].order];
        rc = encode_raw(t, text + at, hits[i].at - at, &out, fault);
        ids_push(&out, id);
        at = hits[i].at + t->text[id].n;
    }
    if (!rc)
        rc = encode_raw(t, text + at, n - at, &out, fault);
    if (add_special && t->add_eos && t->eos >= 0)
        ids_push(&out, (uint32_t)t->eos);
    if (!rc && out.failed)
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for the tokens of %zu bytes", n);
out:
    free(hits);
    free(taken);
    if (rc) {
        free(out.p);
        return rc;
    }
    *ids = out.p;
    *ids_n = out.n;
    return LQ_OK;
}

/* ---- decode and facts --------------------------------------------------------------------------------- */

uint32_t tokenizer_vocab_n(const struct tokenizer *t)
{
    return t->vocab_n;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_is_end(const struct tokenizer *t, uint32_t id)
{
    if (t->eos >= 0 && id == (uint32_t)t->eos)
        return true;
    return id < t->vocab_n && t->type[id] == TOKEN_CONTROL && looks_like_end(t->text[id]);
}

size_t tokenizer_piece(const struct tokenizer *t, uint32_t id, bool control, char *buf, size_t buf_n)
{
    size_t n = 0;
    if (id >= t->vocab_n || ((t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_UNKNOWN) && !control))
        return 0;
    struct name s = t->text[id];
    if (t->type[id] == TOKEN_BYTE && s.n == 6) { /* "<0xNN>", not terminated in the file */
        char hex[3] = {s.p[3], s.p[4], '\0'};
        if (buf_n > 0)
            buf[n++] = (char)strtoul(hex, NULL, 16);
        return n;
    }
    for (size_t i = 0; i < s.n && n < buf_n;) {
        if (t->is_spm && t->type[id] != TOKEN_USER && s.n - i >= 3 && memcmp(s.p + i, word_start, 3) == 0) {
            buf[n++] = ' ';
            i += 3;
        } else {
            buf[n++] = s.p[i++];
        }
    }
    return n;
}
