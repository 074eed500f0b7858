/* quant: the weight formats that this program reads, as one table.
 * Layouts: ggml's block formats (ggml-org/ggml, ggml-common.h), each with an
 * asserted size; checked value by value against the `gguf` Python package. */
#ifndef LQ_MODEL_QUANT_H
#define LQ_MODEL_QUANT_H

#include <stddef.h>
#include <stdint.h>

enum quant_type { /* our numbers; dense, for tables */
                  QUANT_F32,
                  QUANT_F16,
                  QUANT_BF16,
                  QUANT_Q4_0,
                  QUANT_Q4_1,
                  QUANT_Q5_0,
                  QUANT_Q5_1,
                  QUANT_Q8_0,
                  QUANT_Q4_K,
                  QUANT_Q5_K,
                  QUANT_Q6_K,
                  QUANT_TYPES_N
};

struct quant_info {
    const char *name;     /* "Q4_K" */
    uint32_t ggml_type;   /* number in a GGUF file */
    uint16_t block_n;     /* values in a block */
    uint16_t block_bytes; /* bytes of a block */
};

extern const struct quant_info quant_info[QUANT_TYPES_N];

/* -1: a type that we do not read. quant_ggml_name() names those too ("IQ2_XXS"). */
int quant_of_ggml(uint32_t ggml_type);
const char *quant_ggml_name(uint32_t ggml_type);

/* Bytes of a row of n values, 0 when n is no multiple of the block. */
size_t quant_row_bytes(enum quant_type t, size_t n);

#endif
