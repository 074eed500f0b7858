/* ranges: sets of bytes of a file, as sorted [from, end) pieces that neither overlap nor
 * touch. What a partial model file holds, and what is to be fetched for it. */
#ifndef LQ_MODEL_RANGES_H
#define LQ_MODEL_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
    uint64_t from, end; /* end: the first byte behind */
};

struct ranges { /* {0} is empty */
    struct range *at;
    size_t n, room_n;
};

void ranges_release(struct ranges *r);
/* False: out of memory, and r is unchanged. from >= end adds and removes nothing. */
bool ranges_add(struct ranges *r, uint64_t from, uint64_t end) __attribute__((warn_unused_result));
bool ranges_remove(struct ranges *r, uint64_t from, uint64_t end) __attribute__((warn_unused_result));
/* Is every byte of [from, end) in r? */
bool ranges_hold(const struct ranges *r, uint64_t from, uint64_t end);
/* The first piece of [from, end) that is not in r; false: none. */
bool ranges_hole(const struct ranges *r, uint64_t from, uint64_t end, struct range *out);
uint64_t ranges_bytes(const struct ranges *r);
/* Makes one of neighbours that up to gap bytes part. */
void ranges_close_gaps(struct ranges *r, uint64_t gap);
/* out (empty) = what is in want and not in have. False: out of memory, out is released. */
bool ranges_missing(const struct ranges *want, const struct ranges *have, struct ranges *out)
    __attribute__((warn_unused_result));

#endif
