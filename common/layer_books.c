/* layer_books: see layer_books.h. */
#include "common/layer_books.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROW_OTHER = LAYER_BOOKS_MAX, ROW_BATCH, ROWS_N, FORMATS_N = WIRE_FORMATS_N + 1 };

struct row {
    struct histogram format[FORMATS_N];
};

struct layer_books {
    struct row *_Atomic row[ROWS_N]; /* NULL: not seen */
};

static void books_free(void *arg)
{
    struct layer_books *b = arg;
    for (size_t i = 0; i < ROWS_N; i++)
        free(b->row[i]);
    free(b);
}

static bool print(const void *arg, const char *name, struct evbuffer *out)
{
    const struct layer_books *b = arg;
    bool ok = true;
    for (uint32_t i = 0; i < ROWS_N && ok; i++) {
        const struct row *row = atomic_load_explicit(&b->row[i], memory_order_acquire);
        char layer[16] = "other", labels[64];
        if (i == ROW_BATCH)
            snprintf(layer, sizeof layer, "batch");
        else if (i < LAYER_BOOKS_MAX)
            snprintf(layer, sizeof layer, "%u", i);
        for (unsigned f = 0; row && f < FORMATS_N && ok; f++) {
            if (histogram_count(&row->format[f]) == 0)
                continue;
            snprintf(labels, sizeof labels, "layer=\"%s\",format=\"%s\"", layer, layer_books_format(f));
            ok = histogram_print(&row->format[f], name, labels, out);
        }
    }
    return ok;
}

struct layer_books *layer_books_new(struct metrics *m, const char *name, const char *help)
{
    struct layer_books *b = calloc(1, sizeof *b);
    return metrics_family_take(m, name, help, print, books_free, b) ? b : NULL;
}

/* The row of a layer, made when it is first asked for. NULL: out of memory. */
static struct row *row_of(struct layer_books *b, uint32_t i)
{
    struct row *row = atomic_load_explicit(&b->row[i], memory_order_acquire);
    if (row)
        return row;
    struct row *made = calloc(1, sizeof *made);
    if (made && !atomic_compare_exchange_strong(&b->row[i], &row, made)) {
        free(made); /* another thread was first */
        return row;
    }
    return made;
}

void layer_books_observe(struct layer_books *b, uint32_t layer, unsigned format, uint64_t us)
{
    uint32_t i = layer == LAYER_BOOKS_BATCH ? ROW_BATCH : layer < LAYER_BOOKS_MAX ? layer : ROW_OTHER;
    struct row *row = row_of(b, i);
    if (row) /* out of memory: this one goes uncounted */
        histogram_observe_us(&row->format[format], us);
}
