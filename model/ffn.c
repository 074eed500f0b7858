/* ffn: see ffn.h. */
#include "model/ffn.h"

#include <stdio.h>
#include <stdlib.h>

struct layer {
    struct mat gate, up, down;
};

struct ffn {
    uint32_t first, last, hidden_n, ffn_n;
    enum arch_act act;
    uint64_t bytes;
    const struct gguf *g;
    struct layer *layers; /* last - first + 1 */
};

const char *ffn_tensor_name(uint32_t layer, size_t i, char name[FFN_NAME_BYTES])
{
    static const char *const part[FFN_TENSORS_N] = {"down", "gate", "up"};
    snprintf(name, FFN_NAME_BYTES, "blk.%u.ffn_%s.weight", layer, part[i]);
    return name;
}

static enum lq_err bind_layer(struct ffn *f, uint32_t layer, struct lq_fault *fault)
{
    struct layer *l = &f->layers[layer - f->first];
    const struct {
        struct mat *to;
        size_t rows_n, cols_n;
    } parts[FFN_TENSORS_N] = {{&l->down, f->hidden_n, f->ffn_n}, /* ffn_tensor_name()'s order */
                              {&l->gate, f->ffn_n, f->hidden_n},
                              {&l->up, f->ffn_n, f->hidden_n}};
    for (size_t i = 0; i < FFN_TENSORS_N; i++) {
        char name[FFN_NAME_BYTES];
        ffn_tensor_name(layer, i, name);
        enum lq_err rc = mat_bind(parts[i].to, f->g, name, parts[i].rows_n, parts[i].cols_n, fault);
        if (rc)
            return rc;
        f->bytes += gguf_tensor(f->g, name)->bytes;
    }
    return LQ_OK;
}

enum lq_err ffn_new(const struct gguf *g, const struct arch *a, uint32_t first, uint32_t last, struct ffn **out,
                    struct lq_fault *fault)
{
    if (first > last || last >= a->layers_n)
        return lq_fail(fault, LQ_BAD_LAYER, "%s: layers %u-%u, but the model has layers 0-%u", gguf_path(g), first,
                       last, a->layers_n - 1);
    struct ffn *f = calloc(1, sizeof *f);
    if (!f || !(f->layers = calloc(last - first + 1u, sizeof *f->layers))) {
        free(f);
        return lq_fail(fault, LQ_NOMEM, "out of memory for %u layers", last - first + 1u);
    }
    f->g = g;
    f->first = first;
    f->last = last;
    f->hidden_n = a->hidden_n;
    f->ffn_n = a->ffn_n;
    f->act = a->act;
    enum lq_err rc = LQ_OK;
    for (uint32_t l = first; l <= last && !rc; l++)
        rc = bind_layer(f, l, fault);
    if (rc)
        ffn_free(f);
    else
        *out = f;
    return rc;
}

void ffn_free(struct ffn *f)
{
    if (!f)
        return;
    free(f->layers);
    free(f);
}

uint64_t ffn_bytes(const struct ffn *f)
{
    return f->bytes;
}

const char *ffn_dtype(const struct ffn *f)
{
    enum quant_type type = f->layers[0].gate.type;
    for (uint32_t i = 0; i <= f->last - f->first; i++) {
        const struct layer *l = &f->layers[i];
        if (l->gate.type != type || l->up.type != type || l->down.type != type)
            return "mixed";
    }
    return quant_info[type].name;
}

void ffn_prefetch(const struct ffn *f)
{
    for (uint32_t l = f->first; l <= f->last; l++) {
        char name[FFN_NAME_BYTES];
        for (size_t i = 0; i < FFN_TENSORS_N; i++)
            gguf_tensor_willneed(gguf_tensor(f->g, ffn_tensor_name(l, i, name)));
    }
}

size_t ffn_scratch_floats(const struct ffn *f, size_t seq_n)
{
    return 2 * (size_t)f->ffn_n * (seq_n < FFN_CHUNK_ROWS ? seq_n : FFN_CHUNK_ROWS);
}

void ffn_forward(const struct ffn *f, struct compute *c, uint32_t layer, const float *x, size_t seq_n, float *scratch,
                 float *out)
{
    const struct layer *l = &f->layers[layer - f->first];
    const struct kern_ops *kern = compute_kern(c);
    for (size_t row = 0; row < seq_n; row += FFN_CHUNK_ROWS) {
        size_t n = seq_n - row < FFN_CHUNK_ROWS ? seq_n - row : FFN_CHUNK_ROWS;
        mat_gate_up(c, &l->gate, &l->up, f->act == ARCH_SILU ? kern->silu_mul : kern->gelu_tanh_mul,
                    x + row * f->hidden_n, n, scratch + n * f->ffn_n, scratch);
        mat_mul(c, &l->down, scratch, n, out + row * f->hidden_n);
    }
}

void ffn_gate_scores(const struct ffn *f, struct compute *c, uint32_t layer, const float *x, float *scores)
{
    mat_mul(c, &f->layers[layer - f->first].gate, x, 1, scores);
}
