/* model_maker: the bytes of a small GGUF file, field by field, so that a test can make
 * any of them wrong. */
#ifndef LQ_TESTS_MODEL_MAKER_H
#define LQ_TESTS_MODEL_MAKER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct maker {
    uint8_t p[1 << 16];
    size_t n;
};

static inline void put(struct maker *m, const void *p, size_t n)
{
    if (m->n + n > sizeof m->p)
        abort();
    memcpy(m->p + m->n, p, n);
    m->n += n;
}

static inline void put32(struct maker *m, uint32_t v)
{
    put(m, &v, 4);
}

static inline void put64(struct maker *m, uint64_t v)
{
    put(m, &v, 8);
}

static inline void put_text(struct maker *m, const char *s)
{
    put64(m, strlen(s));
    put(m, s, strlen(s));
}

static inline void put_head(struct maker *m, uint32_t version, uint64_t tensors_n, uint64_t kvs_n)
{
    put(m, "GGUF", 4);
    put32(m, version);
    put64(m, tensors_n);
    put64(m, kvs_n);
}

static inline void put_kv32(struct maker *m, const char *key, uint32_t v)
{
    put_text(m, key);
    put32(m, 4);
    put32(m, v);
}

static inline void put_kv_text(struct maker *m, const char *key, const char *v)
{
    put_text(m, key);
    put32(m, 8);
    put_text(m, v);
}

static inline void put_tensor(struct maker *m, const char *name, uint32_t type, uint32_t dims_n, const uint64_t *dims,
                              uint64_t offset)
{
    put_text(m, name);
    put32(m, dims_n);
    for (uint32_t i = 0; i < dims_n; i++)
        put64(m, dims[i]);
    put32(m, type);
    put64(m, offset);
}

/* Padding to 32 and n bytes of data. */
static inline void put_data(struct maker *m, size_t n)
{
    static const uint8_t zero[4096];
    put(m, zero, (32 - m->n % 32) % 32);
    put(m, zero, n);
}

#endif
