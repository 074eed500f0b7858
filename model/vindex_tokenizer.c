/* vindex_tokenizer: tokenizer.json (Hugging Face's, BPE) as the keys that a GGUF file has.
 * Byte-level BPE has its merges there too. SentencePiece's BPE is written by Hugging Face as
 * merges, where GGUF has scores: a token's score becomes its merges' place in the list, which
 * says the same as long as those stand together. A file where they do not is refused. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/name_index.h"
#include "model/gguf_impl.h"
#include "model/vindex_impl.h"

enum { NORMAL = 1, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 }; /* tokenizer.ggml.token_type */
enum { PAD_BYTES = 24, CONFIG_BYTES_MAX = 16 << 20 };
#define SCORE_UNMERGED (-16777216.0f) /* of a token that no merge makes: below every rank */

#define LLAMA3(digits)                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                                       \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
const struct vindex_pre vindex_pres[] = {
    {"gpt-2", {NULL}, false, true, false},
    {"smollm", {NULL}, true, true, false},
    {"llama-bpe", {LLAMA3("{1,3}")}, false, false, true},
    {"llama3", {LLAMA3("{1,3}")}, false, false, true},
    {"qwen2", {LLAMA3("")}, false, false, false},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, false, false, false},
};
const size_t vindex_pres_n = sizeof vindex_pres / sizeof *vindex_pres;

struct reader {
    const char *name;
    const struct vindex_index *x;
    struct vindex_keys *k;
    const json_t *root, *model, *config;
    bool byte_level;
    size_t tokens_n;
    struct gguf_string *tokens; /* malloc'd until it is a key's */
    int32_t *types;
    struct name_index by_text;
    struct lq_fault *fault;
};

static enum lq_err nomem(const struct reader *r)
{
    return lq_fail(r->fault, LQ_NOMEM, "%s: out of memory for %zu tokens", r->name, r->tokens_n);
}

static bool is_type(const json_t *o, const char *type)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s && strcmp(s, type) == 0;
}

/* ---- the vocabulary -------------------------------------------------------------------------------- */

static struct name token_at(const void *r, size_t i)
{
    struct gguf_string s = ((const struct reader *)r)->tokens[i];
    return (struct name){s.p, (size_t)s.n};
}

/* A copy that lives with the keys. Ids from vocab_size on are left out: no row of the
 * embeddings is theirs. */
static enum lq_err set_token(struct reader *r, const char *text, size_t n, const json_t *id, int32_t type)
{
    json_int_t i = json_integer_value(id);
    if (!json_is_integer(id) || i < 0 || i > INT32_MAX)
        return lq_fail(r->fault, LQ_BAD_MODEL, "%s: the id of token '%.60s' is no number from 0 on", r->name, text);
    if ((size_t)i >= r->tokens_n)
        return LQ_OK;
    struct gguf_string *t = &r->tokens[i];
    if (t->p && (t->n != n || memcmp(t->p, text, n) != 0))
        return lq_fail(r->fault, LQ_BAD_MODEL, "%s: tokens '%.60s' and '%.*s' have the same id %" JSON_INTEGER_FORMAT,
                       r->name, text, t->n > 60 ? 60 : (int)t->n, t->p, i);
    char *copy = t->p ? NULL : vindex_alloc(r->k->v, n);
    if (!t->p && !copy)
        return nomem(r);
    if (copy) {
        memcpy(copy, text, n);
        *t = (struct gguf_string){copy, n};
    }
    r->types[i] = type;
    return LQ_OK;
}

static bool is_byte(const char *s)
{
    return strlen(s) == 6 && strncmp(s, "<0x", 3) == 0 && s[5] == '>';
}

static enum lq_err read_vocab(struct reader *r)
{
    json_t *vocab = json_object_get(r->model, "vocab"), *added = json_object_get(r->root, "added_tokens"), *o;
    bool bytes = json_is_true(json_object_get(r->model, "byte_fallback"));
    const char *text;
    size_t i;
    enum lq_err rc = LQ_OK;
    r->tokens_n = r->x->vocab_n;
    r->tokens = calloc(r->tokens_n, sizeof *r->tokens);
    r->types = vindex_alloc(r->k->v, r->tokens_n * sizeof *r->types);
    if (!r->tokens || !r->types)
        return nomem(r);
    if (!json_is_object(vocab))
        return lq_fail(r->fault, LQ_BAD_MODEL, "%s: model.vocab is no object", r->name);
    json_object_foreach(vocab, text, o) if (!rc) rc =
        set_token(r, text, strlen(text), o, bytes && !r->byte_level && is_byte(text) ? BYTE : NORMAL);
    json_array_foreach(added, i, o)
    {
        const json_t *content = json_object_get(o, "content");
        if (rc)
            break;
        if (!json_is_string(content))
            return lq_fail(r->fault, LQ_BAD_MODEL, "%s: added_tokens[%zu].content is no text", r->name, i);
        rc = set_token(r, json_string_value(content), json_string_length(content), json_object_get(o, "id"),
                       json_is_true(json_object_get(o, "special")) ? CONTROL : USER);
    }
    for (i = 0; i < r->tokens_n && !rc; i++) {
        if (r->tokens[i].p)
            continue; /* else a row of the embeddings without a token */
        char *pad = vindex_alloc(r->k->v, PAD_BYTES);
        if (!pad)
            return nomem(r);
        r->tokens[i] = (struct gguf_string){pad, (uint64_t)snprintf(pad, PAD_BYTES, "[PAD%zu]", i)};
        r->types[i] = UNUSED;
    }
    if (!rc && !name_index_init(&r->by_text, r->tokens_n, token_at, r))
        rc = nomem(r);
    for (i = 0; i < r->tokens_n && !rc; i++)
        (void)name_index_put(&r->by_text, i);
    return rc;
}

/* ---- merges ------------------------------------------------------------------------------------------ */

/* "LEFT RIGHT" or ["LEFT", "RIGHT"]; false: it is neither. */
static bool read_merge(const json_t *o, const char **left, size_t *left_n, const char **right, size_t *right_n)
{
    if (json_is_array(o) && json_array_size(o) == 2) {
        const json_t *a = json_array_get(o, 0), *b = json_array_get(o, 1);
        *left = json_string_value(a);
        *right = json_string_value(b);
        if (!*left || !*right)
            return false;
        *left_n = json_string_length(a);
        *right_n = json_string_length(b);
        return *left_n && *right_n;
    }
    *left = json_string_value(o);
    const char *space = *left && **left ? strchr(*left + 1, ' ') : NULL;
    if (!space)
        return false;
    *left_n = (size_t)(space - *left);
    *right = space + 1;
    *right_n = strlen(*right);
    return *right_n > 0;
}

static enum lq_err bad_merge(const struct reader *r, size_t i)
{
    return lq_fail(r->fault, LQ_BAD_MODEL, "%s: model.merges[%zu] is no pair of texts", r->name, i);
}

static enum lq_err byte_level_merges(struct reader *r, const json_t *merges)
{
    size_t n = json_array_size(merges), i, left_n, right_n;
    struct gguf_string *rules = calloc(n + 1, sizeof *rules);
    const char *left, *right;
    const json_t *o;
    enum lq_err rc = rules ? LQ_OK : nomem(r);
    json_array_foreach(merges, i, o)
    {
        if (rc)
            break;
        if (!read_merge(o, &left, &left_n, &right, &right_n)) {
            rc = bad_merge(r, i);
            break;
        }
        char *text = vindex_alloc(r->k->v, left_n + right_n + 1);
        if (!text) {
            rc = nomem(r);
            break;
        }
        memcpy(text, left, left_n);
        text[left_n] = ' ';
        memcpy(text + left_n + 1, right, right_n);
        rules[i] = (struct gguf_string){text, left_n + right_n + 1};
    }
    if (rc)
        free(rules);
    else
        vindex_key_list(r->k, "tokenizer.ggml.merges", GGUF_STRING, rules, n);
    return rc;
}

static enum lq_err score_of_merges(struct reader *r, const json_t *merges)
{
    float *scores = vindex_alloc(r->k->v, r->tokens_n * sizeof *scores);
    size_t i, left_n, right_n, last = SIZE_MAX, cap = 0;
    const char *left, *right;
    char *text = NULL;
    const json_t *o;
    enum lq_err rc = scores ? LQ_OK : nomem(r);
    for (i = 0; i < r->tokens_n && !rc; i++)
        scores[i] = SCORE_UNMERGED;
    json_array_foreach(merges, i, o)
    {
        if (rc)
            break;
        if (!read_merge(o, &left, &left_n, &right, &right_n)) {
            rc = bad_merge(r, i);
            break;
        }
        if (left_n + right_n > cap) {
            cap = 2 * (left_n + right_n);
            char *grown = realloc(text, cap);
            if (!grown) {
                rc = nomem(r);
                break;
            }
            text = grown;
        }
        memcpy(text, left, left_n);
        memcpy(text + left_n, right, right_n);
        size_t id = name_index_find(&r->by_text, text, left_n + right_n);
        if (id == SIZE_MAX || id == last)
            continue; /* of a token that is not there, or the same one's next pair */
        if (scores[id] != SCORE_UNMERGED)
            rc =
                lq_fail(r->fault, LQ_UNSUPPORTED,
                        "%s: model.merges[%zu] makes token %zu, whose other merges stand elsewhere: no SentencePiece "
                        "vocabulary has that order",
                        r->name, i, id);
        scores[id] = -(float)i;
        last = id;
    }
    free(text);
    if (!rc)
        vindex_key_list(r->k, "tokenizer.ggml.scores", GGUF_F32, scores, r->tokens_n);
    return rc;
}

/* ---- the pre-tokenizer ----------------------------------------------------------------------------------- */

struct steps { /* what a pre_tokenizer consists of */
    const char *split[VINDEX_SPLITS_MAX];
    size_t split_n;
    bool digits, bytes, byte_regex, other;
};

static void add_step(struct steps *s, const json_t *o)
{
    if (is_type(o, "ByteLevel")) {
        const json_t *regex = json_object_get(o, "use_regex");
        s->bytes = true;
        s->byte_regex = !json_is_false(regex);
    } else if (is_type(o, "Digits")) {
        s->digits = json_is_true(json_object_get(o, "individual_digits"));
        s->other |= !s->digits;
    } else if (is_type(o, "Split") && s->split_n < VINDEX_SPLITS_MAX) {
        s->split[s->split_n] = json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
        s->other |= !s->split[s->split_n++] || json_is_true(json_object_get(o, "invert"));
    } else {
        s->other = true;
    }
}

static struct steps steps_of(const json_t *root)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *o;
    struct steps s = {.split_n = 0};
    size_t i;
    if (is_type(pre, "Sequence"))
        json_array_foreach(json_object_get(pre, "pretokenizers"), i, o) add_step(&s, o);
    else if (json_is_object(pre))
        add_step(&s, pre);
    return s;
}

static bool same_steps(const struct steps *s, const struct vindex_pre *p)
{
    size_t n = 0;
    while (n < VINDEX_SPLITS_MAX && p->split[n])
        n++;
    bool same = !s->other && s->split_n == n && s->digits == p->digits && s->byte_regex == p->byte_regex;
    for (size_t i = 0; i < n && same; i++)
        same = strcmp(s->split[i], p->split[i]) == 0;
    return same;
}

static enum lq_err set_pre(struct reader *r, const struct steps *s)
{
    bool whole = json_is_true(json_object_get(r->model, "ignore_merges"));
    const char *name = NULL;
    for (size_t i = 0; i < vindex_pres_n && !name; i++)
        if (same_steps(s, &vindex_pres[i]) && vindex_pres[i].whole_words == whole)
            name = vindex_pres[i].name;
    if (!name)
        return lq_fail(r->fault, LQ_UNSUPPORTED, "%s: a pre_tokenizer that is not known here (%zu splits, '%.120s')",
                       r->name, s->split_n, s->split_n && s->split[0] ? s->split[0] : "");
    vindex_key_text(r->k, "tokenizer.ggml.pre", name, strlen(name));
    return LQ_OK;
}

/* ---- settings ---------------------------------------------------------------------------------------------- */

/* A token by its text, or by an object's "content". */
static void set_id(struct reader *r, const char *key, const json_t *token)
{
    const char *s = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    size_t id = s ? name_index_find(&r->by_text, s, strlen(s)) : SIZE_MAX;
    if (id != SIZE_MAX)
        vindex_key_u32(r->k, "", key, (uint32_t)id);
}

/* The token that the post-processor puts first, or NULL. */
static const json_t *template_bos(const json_t *post)
{
    const json_t *list = json_object_get(post, "processors"), *o, *found = NULL;
    size_t i;
    if (is_type(post, "TemplateProcessing"))
        return json_object_get(json_object_get(json_array_get(json_object_get(post, "single"), 0), "SpecialToken"),
                               "id");
    json_array_foreach(list, i, o) if (!found && is_type(o, "TemplateProcessing")) found = template_bos(o);
    return found;
}

/* Does the text's beginning, and what follows a special token, get a space? */
static bool prepends(const json_t *o, int depth)
{
    static const char *const lists[] = {"normalizers", "pretokenizers"};
    const json_t *scheme = json_object_get(o, "prepend_scheme"), *part;
    size_t i;
    if (is_type(o, "Prepend"))
        return true;
    if (is_type(o, "Metaspace"))
        return scheme ? strcmp(json_string_value(scheme) ?: "", "never") != 0
                      : !json_is_false(json_object_get(o, "add_prefix_space"));
    for (size_t k = 0; k < 2 && depth < 4; k++)
        json_array_foreach(json_object_get(o, lists[k]), i, part) if (prepends(part, depth + 1)) return true;
    return false;
}

static void set_template(struct reader *r)
{
    const json_t *t = json_object_get(r->config, "chat_template"), *o;
    size_t i;
    if (json_is_array(t)) /* several, by name */
        json_array_foreach(t, i, o) if (i == 0 || strcmp(json_string_value(json_object_get(o, "name")) ?: "",
                                                         "default") == 0) t = json_object_get(o, "template");
    if (json_is_string(t))
        vindex_key_text(r->k, "tokenizer.chat_template", json_string_value(t), json_string_length(t));
}

static void set_flags(struct reader *r)
{
    const json_t *bos = template_bos(json_object_get(r->root, "post_processor"));
    const json_t *add_bos = json_object_get(r->config, "add_bos_token");
    const json_t *add_eos = json_object_get(r->config, "add_eos_token");
    const json_t *named = json_object_get(r->config, "bos_token");
    set_id(r, "tokenizer.ggml.bos_token_id", named && !json_is_null(named) ? named : bos);
    set_id(r, "tokenizer.ggml.eos_token_id", json_object_get(r->config, "eos_token"));
    set_id(r, "tokenizer.ggml.unknown_token_id", json_object_get(r->model, "unk_token"));
    vindex_key_bool(r->k, "tokenizer.ggml.add_bos_token", bos || json_is_true(add_bos));
    vindex_key_bool(r->k, "tokenizer.ggml.add_eos_token", json_is_true(add_eos));
    vindex_key_bool(r->k, "tokenizer.ggml.add_space_prefix",
                    !r->byte_level && (prepends(json_object_get(r->root, "normalizer"), 0) ||
                                       prepends(json_object_get(r->root, "pre_tokenizer"), 0)));
    set_template(r);
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static enum lq_err read_root(struct reader *r)
{
    struct steps steps = steps_of(r->root);
    r->model = json_object_get(r->root, "model");
    const json_t *merges = json_object_get(r->model, "merges"), *type = json_object_get(r->model, "type");
    r->byte_level = steps.bytes || is_type(json_object_get(r->root, "decoder"), "ByteLevel");
    if ((type && !is_type(r->model, "BPE")) || !json_is_array(merges))
        return lq_fail(r->fault, LQ_UNSUPPORTED, "%s: model.type is not BPE with merges", r->name);
    enum lq_err rc = read_vocab(r);
    if (!rc)
        rc = r->byte_level ? byte_level_merges(r, merges) : score_of_merges(r, merges);
    if (!rc && r->byte_level)
        rc = set_pre(r, &steps);
    if (rc)
        return rc;
    const char *model = r->byte_level ? "gpt2" : "llama";
    vindex_key_text(r->k, "tokenizer.ggml.model", model, strlen(model));
    vindex_key_list(r->k, "tokenizer.ggml.token_type", GGUF_I32, r->types, r->tokens_n);
    set_flags(r);
    name_index_release(&r->by_text); /* before the tokens change hands */
    vindex_key_list(r->k, "tokenizer.ggml.tokens", GGUF_STRING, r->tokens, r->tokens_n);
    r->tokens = NULL;
    return LQ_OK;
}

enum lq_err vindex_tokenizer_parse(const char *name, const char *text, size_t n, json_t *config,
                                   const struct vindex_index *x, struct vindex_keys *k, struct lq_fault *fault)
{
    json_error_t err;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    struct reader r = {.name = name, .x = x, .k = k, .root = root, .config = config, .fault = fault};
    if (!root)
        return lq_fail_at(fault, LQ_BAD_MODEL, (size_t)err.position, "%s: line %d: %.200s", name, err.line, err.text);
    enum lq_err rc = read_root(&r);
    name_index_release(&r.by_text);
    free(r.tokens);
    json_decref(root);
    return rc;
}

/* A file that may be absent; *text NULL then. */
static enum lq_err read_maybe(const char *dir, const char *file, size_t max, char path[VINDEX_PATH_BYTES],
                              char **text, size_t *n, struct lq_fault *fault)
{
    *text = NULL;
    enum lq_err rc = vindex_path(dir, file, path, fault);
    if (!rc && (rc = file_read(path, max, text, n, fault)) && errno == ENOENT)
        rc = LQ_OK;
    return rc;
}

enum lq_err vindex_tokenizer_read(const char *dir, const struct vindex_index *x, struct vindex_keys *k,
                                  struct lq_fault *fault)
{
    char path[VINDEX_PATH_BYTES], *text = NULL;
    size_t n = 0;
    json_error_t err;
    json_t *config = NULL;
    enum lq_err rc = read_maybe(dir, "tokenizer_config.json", CONFIG_BYTES_MAX, path, &text, &n, fault);
    if (!rc && text && !(config = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err)))
        rc = lq_fail_at(fault, LQ_BAD_MODEL, (size_t)err.position, "%s: line %d: %.200s", path, err.line, err.text);
    free(text);
    text = NULL;
    if (!rc && !json_object_get(config, "chat_template")) {
        rc = read_maybe(dir, "chat_template.jinja", CONFIG_BYTES_MAX, path, &text, &n, fault);
        if (!rc && text)
            vindex_key_text(k, "tokenizer.chat_template", text, n);
        free(text);
        text = NULL;
    }
    if (!rc)
        rc = read_maybe(dir, "tokenizer.json", VINDEX_TOKENIZER_BYTES_MAX, path, &text, &n, fault);
    if (!rc && text)
        rc = vindex_tokenizer_parse(path, text, n, config, x, k, fault);
    free(text);
    json_decref(config);
    return rc;
}
