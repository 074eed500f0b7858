/* name_index: see name_index.h. */
#include "common/name_index.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash(const char *p, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

bool name_index_init(struct name_index *x, size_t count, name_at at, const void *ctx)
{
    size_t size = 8;
    while (size < 2 * count)
        size *= 2;
    *x = (struct name_index){.slot = calloc(size, sizeof *x->slot), .mask = (uint32_t)size - 1, .at = at, .ctx = ctx};
    return x->slot != NULL;
}

void name_index_release(struct name_index *x)
{
    free(x->slot);
    *x = (struct name_index){0};
}

/* The slot of a name, or the empty one where it would stand. */
static uint32_t *slot_of(const struct name_index *x, const char *p, size_t n)
{
    uint32_t i = hash(p, n) & x->mask;
    for (; x->slot[i]; i = (i + 1) & x->mask) {
        struct name s = x->at(x->ctx, x->slot[i] - 1);
        if (s.n == n && memcmp(s.p, p, n) == 0)
            break;
    }
    return &x->slot[i];
}

size_t name_index_put(struct name_index *x, size_t i)
{
    struct name s = x->at(x->ctx, i);
    uint32_t *slot = slot_of(x, s.p, s.n), was = *slot;
    *slot = (uint32_t)i + 1;
    return was ? was - 1 : SIZE_MAX;
}

size_t name_index_find(const struct name_index *x, const char *p, size_t n)
{
    uint32_t found = x->slot ? *slot_of(x, p, n) : 0;
    return found ? found - 1 : SIZE_MAX;
}
