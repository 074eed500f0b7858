/* gguf: files and their parts, look-ups by name, typed getters. See gguf.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/gguf_impl.h"
#include "model/vindex_impl.h"

/* ---- look-ups by name ------------------------------------------------------------------------ */

static struct name kv_name(const void *g, size_t i)
{
    struct gguf_string key = ((const struct gguf *)g)->kvs[i].key;
    return (struct name){key.p, (size_t)key.n};
}

static struct name tensor_name(const void *g, size_t i)
{
    const char *s = ((const struct gguf *)g)->tensors[i].name;
    return (struct name){s, strlen(s)};
}

static enum lq_err build_index(const struct gguf *g, struct name_index *x, size_t count, name_at at, const char *what,
                               struct lq_fault *fault)
{
    if (!name_index_init(x, count, at, g))
        return lq_fail(fault, LQ_NOMEM, "%s: out of memory", g->parts[0].name);
    for (size_t i = 0; i < count; i++)
        if (name_index_put(x, i) != SIZE_MAX)
            return lq_fail(fault, LQ_BAD_MODEL, "%s: %s '%.*s' is there twice", g->parts[0].name, what,
                           at(g, i).n > 100 ? 100 : (int)at(g, i).n, at(g, i).p);
    return LQ_OK;
}

/* ---- open ------------------------------------------------------------------------------------ */

static enum lq_err map_file(const char *path, struct gguf_part *part, struct lq_fault *fault)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum lq_err rc = LQ_IO;
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = lq_fail(fault, rc, "cannot open %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = lq_fail(fault, LQ_BAD_MODEL, "%s: not a GGUF file (no regular file)", path);
    } else if (st.st_size < 24) {
        rc = lq_fail(fault, LQ_BAD_MODEL, "%s: not a GGUF file (%lld bytes)", path, (long long)st.st_size);
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = lq_fail(fault, rc, "cannot map %s: %s", path, strerror(errno));
        } else {
            *part = (struct gguf_part){part->name, p, (size_t)st.st_size, true,
                                       st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec};
            rc = LQ_OK;
        }
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

struct gguf *gguf_new(size_t parts_n)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->parts = calloc(parts_n, sizeof *g->parts);
    g->names = calloc(parts_n, sizeof *g->names);
    if (!g->parts || !g->names) {
        gguf_free(g);
        return NULL;
    }
    g->parts_n = parts_n;
    return g;
}

/* "....-00002-of-00005.gguf": the pattern of a split. False: a whole file's name. */
static bool split_name(const char *path, size_t *stem_n, unsigned *count)
{
    unsigned no;
    int used = 0;
    size_t n = strlen(path), tail = strlen("-00001-of-00001.gguf");
    if (n <= tail || sscanf(path + n - tail, "-%5u-of-%5u.gguf%n", &no, count, &used) != 2 || used != (int)tail)
        return false;
    *stem_n = n - tail;
    return *count >= 1 && *count <= GGUF_SPLITS_MAX && no >= 1 && no <= *count;
}

static enum lq_err check_split(const struct gguf *g, struct lq_fault *fault)
{
    uint32_t count, total;
    struct lq_fault unused;
    if (g->parts_n == 1 && !gguf_has(g, "split.count"))
        return LQ_OK;
    if (gguf_get_u32(g, "split.count", &count, &unused) == LQ_OK && count != g->parts_n)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: split.count is %" PRIu32 ", the name says %zu", g->parts[0].name,
                       count, g->parts_n);
    if (gguf_get_u32(g, "split.tensors.count", &total, &unused) == LQ_OK && total != g->tensors_n)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: split.tensors.count is %" PRIu32 ", its parts hold %zu",
                       g->parts[0].name, total, g->tensors_n);
    return LQ_OK;
}

enum lq_err gguf_index(struct gguf *g, struct lq_fault *fault)
{
    enum lq_err rc = build_index(g, &g->kv_index, g->kvs_n, kv_name, "key", fault);
    return rc ? rc : build_index(g, &g->tensor_index, g->tensors_n, tensor_name, "tensor", fault);
}

static enum lq_err finish(struct gguf *g, struct gguf **out, struct lq_fault *fault)
{
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < g->parts_n && !rc; i++)
        rc = gguf_parse_part(g, i, fault);
    if (!rc)
        rc = gguf_index(g, fault);
    if (!rc)
        rc = check_split(g, fault);
    if (rc)
        gguf_free(g);
    else
        *out = g;
    return rc;
}

/* The list beside path, or beside the file that path leads to. */
static enum lq_err find_list(struct gguf *g, const char *path, struct lq_fault *fault)
{
    char *real = NULL;
    enum lq_err rc = held_read(path, &g->held, &g->partial, fault);
    if (!rc && !g->partial && (real = realpath(path, NULL)))
        rc = held_read(real, &g->held, &g->partial, fault);
    free(real);
    size_t n = strlen(path);
    if (!rc && !g->partial && n > 5 && strcmp(path + n - 5, ".part") == 0)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: a fetch that has not ended, and no list of what is there", path);
    return rc;
}

/* Holes read as zeros: nobody gets to see their bytes. */
static enum lq_err mark_holes(struct gguf *g, const char *path, struct lq_fault *fault)
{
    if (!g->partial)
        return LQ_OK;
    if (g->held.bytes != g->parts[0].n || !ranges_hold(&g->held.ranges, 0, g->head_n))
        return lq_fail(fault, LQ_BAD_MODEL, "%s: the list of what it holds is that of another file", path);
    for (size_t i = 0; i < g->tensors_n; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        t->hole = t->data && !ranges_hold(&g->held.ranges, t->at, t->at + t->bytes);
        t->data = t->hole ? NULL : t->data;
    }
    return LQ_OK;
}

enum lq_err gguf_open(const char *path, struct gguf **out, struct lq_fault *fault)
{
    size_t stem_n = 0;
    unsigned count = 1;
    bool split = split_name(path, &stem_n, &count);
    struct gguf *g = gguf_new(split ? count : 1);
    if (!g)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %s", path);
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < g->parts_n && !rc; i++) {
        if (split) {
            size_t n = stem_n + 32;
            if ((g->names[i] = malloc(n)))
                snprintf(g->names[i], n, "%.*s-%05zu-of-%05u.gguf", (int)stem_n, path, i + 1, count);
        } else {
            g->names[i] = strdup(path);
        }
        if (!g->names[i]) {
            rc = lq_fail(fault, LQ_NOMEM, "out of memory for %s", path);
            break;
        }
        g->parts[i].name = g->names[i];
        rc = map_file(g->names[i], &g->parts[i], fault);
    }
    if (!rc && g->parts_n == 1)
        rc = find_list(g, path, fault);
    if (rc) {
        gguf_free(g);
        return rc;
    }
    rc = finish(g, out, fault);
    if (!rc && (rc = mark_holes(g, path, fault)))
        gguf_free(g);
    return rc;
}

enum lq_err gguf_open_memory(const uint8_t *p, size_t n, const char *name, struct gguf **out, struct lq_fault *fault)
{
    struct gguf *g = gguf_new(1);
    if (!g)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %s", name);
    g->parts[0] = (struct gguf_part){.name = name, .p = p, .n = n};
    return finish(g, out, fault);
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->parts_n; i++) {
        if (g->parts[i].mapped && g->parts[i].p)
            munmap((void *)(uintptr_t)g->parts[i].p, g->parts[i].n);
        free(g->names[i]);
    }
    for (size_t i = 0; i < g->kvs_n; i++)
        free(g->kvs[i].strings);
    free(g->parts);
    free(g->names);
    free(g->kvs);
    free(g->tensors);
    name_index_release(&g->kv_index);
    name_index_release(&g->tensor_index);
    held_release(&g->held);
    vindex_free(g->vindex);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->parts[0].name;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->parts_n; i++)
        bytes += g->parts[i].n;
    return bytes;
}

size_t gguf_parts_n(const struct gguf *g)
{
    return g->parts_n;
}

const uint8_t *gguf_map(const struct gguf *g, size_t *n)
{
    *n = g->parts[0].n;
    return g->parts[0].p;
}

int64_t gguf_mtime_ns(const struct gguf *g)
{
    return g->parts[0].mtime_ns;
}

const struct held *gguf_held(const struct gguf *g)
{
    return g->partial ? &g->held : NULL;
}

uint64_t gguf_head_n(const struct gguf *g)
{
    return g->head_n;
}

bool gguf_rows_unpermuted(const struct gguf *g)
{
    return g->vindex != NULL;
}

const struct hash256 *gguf_model_hash(const struct gguf *g)
{
    return g->has_model_hash ? &g->model_hash : NULL;
}

/* ---- getters ------------------------------------------------------------------------------------ */

static const struct gguf_kv *find(const struct gguf *g, const char *key)
{
    size_t i = name_index_find(&g->kv_index, key, strlen(key));
    return i == SIZE_MAX ? NULL : &g->kvs[i];
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

static enum lq_err absent(const struct gguf *g, const char *key, struct lq_fault *fault)
{
    return lq_fail(fault, LQ_BAD_MODEL, "%s: key '%s' is missing", gguf_path(g), key);
}

static enum lq_err other_kind(const struct gguf *g, const char *key, const char *want, struct lq_fault *fault)
{
    return lq_fail(fault, LQ_BAD_MODEL, "%s: key '%s' is no %s", gguf_path(g), key, want);
}

/* Any integer type; false: it is none, or negative or beyond 64 bits signed. */
static bool integer(const struct gguf_kv *kv, uint64_t *out)
{
    int64_t v;
    switch (kv->type) {
    case GGUF_U8:
        v = kv->p[0];
        break;
    case GGUF_I8:
        v = (int8_t)kv->p[0];
        break;
    case GGUF_U16:
        v = le16_get(kv->p);
        break;
    case GGUF_I16:
        v = (int16_t)le16_get(kv->p);
        break;
    case GGUF_U32:
        v = le32_get(kv->p);
        break;
    case GGUF_I32:
        v = (int32_t)le32_get(kv->p);
        break;
    case GGUF_U64:
    case GGUF_I64:
        v = (int64_t)le64_get(kv->p);
        break;
    default:
        return false;
    }
    *out = (uint64_t)v;
    return v >= 0;
}

enum lq_err gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct lq_fault *fault)
{
    const struct gguf_kv *kv = find(g, key);
    uint64_t v;
    if (!kv)
        return absent(g, key, fault);
    if (!integer(kv, &v) || v > UINT32_MAX)
        return other_kind(g, key, "number of 32 bits", fault);
    *out = (uint32_t)v;
    return LQ_OK;
}

enum lq_err gguf_get_f32(const struct gguf *g, const char *key, float *out, struct lq_fault *fault)
{
    const struct gguf_kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, fault);
    if (kv->type == GGUF_F32) {
        *out = lef32_get(kv->p);
    } else if (kv->type == GGUF_F64) {
        double d;
        memcpy(&d, kv->p, sizeof d);
        *out = (float)d;
    } else {
        return other_kind(g, key, "float", fault);
    }
    return __builtin_isfinite(*out) ? LQ_OK : other_kind(g, key, "finite float", fault);
}

enum lq_err gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct lq_fault *fault)
{
    const struct gguf_kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, fault);
    if (kv->type != GGUF_BOOL)
        return other_kind(g, key, "bool", fault);
    *out = kv->p[0] != 0;
    return LQ_OK;
}

enum lq_err gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct lq_fault *fault)
{
    const struct gguf_kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, fault);
    if (kv->type != GGUF_STRING)
        return other_kind(g, key, "string", fault);
    *out = kv->strings[0];
    return LQ_OK;
}

enum lq_err gguf_get_array(const struct gguf *g, const char *key, struct gguf_array *out, struct lq_fault *fault)
{
    const struct gguf_kv *kv = find(g, key);
    if (!kv)
        return absent(g, key, fault);
    if (kv->type != GGUF_ARRAY)
        return other_kind(g, key, "array", fault);
    *out = (struct gguf_array){.type = kv->elem, .n = kv->n, .p = kv->p, .strings = kv->strings};
    return LQ_OK;
}

size_t gguf_tensors_n(const struct gguf *g)
{
    return g->tensors_n;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    size_t i = name_index_find(&g->tensor_index, name, strlen(name));
    return i == SIZE_MAX ? NULL : &g->tensors[i];
}

static void advise(const struct gguf_tensor *t, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)t->data, end = first + t->bytes;
    first = (first + page - 1) & ~(page - 1);
    end &= ~(page - 1);
    if (t->data && first < end)
        (void)madvise((void *)first, end - first, advice); /* advice only */
}

void gguf_tensor_dontneed(const struct gguf_tensor *t)
{
    advise(t, MADV_DONTNEED);
}

void gguf_tensor_willneed(const struct gguf_tensor *t)
{
    advise(t, MADV_WILLNEED);
}
