/* tokenizer_bpe: byte-level BPE. A regex cuts the text into words (PCRE2), each word
 * is a row of bytes, and the pair of neighbours with the lowest merge rank unites
 * until none is left. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer_impl.h"

enum { PATTERNS_MAX = 4, MERGES_MAX = 1 << 24 };

struct pair {
    uint64_t key; /* left id << 32 | right id; 0 with rank 0 and id 0: empty */
    uint32_t rank, id;
};

struct bpe {
    pcre2_code *pattern[PATTERNS_MAX];
    int patterns_n;
    bool whole_words;   /* a word that is a token is taken at once (llama 3) */
    struct pair *pairs; /* open addressing; rank + 1 is stored, 0: empty */
    size_t mask;
};

/* ---- the byte table of GPT-2 ------------------------------------------------------------------ */

/* Printable bytes stand for themselves; the others, in order, for U+0100 onwards. */
static bool is_plain(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

int bpe_byte_of(const char *p, size_t n, size_t *used)
{
    unsigned char c = (unsigned char)*p;
    unsigned code = c;
    *used = 1;
    if (c >= 0xc0) {
        if (c >= 0xe0 || n < 2)
            return -1;
        code = (c & 31u) << 6 | ((unsigned char)p[1] & 63u);
        *used = 2;
    } else if (c >= 0x80) {
        return -1;
    }
    if (code < 256)
        return is_plain(code) ? (int)code : -1;
    for (unsigned b = 0, next = 256; b < 256; b++)
        if (!is_plain(b) && next++ == code)
            return (int)b;
    return -1;
}

/* ---- pre-tokenizers ------------------------------------------------------------------------------ */

/* White space as these models were trained with it: written out, since PCRE2's \s has no U+0085. */
#define SP "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SP "\\p{L}\\p{N}]+|[" SP "]+(?![^" SP "])|[" SP "]+"
#define LLAMA3(digits)                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^" SP "\\p{L}\\p{N}]+[\\r\\n]*|" \
    "[" SP "]*[\\r\\n]+|[" SP "]+(?![^" SP "])|[" SP "]+"

static const struct pre {
    const char *name;                  /* tokenizer.ggml.pre */
    const char *pattern[PATTERNS_MAX]; /* applied one after the other, each inside what the last one cut */
    bool whole_words;
} pres[] = {
    {"gpt-2", {GPT2}, false},
    {"smollm", {"\\p{N}", GPT2}, false},
    {"llama-bpe", {LLAMA3("{1,3}")}, true},
    {"llama3", {LLAMA3("{1,3}")}, true},
    {"qwen2", {LLAMA3("")}, false},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false},
};

static enum lq_err compile(struct bpe *b, const struct pre *p, struct lq_fault *fault)
{
    for (int i = 0; i < PATTERNS_MAX && p->pattern[i]; i++) {
        int code;
        PCRE2_SIZE at;
        b->pattern[i] = pcre2_compile((PCRE2_SPTR)p->pattern[i], PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &at, NULL);
        if (!b->pattern[i])
            return lq_fail(fault, LQ_INTERNAL, "pre-tokenizer '%s': PCRE2 error %d at %zu", p->name, code,
                           (size_t)at);
        (void)pcre2_jit_compile(b->pattern[i], PCRE2_JIT_COMPLETE); /* slower without, but right */
        b->patterns_n++;
    }
    b->whole_words = p->whole_words;
    return LQ_OK;
}

static enum lq_err choose_pre(const struct gguf *g, struct bpe *b, struct lq_fault *fault)
{
    struct gguf_string name = {"default", 7};
    if (gguf_has(g, "tokenizer.ggml.pre")) {
        enum lq_err rc = gguf_get_string(g, "tokenizer.ggml.pre", &name, fault);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (strlen(pres[i].name) == name.n && memcmp(pres[i].name, name.p, name.n) == 0)
            return compile(b, &pres[i], fault);
    return lq_fail(fault, LQ_UNSUPPORTED, "%s: pre-tokenizer '%.*s' is not known here", gguf_path(g),
                   name.n > 60 ? 60 : (int)name.n, name.p);
}

/* ---- merges ------------------------------------------------------------------------------------------ */

static struct pair *pair_slot(const struct bpe *b, uint64_t key)
{
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & b->mask;
    while (b->pairs[i].rank && b->pairs[i].key != key)
        i = (i + 1) & b->mask;
    return &b->pairs[i];
}

/* Bytes of a byte-level text into out; false: it holds a character that is none. */
static bool decode(const char *p, size_t n, char *out, size_t *out_n)
{
    *out_n = 0;
    for (size_t used; n > 0; p += used, n -= used) {
        int b = bpe_byte_of(p, n, &used);
        if (b < 0)
            return false;
        out[(*out_n)++] = (char)b;
    }
    return true;
}

/* "left right" -> the pair of their ids; a rule about tokens that are not there is of no use. */
static void take_merge(struct bpe *b, const struct tokenizer *t, struct gguf_string rule, uint32_t rank, char *buf)
{
    const char *space = rule.n > 1 ? memchr(rule.p + 1, ' ', (size_t)rule.n - 1) : NULL;
    size_t left_n, right_n;
    if (!space || !decode(rule.p, (size_t)(space - rule.p), buf, &left_n) ||
        !decode(space + 1, (size_t)(rule.p + rule.n - space - 1), buf + left_n, &right_n))
        return;
    uint32_t left = token_find(t, buf, left_n), right = token_find(t, buf + left_n, right_n);
    uint32_t id = token_find(t, buf, left_n + right_n);
    if (left == TOKEN_NONE || right == TOKEN_NONE || id == TOKEN_NONE)
        return;
    struct pair *slot = pair_slot(b, (uint64_t)left << 32 | right);
    if (slot->rank == 0)
        *slot = (struct pair){(uint64_t)left << 32 | right, rank + 1, id};
}

static enum lq_err read_merges(const struct gguf *g, const struct tokenizer *t, struct bpe *b, struct lq_fault *fault)
{
    struct gguf_array rules;
    enum lq_err rc = gguf_get_array(g, "tokenizer.ggml.merges", &rules, fault);
    if (rc)
        return rc;
    if (rules.type != GGUF_STRING || rules.n > MERGES_MAX)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: tokenizer.ggml.merges is no list of strings", gguf_path(g));
    size_t size = 16, longest = 1;
    while (size < 2 * rules.n)
        size *= 2;
    for (uint64_t i = 0; i < rules.n; i++)
        longest = rules.strings[i].n > longest ? (size_t)rules.strings[i].n : longest;
    b->mask = size - 1;
    b->pairs = calloc(size, sizeof *b->pairs);
    char *buf = malloc(longest);
    if (b->pairs && buf)
        for (uint32_t i = 0; i < rules.n; i++)
            take_merge(b, t, rules.strings[i], i, buf);
    else
        rc = lq_fail(fault, LQ_NOMEM, "%s: out of memory for %llu merges", gguf_path(g), (unsigned long long)rules.n);
    free(buf);
    return rc;
}

enum lq_err bpe_new(const struct gguf *g, const struct tokenizer *t, struct bpe **out, struct lq_fault *fault)
{
    struct bpe *b = calloc(1, sizeof *b);
    if (!b)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    enum lq_err rc = choose_pre(g, b, fault);
    if (!rc)
        rc = read_merges(g, t, b, fault);
    if (rc)
        bpe_free(b);
    else
        *out = b;
    return rc;
}

void bpe_free(struct bpe *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->patterns_n; i++)
        pcre2_code_free(b->pattern[i]);
    free(b->pairs);
    free(b);
}

/* ---- words -------------------------------------------------------------------------------------------- */

static bool offer(const struct bpe *b, const struct symbol *s, struct merge_heap *h, uint32_t left, uint32_t right)
{
    if (left == TOKEN_NONE || right == TOKEN_NONE || s[left].id == TOKEN_NONE || s[right].id == TOKEN_NONE)
        return true;
    const struct pair *p = pair_slot(b, (uint64_t)s[left].id << 32 | s[right].id);
    if (p->rank == 0)
        return true;
    return merge_push(h, (struct merge){(float)p->rank, left, right, s[left].n, s[right].n, p->id});
}

/* Scratch of one text: as many symbols as it has bytes, and the queue. */
struct scratch {
    struct symbol *s;
    struct merge_heap heap;
};

static bool word_encode(const struct tokenizer *t, const char *p, size_t n, struct scratch *w, struct ids *out)
{
    const struct bpe *b = t->bpe;
    uint32_t whole = b->whole_words ? token_find(t, p, n) : TOKEN_NONE;
    if (whole != TOKEN_NONE) {
        ids_push(out, whole);
        return true;
    }
    struct symbol *s = w->s;
    uint32_t count = (uint32_t)n;
    for (uint32_t i = 0; i < count; i++)
        s[i] = (struct symbol){p + i, 1, i ? i - 1 : TOKEN_NONE, i + 1 < count ? i + 1 : TOKEN_NONE,
                               t->byte_id[(unsigned char)p[i]]};
    w->heap.n = 0;
    bool ok = true;
    for (uint32_t i = 1; i < count && ok; i++)
        ok = offer(b, s, &w->heap, i - 1, i);
    struct merge m;
    while (ok && merge_pop(&w->heap, &m)) {
        struct symbol *l = &s[m.left], *r = &s[m.right];
        if (l->n != m.left_n || r->n != m.right_n || l->n == 0 || r->n == 0)
            continue;
        l->n += r->n;
        l->id = m.id;
        r->n = 0;
        l->next = r->next;
        if (l->next != TOKEN_NONE)
            s[l->next].prev = m.left;
        ok = offer(b, s, &w->heap, l->prev, m.left) && offer(b, s, &w->heap, m.left, l->next);
    }
    for (uint32_t i = 0; i != TOKEN_NONE && ok; i = s[i].next)
        if (s[i].id != TOKEN_NONE) /* a byte without a token is dropped, as the models' tokenizers do */
            ids_push(out, s[i].id);
    return ok;
}

/* Pattern k over one stretch; its matches, and what lies between them, go to the next pattern. */
static enum lq_err cut(const struct tokenizer *t, int k, const char *p, size_t n, struct scratch *w, struct ids *out,
                       struct lq_fault *fault)
{
    if (n == 0)
        return LQ_OK;
    if (k == t->bpe->patterns_n)
        return word_encode(t, p, n, w, out) ? LQ_OK
                                            : lq_fail(fault, LQ_NOMEM, "out of memory for a word of %zu bytes", n);
    pcre2_match_data *found = pcre2_match_data_create(1, NULL);
    enum lq_err rc = found ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory");
    size_t at = 0;
    while (!rc && at < n) {
        int matches = pcre2_match(t->bpe->pattern[k], (PCRE2_SPTR)p, n, at, 0, found, NULL);
        if (matches < 0 && matches != PCRE2_ERROR_NOMATCH) {
            rc = lq_fail(fault, LQ_INTERNAL, "the pre-tokenizer's regex failed with PCRE2 error %d", matches);
            break;
        }
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(found);
        size_t begin = matches < 0 ? n : v[0], end = matches < 0 ? n : v[1];
        rc = cut(t, k + 1, p + at, begin - at, w, out, fault);
        if (!rc)
            rc = cut(t, k + 1, p + begin, end - begin, w, out, fault);
        at = end > at ? end : n; /* no pattern matches nothing */
    }
    pcre2_match_data_free(found);
    return rc;
}

enum lq_err bpe_encode(const struct tokenizer *t, const char *text, size_t n, struct ids *out, struct lq_fault *fault)
{
    struct scratch w = {.s = malloc((n ? n : 1) * sizeof *w.s)};
    enum lq_err rc = w.s ? cut(t, 0, text, n, &w, out, fault)
                         : lq_fail(fault, LQ_NOMEM, "out of memory for a text of %zu bytes", n);
    free(w.s);
    free(w.heap.p);
    return rc;
}
