/* vindex_keys: memory of an open directory, and keys as a GGUF file's head would have them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_impl.h"
#include "model/vindex_open.h"

enum { KEY_BYTES = 128 };

void *vindex_alloc(struct vindex *v, size_t n)
{
    if (v->blocks_n == v->blocks_cap) {
        size_t cap = v->blocks_cap ? 2 * v->blocks_cap : 64;
        void **grown = realloc(v->blocks, cap * sizeof *grown);
        if (!grown)
            return NULL;
        v->blocks = grown;
        v->blocks_cap = cap;
    }
    void *p = malloc(n ? n : 1);
    if (p)
        v->blocks[v->blocks_n++] = p;
    return p;
}

/* A new key's slot, its name written; NULL: failed. */
static struct gguf_kv *add(struct vindex_keys *k, const char *arch, const char *key)
{
    struct gguf *g = k->g;
    if (!k->failed && g->kvs_n == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 32;
        struct gguf_kv *grown = realloc(g->kvs, cap * sizeof *grown);
        k->failed = !grown;
        if (grown) {
            g->kvs = grown;
            k->cap = cap;
        }
    }
    char *name = k->failed ? NULL : vindex_alloc(k->v, KEY_BYTES);
    k->failed = !name;
    if (k->failed)
        return NULL;
    int n = snprintf(name, KEY_BYTES, "%s%s%s", arch, *arch ? "." : "", key);
    struct gguf_kv *kv = &g->kvs[g->kvs_n++];
    *kv = (struct gguf_kv){.key = {name, (uint64_t)n}, .n = 1};
    return kv;
}

static void scalar(struct vindex_keys *k, const char *arch, const char *key, enum gguf_type type, const void *value,
                   size_t n)
{
    struct gguf_kv *kv = add(k, arch, key);
    uint8_t *p = kv ? vindex_alloc(k->v, n) : NULL;
    k->failed = !p;
    if (!p)
        return;
    memcpy(p, value, n);
    kv->type = kv->elem = type;
    kv->p = p;
}

void vindex_key_u32(struct vindex_keys *k, const char *arch, const char *key, uint32_t value)
{
    scalar(k, arch, key, GGUF_U32, &value, sizeof value);
}

void vindex_key_f32(struct vindex_keys *k, const char *arch, const char *key, double value)
{
    float f = (float)value;
    scalar(k, arch, key, GGUF_F32, &f, sizeof f);
}

void vindex_key_bool(struct vindex_keys *k, const char *key, bool value)
{
    uint8_t b = value;
    scalar(k, "", key, GGUF_BOOL, &b, sizeof b);
}

void vindex_key_text(struct vindex_keys *k, const char *key, const char *p, size_t n)
{
    struct gguf_kv *kv = add(k, "", key);
    char *text = kv ? vindex_alloc(k->v, n) : NULL;
    struct gguf_string *s = text ? malloc(sizeof *s) : NULL;
    k->failed = !s;
    if (!s)
        return;
    memcpy(text, p, n);
    *s = (struct gguf_string){text, n};
    kv->type = kv->elem = GGUF_STRING;
    kv->strings = s;
}

void vindex_key_list(struct vindex_keys *k, const char *key, enum gguf_type type, const void *p, size_t n)
{
    struct gguf_kv *kv = add(k, "", key);
    if (!kv) {
        if (type == GGUF_STRING)
            free((void *)(uintptr_t)p);
        return;
    }
    kv->type = GGUF_ARRAY;
    kv->elem = type;
    kv->n = n;
    if (type == GGUF_STRING)
        kv->strings = (struct gguf_string *)(uintptr_t)p;
    else
        kv->p = p;
}
