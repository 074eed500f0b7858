/* vindex_write_tokenizer: tokenizer.json and tokenizer_config.json out of tokenizer.ggml.*.
 * SentencePiece's scores become what Hugging Face has for them: for each token all pairs of
 * tokens that make it, best score first (vindex_tokenizer.c reads them back). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/name_index.h"
#include "model/vindex_write_impl.h"
#include "proto/bytes.h"

enum { TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_BYTE = 6, TOKEN_NONE = -1 };

struct vocab {
    const struct gguf *g;
    struct gguf_array tokens, merges; /* merges: of byte-level BPE */
    const uint8_t *types, *scores;    /* of 4 bytes each; types NULL: all normal */
    bool byte_level, whole_words, add_bos, add_eos, add_space;
    int64_t bos, eos, unk; /* TOKEN_NONE: none */
    const struct vindex_pre *pre;
    struct name_index by_text;
};

struct merge { /* tokens left and right make token id */
    float score;
    uint32_t id, left, right;
};

static uint32_t type_of(const struct vocab *v, uint64_t i)
{
    return v->types ? le32_get(v->types + 4 * i) : 1;
}

static struct name token_at(const void *v, size_t i)
{
    struct gguf_string s = ((const struct vocab *)v)->tokens.strings[i];
    return (struct name){s.p, (size_t)s.n};
}

/* ---- out of the keys ----------------------------------------------------------------------------- */

static bool flag_of(const struct gguf *g, const char *key, bool otherwise)
{
    bool b;
    return gguf_get_bool(g, key, &b, NULL) == LQ_OK ? b : otherwise;
}

static int64_t id_of(const struct vocab *v, const char *key)
{
    uint32_t id;
    return gguf_get_u32(v->g, key, &id, NULL) == LQ_OK && id < v->tokens.n ? (int64_t)id : TOKEN_NONE;
}

static enum lq_err find_pre(struct vocab *v, struct lq_fault *fault)
{
    struct gguf_string name = {"default", 7};
    if (gguf_has(v->g, "tokenizer.ggml.pre")) {
        enum lq_err rc = gguf_get_string(v->g, "tokenizer.ggml.pre", &name, fault);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < vindex_pres_n && !v->pre; i++)
        if (strlen(vindex_pres[i].name) == name.n && memcmp(vindex_pres[i].name, name.p, name.n) == 0)
            v->pre = &vindex_pres[i];
    return v->pre ? LQ_OK
                  : lq_fail(fault, LQ_UNSUPPORTED, "%s: pre-tokenizer '%.*s' is not known here", gguf_path(v->g),
                            name.n > 60 ? 60 : (int)name.n, name.p);
}

static enum lq_err get_list(const struct gguf *g, const char *key, enum gguf_type type, uint64_t n,
                            struct gguf_array *out, struct lq_fault *fault)
{
    enum lq_err rc = gguf_get_array(g, key, out, fault);
    if (!rc && (out->type != type || out->n == 0 || (n && out->n != n)))
        rc = lq_fail(fault, LQ_BAD_MODEL, "%s: key '%s' is no list that fits the tokens", gguf_path(g), key);
    return rc;
}

static enum lq_err read_vocab(const struct gguf *g, struct vocab *v, struct lq_fault *fault)
{
    struct gguf_string model;
    struct gguf_array types, scores;
    *v = (struct vocab){.g = g};
    enum lq_err rc = gguf_get_string(g, "tokenizer.ggml.model", &model, fault);
    if (rc)
        return rc;
    v->byte_level = model.n == 4 && memcmp(model.p, "gpt2", 4) == 0;
    if (!v->byte_level && (model.n != 5 || memcmp(model.p, "llama", 5) != 0))
        return lq_fail(fault, LQ_UNSUPPORTED, "%s: tokenizer model '%.*s' is not read, only llama and gpt2",
                       gguf_path(g), model.n > 60 ? 60 : (int)model.n, model.p);
    rc = get_list(g, "tokenizer.ggml.tokens", GGUF_STRING, 0, &v->tokens, fault);
    if (!rc && gguf_has(g, "tokenizer.ggml.token_type")) {
        rc = get_list(g, "tokenizer.ggml.token_type", GGUF_I32, v->tokens.n, &types, fault);
        v->types = rc ? NULL : types.p;
    }
    if (!rc && v->byte_level) {
        rc = get_list(g, "tokenizer.ggml.merges", GGUF_STRING, 0, &v->merges, fault);
        rc = rc ? rc : find_pre(v, fault);
    } else if (!rc) {
        rc = get_list(g, "tokenizer.ggml.scores", GGUF_F32, v->tokens.n, &scores, fault);
        v->scores = rc ? NULL : scores.p;
    }
    if (rc)
        return rc;
    v->whole_words = v->pre && v->pre->whole_words;
    v->bos = id_of(v, "tokenizer.ggml.bos_token_id");
    v->eos = id_of(v, "tokenizer.ggml.eos_token_id");
    v->unk = id_of(v, "tokenizer.ggml.unknown_token_id");
    v->add_bos = v->bos != TOKEN_NONE && flag_of(g, "tokenizer.ggml.add_bos_token", !v->byte_level);
    v->add_eos = v->eos != TOKEN_NONE && flag_of(g, "tokenizer.ggml.add_eos_token", false);
    v->add_space = !v->byte_level && flag_of(g, "tokenizer.ggml.add_space_prefix", true);
    if (!name_index_init(&v->by_text, (size_t)v->tokens.n, token_at, v))
        return lq_fail(fault, LQ_NOMEM, "out of memory for %" PRIu64 " tokens", v->tokens.n);
    for (size_t i = 0; i < v->tokens.n && !rc; i++) {
        size_t before = name_index_put(&v->by_text, i);
        if (before != SIZE_MAX)
            rc = lq_fail(fault, LQ_UNSUPPORTED,
                         "%s: tokens %zu and %zu have the same text, tokenizer.json has no such", gguf_path(g),
                         before, i);
    }
    return rc;
}

/* ---- merges out of scores -------------------------------------------------------------------------- */

static int by_score(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->left != y->left ? (x->left > y->left) - (x->left < y->left)
                              : (x->right > y->right) - (x->right < y->right);
}

static enum lq_err add_splits(const struct vocab *v, uint32_t id, struct merge **list, size_t *n, size_t *cap,
                              struct lq_fault *fault)
{
    struct gguf_string s = v->tokens.strings[id];
    for (size_t cut = 1; cut < s.n; cut++) {
        if (((unsigned char)s.p[cut] & 0xc0) == 0x80)
            continue; /* inside a character */
        size_t left = name_index_find(&v->by_text, s.p, cut);
        size_t right = left == SIZE_MAX ? SIZE_MAX : name_index_find(&v->by_text, s.p + cut, (size_t)s.n - cut);
        if (right == SIZE_MAX)
            continue;
        if (*n == *cap) {
            *cap = *cap ? 2 * *cap : 1 << 16;
            struct merge *grown = realloc(*list, *cap * sizeof *grown);
            if (!grown)
                return lq_fail(fault, LQ_NOMEM, "out of memory for %zu merges", *cap);
            *list = grown;
        }
        (*list)[(*n)++] = (struct merge){lef32_get(v->scores + 4 * (size_t)id), id, (uint32_t)left, (uint32_t)right};
    }
    return LQ_OK;
}

/* Tokens that are matched whole, before any merge, need none; nor does one with a space, which
 * the text has no more by then. */
static bool is_merged(const struct vocab *v, uint64_t i)
{
    uint32_t type = type_of(v, i);
    struct gguf_string s = v->tokens.strings[i];
    return type != TOKEN_UNKNOWN && type != TOKEN_CONTROL && type != TOKEN_USER && type != TOKEN_BYTE &&
           !memchr(s.p, ' ', (size_t)s.n);
}

static void put_pair(struct vindex_out *o, struct gguf_string left, struct gguf_string right, bool first)
{
    char joined[2 * 1024 + 1];
    if (left.n + right.n + 1 > sizeof joined) {
        o->rc = o->rc ? o->rc : lq_fail(o->fault, LQ_UNSUPPORTED, "%s: a token of over 1024 bytes", o->path);
        return;
    }
    memcpy(joined, left.p, left.n);
    joined[left.n] = ' ';
    memcpy(joined + left.n + 1, right.p, right.n);
    vindex_out_print(o, first ? "\n   " : ",\n   ");
    vindex_out_text(o, joined, left.n + right.n + 1);
}

static enum lq_err put_merges(struct vindex_out *o, const struct vocab *v)
{
    struct merge *list = NULL;
    size_t n = 0, cap = 0;
    for (uint64_t i = 0; i < v->merges.n && v->byte_level; i++) {
        vindex_out_print(o, i ? ",\n   " : "\n   ");
        vindex_out_text(o, v->merges.strings[i].p, v->merges.strings[i].n);
    }
    for (uint32_t i = 0; i < v->tokens.n && !v->byte_level && !o->rc; i++)
        if (is_merged(v, i))
            o->rc = add_splits(v, i, &list, &n, &cap, o->fault);
    if (n)
        qsort(list, n, sizeof *list, by_score);
    for (size_t i = 0; i < n && !o->rc; i++)
        put_pair(o, v->tokens.strings[list[i].left], v->tokens.strings[list[i].right], i == 0);
    free(list);
    return o->rc;
}

/* ---- tokenizer.json ------------------------------------------------------------------------------------ */

static void put_token(struct vindex_out *o, const struct vocab *v, int64_t id)
{
    if (id == TOKEN_NONE)
        vindex_out_print(o, "null");
    else
        vindex_out_text(o, v->tokens.strings[id].p, v->tokens.strings[id].n);
}

static void put_added(struct vindex_out *o, const struct vocab *v)
{
    bool first = true;
    vindex_out_print(o, " \"added_tokens\": [");
    for (uint64_t i = 0; i < v->tokens.n && !o->rc; i++) {
        uint32_t type = type_of(v, i);
        if (type != TOKEN_UNKNOWN && type != TOKEN_CONTROL && type != TOKEN_USER)
            continue;
        vindex_out_print(o, "%s\n  {\"id\": %" PRIu64 ", \"content\": ", first ? "" : ",", i);
        put_token(o, v, (int64_t)i);
        vindex_out_print(o,
                         ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                         "\"special\": %s}",
                         type == TOKEN_USER ? "false" : "true");
        first = false;
    }
    vindex_out_print(o, "],\n");
}

static void put_byte_level_parts(struct vindex_out *o, const struct vocab *v)
{
    vindex_out_print(o, " \"normalizer\": null,\n \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [");
    for (size_t i = 0; i < VINDEX_SPLITS_MAX && v->pre->split[i]; i++) {
        vindex_out_print(o, "\n  {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        vindex_out_text(o, v->pre->split[i], strlen(v->pre->split[i]));
        vindex_out_print(o, "}, \"behavior\": \"Isolated\", \"invert\": false},");
    }
    if (v->pre->digits)
        vindex_out_print(o, "\n  {\"type\": \"Digits\", \"individual_digits\": true},");
    vindex_out_print(
        o,
        "\n  {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": %s}]},\n",
        v->pre->byte_regex ? "true" : "false");
    vindex_out_print(o, " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                        "\"use_regex\": true},\n");
}

static void put_sentencepiece_parts(struct vindex_out *o, const struct vocab *v)
{
    static const char replace[] =
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}";
    if (v->add_space)
        vindex_out_print(o,
                         " \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [\n  {\"type\": \"Prepend\", "
                         "\"prepend\": \"\xe2\x96\x81\"},\n  %s]},\n",
                         replace);
    else
        vindex_out_print(o, " \"normalizer\": %s,\n", replace);
    vindex_out_print(o,
                     " \"pre_tokenizer\": null,\n \"decoder\": {\"type\": \"Sequence\", \"decoders\": [\n"
                     "  {\"type\": \"Replace\", \"pattern\": {\"String\": \"\xe2\x96\x81\"}, \"content\": \" \"},\n"
                     "  {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}%s]},\n",
                     v->add_space ? ",\n  {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}" : "");
}

static void put_template(struct vindex_out *o, const struct vocab *v)
{
    if (!v->add_bos) {
        vindex_out_print(o, " \"post_processor\": null,\n");
        return;
    }
    vindex_out_print(
        o, " \"post_processor\": {\"type\": \"TemplateProcessing\",\n  \"single\": [{\"SpecialToken\": {\"id\": ");
    put_token(o, v, v->bos);
    vindex_out_print(o,
                     ", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],\n"
                     "  \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", "
                     "\"type_id\": 1}}],\n  \"special_tokens\": {");
    put_token(o, v, v->bos);
    vindex_out_print(o, ": {\"id\": ");
    put_token(o, v, v->bos);
    vindex_out_print(o, ", \"ids\": [%" PRId64 "], \"tokens\": [", v->bos);
    put_token(o, v, v->bos);
    vindex_out_print(o, "]}}},\n");
}

static void put_model(struct vindex_out *o, const struct vocab *v)
{
    vindex_out_print(o, " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    put_token(o, v, v->unk);
    vindex_out_print(o,
                     ", \"continuing_subword_prefix\": null,\n  \"end_of_word_suffix\": null, \"fuse_unk\": %s, "
                     "\"byte_fallback\": %s, \"ignore_merges\": %s,\n  \"vocab\": {",
                     v->byte_level ? "false" : "true", v->byte_level ? "false" : "true",
                     v->whole_words ? "true" : "false");
    for (uint64_t i = 0; i < v->tokens.n && !o->rc; i++) {
        vindex_out_print(o, i ? ",\n   " : "\n   ");
        put_token(o, v, (int64_t)i);
        vindex_out_print(o, ": %" PRIu64, i);
    }
    vindex_out_print(o, "},\n  \"merges\": [");
    (void)put_merges(o, v);
    vindex_out_print(o, "]}\n}\n");
}

static void put_config(struct vindex_out *o, const struct vocab *v)
{
    struct gguf_string t;
    vindex_out_print(
        o,
        "{\"tokenizer_class\": \"PreTrainedTokenizerFast\",\n \"add_bos_token\": %s, \"add_eos_token\": %s,"
        "\n \"bos_token\": ",
        v->add_bos ? "true" : "false", v->add_eos ? "true" : "false");
    put_token(o, v, v->bos);
    vindex_out_print(o, ", \"eos_token\": ");
    put_token(o, v, v->eos);
    vindex_out_print(o, ", \"unk_token\": ");
    put_token(o, v, v->unk);
    if (gguf_get_string(v->g, "tokenizer.chat_template", &t, NULL) == LQ_OK) {
        vindex_out_print(o, ",\n \"chat_template\": ");
        vindex_out_text(o, t.p, t.n);
    }
    vindex_out_print(o, "}\n");
}

enum lq_err vindex_write_tokenizer(const struct gguf *g, const char *dir, struct hash256 hashes[2],
                                   struct lq_fault *fault)
{
    struct vocab v;
    struct vindex_out o;
    enum lq_err rc = read_vocab(g, &v, fault);
    if (!rc) {
        vindex_out_begin(&o, dir, "tokenizer.json", fault);
        vindex_out_print(&o, "{\"version\": \"1.0\",\n \"truncation\": null,\n \"padding\": null,\n");
        put_added(&o, &v);
        if (v.byte_level)
            put_byte_level_parts(&o, &v);
        else
            put_sentencepiece_parts(&o, &v);
        put_template(&o, &v);
        put_model(&o, &v);
        rc = vindex_out_end(&o, &hashes[0]);
    }
    if (!rc) {
        vindex_out_begin(&o, dir, "tokenizer_config.json", fault);
        put_config(&o, &v);
        rc = vindex_out_end(&o, &hashes[1]);
    }
    name_index_release(&v.by_text);
    return rc;
}
