/* gguf_head: how long a file's head is, from its first bytes alone. It only walks the
 * fields; gguf_parse.c judges them once all are there. */
#include <inttypes.h>

#include "model/gguf_impl.h"

struct walk {
    struct cursor c;
    size_t n;
    const char *name;
    bool wrong; /* a length that no head within the limit has */
};

/* Over a field of n items of `each` bytes. */
static void skip(struct walk *w, uint64_t n, size_t each)
{
    if (n > GGUF_HEAD_BYTES_MAX / each)
        w->wrong = true;
    else if (!w->wrong)
        (void)cur_skip(&w->c, (size_t)n * each);
}

static uint64_t u64(struct walk *w)
{
    const uint8_t *p = cur_skip(&w->c, 8);
    return p ? le64_get(p) : 0;
}

static bool goes_on(const struct walk *w)
{
    return !w->c.bad && !w->wrong;
}

static void skip_value(struct walk *w, uint32_t type)
{
    uint64_t n = 1;
    if (type == GGUF_ARRAY) {
        type = cur_u32(&w->c);
        n = u64(w);
    }
    if (!goes_on(w))
        return;
    if (type == GGUF_STRING)
        for (uint64_t i = 0; i < n && goes_on(w); i++)
            skip(w, u64(w), 1);
    else if (type < GGUF_TYPES_N && type != GGUF_ARRAY)
        skip(w, n, gguf_scalar_bytes[type]);
    else
        w->wrong = true;
}

/* general.alignment, if this key is it. */
static void walk_kv(struct walk *w, uint64_t *align)
{
    static const char alignment[] = "general.alignment";
    uint64_t key_n = u64(w);
    const uint8_t *key = w->c.p;
    skip(w, key_n, 1);
    bool is_alignment = goes_on(w) && key_n == sizeof alignment - 1 && memcmp(key, alignment, key_n) == 0;
    uint32_t type = cur_u32(&w->c);
    const uint8_t *value = w->c.p;
    skip_value(w, type);
    if (goes_on(w) && is_alignment && type == GGUF_U32)
        *align = le32_get(value);
}

static void walk_tensor(struct walk *w)
{
    skip(w, u64(w), 1);
    uint32_t dims_n = cur_u32(&w->c);
    if (dims_n > GGUF_DIMS_MAX)
        w->wrong = true;
    skip(w, dims_n, 8);
    skip(w, 1, 4 + 8);
}

enum lq_err gguf_head_bytes(const char *name, const uint8_t *p, size_t n, uint64_t *bytes, struct lq_fault *fault)
{
    struct walk w = {{p, n, false}, n, name, false};
    uint64_t align = GGUF_ALIGN_DEFAULT;
    *bytes = 0;
    uint32_t magic = cur_u32(&w.c), version = cur_u32(&w.c);
    uint64_t tensors_n = u64(&w), kvs_n = u64(&w);
    if (w.c.bad)
        return LQ_OK;
    if (magic != GGUF_MAGIC || (version != 2 && version != 3))
        return lq_fail(fault, LQ_BAD_MODEL, "%s: not a GGUF file of version 2 or 3 (it begins with 0x%08" PRIx32 ")",
                       name, magic);
    if (tensors_n > GGUF_TENSORS_MAX || kvs_n > GGUF_KVS_MAX)
        return lq_fail(fault, LQ_BAD_MODEL,
                       "%s: %" PRIu64 " tensors and %" PRIu64 " keys are over the limits of %d and %d", name,
                       tensors_n, kvs_n, GGUF_TENSORS_MAX, GGUF_KVS_MAX);
    for (uint64_t i = 0; i < kvs_n && goes_on(&w); i++)
        walk_kv(&w, &align);
    for (uint64_t i = 0; i < tensors_n && goes_on(&w); i++)
        walk_tensor(&w);
    uint64_t used = n - w.c.left;
    if (w.wrong || used > GGUF_HEAD_BYTES_MAX)
        return lq_fail(fault, LQ_BAD_MODEL,
                       "%s: the head of this GGUF file cannot be right, or is over the limit of %d bytes", name,
                       GGUF_HEAD_BYTES_MAX);
    if (w.c.bad)
        return LQ_OK;
    if (align == 0 || align > GGUF_ALIGN_MAX)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: general.alignment is %" PRIu64, name, align);
    *bytes = (used + align - 1) / align * align;
    return LQ_OK;
}
