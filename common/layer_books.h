/* layer_books: latency histograms by layer and wire format, as one metric family.
 * Bounded : layers below LAYER_BOOKS_MAX, formats f32, f16, i8, json; a request for
 *           several layers is layer="batch". Only what was seen is printed.
 * Cheap   : no lock; memory for a layer is taken when it is first seen, not again.
 * Thread  : any. */
#ifndef LQ_COMMON_LAYER_BOOKS_H
#define LQ_COMMON_LAYER_BOOKS_H

#include "common/metrics.h"
#include "proto/wire.h"

enum { LAYER_BOOKS_MAX = 1024 }; /* layers from here on share layer="other" */
#define LAYER_BOOKS_BATCH UINT32_MAX

struct layer_books;

/* "f32", "f16", "i8"; "json" for WIRE_FORMATS_N, as formats are counted everywhere. */
static inline const char *layer_books_format(unsigned format)
{
    return format < WIRE_FORMATS_N ? wire_name((enum wire_format)format) : "json";
}

/* A family of m, which owns it; under that name. NULL: out of memory. */
struct layer_books *layer_books_new(struct metrics *m, const char *name, const char *help);
/* format WIRE_FORMATS_N: JSON. Give only layers that exist: the caller has checked them. */
void layer_books_observe(struct layer_books *b, uint32_t layer, unsigned format, uint64_t us);

#endif
