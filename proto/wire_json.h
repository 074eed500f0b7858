/* wire_json: the debugging form of /v1/walk-ffn (docs/protocol.md, 2.4), and
 * the JSON texts that programs of the grid share. libc and jansson only. */
#ifndef LQ_PROTO_WIRE_JSON_H
#define LQ_PROTO_WIRE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct wire_json_request {
    uint32_t *layers; /* layers_n of them; owned */
    uint32_t layers_n;
    bool batch; /* came as "layers" */
    uint32_t seq_len, top_k;
    bool full_output;
    float *residual; /* residual_n values; owned; not yet checked against S*h */
    size_t residual_n;
    char *model_id; /* owned; NULL: absent */
};

/* Checks 8 and 10. Residual values that leave the range of f32, and non-numbers,
 * are named with their index. `r` needs no init and holds nothing on failure. */
enum lq_err wire_json_request_decode(const char *text, size_t n, struct wire_json_request *r,
                                     struct lq_fault *fault) LQ_MUST_CHECK;
void wire_json_request_release(struct wire_json_request *r);

/* Checks 11, 12 and 13 of a JSON residual; features need exactly one row. */
enum lq_err wire_json_residual_check(const struct wire_json_request *r, uint32_t hidden,
                                     struct lq_fault *fault) LQ_MUST_CHECK;

/* The same request for some of its layers, for a fan-out: malloc'd, terminated,
 * *n bytes; NULL when out of memory. One layer is still sent as "layers". */
char *wire_json_request_encode(const struct wire_json_request *r, const uint32_t *layers, uint32_t layers_n,
                               size_t *n);

/* Answers of the two modes, malloc'd, *n bytes; NULL when out of memory.
 * full output: x holds layers_n * S * h values in the order of layers.
 * Numbers are printed with 9 significant digits, so f32 -> JSON -> f32 is exact. */
char *wire_json_output_encode(const uint32_t *layers, uint32_t layers_n, uint32_t seq_len, uint32_t hidden,
                              const float *x, double latency_ms, size_t *n);

struct wire_features {
    uint32_t n;    /* at most top_k */
    uint32_t *ids; /* sorted by |score| descending */
    float *scores; /* gate . x, rounded to 0.01 on output */
};
char *wire_json_features_encode(const uint32_t *layers, uint32_t layers_n, const struct wire_features *f,
                                double latency_ms, size_t *n);

/* One shard's part of a fan-out. */
struct wire_json_part {
    const char *body; /* the shard's 200 answer */
    size_t body_n;
    const uint32_t *layers; /* what it was asked for, in order */
    uint32_t layers_n;
    const char *url; /* for messages */
};

/* Merges parts into the answer to `layers` (order and repeats kept): results,
 * seq_len where the parts carry it, latency_ms = the slowest. A part that lacks
 * a layer or is not the documented shape: LQ_BAD_ANSWER naming shard and layer.
 * *out is malloc'd, *n bytes. */
enum lq_err wire_json_merge(const uint32_t *layers, uint32_t layers_n, const struct wire_json_part *parts,
                            size_t parts_n, char **out, size_t *n, struct lq_fault *fault) LQ_MUST_CHECK;

/* {"error":text,"request_id":id}, id may be NULL; malloc'd, NULL when out of memory.
 * Text that is not UTF-8 is made so. */
char *wire_json_error(const char *text, const char *request_id, size_t *n);

/* The text of a peer's {"error": ...}, copied into buf; the body's first bytes
 * where it is no such JSON. Always terminated. */
void wire_json_error_text(const char *body, size_t n, char *buf, size_t buf_n);

#endif
