/* vindex_write_tensor: a tensor's rows in a directory's form. See vindex_write_impl.h. */
#include <math.h>
#include <string.h>

#include "model/quant_blocks.h"
#include "model/quant_encode.h"
#include "model/vindex_write_impl.h"
#include "proto/bytes.h"
#include "proto/f16.h"

enum { PIECE = 256 };
#define F16_MAX 65504.0f

/* The row of the source that becomes row r: the converter put row j and row j + half of a head
 * at 2 j and 2 j + 1. */
static uint64_t source_row(const struct vindex_tensor *t, uint64_t r)
{
    uint64_t half = t->head_dim / 2, in_head = half ? r % t->head_dim : 0;
    if (!half)
        return r;
    return r - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

static enum lq_err put_f16_row(struct vindex_out *o, const struct vindex_tensor *t, const float *x, uint64_t n,
                               struct vindex_write_report *report)
{
    uint8_t half[2 * PIECE];
    for (uint64_t i = 0; i < n;) {
        size_t k = 0;
        for (; k < PIECE && i < n; k++, i++) {
            if (!(fabsf(x[i]) <= F16_MAX))
                return o->rc = lq_fail(o->fault, LQ_UNSUPPORTED,
                                       "tensor '%s' holds %g, which f16 has not: use --dtype f32", t->t->name,
                                       (double)x[i]);
            uint16_t h = f16_encode_one(x[i]);
            le16_put(half + 2 * k, h);
            report->rounded_n += f16_decode_one(h) != x[i];
        }
        vindex_out_put(o, half, 2 * k);
    }
    return o->rc;
}

static enum lq_err put_blocks(struct vindex_out *o, const struct vindex_tensor *t, const float *x, uint64_t n)
{
    uint8_t block[sizeof(struct block_q6_k)], linear[sizeof(struct block_q6_k)];
    for (uint64_t i = 0; i < n; i += QUANT_BLOCK_K) {
        for (uint64_t k = i; k < i + QUANT_BLOCK_K; k++)
            if (!isfinite(x[k]))
                return o->rc = lq_fail(o->fault, LQ_BAD_MODEL, "tensor '%s' holds %g", t->t->name, (double)x[k]);
        if (t->to == QUANT_Q4_K) {
            quant_encode_q4k(x + i, block);
            vindex_out_put(o, block, sizeof(struct block_q4_k));
        } else {
            quant_encode_q6k(x + i, block);
            vindex_q6k_from_ggml(block, 1, linear);
            vindex_out_put(o, linear, sizeof linear);
        }
    }
    return o->rc;
}

static enum lq_err put_floats(struct vindex_out *o, const struct vindex_tensor *t, float *x, uint64_t n,
                              struct vindex_write_report *report)
{
    report->values_n += n;
    for (uint64_t i = 0; i < n && t->minus_one; i++)
        x[i] -= 1.0f;
    if (t->to == QUANT_F16)
        return put_f16_row(o, t, x, n, report);
    if (t->to != QUANT_F32)
        return put_blocks(o, t, x, n);
    vindex_out_put(o, x, (size_t)n * sizeof *x);
    return o->rc;
}

/* Q6_K rows in LARQL's order of bits. */
static void put_linear(struct vindex_out *o, const uint8_t *from, size_t bytes)
{
    uint8_t linear[16 * sizeof(struct block_q6_k)];
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < sizeof linear ? bytes - at : sizeof linear;
        vindex_q6k_from_ggml(from + at, n / sizeof(struct block_q6_k), linear);
        vindex_out_put(o, linear, n);
        at += n;
    }
}

enum lq_err vindex_tensor_put(struct vindex_out *o, const struct vindex_tensor *t, const struct kern_ops *kern,
                              float *row, struct vindex_write_report *report)
{
    uint64_t cols_n = t->t->dims[0], rows_n = t->t->dims[1];
    size_t row_bytes = quant_row_bytes(t->from, (size_t)cols_n);
    for (uint64_t r = 0; r < rows_n && !o->rc; r++) {
        const uint8_t *from = t->t->data + source_row(t, r) * row_bytes;
        if (t->from != t->to || t->minus_one) {
            kern->dequant[t->from](from, (size_t)cols_n, row);
            (void)put_floats(o, t, row, cols_n, report);
        } else if (t->from == QUANT_Q6_K) {
            put_linear(o, from, row_bytes);
        } else {
            vindex_out_put(o, from, row_bytes);
        }
    }
    return o->rc;
}
