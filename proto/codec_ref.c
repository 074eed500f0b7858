/* codec_ref: the scalar codecs, by the definition in docs/protocol.md, 2.3; every
 * other form must give these bytes. Loops are plain so that compilers vectorise. */
#include <float.h>
#include <math.h>

#include "proto/bytes.h"
#include "proto/codec.h"
#include "proto/f16.h"

float f16_to_f32(uint16_t h)
{
    return f16_decode_one(h);
}

uint16_t f16_from_f32(float x)
{
    return f16_encode_one(x);
}

static size_t f16_saturates(const float *x, size_t n)
{
    size_t over = 0;
    for (size_t i = 0; i < n; i++)
        over += fabsf(x[i]) > 65504.0f;
    return over;
}

static size_t f16_encode(const float *x, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = f16_encode_one(x[i]);
        memcpy(out + 2 * i, &h, sizeof h);
    }
    return f16_saturates(x, n);
}

static void f16_decode(const uint8_t *in, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, in + 2 * i, sizeof h);
        out[i] = f16_decode_one(h);
    }
}

static float absmax(const float *x, size_t n)
{
    uint32_t top = 0; /* magnitudes order like their bits */
    for (size_t i = 0; i < n; i++) {
        uint32_t a = f16_float_bits(x[i]) & 0x7fffffffu;
        top = a > top ? a : top;
    }
    return f16_bits_float(top);
}

/* Half away from zero: floor(|q| + 0.5) would round 0.49999997 up, so the fraction
 * is compared instead; |q| <= 127 converts exactly. */
static int8_t round_away(float q)
{
    float a = fabsf(q);
    a = a > 127.0f ? 127.0f : a;
    int32_t whole = (int32_t)a;
    whole += a - (float)whole >= 0.5f;
    return (int8_t)(q < 0.0f ? -whole : whole);
}

static void i8_encode_row(const float *x, size_t n, uint8_t *out)
{
    float scale = absmax(x, n) / 127.0f;
    int8_t *q = (int8_t *)(out + 8);
    if (!(scale > 0.0f)) { /* all zero, or so small that the scale underflows */
        lef32_put(out, 1.0f);
        lef32_put(out + 4, 0.0f);
        memset(q, 0, n);
        return;
    }
    lef32_put(out, scale);
    lef32_put(out + 4, 0.0f);
    for (size_t i = 0; i < n; i++)
        q[i] = round_away(x[i] / scale);
}

static void i8_decode_row(const uint8_t *in, size_t n, float *out)
{
    float scale = lef32_get(in);
    const int8_t *q = (const int8_t *)(in + 8);
    for (size_t i = 0; i < n; i++) {
        float v = (float)q[i] * scale;
        v = v > FLT_MAX ? FLT_MAX : v;
        out[i] = v < -FLT_MAX ? -FLT_MAX : v;
    }
}

static size_t first_bad(const float *x, size_t n)
{
    enum { BLOCK = 64 };
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        uint32_t bad = 0;
        for (size_t k = 0; k < BLOCK; k++)
            bad |= (f16_float_bits(x[i + k]) & 0x7f800000u) == 0x7f800000u;
        if (bad)
            break;
    }
    while (i < n && isfinite(x[i]))
        i++;
    return i;
}

const struct codec_ops codec_ref = {
    .name = "ref",
    .f16_encode = f16_encode,
    .f16_decode = f16_decode,
    .i8_encode_row = i8_encode_row,
    .i8_decode_row = i8_decode_row,
    .finite = first_bad,
    .f16_saturates = f16_saturates,
};
