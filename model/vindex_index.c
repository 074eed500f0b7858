/* vindex_index: index.json, checked field by field. See vindex_impl.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/vindex_impl.h"

/* model_type, and the architecture that a GGUF file has for it. */
static const struct {
    const char *model_type, *arch;
} families[] = {
    {"llama", "llama"},        {"mistral", "mistral"}, {"gemma3", "gemma3"},
    {"gemma3_text", "gemma3"}, {"qwen2", "qwen2"},     {"qwen3", "qwen3"},
};

struct reader {
    const char *file;
    struct lq_fault *fault;
    enum lq_err rc; /* of the first failure; later reads do nothing */
};

#define FAIL(r, code, ...) ((void)((r)->rc = (r)->rc ? (r)->rc : lq_fail((r)->fault, code, __VA_ARGS__)))

/* where: "model_config." or "" before the field's name. NULL: absent, which fails where it is needed. */
static const json_t *field(struct reader *r, const json_t *o, const char *where, const char *key, bool needed)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_null(v))
        v = NULL;
    if (!v && needed)
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s%s' is missing", r->file, where, key);
    return r->rc ? NULL : v;
}

static uint64_t whole(struct reader *r, const json_t *o, const char *where, const char *key, uint64_t min,
                      uint64_t max, bool needed)
{
    const json_t *v = field(r, o, where, key, needed);
    if (!v)
        return 0;
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v))
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s%s' is no whole number", r->file, where, key);
    else if (i < 0 || (uint64_t)i < min || (uint64_t)i > max)
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s%s' is %" JSON_INTEGER_FORMAT ", expected %" PRIu64 " to %" PRIu64,
             r->file, where, key, i, min, max);
    return r->rc ? 0 : (uint64_t)i;
}

static uint32_t u32(struct reader *r, const json_t *o, const char *where, const char *key, uint32_t min, uint32_t max)
{
    return (uint32_t)whole(r, o, where, key, min, max, true);
}

/* 0 where it is absent. */
static double real(struct reader *r, const json_t *o, const char *where, const char *key, double min, double max)
{
    const json_t *v = field(r, o, where, key, false);
    if (!v)
        return 0;
    double d = json_number_value(v);
    if (!json_is_number(v))
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s%s' is no number", r->file, where, key);
    else if (!(d >= min && d <= max))
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s%s' is %g, expected %g to %g", r->file, where, key, d, min, max);
    return r->rc ? 0 : d;
}

/* A word of at most n - 1 bytes without NUL; "" where it is absent and not needed. */
static void word(struct reader *r, const json_t *o, const char *where, const char *key, bool needed, char *out,
                 size_t n)
{
    const json_t *v = field(r, o, where, key, needed);
    *out = '\0';
    if (!v)
        return;
    if (!json_is_string(v) || json_string_length(v) >= n || strlen(json_string_value(v)) != json_string_length(v))
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s%s' is no text of up to %zu bytes", r->file, where, key, n - 1);
    else
        snprintf(out, n, "%s", json_string_value(v));
}

static const json_t *object(struct reader *r, const json_t *o, const char *key, bool needed)
{
    const json_t *v = field(r, o, "", key, needed);
    if (v && !json_is_object(v))
        FAIL(r, LQ_BAD_MODEL, "%s: field '%s' is no object", r->file, key);
    return r->rc ? NULL : v;
}

static void read_layers(struct reader *r, const json_t *root, struct vindex_index *x)
{
    const json_t *list = field(r, root, "", "layers", true), *o;
    size_t i;
    if (list && (!json_is_array(list) || json_array_size(list) != x->layers_n))
        FAIL(r, LQ_BAD_MODEL, "%s: field 'layers' has %zu rows, num_layers is %" PRIu32, r->file,
             json_array_size(list), x->layers_n);
    if (r->rc)
        return;
    bool *seen = calloc(x->layers_n, sizeof *seen);
    if (!seen || !(x->gates = calloc(x->layers_n, sizeof *x->gates)))
        FAIL(r, LQ_NOMEM, "out of memory for %" PRIu32 " layers", x->layers_n);
    json_array_foreach(list, i, o)
    {
        char where[40];
        snprintf(where, sizeof where, "layers[%zu].", i);
        if (!r->rc && !json_is_object(o))
            FAIL(r, LQ_BAD_MODEL, "%s: layers[%zu] is no object", r->file, i);
        uint32_t layer = u32(r, o, where, "layer", 0, x->layers_n - 1);
        uint32_t ffn_n = u32(r, o, where, "num_features", 1, ARCH_HIDDEN_MAX * 4);
        uint64_t offset = whole(r, o, where, "offset", 0, INT64_MAX, true);
        uint64_t length = whole(r, o, where, "length", 0, INT64_MAX, true);
        uint64_t want = (uint64_t)x->ffn_n * x->hidden_n * quant_info[x->dtype].block_bytes;
        if (r->rc)
            break;
        if (seen[layer])
            FAIL(r, LQ_BAD_MODEL, "%s: layers[%zu].layer is %" PRIu32 ", which came before", r->file, i, layer);
        else if (ffn_n != x->ffn_n)
            FAIL(r, LQ_UNSUPPORTED, "%s: layers[%zu].num_features is %" PRIu32 ", intermediate_size is %" PRIu32,
                 r->file, i, ffn_n, x->ffn_n);
        else if (length && length != want)
            FAIL(r, LQ_BAD_MODEL, "%s: layers[%zu].length is %" PRIu64 ", expected %" PRIu64 " (or 0)", r->file, i,
                 length, want);
        else if (offset % 2)
            FAIL(r, LQ_BAD_MODEL, "%s: layers[%zu].offset is %" PRIu64 ", an odd number", r->file, i, offset);
        if (r->rc)
            break;
        seen[layer] = true;
        x->gates[layer] = (struct vindex_gate){offset, length};
    }
    free(seen);
}

static void read_family(struct reader *r, struct vindex_index *x)
{
    for (size_t i = 0; i < sizeof families / sizeof *families && !r->rc; i++)
        if (strcmp(families[i].model_type, x->model_type) == 0)
            x->arch = families[i].arch;
    if (!x->arch)
        FAIL(r, LQ_UNSUPPORTED,
             "%s: model_config.model_type '%s' is not read; llama, mistral, gemma3, gemma3_text, qwen2 and qwen3 are",
             r->file, x->model_type);
    x->gemma_norms = x->arch && strcmp(x->arch, "gemma3") == 0;
}

/* What model/arch.c takes for granted of a family is refused where a directory says otherwise. */
static void read_layer_types(struct reader *r, const json_t *config, const struct vindex_index *x)
{
    uint64_t pattern = whole(r, config, "model_config.", "sliding_window_pattern", 1, 1024, false);
    const json_t *types = field(r, config, "model_config.", "layer_types", false), *v;
    size_t i;
    if (r->rc || !x->gemma_norms)
        return;
    if (pattern && pattern != 6)
        FAIL(r, LQ_UNSUPPORTED, "%s: model_config.sliding_window_pattern is %" PRIu64 ", only 6 is read", r->file,
             pattern);
    if (types && (!json_is_array(types) || json_array_size(types) != x->layers_n))
        FAIL(r, LQ_BAD_MODEL, "%s: field 'model_config.layer_types' is no list of %" PRIu32 " words", r->file,
             x->layers_n);
    if (r->rc)
        return;
    json_array_foreach(types, i,
                       v) if (!json_is_string(v) ||
                              strcmp(json_string_value(v), i % 6 == 5 ? "full_attention" : "sliding_attention") != 0)
        FAIL(r, LQ_UNSUPPORTED, "%s: model_config.layer_types[%zu]: only every 6th layer may be full_attention",
             r->file, i);
}

static void read_config(struct reader *r, const json_t *root, struct vindex_index *x)
{
    static const char in[] = "model_config.";
    const json_t *c = object(r, root, "model_config", true);
    if (!c)
        return;
    word(r, c, in, "model_type", true, x->model_type, sizeof x->model_type);
    if (!r->rc)
        read_family(r, x);
    if (field(r, c, in, "moe", false) || field(r, root, "", "ffn_layout", false))
        FAIL(r, LQ_UNSUPPORTED, "%s: a mixture of experts (model_config.moe, ffn_layout) is not read yet", r->file);
    x->head_dim = u32(r, c, in, "head_dim", 1, ARCH_HEAD_DIM_MAX);
    x->heads_n = u32(r, c, in, "num_q_heads", 1, 4096);
    x->kv_heads_n = u32(r, c, in, "num_kv_heads", 1, 4096);
    (void)field(r, c, in, "rope_base", true);
    x->rope_base = real(r, c, in, "rope_base", 1, 1e12);
    x->rope_base_local = real(r, c, in, "rope_local_base", 1, 1e12);
    x->rms_eps = real(r, c, in, "norm_eps", 0, 1);
    x->rms_eps = field(r, c, in, "norm_eps", false) ? x->rms_eps : 1e-6;
    x->softcap = real(r, c, in, "final_logit_softcapping", 0, 1e6);
    x->query_scalar = real(r, c, in, "query_pre_attn_scalar", 1e-3, 1e6);
    x->rotary_share = real(r, c, in, "partial_rotary_factor", 1e-3, 1);
    x->window = (uint32_t)whole(r, c, in, "sliding_window", 1, 1u << 30, false);
    read_layer_types(r, c, x);
}

/* What LARQL's format has no place for; docs/vindex.md. */
static void read_own(struct reader *r, const json_t *root, struct vindex_index *x)
{
    static const char in[] = "larql_grid.";
    const json_t *o = object(r, root, "larql_grid", false);
    char hash[HASH256_TEXT_BYTES];
    if (!o)
        return;
    word(r, o, in, "model_hash", false, hash, sizeof hash);
    if (*hash && !(x->has_model_hash = hash256_read(hash, &x->model_hash)))
        FAIL(r, LQ_BAD_MODEL, "%s: field 'larql_grid.model_hash' is no SHA-256 in hex", r->file);
    x->context_n = (uint32_t)whole(r, o, in, "context_length", 1, UINT32_MAX, false);
    x->rope_factor = real(r, o, in, "rope_scaling_factor", 1e-3, 1e6);
}

enum lq_err vindex_index_read(const char *name, const char *text, size_t n, struct vindex_index *x,
                              struct lq_fault *fault)
{
    struct lq_fault unused;
    struct reader r = {name, fault ? fault : &unused, LQ_OK};
    json_error_t err;
    char quant[16], dtype[16];
    *x = (struct vindex_index){.model_type = ""};
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    if (!root)
        return lq_fail_at(fault, LQ_BAD_MODEL, (size_t)err.position, "%s: line %d: %.200s", name, err.line, err.text);
    if (!json_is_object(root))
        FAIL(&r, LQ_BAD_MODEL, "%s: not an object", name);
    (void)whole(&r, root, "", "version", 1, 2, true);
    word(&r, root, "", "model", true, x->name, sizeof x->name);
    x->layers_n = u32(&r, root, "", "num_layers", 1, ARCH_LAYERS_MAX);
    x->hidden_n = u32(&r, root, "", "hidden_size", 1, ARCH_HIDDEN_MAX);
    x->ffn_n = u32(&r, root, "", "intermediate_size", 1, ARCH_HIDDEN_MAX * 4);
    x->vocab_n = u32(&r, root, "", "vocab_size", 1, 1u << 24);
    word(&r, root, "", "quant", false, quant, sizeof quant);
    word(&r, root, "", "dtype", false, dtype, sizeof dtype);
    word(&r, root, "", "extract_level", false, x->level, sizeof x->level);
    x->q4k = strcmp(quant, "q4k") == 0 || strcmp(quant, "kquant") == 0;
    x->dtype = strcmp(dtype, "f16") == 0 ? QUANT_F16 : QUANT_F32;
    if (*quant && !x->q4k && strcmp(quant, "none") != 0)
        FAIL(&r, LQ_UNSUPPORTED, "%s: field 'quant' is '%s'; none, q4k and kquant are read", name, quant);
    if (*dtype && x->dtype == QUANT_F32 && strcmp(dtype, "f32") != 0)
        FAIL(&r, LQ_UNSUPPORTED, "%s: field 'dtype' is '%s'; f32 and f16 are read", name, dtype);
    if (field(&r, root, "", "fp4", false) || field(&r, root, "", "bitnet_layout", false))
        FAIL(&r, LQ_UNSUPPORTED, "%s: FP4 and BitNet weights are not read", name);
    if (!r.rc)
        read_config(&r, root, x);
    if (!r.rc)
        read_own(&r, root, x);
    if (!r.rc)
        read_layers(&r, root, x);
    json_decref(root);
    if (r.rc)
        vindex_index_release(x);
    return r.rc;
}

void vindex_index_release(struct vindex_index *x)
{
    free(x->gates);
    x->gates = NULL;
}
