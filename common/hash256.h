/* hash256: a SHA-256 value and its 64 hex digits. Who computes one: model/identity. */
#ifndef LQ_COMMON_HASH256_H
#define LQ_COMMON_HASH256_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { HASH256_BYTES = 32, HASH256_TEXT_BYTES = 2 * HASH256_BYTES + 1 };

struct hash256 {
    uint8_t b[HASH256_BYTES];
};

static inline bool hash256_equal(const struct hash256 *a, const struct hash256 *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

/* Lower-case digits, terminated; returns out. */
const char *hash256_text(const struct hash256 *h, char out[HASH256_TEXT_BYTES]);
/* Exactly 64 hex digits of either case; NULL and anything else: false, *out unchanged. */
bool hash256_read(const char *text, struct hash256 *out) __attribute__((warn_unused_result));

#endif
