/* ranges: see ranges.h. */
#include "model/ranges.h"

#include <stdlib.h>
#include <string.h>

void ranges_release(struct ranges *r)
{
    free(r->at);
    *r = (struct ranges){0};
}

static bool reserve(struct ranges *r, size_t n)
{
    if (n <= r->room_n)
        return true;
    size_t room_n = r->room_n ? 2 * r->room_n : 16;
    struct range *grown = realloc(r->at, room_n * sizeof *grown);
    if (!grown)
        return false;
    r->at = grown;
    r->room_n = room_n;
    return true;
}

/* The first piece that ends at `byte` or behind it. */
static size_t reaching(const struct ranges *r, uint64_t byte)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->at[middle].end < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Pieces [first, first + old_n) become new_n others; there is room. */
static void splice(struct ranges *r, size_t first, size_t old_n, const struct range *new, size_t new_n)
{
    if (r->n > first + old_n)
        memmove(r->at + first + new_n, r->at + first + old_n, (r->n - first - old_n) * sizeof *r->at);
    for (size_t i = 0; i < new_n; i++)
        r->at[first + i] = new[i];
    r->n = r->n - old_n + new_n;
}

bool ranges_add(struct ranges *r, uint64_t from, uint64_t end)
{
    if (from >= end)
        return true;
    if (!reserve(r, r->n + 1))
        return false;
    size_t first = reaching(r, from), n = 0;
    struct range all = {from, end};
    for (; first + n < r->n && r->at[first + n].from <= end; n++) {
        const struct range *p = &r->at[first + n];
        all.from = p->from < all.from ? p->from : all.from;
        all.end = p->end > all.end ? p->end : all.end;
    }
    splice(r, first, n, &all, 1);
    return true;
}

bool ranges_remove(struct ranges *r, uint64_t from, uint64_t end)
{
    if (from >= end)
        return true;
    if (!reserve(r, r->n + 1))
        return false;
    size_t first = reaching(r, from), n = 0, kept_n = 0;
    struct range kept[2];
    for (; first + n < r->n && r->at[first + n].from < end; n++) {
        const struct range *p = &r->at[first + n];
        if (p->from < from) /* only the first can */
            kept[kept_n++] = (struct range){p->from, from < p->end ? from : p->end};
        if (p->end > end) /* only the last can */
            kept[kept_n++] = (struct range){end, p->end};
    }
    splice(r, first, n, kept, kept_n);
    return true;
}

bool ranges_hole(const struct ranges *r, uint64_t from, uint64_t end, struct range *out)
{
    if (from >= end)
        return false;
    size_t i = reaching(r, from + 1); /* the one that holds `from`, if any does */
    if (i < r->n && r->at[i].from <= from)
        from = r->at[i++].end;
    if (from >= end)
        return false;
    *out = (struct range){from, i < r->n && r->at[i].from < end ? r->at[i].from : end};
    return true;
}

bool ranges_hold(const struct ranges *r, uint64_t from, uint64_t end)
{
    struct range unused;
    return !ranges_hole(r, from, end, &unused);
}

uint64_t ranges_bytes(const struct ranges *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n; i++)
        bytes += r->at[i].end - r->at[i].from;
    return bytes;
}

void ranges_close_gaps(struct ranges *r, uint64_t gap)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (n > 0 && r->at[i].from - r->at[n - 1].end <= gap)
            r->at[n - 1].end = r->at[i].end;
        else
            r->at[n++] = r->at[i];
    }
    r->n = n;
}

bool ranges_missing(const struct ranges *want, const struct ranges *have, struct ranges *out)
{
    for (size_t i = 0; i < want->n; i++) {
        struct range hole = {want->at[i].from, want->at[i].from};
        while (ranges_hole(have, hole.end, want->at[i].end, &hole)) {
            if (!ranges_add(out, hole.from, hole.end)) {
                ranges_release(out);
                return false;
            }
        }
    }
    return true;
}
