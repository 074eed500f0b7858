/* quant_blocks: ggml's block formats as structs (ggml-org/ggml, ggml-common.h).
 * All fields are bytes or byte arrays, so a block needs no alignment. */
#ifndef LQ_MODEL_QUANT_BLOCKS_H
#define LQ_MODEL_QUANT_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

enum { QUANT_BLOCK_SMALL = 32, QUANT_BLOCK_K = 256, QUANT_BLOCK_MAX = 256 };

/* d, m: f16 little-endian. 32 values: the first 16 in the low nibbles. */
struct block_q4_0 { uint8_t d[2], qs[16]; };              /* d (q - 8) */
struct block_q4_1 { uint8_t d[2], m[2], qs[16]; };        /* d q + m */
struct block_q5_0 { uint8_t d[2], qh[4], qs[16]; };       /* d (q - 16), bit 4 of value i in bit i of qh */
struct block_q5_1 { uint8_t d[2], m[2], qh[4], qs[16]; }; /* d q + m */
struct block_q8_0 { uint8_t d[2]; int8_t qs[32]; };       /* d q */
/* 256 values in 8 sub-blocks of 32, whose 6-bit scale and minimum share 12 bytes. */
struct block_q4_k { uint8_t d[2], dmin[2], scales[12], qs[128]; };          /* d sc q - dmin m */
struct block_q5_k { uint8_t d[2], dmin[2], scales[12], qh[32], qs[128]; };  /* the same, 5 bits */
/* 256 values in 16 sub-blocks of 16. */
struct block_q6_k { uint8_t ql[128], qh[64]; int8_t scales[16]; uint8_t d[2]; }; /* d sc (q - 32) */

_Static_assert(sizeof(struct block_q4_0) == 18 && offsetof(struct block_q4_0, qs) == 2, "Q4_0");
_Static_assert(sizeof(struct block_q4_1) == 20 && offsetof(struct block_q4_1, qs) == 4, "Q4_1");
_Static_assert(sizeof(struct block_q5_0) == 22 && offsetof(struct block_q5_0, qs) == 6, "Q5_0");
_Static_assert(sizeof(struct block_q5_1) == 24 && offsetof(struct block_q5_1, qs) == 8, "Q5_1");
_Static_assert(sizeof(struct block_q8_0) == 34 && offsetof(struct block_q8_0, qs) == 2, "Q8_0");
_Static_assert(sizeof(struct block_q4_k) == 144 && offsetof(struct block_q4_k, qs) == 16, "Q4_K");
_Static_assert(sizeof(struct block_q5_k) == 176 && offsetof(struct block_q5_k, qs) == 48, "Q5_K");
_Static_assert(sizeof(struct block_q6_k) == 210 && offsetof(struct block_q6_k, d) == 208, "Q6_K");

#endif
