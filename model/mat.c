/* mat: see mat.h. */
#include "model/mat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/gemm_blis.h"
#include "proto/bytes.h"
#include "proto/cpu.h"

enum {
    TILE_ROWS = 64, /* rows of W that one BLIS call takes: fixed, so results never depend on threads */
    DOT_GRAIN = 16, /* rows of W a thread takes at once */
    CACHE_LINE = 64,
};

struct compute {
    struct kern_ops kern;
    struct pool *pool;
    float *scratch; /* one of scratch_n floats a thread */
    size_t scratch_n;
    char text[96];
};

enum lq_err compute_new(size_t threads_n, size_t cols_max, struct compute **out, struct lq_fault *fault)
{
    struct compute *c = calloc(1, sizeof *c);
    unsigned cpu;
    size_t bytes;
    if (!c)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    enum lq_err rc = cpu_allowed(&cpu, fault);
    if (!rc)
        rc = gemm_init(fault); /* forks: before the threads */
    if (rc)
        goto out;
    kern_init(&c->kern, cpu);
    rc = LQ_NOMEM;
    if (!(c->pool = pool_new(threads_n)) ||
        !size_mul(cols_max + CACHE_LINE / sizeof(float), TILE_ROWS, &c->scratch_n) ||
        !size_mul(c->scratch_n, sizeof(float) * pool_threads_n(c->pool), &bytes) ||
        !(c->scratch = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE))) {
        rc = lq_fail(fault, rc, "out of memory for %zu threads and rows of %zu values", threads_n, cols_max);
        goto out;
    }
    snprintf(c->text, sizeof c->text, "kernels=%s blis=%s threads=%zu", c->kern.name, gemm_config(),
             pool_threads_n(c->pool));
    *out = c;
    c = NULL;
    rc = LQ_OK;
out:
    compute_free(c);
    return rc;
}

void compute_free(struct compute *c)
{
    if (!c)
        return;
    pool_free(c->pool);
    free(c->scratch);
    free(c);
}

const struct kern_ops *compute_kern(const struct compute *c)
{
    return &c->kern;
}

struct pool *compute_pool(const struct compute *c)
{
    return c->pool;
}

const char *compute_describe(const struct compute *c)
{
    return c->text;
}

/* ---- binding ---------------------------------------------------------------------------- */

static const struct gguf_tensor *find(const struct gguf *g, const char *name, enum quant_type *type, enum lq_err *rc,
                                      struct lq_fault *fault)
{
    const struct gguf_tensor *t = gguf_tensor(g, name);
    int q = t ? quant_of_ggml(t->type) : -1;
    *rc = !t      ? lq_fail(fault, LQ_BAD_MODEL, "%s: tensor '%s' is missing", gguf_path(g), name)
          : q < 0 ? lq_fail(fault, LQ_UNSUPPORTED, "%s: tensor '%s' has type %s (%" PRIu32 "), which is not read",
                            gguf_path(g), name, quant_ggml_name(t->type), t->type)
                  : LQ_OK;
    *type = q < 0 ? QUANT_F32 : (enum quant_type)q;
    return t;
}

enum lq_err mat_bind(struct mat *m, const struct gguf *g, const char *name, size_t rows_n, size_t cols_n,
                     struct lq_fault *fault)
{
    enum quant_type type;
    enum lq_err rc;
    const struct gguf_tensor *t = find(g, name, &type, &rc, fault);
    if (rc)
        return rc;
    if (t->dims_n != 2 || t->dims[0] != cols_n || t->dims[1] != rows_n)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: tensor '%s' is [%" PRIu64 ", %" PRIu64 "], expected [%zu, %zu]",
                       gguf_path(g), name, t->dims[0], t->dims[1], cols_n, rows_n);
    *m = (struct mat){t->data, type, rows_n, cols_n, quant_row_bytes(type, cols_n)};
    return LQ_OK;
}

enum lq_err vec_load(const struct gguf *g, const char *name, size_t n, float *out, struct lq_fault *fault)
{
    enum quant_type type;
    enum lq_err rc;
    const struct gguf_tensor *t = find(g, name, &type, &rc, fault);
    if (rc)
        return rc;
    if (t->dims_n != 1 || t->dims[0] != n)
        return lq_fail(fault, LQ_BAD_MODEL,
                       "%s: tensor '%s' has %" PRIu64 " values in %" PRIu32 " dimensions, expected %zu in one",
                       gguf_path(g), name, t->dims[0], t->dims_n, n);
    kern_ref.dequant[type](t->data, n, out);
    return LQ_OK;
}

void mat_row(const struct compute *c, const struct mat *w, size_t row, float *out)
{
    c->kern.dequant[w->type](w->data + row * w->row_bytes, w->cols_n, out);
}

/* ---- product -------------------------------------------------------------------------------- */

struct product {
    struct compute *c;
    const struct mat *w;
    const float *x;
    size_t seq_n;
    float *out;
};

static void dot_one(void *arg, size_t first, size_t end, size_t thread)
{
    (void)thread;
    const struct product *p = arg;
    const struct mat *w = p->w;
    for (size_t r = first; r < end; r++)
        p->out[r] = p->c->kern.dot[w->type](w->data + r * w->row_bytes, p->x, w->cols_n);
}

/* A few rows of x: each weight row is dequantised once, into L1. The bits are those
 * of dot_one(): kern.h promises it. */
static void dot_few(void *arg, size_t first, size_t end, size_t thread)
{
    const struct product *p = arg;
    const struct mat *w = p->w;
    float *row = p->c->scratch + thread * p->c->scratch_n;
    for (size_t r = first; r < end; r++) {
        p->c->kern.dequant[w->type](w->data + r * w->row_bytes, w->cols_n, row);
        for (size_t s = 0; s < p->seq_n; s++)
            p->out[s * w->rows_n + r] = p->c->kern.dot_f32(row, p->x + s * w->cols_n, w->cols_n);
    }
}

static void tiles(void *arg, size_t first, size_t end, size_t thread)
{
    const struct product *p = arg;
    const struct mat *w = p->w;
    float *tile = p->c->scratch + thread * p->c->scratch_n;
    for (size_t t = first; t < end; t++) {
        size_t row = t * TILE_ROWS, n = w->rows_n - row < TILE_ROWS ? w->rows_n - row : TILE_ROWS;
        for (size_t i = 0; i < n; i++)
            p->c->kern.dequant[w->type](w->data + (row + i) * w->row_bytes, w->cols_n, tile + i * w->cols_n);
        gemm_xwt(p->x, p->seq_n, tile, n, w->cols_n, p->out + row, w->rows_n);
    }
}

void mat_mul(struct compute *c, const struct mat *w, const float *x, size_t seq_n, float *out)
{
    struct product p = {c, w, x, seq_n, out};
    if (seq_n == 1)
        pool_run(c->pool, w->rows_n, DOT_GRAIN, dot_one, &p);
    else if (seq_n <= MAT_DOT_ROWS_MAX)
        pool_run(c->pool, w->rows_n, DOT_GRAIN, dot_few, &p);
    else
        pool_run(c->pool, (w->rows_n + TILE_ROWS - 1) / TILE_ROWS, 1, tiles, &p);
}
