/* hash256: see hash256.h. */
#include "common/hash256.h"

#include <stddef.h>

const char *hash256_text(const struct hash256 *h, char out[HASH256_TEXT_BYTES])
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < HASH256_BYTES; i++) {
        out[2 * i] = digit[h->b[i] >> 4];
        out[2 * i + 1] = digit[h->b[i] & 15];
    }
    out[2 * HASH256_BYTES] = '\0';
    return out;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool hash256_read(const char *text, struct hash256 *out)
{
    struct hash256 h;
    if (!text || strlen(text) != 2 * HASH256_BYTES)
        return false;
    for (size_t i = 0; i < HASH256_BYTES; i++) {
        int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        h.b[i] = (uint8_t)(high << 4 | low);
    }
    *out = h;
    return true;
}
