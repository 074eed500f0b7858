/* vindex_q6k: Q6_K blocks from LARQL's order of bits to ggml's and back. Of ggml's block
 * half h holds values 128 h + 0..127 as four rows of 32: the low four bits of rows 0 and 1
 * are the low nibbles of ql's two groups of 32, rows 2 and 3 the high ones; each byte of qh
 * has two bits of all four rows. */
#include <string.h>

#include "model/quant_blocks.h"
#include "model/vindex_impl.h"

typedef struct block_q6_k block;

static void unpack_linear(const block *b, uint8_t v[QUANT_BLOCK_K])
{
    for (int i = 0; i < QUANT_BLOCK_K / 4; i++)
        for (int k = 0; k < 4; k++)
            v[4 * i + k] = (uint8_t)((b->ql[2 * i + k / 2] >> 4 * (k & 1) & 15) | (b->qh[i] >> 2 * k & 3) << 4);
}

static void pack_linear(const uint8_t v[QUANT_BLOCK_K], block *b)
{
    for (int i = 0; i < QUANT_BLOCK_K / 4; i++) {
        const uint8_t *p = v + 4 * i;
        b->ql[2 * i] = (uint8_t)((p[0] & 15) | p[1] << 4);
        b->ql[2 * i + 1] = (uint8_t)((p[2] & 15) | p[3] << 4);
        b->qh[i] = (uint8_t)(p[0] >> 4 | p[1] >> 4 << 2 | p[2] >> 4 << 4 | p[3] >> 4 << 6);
    }
}

static void unpack_ggml(const block *b, uint8_t v[QUANT_BLOCK_K])
{
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 32; l++) {
            uint8_t q = b->qh[32 * h + l], lo = b->ql[64 * h + l], hi = b->ql[64 * h + 32 + l], *to = v + 128 * h + l;
            to[0] = (uint8_t)((lo & 15) | (q & 3) << 4);
            to[32] = (uint8_t)((hi & 15) | (q >> 2 & 3) << 4);
            to[64] = (uint8_t)(lo >> 4 | (q >> 4 & 3) << 4);
            to[96] = (uint8_t)(hi >> 4 | (q >> 6) << 4);
        }
}

static void pack_ggml(const uint8_t v[QUANT_BLOCK_K], block *b)
{
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *p = v + 128 * h + l;
            b->ql[64 * h + l] = (uint8_t)((p[0] & 15) | p[64] << 4);
            b->ql[64 * h + 32 + l] = (uint8_t)((p[32] & 15) | p[96] << 4);
            b->qh[32 * h + l] = (uint8_t)(p[0] >> 4 | p[32] >> 4 << 2 | p[64] >> 4 << 4 | p[96] >> 4 << 6);
        }
}

void vindex_q6k_to_ggml(const uint8_t *in, size_t blocks_n, uint8_t *out)
{
    uint8_t v[QUANT_BLOCK_K];
    for (size_t i = 0; i < blocks_n; i++) {
        const block *from = (const block *)in + i;
        block *to = (block *)out + i;
        unpack_linear(from, v);
        pack_ggml(v, to);
        memcpy(to->scales, from->scales, sizeof *to - offsetof(block, scales));
    }
}

void vindex_q6k_from_ggml(const uint8_t *in, size_t blocks_n, uint8_t *out)
{
    uint8_t v[QUANT_BLOCK_K];
    for (size_t i = 0; i < blocks_n; i++) {
        const block *from = (const block *)in + i;
        block *to = (block *)out + i;
        unpack_ggml(from, v);
        pack_linear(v, to);
        memcpy(to->scales, from->scales, sizeof *to - offsetof(block, scales));
    }
}
