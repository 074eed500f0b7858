/* mat: see mat.h. */
#include "model/mat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gemm_blis.h"
#include "proto/bytes.h"
#include "proto/cpu.h"

enum {
    TILE_ROWS = 64, /* rows of W that one BLIS call takes: fixed, so results never depend on threads */
    DOT_GRAIN = 16, /* rows of W a thread takes at once: a tile */
    TILE_FROM = 2,  /* rows of x from which tiles are faster than dots */
    Q_ROWS = 64,    /* rows of x whose digits are held at once */
    CACHE_LINE = 64,
    BLOCK_MAX = 256, /* values of the longest block */
    ACT_GRAIN = 4096,
};

const char *const mat_activations_name[MAT_ACTIVATIONS_N] = {[MAT_F32] = "f32", [MAT_8] = "8", [MAT_16] = "16"};

enum lq_err mat_activations_read(const char *word, enum mat_activations *out, struct lq_fault *fault)
{
    for (int a = 0; a < MAT_ACTIVATIONS_N; a++)
        if (strcmp(word, mat_activations_name[a]) == 0) {
            *out = (enum mat_activations)a;
            return LQ_OK;
        }
    return lq_fail(fault, LQ_USAGE, "--activations %.32s: use 8, 16 or f32", word);
}

struct compute {
    struct kern_ops kern;
    struct kern_q_ops kern_q;
    enum mat_activations activations;
    struct kern_q_x *digits; /* Q_ROWS rows; NULL with f32 */
    struct pool *pool;
    float *scratch; /* one of scratch_n floats a thread */
    float *padded;  /* Q_ROWS rows of x with zeros behind; touched by padded matrices only */
    size_t scratch_n;
    char text[96];
};

enum lq_err compute_new(size_t threads_n, size_t cols_max, enum mat_activations activations, struct compute **out,
                        struct lq_fault *fault)
{
    struct compute *c = calloc(1, sizeof *c);
    unsigned cpu;
    size_t bytes;
    if (!c)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    cols_max = cols_max < SIZE_MAX - BLOCK_MAX ? (cols_max + BLOCK_MAX - 1) / BLOCK_MAX * BLOCK_MAX : cols_max;
    enum lq_err rc = cpu_allowed(&cpu, fault);
    if (!rc)
        rc = gemm_init(fault); /* forks: before the threads */
    if (rc)
        goto out;
    kern_init(&c->kern, cpu);
    kern_q_init(&c->kern_q, cpu);
    c->activations = activations;
    rc = LQ_NOMEM;
    if (!(c->pool = pool_new(threads_n)) ||
        (activations != MAT_F32 && (!size_mul(kern_q_groups(cols_max), Q_ROWS * sizeof *c->digits, &bytes) ||
                                    !(c->digits = aligned_alloc(CACHE_LINE, bytes)))) ||
        !size_mul(cols_max + CACHE_LINE / sizeof(float), TILE_ROWS, &c->scratch_n) ||
        !size_mul(c->scratch_n, sizeof(float) * pool_threads_n(c->pool), &bytes) ||
        !(c->scratch = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE)) ||
        !(c->padded = calloc(cols_max, Q_ROWS * sizeof *c->padded))) {
        rc = lq_fail(fault, rc, "out of memory for %zu threads and rows of %zu values", threads_n, cols_max);
        goto out;
    }
    snprintf(c->text, sizeof c->text, "kernels=%s%s activations=%s blis=%s threads=%zu", c->kern.name,
             cpu & CPU_VNNI ? "+vnni" : "", mat_activations_name[activations], gemm_config(),
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
    free(c->padded);
    free(c->digits);
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
    *rc = !t        ? lq_fail(fault, LQ_BAD_MODEL, "%s: tensor '%s' is missing", gguf_path(g), name)
          : q < 0   ? lq_fail(fault, LQ_UNSUPPORTED, "%s: tensor '%s' has type %s (%" PRIu32 "), which is not read",
                              gguf_path(g), name, quant_ggml_name(t->type), t->type)
          : t->hole ? lq_fail(fault, LQ_BAD_MODEL, "%s: tensor '%s' is not in this partial file (see %s.held)",
                              gguf_path(g), name, gguf_path(g))
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
    *m = (struct mat){t->data, type, rows_n, cols_n, quant_row_bytes(type, cols_n + t->pad_n), t->pad_n};
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
    c->kern.dequant[w->type](w->data + row * w->row_bytes, w->cols_n + w->pad_n, out);
}

/* ---- product -------------------------------------------------------------------------------- */

struct product {
    struct compute *c;
    const struct mat *w, *up; /* up: a second matrix of the same shape, or NULL */
    void (*act)(float *gate, const float *up, size_t n);
    const float *x;
    size_t seq_n;
    float *out;
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool in_digits(const struct compute *c, const struct mat *w)
{
    return c->activations != MAT_F32 && c->kern_q.dot[w->type];
}

/* Rows first .. end - 1 of W, in f32; out[s * out_step + r - first]. Each weight row is
 * read once; blocks are dequantised into L1 then. The bits are those of a single row:
 * kern.h promises it. */
static void rows_f32(const struct product *p, const struct mat *w, size_t first, size_t end, float *row, float *out,
                     size_t out_step)
{
    const struct kern_ops *k = &p->c->kern;
    for (size_t r = first; r < end; r++) {
        const uint8_t *data = w->data + r * w->row_bytes;
        if (p->seq_n == 1) {
            out[r - first] = k->dot[w->type](data, p->x, w->cols_n);
            continue;
        }
        if (k->dot_rows[w->type]) {
            k->dot_rows[w->type](data, p->x, w->cols_n, p->seq_n, w->cols_n, out + r - first, out_step);
            continue;
        }
        k->dequant[w->type](data, w->cols_n, row);
        for (size_t s = 0; s < p->seq_n; s++)
            out[s * out_step + r - first] = k->dot_f32(row, p->x + s * w->cols_n, w->cols_n);
    }
}

/* The same on the digits of x, up to Q_ROWS rows of it: each weight row is read once. */
static void rows_digits(const struct product *p, const struct mat *w, size_t first, size_t end, float *out,
                        size_t out_step)
{
    const struct compute *c = p->c;
    const kern_q_dot dot = c->kern_q.dot[w->type];
    const kern_q_tile tile = p->seq_n < TILE_FROM ? NULL : c->kern_q.tile[w->type];
    const bool two = c->activations == MAT_16;
    size_t r = first;
    for (; tile && r + KERN_Q_TILE_ROWS <= end; r += KERN_Q_TILE_ROWS)
        for (size_t s = 0; s < p->seq_n; s += KERN_Q_TILE_X)
            tile(w->data + r * w->row_bytes, w->row_bytes, w->cols_n, c->digits + s, p->seq_n,
                 least(p->seq_n - s, KERN_Q_TILE_X), two, out + s * out_step + r - first, out_step);
    for (; r < end; r++)
        for (size_t s = 0; s < p->seq_n; s += KERN_Q_ROWS_MAX)
            dot(w->data + r * w->row_bytes, w->cols_n, c->digits + s, p->seq_n, least(p->seq_n - s, KERN_Q_ROWS_MAX),
                two, out + s * out_step + r - first, out_step);
}

static void rows(const struct product *p, const struct mat *w, size_t first, size_t end, float *scratch, float *out,
                 size_t out_step)
{
    if (in_digits(p->c, w))
        rows_digits(p, w, first, end, out, out_step);
    else
        rows_f32(p, w, first, end, scratch, out, out_step);
}

/* Parts of the next two are counted in DOT_GRAIN rows of W. */
static void few(void *arg, size_t first, size_t end, size_t thread)
{
    const struct product *p = arg;
    first *= DOT_GRAIN;
    rows(p, p->w, first, least(end * DOT_GRAIN, p->w->rows_n), p->c->scratch + thread * p->c->scratch_n,
         p->out + first, p->w->rows_n);
}

static size_t grains(const struct mat *w)
{
    return (w->rows_n + DOT_GRAIN - 1) / DOT_GRAIN;
}

/* A grain of both matrices, then the activation while it is in L1. */
static void few_gate_up(void *arg, size_t first, size_t end, size_t thread)
{
    const struct product *p = arg;
    float up[Q_ROWS * DOT_GRAIN], *scratch = p->c->scratch + thread * p->c->scratch_n;
    for (size_t part = first; part < end; part++) {
        size_t r = part * DOT_GRAIN, n = least(DOT_GRAIN, p->w->rows_n - r);
        rows(p, p->w, r, r + n, scratch, p->out + r, p->w->rows_n);
        rows(p, p->up, r, r + n, scratch, up, DOT_GRAIN);
        for (size_t s = 0; s < p->seq_n; s++)
            p->act(p->out + s * p->w->rows_n + r, up + s * DOT_GRAIN, n);
    }
}

static void tiles(void *arg, size_t first, size_t end, size_t thread)
{
    const struct product *p = arg;
    const struct mat *w = p->w;
    float *tile = p->c->scratch + thread * p->c->scratch_n;
    for (size_t t = first; t < end; t++) {
        size_t row = t * TILE_ROWS, n = least(w->rows_n - row, TILE_ROWS);
        for (size_t i = 0; i < n; i++)
            p->c->kern.dequant[w->type](w->data + (row + i) * w->row_bytes, w->cols_n, tile + i * w->cols_n);
        gemm_xwt(p->x, p->seq_n, tile, n, w->cols_n, p->out + row, w->rows_n);
    }
}

/* The digits of up to Q_ROWS rows of x, side by side. */
static void digits(struct compute *c, const float *x, size_t seq_n, size_t cols_n)
{
    for (size_t s = 0; s < seq_n; s++)
        c->kern_q.quantize(x + s * cols_n, cols_n, c->activations == MAT_16, c->digits + s, seq_n);
}

/* Zeros behind each row of x, as behind those of W. */
static void mul_padded(struct compute *c, const struct mat *w, const float *x, size_t seq_n, float *out)
{
    struct mat whole = *w;
    whole.cols_n += w->pad_n;
    whole.pad_n = 0;
    for (size_t s = 0; s < seq_n; s += Q_ROWS) {
        size_t n = least(seq_n - s, Q_ROWS);
        for (size_t i = 0; i < n; i++) {
            float *to = c->padded + i * whole.cols_n;
            memcpy(to, x + (s + i) * w->cols_n, w->cols_n * sizeof *to);
            memset(to + w->cols_n, 0, w->pad_n * sizeof *to);
        }
        mat_mul(c, &whole, c->padded, n, out + s * w->rows_n);
    }
}

void mat_mul(struct compute *c, const struct mat *w, const float *x, size_t seq_n, float *out)
{
    if (w->pad_n) {
        mul_padded(c, w, x, seq_n, out);
        return;
    }
    struct product p = {.c = c, .w = w, .x = x, .seq_n = seq_n, .out = out};
    if (in_digits(c, w)) {
        for (size_t s = 0; s < seq_n; s += Q_ROWS) {
            p.seq_n = least(seq_n - s, Q_ROWS);
            p.out = out + s * w->rows_n;
            digits(c, x + s * w->cols_n, p.seq_n, w->cols_n);
            pool_run(c->pool, grains(w), 1, few, &p);
        }
    } else if (seq_n <= MAT_DOT_ROWS_MAX) {
        pool_run(c->pool, grains(w), 1, few, &p);
    } else {
        pool_run(c->pool, (w->rows_n + TILE_ROWS - 1) / TILE_ROWS, 1, tiles, &p);
    }
}

struct activation {
    void (*act)(float *gate, const float *up, size_t n);
    float *gate;
    const float *up;
};

static void activate(void *arg, size_t first, size_t end, size_t thread)
{
    (void)thread;
    const struct activation *a = arg;
    a->act(a->gate + first, a->up + first, end - first);
}

void mat_gate_up(struct compute *c, const struct mat *gate, const struct mat *up,
                 void (*act)(float *gate, const float *up, size_t n), const float *x, size_t seq_n, float *scratch,
                 float *out)
{
    struct product p = {.c = c, .w = gate, .up = up, .act = act};
    bool any_digits = in_digits(c, gate) || in_digits(c, up);
    if (gate->pad_n || up->pad_n ||
        (seq_n > MAT_DOT_ROWS_MAX && !(in_digits(c, gate) && in_digits(c, up)))) {
        struct activation a = {act, out, scratch};
        mat_mul(c, gate, x, seq_n, out);
        mat_mul(c, up, x, seq_n, scratch);
        pool_run(c->pool, seq_n * gate->rows_n, ACT_GRAIN, activate, &a);
        return;
    }
    for (size_t s = 0; s < seq_n; s += Q_ROWS) {
        p.seq_n = least(seq_n - s, Q_ROWS);
        p.x = x + s * gate->cols_n;
        p.out = out + s * gate->rows_n;
        if (any_digits)
            digits(c, p.x, p.seq_n, gate->cols_n);
        pool_run(c->pool, grains(gate), 1, few_gate_up, &p);
    }
}
