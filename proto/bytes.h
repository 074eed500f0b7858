/* bytes: little-endian reads and writes, and sizes that cannot wrap.
 * Parsers read through a sticky cursor: after the first read past the end every
 * further read gives 0 and `bad` stays set, so a header is read whole and
 * tested once. */
#ifndef LQ_PROTO_BYTES_H
#define LQ_PROTO_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const uint8_t *p;
    size_t left;
    bool bad;
};

static inline uint16_t le16_get(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t le32_get(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t le64_get(const uint8_t *p)
{
    return (uint64_t)le32_get(p) | (uint64_t)le32_get(p + 4) << 32;
}

static inline float lef32_get(const uint8_t *p)
{
    uint32_t u = le32_get(p);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint8_t *le16_put(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    return p + 2;
}

static inline uint8_t *le32_put(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
    return p + 4;
}

static inline uint8_t *lef32_put(uint8_t *p, float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return le32_put(p, u);
}

static inline const uint8_t *cur_skip(struct cursor *c, size_t n)
{
    if (c->bad || c->left < n) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    c->left -= n;
    return p;
}

static inline uint32_t cur_u32(struct cursor *c)
{
    const uint8_t *p = cur_skip(c, 4);
    return p ? le32_get(p) : 0;
}

static inline uint64_t cur_u64(struct cursor *c)
{
    const uint8_t *p = cur_skip(c, 8);
    return p ? le64_get(p) : 0;
}

static inline float cur_f32(struct cursor *c)
{
    const uint8_t *p = cur_skip(c, 4);
    return p ? lef32_get(p) : 0.0f;
}

/* True when a*b (a+b) fits; sizes from outside go through these alone. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
