/* quant_encode: see quant_encode.h. */
#include "model/quant_encode.h"

#include <math.h>
#include <string.h>

#include "model/quant_blocks.h"
#include "proto/bytes.h"
#include "proto/f16.h"

enum { SUB_Q4 = 32, SUBS_Q4 = 8, SUB_Q6 = 16, SUBS_Q6 = 16 };

/* x / step, rounded, within 0..max; 0 for a step of 0. */
static uint8_t level(float x, float step, float max)
{
    float q = step > 0 ? roundf(x / step) : 0;
    return (uint8_t)(q < 0 ? 0 : q > max ? max : q);
}

/* The f16 at or next to x, as the decoder will see it. */
static float put_f16(float x, uint8_t out[2])
{
    uint16_t h = f16_encode_one(x);
    le16_put(out, h);
    return f16_decode_one(h);
}

void quant_encode_q4k(const float x[QUANT_BLOCK_K], uint8_t out[sizeof(struct block_q4_k)])
{
    struct block_q4_k b = {.d = {0}};
    float range[SUBS_Q4], low[SUBS_Q4], range_max = 0, low_max = 0;
    uint8_t s[SUBS_Q4], m[SUBS_Q4], q[QUANT_BLOCK_K];
    for (int j = 0; j < SUBS_Q4; j++) {
        float min = 0, max = 0;
        for (int i = 0; i < SUB_Q4; i++) {
            min = fminf(min, x[j * SUB_Q4 + i]);
            max = fmaxf(max, x[j * SUB_Q4 + i]);
        }
        range[j] = max - min;
        low[j] = -min;
        range_max = fmaxf(range_max, range[j]);
        low_max = fmaxf(low_max, low[j]);
    }
    float d = put_f16(range_max / (15 * 63), b.d), dmin = put_f16(low_max / 63, b.dmin);
    for (int j = 0; j < SUBS_Q4; j++) {
        s[j] = level(range[j] / 15, d, 63);
        m[j] = level(low[j], dmin, 63);
        for (int i = 0; i < SUB_Q4; i++)
            q[j * SUB_Q4 + i] = level(x[j * SUB_Q4 + i] + dmin * m[j], d * s[j], 15);
    }
    for (int j = 0; j < 4; j++) {
        b.scales[j] = (uint8_t)(s[j] | s[j + 4] >> 4 << 6);
        b.scales[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        b.scales[j + 8] = (uint8_t)((s[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
    for (int g = 0; g < 4; g++)
        for (int l = 0; l < 32; l++)
            b.qs[32 * g + l] = (uint8_t)(q[64 * g + l] | q[64 * g + 32 + l] << 4);
    memcpy(out, &b, sizeof b);
}

void quant_encode_q6k(const float x[QUANT_BLOCK_K], uint8_t out[sizeof(struct block_q6_k)])
{
    struct block_q6_k b = {.d = {0}};
    float most[SUBS_Q6], all = 0;
    for (int j = 0; j < SUBS_Q6; j++) {
        most[j] = 0;
        for (int i = 0; i < SUB_Q6; i++)
            most[j] = fmaxf(most[j], fabsf(x[j * SUB_Q6 + i]));
        all = fmaxf(all, most[j]);
    }
    float d = put_f16(all / 31 / 127, b.d);
    for (int j = 0; j < SUBS_Q6; j++)
        b.scales[j] = (int8_t)level(most[j] / 31, d, 127);
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 128; l++) {
            float step = d * b.scales[8 * h + l / SUB_Q6], v = x[128 * h + l];
            uint8_t q = step > 0 ? level(v + 32 * step, step, 63) : 32;
            int row = l / 32, at = l % 32;
            b.ql[64 * h + 32 * (row & 1) + at] |= (uint8_t)((q & 15) << (row & 2 ? 4 : 0));
            b.qh[32 * h + at] |= (uint8_t)(q >> 4 << 2 * row);
        }
    memcpy(out, &b, sizeof b);
}
