/* vindex_manifest: the lists of tensors, checked row by row, and the two names of a tensor.
 * See vindex_impl.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/name_index.h"
#include "model/vindex_impl.h"

/* ---- names -------------------------------------------------------------------------------------- */

static const struct {
    const char *key, *gguf;
    enum { EACH, GEMMA, OTHERS } of; /* which models have it so */
} of_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", EACH},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", GEMMA},
    {"post_attention_layernorm.weight", "ffn_norm.weight", OTHERS},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", GEMMA},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", GEMMA},
    {"self_attn.q_proj.weight", "attn_q.weight", EACH},
    {"self_attn.k_proj.weight", "attn_k.weight", EACH},
    {"self_attn.v_proj.weight", "attn_v.weight", EACH},
    {"self_attn.o_proj.weight", "attn_output.weight", EACH},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", EACH},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", EACH},
    {"self_attn.q_proj.bias", "attn_q.bias", EACH},
    {"self_attn.k_proj.bias", "attn_k.bias", EACH},
    {"self_attn.v_proj.bias", "attn_v.bias", EACH},
    {"mlp.gate_proj.weight", "ffn_gate.weight", EACH},
    {"mlp.up_proj.weight", "ffn_up.weight", EACH},
    {"mlp.down_proj.weight", "ffn_down.weight", EACH},
};
static const struct {
    const char *key, *gguf;
} of_none[] = {
    {"norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"rope_freqs.weight", "rope_freqs.weight"}, /* ours: LARQL has no place for it */
};
enum { OF_LAYER_N = sizeof of_layer / sizeof *of_layer, OF_NONE_N = sizeof of_none / sizeof *of_none };

/* "PREFIX.N.REST": REST, and N without leading zeros; NULL: it is none. */
static const char *split_layer(const char *s, const char *prefix, uint32_t *layer)
{
    size_t n = strlen(prefix);
    uint32_t v = 0;
    if (strncmp(s, prefix, n) != 0 || s[n] < '0' || s[n] > '9' || (s[n] == '0' && s[n + 1] != '.'))
        return NULL;
    for (s += n; *s >= '0' && *s <= '9'; s++)
        if ((v = v * 10 + (uint32_t)(*s - '0')) >= ARCH_LAYERS_MAX)
            return NULL;
    *layer = v;
    return *s == '.' ? s + 1 : NULL;
}

bool vindex_gguf_name(const struct vindex_index *x, const char *key, char name[GGUF_NAME_BYTES_MAX], uint32_t *layer)
{
    *layer = UINT32_MAX;
    for (size_t i = 0; i < OF_NONE_N; i++)
        if (strcmp(key, of_none[i].key) == 0) {
            snprintf(name, GGUF_NAME_BYTES_MAX, "%s", of_none[i].gguf);
            return true;
        }
    const char *rest = split_layer(key, "layers.", layer);
    for (size_t i = 0; rest && *layer < x->layers_n && i < OF_LAYER_N; i++)
        if (strcmp(rest, of_layer[i].key) == 0 && of_layer[i].of != (x->gemma_norms ? OTHERS : GEMMA)) {
            snprintf(name, GGUF_NAME_BYTES_MAX, "blk.%" PRIu32 ".%s", *layer, of_layer[i].gguf);
            return true;
        }
    return false;
}

bool vindex_key_of(bool gemma_norms, const char *gguf_name, char key[VINDEX_KEY_BYTES])
{
    uint32_t layer;
    for (size_t i = 0; i < OF_NONE_N; i++)
        if (strcmp(gguf_name, of_none[i].gguf) == 0) {
            snprintf(key, VINDEX_KEY_BYTES, "%s", of_none[i].key);
            return true;
        }
    const char *rest = split_layer(gguf_name, "blk.", &layer);
    for (size_t i = 0; rest && i < OF_LAYER_N; i++)
        if (strcmp(rest, of_layer[i].gguf) == 0 && of_layer[i].of != (gemma_norms ? OTHERS : GEMMA)) {
            snprintf(key, VINDEX_KEY_BYTES, "layers.%" PRIu32 ".%s", layer, of_layer[i].key);
            return true;
        }
    return false;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

struct reader {
    const char *manifest;
    size_t i; /* row */
    struct lq_fault *fault;
};

static enum lq_err bad(const struct reader *r, const char *key, const char *fmt, ...) LQ_PRINTF(3, 4);
static enum lq_err bad(const struct reader *r, const char *key, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return lq_fail(r->fault, LQ_BAD_MODEL, "%s: row %zu%s%s%s: %s", r->manifest, r->i, *key ? " '" : "", key,
                   *key ? "'" : "", text);
}

/* A text of 1 to n - 1 bytes, printable. */
static bool text_of(const json_t *o, const char *key, char *out, size_t n)
{
    const json_t *v = json_object_get(o, key);
    const char *s = json_string_value(v);
    *out = '\0';
    if (!s || !*s || json_string_length(v) >= n)
        return false;
    for (const char *c = s; *c; c++)
        if (*c < ' ' || *c > '~')
            return false;
    snprintf(out, n, "%s", s);
    return strlen(out) == json_string_length(v);
}

static bool number_of(const json_t *v, uint64_t *out)
{
    json_int_t i = json_integer_value(v);
    *out = (uint64_t)i;
    return json_is_integer(v) && i >= 0;
}

/* dims as stored, rows first; *values: their product. */
static enum lq_err read_shape(const struct reader *r, const json_t *o, struct vindex_row *row, uint64_t *values)
{
    const json_t *shape = json_object_get(o, "shape"), *v;
    size_t i;
    row->dims_n = (uint32_t)json_array_size(shape);
    row->dims[0] = row->dims[1] = *values = 1;
    if (!json_is_array(shape) || row->dims_n < 1 || row->dims_n > 2)
        return bad(r, row->key, "'shape' is no list of one or two sides");
    json_array_foreach(shape, i,
                       v) if (!number_of(v, &row->dims[i]) || row->dims[i] == 0 ||
                              row->dims[i] > UINT32_MAX) return bad(r, row->key,
                                                                    "shape[%zu] is no side from 1 to 2^32 - 1", i);
    *values = row->dims[0] * row->dims[1]; /* below 2^64 */
    return LQ_OK;
}

static enum lq_err read_place(const struct reader *r, const json_t *o, struct vindex_row *row)
{
    uint64_t end;
    if (!number_of(json_object_get(o, "offset"), &row->offset))
        return bad(r, row->key, "'offset' is no place in a file");
    if (!number_of(json_object_get(o, "length"), &row->length) ||
        __builtin_add_overflow(row->offset, row->length, &end) || end > INT64_MAX)
        return bad(r, row->key, "'length' is no number of bytes behind offset %" PRIu64, row->offset);
    if (row->offset % 2)
        return bad(r, row->key, "offset %" PRIu64 " is odd", row->offset);
    return LQ_OK;
}

/* values of a dense type by how long they are; false: neither f32 nor f16. */
static bool sniff(struct vindex_row *row, uint64_t values)
{
    if (values > INT64_MAX / 4)
        return false;
    row->type = row->length == 4 * values ? QUANT_F32 : QUANT_F16;
    return row->length == values * quant_info[row->type].block_bytes;
}

static enum lq_err check_blocks(const struct reader *r, const struct vindex_row *row)
{
    uint64_t bytes, row_bytes = quant_row_bytes(row->type, (size_t)row->dims[1]);
    if (row->dims_n != 2 || row_bytes == 0)
        return bad(r, row->key, "shape[1] is %" PRIu64 ", no multiple of %u (%s)", row->dims[1],
                   quant_info[row->type].block_n, quant_info[row->type].name);
    if (__builtin_mul_overflow(row_bytes, row->dims[0], &bytes) || bytes != row->length)
        return bad(r, row->key,
                   "length is %" PRIu64 ", but %" PRIu64 " rows of %" PRIu64 " values in %s have %" PRIu64 " bytes",
                   row->length, row->dims[0], row->dims[1], quant_info[row->type].name, bytes);
    return LQ_OK;
}

static enum lq_err read_blocks_row(const struct reader *r, const json_t *o, struct vindex_row *row)
{
    char format[16];
    uint64_t values;
    if (!text_of(o, "key", row->key, sizeof row->key))
        return bad(r, "", "'key' is no text of 1 to %d bytes", VINDEX_KEY_BYTES - 1);
    bool known = text_of(o, "format", format, sizeof format);
    row->type = strcmp(format, "Q6_K") == 0 ? QUANT_Q6_K : QUANT_Q4_K;
    if (!known || (row->type == QUANT_Q4_K && strcmp(format, "Q4_K") != 0))
        return bad(r, row->key, "'format' is neither Q4_K nor Q6_K");
    enum lq_err rc = read_shape(r, o, row, &values);
    if (!rc)
        rc = read_place(r, o, row);
    return rc || row->length == 0 ? rc : check_blocks(r, row);
}

/* *skip: a kind that is not read. */
static enum lq_err read_weights_row(const struct reader *r, const json_t *o, struct vindex_row *row, bool *skip)
{
    char kind[16];
    uint64_t values;
    const json_t *file = json_object_get(o, "file");
    if (!text_of(o, "key", row->key, sizeof row->key))
        return bad(r, "", "'key' is no text of 1 to %d bytes", VINDEX_KEY_BYTES - 1);
    if (!text_of(o, "kind", kind, sizeof kind))
        return bad(r, row->key, "'kind' is no word");
    if ((*skip = strcmp(kind, "packed_bf16") == 0))
        return LQ_OK;
    if (!file || json_is_null(file) || (json_is_string(file) && json_string_length(file) == 0))
        snprintf(row->file, sizeof row->file, "model_weights.bin"); /* version 1 */
    else if (!text_of(o, "file", row->file, sizeof row->file) || strchr(row->file, '/') || row->file[0] == '.')
        return bad(r, row->key, "'file' is no plain name of up to %d bytes", VINDEX_FILE_BYTES - 1);
    enum lq_err rc = read_shape(r, o, row, &values);
    if (!rc)
        rc = read_place(r, o, row);
    if (rc)
        return rc;
    if (strcmp(kind, "tensor_q4k") == 0) {
        row->type = QUANT_Q4_K;
        return check_blocks(r, row);
    }
    bool vector = strcmp(kind, "vector") == 0, f16 = strcmp(kind, "tensor_f16") == 0;
    if (!vector && !f16 && strcmp(kind, "tensor") != 0)
        return bad(r, row->key, "kind '%s' is not known", kind);
    if (vector != (row->dims_n == 1))
        return bad(r, row->key, "a %s of %" PRIu32 " dimensions", kind, row->dims_n);
    if (!sniff(row, values) || (f16 && row->type != QUANT_F16))
        return bad(r, row->key, "length is %" PRIu64 ", which is not that of %" PRIu64 " values in %s", row->length,
                   values, f16 ? "f16" : "f32 or f16");
    return LQ_OK;
}

/* ---- whole files ------------------------------------------------------------------------------------ */

static enum lq_err load(const char *name, const char *text, size_t n, json_t **root, struct vindex_rows *out,
                        struct lq_fault *fault)
{
    json_error_t err;
    *out = (struct vindex_rows){NULL, 0};
    *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    if (!*root)
        return lq_fail_at(fault, LQ_BAD_MODEL, (size_t)err.position, "%s: line %d: %.200s", name, err.line, err.text);
    size_t rows_n = json_array_size(*root);
    enum lq_err rc = LQ_OK;
    if (!json_is_array(*root) || rows_n > VINDEX_ROWS_MAX)
        rc = lq_fail(fault, LQ_BAD_MODEL, "%s: no list of up to %d rows", name, VINDEX_ROWS_MAX);
    else if (!(out->p = calloc(rows_n + 1, sizeof *out->p)))
        rc = lq_fail(fault, LQ_NOMEM, "%s: out of memory for %zu rows", name, rows_n);
    if (rc)
        json_decref(*root);
    return rc;
}

enum lq_err vindex_blocks_read(const char *name, const char *file, const char *text, size_t n,
                               struct vindex_rows *out, struct lq_fault *fault)
{
    json_t *root, *o;
    struct reader r = {name, 0, fault};
    enum lq_err rc = load(name, text, n, &root, out, fault);
    if (rc)
        return rc;
    json_array_foreach(root, r.i, o)
    {
        struct vindex_row *row = &out->p[out->n++];
        snprintf(row->file, sizeof row->file, "%s", file);
        if ((rc = read_blocks_row(&r, o, row)))
            break;
    }
    json_decref(root);
    if (rc)
        vindex_rows_release(out);
    return rc;
}

static struct name key_at(const void *rows, size_t i)
{
    const char *key = ((const struct vindex_rows *)rows)->p[i].key;
    return (struct name){key, strlen(key)};
}

/* Of rows with the same key the last stays, as LARQL loads them one over the other. */
static enum lq_err last_of_each(const char *name, struct vindex_rows *rows, struct lq_fault *fault)
{
    struct name_index index = {0};
    size_t kept = 0;
    if (!name_index_init(&index, rows->n, key_at, rows))
        return lq_fail(fault, LQ_NOMEM, "%s: out of memory for %zu rows", name, rows->n);
    for (size_t i = 0; i < rows->n; i++)
        (void)name_index_put(&index, i);
    for (size_t i = 0; i < rows->n; i++)
        rows->p[i].superseded = name_index_find(&index, rows->p[i].key, strlen(rows->p[i].key)) != i;
    name_index_release(&index);
    for (size_t i = 0; i < rows->n; i++)
        if (!rows->p[i].superseded)
            rows->p[kept++] = rows->p[i];
    rows->n = kept;
    return LQ_OK;
}

enum lq_err vindex_weights_read(const char *name, const char *text, size_t n, struct vindex_rows *out,
                                struct lq_fault *fault)
{
    json_t *root, *o;
    struct reader r = {name, 0, fault};
    enum lq_err rc = load(name, text, n, &root, out, fault);
    if (rc)
        return rc;
    json_array_foreach(root, r.i, o)
    {
        bool skip = false;
        struct vindex_row *row = &out->p[out->n];
        *row = (struct vindex_row){.length = 0};
        if ((rc = read_weights_row(&r, o, row, &skip)))
            break;
        out->n += !skip;
    }
    if (!rc)
        rc = last_of_each(name, out, fault);
    json_decref(root);
    if (rc)
        vindex_rows_release(out);
    return rc;
}

void vindex_rows_release(struct vindex_rows *rows)
{
    free(rows->p);
    *rows = (struct vindex_rows){NULL, 0};
}
