/* name_index: names (byte strings) -> their positions; open addressing, FNV-1a.
 * The names stay with the caller, who gives each by its position. */
#ifndef LQ_COMMON_NAME_INDEX_H
#define LQ_COMMON_NAME_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct name {
    const char *p;
    size_t n;
};

/* The name at position i; ctx is the caller's. */
typedef struct name (*name_at)(const void *ctx, size_t i);

struct name_index { /* {0} is valid and empty */
    uint32_t *slot; /* 0: empty, else position + 1 */
    uint32_t mask;
    name_at at;
    const void *ctx;
};

/* Room for count positions (< 2^31). False: out of memory. */
bool name_index_init(struct name_index *x, size_t count, name_at at, const void *ctx);
void name_index_release(struct name_index *x);

/* Puts position i in, in the stead of one with the same name, whose position is
 * returned; SIZE_MAX: the name is new. */
size_t name_index_put(struct name_index *x, size_t i);
size_t name_index_find(const struct name_index *x, const char *p, size_t n); /* SIZE_MAX: none */

#endif
