/* wire: bodies of POST /v1/walk-ffn, bytes <-> structs (docs/protocol.md, 2 and 4).
 * Nothing here does I/O or allocates: values go to memory of the caller, and a
 * struct wire_head only points into the body that it was read from.
 * h = hidden size, S = seq_len (rows), K = layers of a batch. */
#ifndef LQ_PROTO_WIRE_H
#define LQ_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/codec.h"
#include "proto/err.h"

enum {
    WIRE_MARK_BYTES = 4,
    WIRE_SINGLE_HEAD_BYTES = 16,
    WIRE_BATCH_FIXED_BYTES = 20, /* + 4 K */
    WIRE_ANSWER_HEAD_BYTES = 12,
    WIRE_ENTRY_HEAD_BYTES = 12,
    WIRE_LAYERS_MAX = 1024,
    WIRE_HEAD_BYTES_MAX = WIRE_BATCH_FIXED_BYTES + 4 * WIRE_LAYERS_MAX,
    WIRE_TOP_K_DEFAULT = 8092,
};
#define WIRE_BATCH_MARK 0xFFFFFFFFu
#define WIRE_FLAG_FULL_OUTPUT 1u

enum wire_format { WIRE_F32, WIRE_F16, WIRE_I8, WIRE_FORMATS_N }; /* precise first */

/* "f32", "f16", "i8"; application/x-larql-ffn[-f16|-i8]. */
const char *wire_name(enum wire_format f);
const char *wire_content_type(enum wire_format f);

/* Bytes of one row of h values: 4h, 2h, 8+h. 64-bit, cannot wrap for h < 2^32. */
uint64_t wire_row_bytes(enum wire_format f, uint32_t hidden);

/* ---- requests ------------------------------------------------------- */

struct wire_head {
    bool batch;               /* the 0xFFFFFFFF form */
    uint32_t layers_n;        /* 1 for the single form */
    const uint8_t *layers_le; /* layers_n x u32 in the body; see wire_head_layer() */
    uint32_t seq_len, flags, top_k;
    size_t payload_at; /* offset of the payload in the body */
};

static inline uint32_t wire_head_layer(const struct wire_head *h, size_t i)
{
    const uint8_t *p = h->layers_le + 4 * i;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Reads the head of a binary request from its first have_n bytes, of body_n in
 * all (UINT64_MAX: not known yet). Does checks 8, 9 and 10 of the table.
 * LQ_OK with *more_n > 0 and nothing in *out: the head goes on, call again with
 * at least that many bytes (never over WIRE_HEAD_BYTES_MAX).
 * more_n may be NULL when have_n == body_n. */
enum lq_err wire_head_decode(const uint8_t *p, size_t have_n, uint64_t body_n, struct wire_head *out, size_t *more_n,
                             struct lq_fault *fault) LQ_MUST_CHECK;

/* Checks 11 and 12: seq_len >= 1, S*h within 64 bits, payload length exact.
 * On LQ_OK *values_n = S*h, safe to allocate (each value has >= 1 payload byte). */
enum lq_err wire_payload_check(enum wire_format f, uint32_t seq_len, uint32_t hidden, uint64_t payload_n,
                               size_t *values_n, struct lq_fault *fault) LQ_MUST_CHECK;

/* Payload of S rows, its length checked, -> out[S*h]; check 13: finite; i8 scale
 * finite, zero_point 0. `what` begins the message ("residual" for requests). */
enum lq_err wire_payload_decode(const struct codec_ops *ops, enum wire_format f, const uint8_t *payload,
                                uint32_t seq_len, uint32_t hidden, float *out, const char *what,
                                struct lq_fault *fault) LQ_MUST_CHECK;
/* The same for rows_n of its rows from row `first` on -> out[rows_n * h]: for those who hold a
 * part at a time. */
enum lq_err wire_rows_decode(const struct codec_ops *ops, enum wire_format f, const uint8_t *payload, uint32_t first,
                             uint32_t rows_n, uint32_t hidden, float *out, const char *what,
                             struct lq_fault *fault) LQ_MUST_CHECK;

/* S rows -> wire_row_bytes * S bytes. Returns how many values saturated (f16). */
size_t wire_payload_encode(const struct codec_ops *ops, enum wire_format f, const float *x, uint32_t seq_len,
                           uint32_t hidden, uint8_t *out);

/* Bytes of a request head; the single form needs layers_n == 1. */
size_t wire_request_head_bytes(bool batch, uint32_t layers_n);
/* Writes that many bytes; flags = full_output. */
void wire_request_head_encode(bool batch, const uint32_t *layers, uint32_t layers_n, uint32_t seq_len, uint32_t top_k,
                              uint8_t *out);

/* ---- answers -------------------------------------------------------- */

/* Bytes of an answer of entries_n entries of S rows; UINT64_MAX when that wraps. */
uint64_t wire_answer_bytes(enum wire_format f, uint32_t entries_n, uint32_t seq_len, uint32_t hidden);

/* Writes the 12-byte head; layer is used for a single entry only. */
uint8_t *wire_answer_head_encode(uint32_t entries_n, uint32_t layer, uint32_t seq_len, float latency_ms,
                                 uint8_t *out);
/* Writes an entry's 12-byte head: batch form only. num_floats = S*h, < 2^32. */
uint8_t *wire_entry_head_encode(uint32_t layer, uint32_t seq_len, uint32_t num_floats, uint8_t *out);

/* Answer -> out[layers_n * S * h] in the order of layers[]. Accepts a single
 * answer to a batch of one; refuses another layer, row count, length, trailing
 * bytes, a missing entry, a value that is not finite: LQ_BAD_ANSWER. */
enum lq_err wire_answer_decode(const struct codec_ops *ops, enum wire_format f, const uint8_t *body, size_t body_n,
                               const uint32_t *layers, uint32_t layers_n, uint32_t seq_len, uint32_t hidden,
                               float *out, float *latency_ms, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
