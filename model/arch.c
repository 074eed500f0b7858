/* arch: see arch.h. Keys: the GGUF specification; what each architecture makes of
 * them: its reference implementation and llama.cpp's. */
#include "model/arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/quant.h"

enum { KEY_BYTES = 128, HEADS_MAX = 4096 };

/* What the name of an architecture says by itself. */
struct family {
    const char *name;
    enum arch_act act;
    enum arch_rope rope;
    bool qk_norm, post_norms, attn_bias;
};

static const struct family families[] = {
    /* The converter permuted llama's Q and K rows, so that its RoPE pairs neighbours. */
    {"llama", ARCH_SILU, ARCH_ROPE_PAIRS, false, false, false},
    {"mistral", ARCH_SILU, ARCH_ROPE_PAIRS, false, false, false},
    {"gemma3", ARCH_GELU_TANH, ARCH_ROPE_HALVES, true, true, false},
    {"qwen2", ARCH_SILU, ARCH_ROPE_HALVES, false, false, true},
    {"qwen3", ARCH_SILU, ARCH_ROPE_HALVES, true, false, false},
};

struct reader {
    const struct gguf *g;
    const char *family;
    struct lq_fault *fault;
    enum lq_err rc; /* of the first failure; later reads do nothing */
};

static const char *full(const struct reader *r, const char *name, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%s", r->family, name);
    return key;
}

static bool has(const struct reader *r, const char *name)
{
    char key[KEY_BYTES];
    return gguf_has(r->g, full(r, name, key));
}

static bool is_array(const struct reader *r, const char *key)
{
    struct gguf_array a;
    return gguf_get_array(r->g, key, &a, NULL) == LQ_OK;
}

/* Some converters write one number a layer; read where all are the same. */
static uint32_t uniform(struct reader *r, const char *key)
{
    struct gguf_array a;
    if (gguf_get_array(r->g, key, &a, r->fault) != LQ_OK || a.n == 0 || (a.type != GGUF_U32 && a.type != GGUF_I32)) {
        r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: key '%s' is no list of numbers", gguf_path(r->g), key);
        return 0;
    }
    for (uint64_t i = 1; i < a.n; i++)
        if (memcmp(a.p, a.p + 4 * i, 4) != 0) {
            r->rc =
                lq_fail(r->fault, LQ_UNSUPPORTED, "%s: key '%s' differs from layer to layer", gguf_path(r->g), key);
            return 0;
        }
    uint32_t v;
    memcpy(&v, a.p, sizeof v);
    return v;
}

static uint32_t number(struct reader *r, const char *name, uint32_t min, uint32_t max)
{
    char key[KEY_BYTES];
    uint32_t v = 0;
    if (r->rc)
        return 0;
    full(r, name, key);
    if (is_array(r, key))
        v = uniform(r, key);
    else
        r->rc = gguf_get_u32(r->g, key, &v, r->fault);
    if (!r->rc && (v < min || v > max))
        r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: key '%s' is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32,
                        gguf_path(r->g), key, v, min, max);
    return v;
}

static uint32_t number_or(struct reader *r, const char *name, uint32_t min, uint32_t max, uint32_t otherwise)
{
    return has(r, name) ? number(r, name, min, max) : otherwise;
}

static float real_or(struct reader *r, const char *name, float min, float max, float otherwise)
{
    char key[KEY_BYTES];
    float v = otherwise;
    if (r->rc || !has(r, name))
        return v;
    r->rc = gguf_get_f32(r->g, full(r, name, key), &v, r->fault);
    if (!r->rc && !(v >= min && v <= max))
        r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: key '%s' is %g, expected %g to %g", gguf_path(r->g), key,
                        (double)v, (double)min, (double)max);
    return v;
}

static void read_rope(struct reader *r, struct arch *a)
{
    char key[KEY_BYTES];
    struct gguf_string type = {"none", 4};
    a->rope_dims = number_or(r, "rope.dimension_count", 2, a->head_dim, a->head_dim);
    a->rope_base = real_or(r, "rope.freq_base", 1.0f, 1e12f, a->window_pattern ? 1000000.0f : 10000.0f);
    a->rope_base_local = a->window_pattern ? real_or(r, "rope.local.freq_base", 1.0f, 1e12f, 10000.0f) : a->rope_base;
    a->rope_scale = 1.0f;
    if (a->rope_dims % 2 && !r->rc)
        r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: rope.dimension_count %" PRIu32 " is odd", gguf_path(r->g),
                        a->rope_dims);
    if (!r->rc && has(r, "rope.scaling.type"))
        r->rc = gguf_get_string(r->g, full(r, "rope.scaling.type", key), &type, r->fault);
    float factor = real_or(r, "rope.scaling.factor", 1e-3f, 1e6f, real_or(r, "rope.scale_linear", 1e-3f, 1e6f, 1.0f));
    bool linear = (type.n == 6 && memcmp(type.p, "linear", 6) == 0) || !has(r, "rope.scaling.type");
    bool none = type.n == 4 && memcmp(type.p, "none", 4) == 0 && has(r, "rope.scaling.type");
    if (!r->rc && !linear && !none && factor != 1.0f)
        r->rc = lq_fail(r->fault, LQ_UNSUPPORTED, "%s: RoPE scaling '%.*s' is not read, only linear", gguf_path(r->g),
                        type.n > 32 ? 32 : (int)type.n, type.p);
    if (linear)
        a->rope_scale = 1.0f / factor;
}

/* llama 3 scales single frequencies: one divisor a pair, as a tensor. */
static void read_rope_factors(struct reader *r, struct arch *a)
{
    const struct gguf_tensor *t = gguf_tensor(r->g, "rope_freqs.weight");
    if (r->rc || !t)
        return;
    if (t->hole) {
        r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: tensor 'rope_freqs.weight' is not in this partial file",
                        gguf_path(r->g));
        return;
    }
    if (t->type != quant_info[QUANT_F32].ggml_type || t->dims_n != 1 || t->dims[0] != a->rope_dims / 2 ||
        (uintptr_t)t->data % sizeof(float) != 0) {
        r->rc =
            lq_fail(r->fault, LQ_BAD_MODEL, "%s: tensor 'rope_freqs.weight': expected %" PRIu32 " aligned F32 values",
                    gguf_path(r->g), a->rope_dims / 2);
        return;
    }
    a->rope_factors = (const float *)(const void *)t->data;
    for (uint32_t i = 0; i < a->rope_dims / 2 && !r->rc; i++)
        if (!(a->rope_factors[i] > 0.0f && a->rope_factors[i] < 1e9f))
            r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: tensor 'rope_freqs.weight': value %" PRIu32 " is %g",
                            gguf_path(r->g), i, (double)a->rope_factors[i]);
}

static void read_gemma3(struct reader *r, struct arch *a)
{
    a->window = number_or(r, "attention.sliding_window", 1, 1u << 30, 0);
    a->window_pattern = 6;
    a->embed_scale = sqrtf((float)a->hidden_n);
    /* The 27B model scales queries by hidden/heads instead of the head's size; by its layers one knows it. */
    if (a->layers_n == 62)
        a->attn_scale = 1.0f / sqrtf((float)a->hidden_n / (float)a->heads_n);
}

static void read_vocab(struct reader *r, struct arch *a)
{
    const struct gguf_tensor *t = gguf_tensor(r->g, "token_embd.weight");
    if (r->rc)
        return;
    if (!t || t->dims_n != 2 || t->dims[0] != a->hidden_n || t->dims[1] > 1u << 24)
        r->rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: tensor 'token_embd.weight': %s", gguf_path(r->g),
                        t ? "its shape is not [embedding_length, vocabulary]" : "missing");
    else
        a->vocab_n = (uint32_t)t->dims[1];
}

static void read_name(const struct gguf *g, struct arch *a)
{
    struct gguf_string s;
    const char *slash = strrchr(gguf_path(g), '/');
    if (gguf_get_string(g, "general.name", &s, NULL) == LQ_OK && s.n > 0)
        snprintf(a->name, sizeof a->name, "%.*s", s.n > 120 ? 120 : (int)s.n, s.p);
    else
        snprintf(a->name, sizeof a->name, "%s", slash ? slash + 1 : gguf_path(g));
}

static const struct family *find_family(const struct gguf *g, struct lq_fault *fault, enum lq_err *rc)
{
    struct gguf_string s;
    *rc = gguf_get_string(g, "general.architecture", &s, fault);
    if (*rc)
        return NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strlen(families[i].name) == s.n && memcmp(families[i].name, s.p, s.n) == 0)
            return &families[i];
    *rc = lq_fail(fault, LQ_UNSUPPORTED,
                  "%s: architecture '%.*s' is not read; llama, mistral, gemma3, qwen2 and qwen3 are", gguf_path(g),
                  s.n > 64 ? 64 : (int)s.n, s.p);
    return NULL;
}

enum lq_err arch_read(const struct gguf *g, struct arch *a, struct lq_fault *fault)
{
    struct lq_fault unused;
    enum lq_err rc;
    const struct family *f = find_family(g, fault, &rc);
    if (!f)
        return rc;
    struct reader r = {g, f->name, fault ? fault : &unused, LQ_OK};
    *a = (struct arch){.act = f->act,
                       .rope = f->rope,
                       .qk_norm = f->qk_norm,
                       .post_norms = f->post_norms,
                       .attn_bias = f->attn_bias,
                       .qk_rows_split = f->rope == ARCH_ROPE_PAIRS && gguf_rows_unpermuted(g),
                       .embed_scale = 1.0f};
    snprintf(a->family, sizeof a->family, "%s", f->name);
    read_name(g, a);
    a->layers_n = number(&r, "block_count", 1, ARCH_LAYERS_MAX);
    a->hidden_n = number(&r, "embedding_length", 1, ARCH_HIDDEN_MAX);
    a->ffn_n = number(&r, "feed_forward_length", 1, ARCH_HIDDEN_MAX * 4);
    a->context_n = number_or(&r, "context_length", 1, UINT32_MAX, 4096);
    a->heads_n = number(&r, "attention.head_count", 1, HEADS_MAX);
    a->kv_heads_n = number_or(&r, "attention.head_count_kv", 1, HEADS_MAX, a->heads_n);
    a->rms_eps = real_or(&r, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f, 1e-6f);
    if (r.rc)
        return r.rc;
    if (number_or(&r, "expert_count", 0, UINT32_MAX, 0) > 0)
        return lq_fail(fault, LQ_UNSUPPORTED, "%s: a mixture of experts (%s.expert_count) is not read yet",
                       gguf_path(g), f->name);
    a->head_dim = number_or(&r, "attention.key_length", 1, ARCH_HEAD_DIM_MAX, a->hidden_n / a->heads_n);
    if (!r.rc && number_or(&r, "attention.value_length", 1, ARCH_HEAD_DIM_MAX, a->head_dim) != a->head_dim)
        return lq_fail(fault, LQ_UNSUPPORTED, "%s: value heads of another size than key heads are not read",
                       gguf_path(g));
    if (!r.rc && (a->head_dim == 0 || a->heads_n % a->kv_heads_n != 0))
        return lq_fail(fault, LQ_BAD_MODEL, "%s: %" PRIu32 " heads do not share %" PRIu32 " key-value heads",
                       gguf_path(g), a->heads_n, a->kv_heads_n);
    a->attn_scale = 1.0f / sqrtf((float)a->head_dim);
    a->final_softcap = real_or(&r, "final_logit_softcapping", 0.0f, 1e6f, 0.0f);
    if (strcmp(f->name, "gemma3") == 0)
        read_gemma3(&r, a);
    a->attn_scale = real_or(&r, "attention.scale", 1e-6f, 1e3f, a->attn_scale);
    read_rope(&r, a);
    read_rope_factors(&r, a);
    read_vocab(&r, a);
    return r.rc;
}

bool arch_layer_is_local(const struct arch *a, uint32_t layer)
{
    return a->window > 0 && (a->window_pattern == 0 || layer % a->window_pattern != a->window_pattern - 1);
}
