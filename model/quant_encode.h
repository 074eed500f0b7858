/* quant_encode: floats into blocks of 256, ggml's layout (model/quant_blocks.h). Plain
 * rounding of each sub-block's range, without the search that ggml's encoders do: for what a
 * vindex has no other way to hold. Values are finite. */
#ifndef LQ_MODEL_QUANT_ENCODE_H
#define LQ_MODEL_QUANT_ENCODE_H

#include <stdint.h>

void quant_encode_q4k(const float x[256], uint8_t out[144]);
void quant_encode_q6k(const float x[256], uint8_t out[210]);

#endif
