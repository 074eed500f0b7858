/* wire: see wire.h. Layouts and texts: docs/protocol.md, 2 and 4. */
#include "proto/wire.h"

#include <inttypes.h>
#include <math.h>

#include "proto/bytes.h"

static const char *const name_of[WIRE_FORMATS_N] = {"f32", "f16", "i8"};
static const char *const type_of[WIRE_FORMATS_N] = {"application/x-larql-ffn", "application/x-larql-ffn-f16",
                                                    "application/x-larql-ffn-i8"};

const char *wire_name(enum wire_format f)
{
    return name_of[f];
}

const char *wire_content_type(enum wire_format f)
{
    return type_of[f];
}

uint64_t wire_row_bytes(enum wire_format f, uint32_t hidden)
{
    uint64_t h = hidden;
    return f == WIRE_F32 ? 4 * h : f == WIRE_F16 ? 2 * h : 8 + h;
}

/* ---- requests ------------------------------------------------------------ */

/* The batch form up to its payload; its first 4 bytes are known to be the mark. */
static enum lq_err batch_decode(const uint8_t *p, size_t have_n, uint64_t body_n, struct wire_head *out,
                                size_t *more_n, struct lq_fault *fault)
{
    if (body_n < 8)
        return lq_fail(fault, LQ_BAD_BODY, "binary: body too short (need ≥ 16 bytes)");
    if (have_n < 8) {
        *more_n = 8;
        return LQ_OK;
    }
    uint32_t layers_n = le32_get(p + 4);
    uint64_t layers_end = 8 + 4 * (uint64_t)layers_n; /* below 2^35 */
    if (body_n < layers_end)
        return lq_fail(fault, LQ_BAD_BODY, "binary batch: body too short for %" PRIu32 " layer indices", layers_n);
    if (body_n < layers_end + 12)
        return lq_fail(fault, LQ_BAD_BODY, "binary: truncated fixed header (seq_len/flags/top_k)");
    if (layers_n > WIRE_LAYERS_MAX)
        return lq_fail(fault, LQ_BAD_BODY, "batch of %" PRIu32 " layers is over the limit of %d", layers_n,
                       WIRE_LAYERS_MAX);
    if (have_n < layers_end + 12) {
        *more_n = (size_t)layers_end + 12;
        return LQ_OK;
    }
    struct cursor c = {p + layers_end, 12, false};
    *out = (struct wire_head){.batch = true, .layers_n = layers_n, .layers_le = p + 8};
    out->seq_len = cur_u32(&c);
    out->flags = cur_u32(&c);
    out->top_k = cur_u32(&c);
    out->payload_at = (size_t)layers_end + 12;
    return LQ_OK;
}

enum lq_err wire_head_decode(const uint8_t *p, size_t have_n, uint64_t body_n, struct wire_head *out, size_t *more_n,
                             struct lq_fault *fault)
{
    size_t unused;
    if (!more_n)
        more_n = &unused;
    *more_n = 0;
    if (body_n < WIRE_SINGLE_HEAD_BYTES)
        return lq_fail(fault, LQ_BAD_BODY, "binary: body too short (need ≥ 16 bytes)");
    if (have_n < WIRE_SINGLE_HEAD_BYTES) {
        *more_n = WIRE_SINGLE_HEAD_BYTES;
        return LQ_OK;
    }
    if (le32_get(p) == WIRE_BATCH_MARK) {
        enum lq_err rc = batch_decode(p, have_n, body_n, out, more_n, fault);
        if (rc || *more_n)
            return rc;
    } else {
        *out = (struct wire_head){.layers_n = 1, .layers_le = p, .payload_at = WIRE_SINGLE_HEAD_BYTES};
        out->seq_len = le32_get(p + 4);
        out->flags = le32_get(p + 8);
        out->top_k = le32_get(p + 12);
    }
    if (!(out->flags & WIRE_FLAG_FULL_OUTPUT))
        return lq_fail(fault, LQ_BAD_BODY, "binary wire format requires full_output = true");
    if (out->layers_n == 0)
        return lq_fail(fault, LQ_BAD_BODY, "empty layer list");
    return LQ_OK;
}

enum lq_err wire_payload_check(enum wire_format f, uint32_t seq_len, uint32_t hidden, uint64_t payload_n,
                               size_t *values_n, struct lq_fault *fault)
{
    if (seq_len == 0)
        return lq_fail(fault, LQ_BAD_BODY, "seq_len must be >= 1");
    uint64_t values = (uint64_t)seq_len * hidden, row = wire_row_bytes(f, hidden), expected;
    if (__builtin_mul_overflow(row, (uint64_t)seq_len, &expected) || values > SIZE_MAX / sizeof(float))
        return lq_fail(fault, LQ_BAD_BODY, "seq_len * hidden overflow");
    *values_n = (size_t)values;
    if (payload_n == expected)
        return LQ_OK;
    uint64_t unit = f == WIRE_F32 ? 4 : f == WIRE_F16 ? 2 : row;
    if (payload_n % unit != 0)
        return lq_fail(fault, LQ_BAD_BODY, "residual has %" PRIu64 " bytes, expected %" PRIu64, payload_n, expected);
    uint64_t got = f == WIRE_I8 ? payload_n / row * hidden : payload_n / unit;
    return lq_fail(fault, LQ_BAD_BODY,
                   "residual has %" PRIu64 " elements, expected %" PRIu64 " (seq_len=%" PRIu32
                   " * hidden_size=%" PRIu32 ")",
                   got, values, seq_len, hidden);
}

static enum lq_err i8_rows_decode(const struct codec_ops *ops, const uint8_t *payload, uint32_t first,
                                  uint32_t rows_n, uint32_t hidden, float *out, const char *what,
                                  struct lq_fault *fault)
{
    for (uint32_t row = first; row < first + rows_n; row++, payload += 8 + (size_t)hidden, out += hidden) {
        float scale = lef32_get(payload), zero = lef32_get(payload + 4);
        if (!isfinite(scale))
            return lq_fail(fault, LQ_BAD_BODY, "%s: i8 scale is not finite at row %" PRIu32, what, row);
        if (zero != 0.0f) /* NaN too; -0 is 0 */
            return lq_fail(fault, LQ_BAD_BODY, "%s: i8 zero_point must be 0 at row %" PRIu32 " (symmetric only)",
                           what, row);
        ops->i8_decode_row(payload, hidden, out);
    }
    return LQ_OK;
}

enum lq_err wire_rows_decode(const struct codec_ops *ops, enum wire_format f, const uint8_t *payload, uint32_t first,
                             uint32_t rows_n, uint32_t hidden, float *out, const char *what, struct lq_fault *fault)
{
    size_t n = (size_t)rows_n * hidden;
    payload += (size_t)wire_row_bytes(f, hidden) * first;
    if (f == WIRE_I8) /* finite by construction: scale is, and the decode saturates */
        return i8_rows_decode(ops, payload, first, rows_n, hidden, out, what, fault);
    if (f == WIRE_F16)
        ops->f16_decode(payload, n, out);
    else
        memcpy(out, payload, n * sizeof *out); /* every host we build for is little-endian: asserted below */
    size_t bad = ops->finite(out, n);
    if (bad < n)
        return lq_fail(fault, LQ_BAD_BODY, "%s is not finite at row %zu, index %zu", what, first + bad / hidden,
                       bad % hidden);
    return LQ_OK;
}

enum lq_err wire_payload_decode(const struct codec_ops *ops, enum wire_format f, const uint8_t *payload,
                                uint32_t seq_len, uint32_t hidden, float *out, const char *what,
                                struct lq_fault *fault)
{
    return wire_rows_decode(ops, f, payload, 0, seq_len, hidden, out, what, fault);
}
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "f32 payloads are copied as they are");

size_t wire_payload_encode(const struct codec_ops *ops, enum wire_format f, const float *x, uint32_t seq_len,
                           uint32_t hidden, uint8_t *out)
{
    size_t n = (size_t)seq_len * hidden;
    if (f == WIRE_F16)
        return ops->f16_encode(x, n, out);
    if (f == WIRE_F32)
        memcpy(out, x, n * sizeof *x);
    for (uint32_t row = 0; row < seq_len && f == WIRE_I8; row++)
        ops->i8_encode_row(x + (size_t)row * hidden, hidden, out + row * (8 + (size_t)hidden));
    return 0;
}

size_t wire_request_head_bytes(bool batch, uint32_t layers_n)
{
    return batch ? WIRE_BATCH_FIXED_BYTES + 4 * (size_t)layers_n : WIRE_SINGLE_HEAD_BYTES;
}

void wire_request_head_encode(bool batch, const uint32_t *layers, uint32_t layers_n, uint32_t seq_len, uint32_t top_k,
                              uint8_t *out)
{
    if (batch) {
        out = le32_put(out, WIRE_BATCH_MARK);
        out = le32_put(out, layers_n);
    }
    for (uint32_t i = 0; i < layers_n; i++)
        out = le32_put(out, layers[i]);
    out = le32_put(out, seq_len);
    out = le32_put(out, WIRE_FLAG_FULL_OUTPUT);
    le32_put(out, top_k);
}

/* ---- answers --------------------------------------------------------------- */

uint64_t wire_answer_bytes(enum wire_format f, uint32_t entries_n, uint32_t seq_len, uint32_t hidden)
{
    uint64_t payload, all;
    if (__builtin_mul_overflow(wire_row_bytes(f, hidden), (uint64_t)seq_len, &payload))
        return UINT64_MAX;
    if (entries_n != 1 && __builtin_add_overflow(payload, (uint64_t)WIRE_ENTRY_HEAD_BYTES, &payload))
        return UINT64_MAX;
    if (__builtin_mul_overflow(payload, (uint64_t)entries_n, &all) ||
        __builtin_add_overflow(all, (uint64_t)WIRE_ANSWER_HEAD_BYTES, &all))
        return UINT64_MAX;
    return all;
}

uint8_t *wire_answer_head_encode(uint32_t entries_n, uint32_t layer, uint32_t seq_len, float latency_ms, uint8_t *out)
{
    out = le32_put(out, entries_n == 1 ? layer : WIRE_BATCH_MARK);
    out = le32_put(out, entries_n == 1 ? seq_len : entries_n);
    return lef32_put(out, latency_ms);
}

uint8_t *wire_entry_head_encode(uint32_t layer, uint32_t seq_len, uint32_t num_floats, uint8_t *out)
{
    out = le32_put(out, layer);
    out = le32_put(out, seq_len);
    return le32_put(out, num_floats);
}

/* One entry's payload, after its layer and row count were read. */
static enum lq_err entry_decode(const struct codec_ops *ops, enum wire_format f, struct cursor *c, uint32_t layer,
                                uint32_t want, uint32_t rows, uint32_t seq_len, uint32_t hidden, float *out,
                                struct lq_fault *fault)
{
    if (layer != want)
        return lq_fail(fault, LQ_BAD_ANSWER, "answer holds layer %" PRIu32 " where %" PRIu32 " was asked", layer,
                       want);
    if (rows != seq_len)
        return lq_fail(fault, LQ_BAD_ANSWER,
                       "answer of layer %" PRIu32 " has %" PRIu32 " rows, %" PRIu32 " were sent", layer, rows,
                       seq_len);
    uint64_t payload_n = wire_row_bytes(f, hidden) * seq_len; /* the caller could hold S*h floats */
    const uint8_t *payload = payload_n <= SIZE_MAX ? cur_skip(c, (size_t)payload_n) : NULL;
    if (!payload)
        return lq_fail(fault, LQ_BAD_ANSWER, "answer of layer %" PRIu32 " is cut short", layer);
    enum lq_err rc = wire_payload_decode(ops, f, payload, seq_len, hidden, out, "answer", fault);
    return rc ? LQ_BAD_ANSWER : LQ_OK;
}

enum lq_err wire_answer_decode(const struct codec_ops *ops, enum wire_format f, const uint8_t *body, size_t body_n,
                               const uint32_t *layers, uint32_t layers_n, uint32_t seq_len, uint32_t hidden,
                               float *out, float *latency_ms, struct lq_fault *fault)
{
    struct cursor c = {body, body_n, false};
    uint32_t first = cur_u32(&c), second = cur_u32(&c);
    size_t values_n = (size_t)seq_len * hidden;
    enum lq_err rc = LQ_OK;
    *latency_ms = cur_f32(&c);
    if (c.bad)
        return lq_fail(fault, LQ_BAD_ANSWER, "answer of %zu bytes is shorter than its head", body_n);
    if (first != WIRE_BATCH_MARK) {
        if (layers_n != 1)
            return lq_fail(fault, LQ_BAD_ANSWER, "answer holds one layer, %" PRIu32 " were asked", layers_n);
        rc = entry_decode(ops, f, &c, first, layers[0], second, seq_len, hidden, out, fault);
    } else if (second != layers_n) {
        return lq_fail(fault, LQ_BAD_ANSWER, "answer holds %" PRIu32 " layers, %" PRIu32 " were asked", second,
                       layers_n);
    } else {
        for (uint32_t i = 0; i < layers_n && !rc; i++) {
            uint32_t layer = cur_u32(&c), rows = cur_u32(&c), floats = cur_u32(&c);
            if (c.bad || floats != values_n)
                return lq_fail(fault, LQ_BAD_ANSWER,
                               "answer of layer %" PRIu32 " declares %" PRIu32 " values, expected %zu", layers[i],
                               floats, values_n);
            rc = entry_decode(ops, f, &c, layer, layers[i], rows, seq_len, hidden, out + i * values_n, fault);
        }
    }
    if (!rc && c.left > 0)
        return lq_fail(fault, LQ_BAD_ANSWER, "answer has %zu bytes after its end", c.left);
    if (rc && fault)
        fault->code = rc;
    return rc;
}
