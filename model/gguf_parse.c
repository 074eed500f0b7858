/* gguf_parse: the bytes of one GGUF file, trusted in nothing.
 * Layout: magic, version, tensor count, kv count; the kvs; per tensor name, dims,
 * type, offset; padding to general.alignment; data. */
#include <inttypes.h>
#include <stdlib.h>

#include "model/gguf_impl.h"
#include "model/quant.h"

enum {
    KV_BYTES_MIN = 8 + 1 + 4 + 1, /* key length, a byte of key, type, a byte of value */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8,
};

const uint8_t gguf_scalar_bytes[GGUF_TYPES_N] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

struct reader {
    struct cursor c;
    const struct gguf_part *part;
    struct lq_fault *fault;
};

static size_t at(const struct reader *r)
{
    return r->part->n - r->c.left;
}

#define BAD(r, ...) lq_fail_at((r)->fault, LQ_BAD_MODEL, at(r), __VA_ARGS__)

static enum lq_err read_string(struct reader *r, const char *what, uint64_t index, struct gguf_string *out)
{
    uint64_t n = cur_u64(&r->c);
    if (r->c.bad || n > r->c.left)
        return BAD(r, "%s: %s %" PRIu64 ": its length %" PRIu64 " passes the end of the file (%zu bytes left)",
                   r->part->name, what, index, n, r->c.left);
    out->p = (const char *)cur_skip(&r->c, (size_t)n);
    out->n = n;
    return LQ_OK;
}

/* Strings of an array, or one: n was held against the bytes left. */
static enum lq_err read_strings(struct reader *r, struct gguf_kv *kv)
{
    kv->strings = calloc(kv->n ? kv->n : 1, sizeof *kv->strings);
    if (!kv->strings)
        return lq_fail(r->fault, LQ_NOMEM, "%s: out of memory for %" PRIu64 " strings", r->part->name, kv->n);
    enum lq_err rc = LQ_OK;
    for (uint64_t i = 0; i < kv->n && !rc; i++)
        rc = read_string(r, "a value's string", i, &kv->strings[i]);
    return rc;
}

static enum lq_err read_value(struct reader *r, struct gguf_kv *kv)
{
    int key_n = kv->key.n > 100 ? 100 : (int)kv->key.n;
    uint32_t type = cur_u32(&r->c);
    kv->n = 1;
    if (type == GGUF_ARRAY) {
        kv->type = GGUF_ARRAY;
        type = cur_u32(&r->c);
        kv->n = cur_u64(&r->c);
        if (type == GGUF_ARRAY)
            return BAD(r, "%s: key '%.*s': arrays of arrays are not read", r->part->name, key_n, kv->key.p);
    }
    if (r->c.bad)
        return BAD(r, "%s: the file ends inside key '%.*s'", r->part->name, key_n, kv->key.p);
    if (type >= GGUF_TYPES_N)
        return BAD(r, "%s: key '%.*s' has unknown value type %" PRIu32, r->part->name, key_n, kv->key.p, type);
    kv->elem = (enum gguf_type)type;
    if (kv->type != GGUF_ARRAY)
        kv->type = kv->elem;
    size_t each = type == GGUF_STRING ? 8 : gguf_scalar_bytes[type], bytes;
    if (kv->n > r->c.left || !size_mul((size_t)kv->n, each, &bytes) || bytes > r->c.left)
        return BAD(r, "%s: key '%.*s': %" PRIu64 " values pass the end of the file (%zu bytes left)", r->part->name,
                   key_n, kv->key.p, kv->n, r->c.left);
    if (type == GGUF_STRING)
        return read_strings(r, kv);
    kv->p = cur_skip(&r->c, bytes);
    return LQ_OK;
}

static void free_kvs(struct gguf_kv *kvs, size_t n)
{
    for (size_t i = 0; kvs && i < n; i++)
        free(kvs[i].strings);
    free(kvs);
}

static enum lq_err read_kvs(struct reader *r, uint64_t n, struct gguf_kv **out)
{
    struct gguf_kv *kvs = calloc(n ? (size_t)n : 1, sizeof *kvs);
    enum lq_err rc =
        kvs ? LQ_OK : lq_fail(r->fault, LQ_NOMEM, "%s: out of memory for %" PRIu64 " keys", r->part->name, n);
    for (uint64_t i = 0; i < n && !rc; i++) {
        rc = read_string(r, "key", i, &kvs[i].key);
        if (!rc && (kvs[i].key.n == 0 || kvs[i].key.n > 65535))
            rc = BAD(r, "%s: key %" PRIu64 " has %" PRIu64 " bytes, expected 1 to 65535", r->part->name, i,
                     kvs[i].key.n);
        if (!rc)
            rc = read_value(r, &kvs[i]);
    }
    if (rc)
        free_kvs(kvs, kvs ? (size_t)n : 0);
    else
        *out = kvs;
    return rc;
}

static enum lq_err read_tensor(struct reader *r, uint64_t i, struct gguf_tensor *t, uint64_t *offset)
{
    struct gguf_string name;
    enum lq_err rc = read_string(r, "name of tensor", i, &name);
    if (rc)
        return rc;
    if (name.n == 0 || name.n >= GGUF_NAME_BYTES_MAX || memchr(name.p, 0, (size_t)name.n))
        return BAD(r, "%s: tensor %" PRIu64 ": a name of %" PRIu64 " bytes, expected 1 to %d without NUL",
                   r->part->name, i, name.n, GGUF_NAME_BYTES_MAX - 1);
    memcpy(t->name, name.p, (size_t)name.n);
    t->dims_n = cur_u32(&r->c);
    if (r->c.bad || t->dims_n == 0 || t->dims_n > GGUF_DIMS_MAX)
        return BAD(r, "%s: tensor %" PRIu64 " '%s': %" PRIu32 " dimensions, expected 1 to %d", r->part->name, i,
                   t->name, t->dims_n, GGUF_DIMS_MAX);
    uint64_t values = 1;
    for (uint32_t d = 0; d < GGUF_DIMS_MAX; d++) {
        t->dims[d] = d < t->dims_n ? cur_u64(&r->c) : 1;
        if (!r->c.bad && t->dims[d] == 0)
            return BAD(r, "%s: tensor %" PRIu64 " '%s': dimension %" PRIu32 " is 0", r->part->name, i, t->name, d);
        if (__builtin_mul_overflow(values, t->dims[d], &values) || values > INT64_MAX)
            return BAD(r, "%s: tensor %" PRIu64 " '%s': dimension %" PRIu32 " = %" PRIu64 " makes too many values",
                       r->part->name, i, t->name, d, t->dims[d]);
    }
    t->type = cur_u32(&r->c);
    *offset = cur_u64(&r->c);
    if (r->c.bad)
        return BAD(r, "%s: the file ends inside tensor %" PRIu64 " '%s'", r->part->name, i, t->name);
    int q = quant_of_ggml(t->type);
    if (q < 0)
        return LQ_OK; /* named when somebody needs it */
    size_t row = t->dims[0] <= SIZE_MAX ? quant_row_bytes((enum quant_type)q, (size_t)t->dims[0]) : 0;
    if (row == 0)
        return BAD(r, "%s: tensor %" PRIu64 " '%s': rows of %" PRIu64 " values are no whole %s blocks of %u",
                   r->part->name, i, t->name, t->dims[0], quant_info[q].name, quant_info[q].block_n);
    if (__builtin_mul_overflow((uint64_t)row, values / t->dims[0], &t->bytes))
        return BAD(r, "%s: tensor %" PRIu64 " '%s' has too many bytes", r->part->name, i, t->name);
    return LQ_OK;
}

static int by_data(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a, *y = *(struct gguf_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

/* No two tensors of a part share bytes. */
static enum lq_err check_overlap(struct reader *r, struct gguf_tensor *t, size_t n)
{
    struct gguf_tensor **sorted = malloc((n ? n : 1) * sizeof *sorted);
    size_t known = 0;
    if (!sorted)
        return lq_fail(r->fault, LQ_NOMEM, "%s: out of memory for %zu tensors", r->part->name, n);
    for (size_t i = 0; i < n; i++)
        if (t[i].data)
            sorted[known++] = &t[i];
    qsort(sorted, known, sizeof *sorted, by_data);
    enum lq_err rc = LQ_OK;
    for (size_t i = 1; i < known && !rc; i++)
        if (sorted[i - 1]->data + sorted[i - 1]->bytes > sorted[i]->data)
            rc = lq_fail(r->fault, LQ_BAD_MODEL, "%s: tensors '%s' and '%s' overlap", r->part->name,
                         sorted[i - 1]->name, sorted[i]->name);
    free(sorted);
    return rc;
}

static enum lq_err read_alignment(struct reader *r, const struct gguf_kv *kvs, uint64_t n, uint64_t *align)
{
    static const char key[] = "general.alignment";
    *align = GGUF_ALIGN_DEFAULT;
    for (uint64_t i = 0; i < n; i++) {
        if (kvs[i].key.n != sizeof key - 1 || memcmp(kvs[i].key.p, key, sizeof key - 1) != 0)
            continue;
        if (kvs[i].type != GGUF_U32)
            return BAD(r, "%s: general.alignment is no u32", r->part->name);
        *align = le32_get(kvs[i].p);
        if (*align == 0 || *align > GGUF_ALIGN_MAX || (*align & (*align - 1)))
            return BAD(r, "%s: general.alignment is %" PRIu64 ", expected a power of two up to %d", r->part->name,
                       *align, GGUF_ALIGN_MAX);
    }
    return LQ_OK;
}

/* The tensors' heads, then their place in the data, which begins aligned. */
static enum lq_err read_tensors(struct reader *r, struct gguf *g, uint64_t n, uint64_t align)
{
    struct gguf_tensor *grown = realloc(g->tensors, (g->tensors_n + n + 1) * sizeof *grown);
    uint64_t *offsets = malloc((n + 1) * sizeof *offsets);
    enum lq_err rc = LQ_NOMEM;
    if (grown)
        g->tensors = grown;
    if (!grown || !offsets) {
        rc = lq_fail(r->fault, rc, "%s: out of memory for %" PRIu64 " tensors", r->part->name, n);
        goto out;
    }
    struct gguf_tensor *t = g->tensors + g->tensors_n;
    memset(t, 0, n * sizeof *t);
    rc = LQ_OK;
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = read_tensor(r, i, &t[i], &offsets[i]);
    if (rc)
        goto out;
    uint64_t begin = (at(r) + align - 1) / align * align;
    g->head_n = g->head_n ? g->head_n : begin; /* the first part's */
    uint64_t data_n = begin < r->part->n ? r->part->n - begin : 0;
    for (uint64_t i = 0; i < n && !rc; i++) {
        if (quant_of_ggml(t[i].type) < 0)
            continue;
        if (offsets[i] % align != 0)
            rc = lq_fail(r->fault, LQ_BAD_MODEL,
                         "%s: tensor %" PRIu64 " '%s': offset %" PRIu64 " is not aligned to %" PRIu64, r->part->name,
                         i, t[i].name, offsets[i], align);
        else if (t[i].bytes > data_n || offsets[i] > data_n - t[i].bytes)
            rc = lq_fail(r->fault, LQ_BAD_MODEL,
                         "%s: tensor %" PRIu64 " '%s': offset %" PRIu64 " + %" PRIu64
                         " bytes is past the end of the data (%" PRIu64 ")",
                         r->part->name, i, t[i].name, offsets[i], t[i].bytes, data_n);
        else
            t[i].data = r->part->p + (t[i].at = begin + offsets[i]);
    }
    if (!rc)
        rc = check_overlap(r, t, (size_t)n);
    if (!rc)
        g->tensors_n += (size_t)n;
out:
    free(offsets);
    return rc;
}

enum lq_err gguf_parse_part(struct gguf *g, size_t i, struct lq_fault *fault)
{
    const struct gguf_part *part = &g->parts[i];
    struct reader r = {{part->p, part->n, false}, part, fault};
    uint32_t magic = cur_u32(&r.c), version = cur_u32(&r.c);
    uint64_t tensors_n = cur_u64(&r.c), kvs_n = cur_u64(&r.c);
    if (part->n < 4 || magic != GGUF_MAGIC)
        return BAD(&r, "%s: not a GGUF file (it begins with 0x%08" PRIx32 ")", part->name, magic);
    if (version != 2 && version != 3)
        return BAD(&r, "%s: GGUF version %" PRIu32 " is not read, only 2 and 3%s", part->name, version,
                   version == 0x03000000 || version == 0x02000000 ? " (a big-endian file)" : "");
    if (r.c.bad)
        return BAD(&r, "%s: the file ends inside its header", part->name);
    if (kvs_n > r.c.left / KV_BYTES_MIN || kvs_n > GGUF_KVS_MAX)
        return BAD(&r, "%s: key count %" PRIu64 " cannot be right in %zu bytes", part->name, kvs_n, r.c.left);
    if (tensors_n > r.c.left / TENSOR_BYTES_MIN || tensors_n > GGUF_TENSORS_MAX)
        return BAD(&r, "%s: tensor count %" PRIu64 " cannot be right in %zu bytes", part->name, tensors_n, r.c.left);
    struct gguf_kv *kvs = NULL;
    uint64_t align;
    enum lq_err rc = read_kvs(&r, kvs_n, &kvs);
    if (!rc)
        rc = read_alignment(&r, kvs, kvs_n, &align);
    if (!rc)
        rc = read_tensors(&r, g, tensors_n, align);
    if (!rc && i == 0) {
        g->kvs = kvs;
        g->kvs_n = (size_t)kvs_n;
        kvs = NULL;
    }
    free_kvs(kvs, kvs ? (size_t)kvs_n : 0);
    return rc;
}
