/* codec: arrays of f32 to and from their bytes on the wire (docs/protocol.md, 2.3).
 * Bit-exact: every form gives the bytes of the scalar one, which passes
 * tests/vectors. Nothing allocates. Byte pointers need no alignment; in and out
 * never overlap. Values are taken as finite: find the others with `finite`.
 * `codec_ref` is the scalar form; codec_init() fills every slot with it, then
 * overlays what the given CPU sets (proto/cpu.h) can do better. */
#ifndef LQ_PROTO_CODEC_H
#define LQ_PROTO_CODEC_H

#include <stddef.h>
#include <stdint.h>

struct codec_ops {
    const char *name; /* "ref", "avx2", "avx512", "neon" */

    /* n values -> 2n bytes, nearest even, finite overflow saturates at +-65504.
     * Returns how many saturated: |x| > 65504 in f32. */
    size_t (*f16_encode)(const float *x, size_t n, uint8_t *out);
    /* 2n bytes -> n values; Inf and NaN decode as themselves. */
    void (*f16_decode)(const uint8_t *in, size_t n, float *out);

    /* One row of n values -> 8 + n bytes: scale, zero_point 0, n x i8. */
    void (*i8_encode_row)(const float *x, size_t n, uint8_t *out);
    /* 8 + n bytes -> n values, q * scale saturated to the largest f32;
     * zero_point is not looked at (callers refuse a non-zero one first). */
    void (*i8_decode_row)(const uint8_t *in, size_t n, float *out);

    /* Index of the first NaN or Inf, or n when all are finite. */
    size_t (*finite)(const float *x, size_t n);
    /* How many |x| > 65504: what f16_encode would return. */
    size_t (*f16_saturates)(const float *x, size_t n);
};

extern const struct codec_ops codec_ref;

void codec_init(struct codec_ops *ops, unsigned cpu_sets);

/* The overlays; each replaces only the slots that it has. Empty where the
 * architecture lacks the set. Called by codec_init(). */
void codec_init_avx2(struct codec_ops *ops);
void codec_init_avx512(struct codec_ops *ops);
void codec_init_neon(struct codec_ops *ops);

/* One half-precision value, exact; the only converter in the tree. */
float f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float x); /* saturates as f16_encode does */

#endif
