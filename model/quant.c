/* quant: see quant.h. */
#include "model/quant.h"

#include "model/quant_blocks.h"

const struct quant_info quant_info[QUANT_TYPES_N] = {
    [QUANT_F32] = {"F32", 0, 1, 4},
    [QUANT_F16] = {"F16", 1, 1, 2},
    [QUANT_BF16] = {"BF16", 30, 1, 2},
    [QUANT_Q4_0] = {"Q4_0", 2, QUANT_BLOCK_SMALL, sizeof(struct block_q4_0)},
    [QUANT_Q4_1] = {"Q4_1", 3, QUANT_BLOCK_SMALL, sizeof(struct block_q4_1)},
    [QUANT_Q5_0] = {"Q5_0", 6, QUANT_BLOCK_SMALL, sizeof(struct block_q5_0)},
    [QUANT_Q5_1] = {"Q5_1", 7, QUANT_BLOCK_SMALL, sizeof(struct block_q5_1)},
    [QUANT_Q8_0] = {"Q8_0", 8, QUANT_BLOCK_SMALL, sizeof(struct block_q8_0)},
    [QUANT_Q4_K] = {"Q4_K", 12, QUANT_BLOCK_K, sizeof(struct block_q4_k)},
    [QUANT_Q5_K] = {"Q5_K", 13, QUANT_BLOCK_K, sizeof(struct block_q5_k)},
    [QUANT_Q6_K] = {"Q6_K", 14, QUANT_BLOCK_K, sizeof(struct block_q6_k)},
};

int quant_of_ggml(uint32_t ggml_type)
{
    for (int t = 0; t < QUANT_TYPES_N; t++)
        if (quant_info[t].ggml_type == ggml_type)
            return t;
    return -1;
}

const char *quant_ggml_name(uint32_t ggml_type)
{
    static const char *const name[] = {
        [0] = "F32",     [1] = "F16",    [2] = "Q4_0",     [3] = "Q4_1",    [6] = "Q5_0",     [7] = "Q5_1",
        [8] = "Q8_0",    [9] = "Q8_1",   [10] = "Q2_K",    [11] = "Q3_K",   [12] = "Q4_K",    [13] = "Q5_K",
        [14] = "Q6_K",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
        [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",
        [26] = "I32",    [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",  [30] = "BF16",    [34] = "TQ1_0",
        [35] = "TQ2_0",  [39] = "MXFP4"};
    return ggml_type < sizeof name / sizeof *name && name[ggml_type] ? name[ggml_type] : "an unknown type";
}

size_t quant_row_bytes(enum quant_type t, size_t n)
{
    const struct quant_info *q = &quant_info[t];
    size_t bytes;
    if (n % q->block_n != 0 || __builtin_mul_overflow(n / q->block_n, (size_t)q->block_bytes, &bytes))
        return 0;
    return bytes;
}
