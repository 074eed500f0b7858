/* percent: percent-encoding of text in a URL's query (RFC 3986, 2.1). */
#ifndef LQ_COMMON_PERCENT_H
#define LQ_COMMON_PERCENT_H

#include <stdbool.h>
#include <stddef.h>

/* All but unreserved characters as %XX. False: `to` is too small. */
bool percent_encode(char *to, size_t to_n, const char *text);
/* Up to '&' or the end. False: too small, a % without two hex digits, or a NUL. */
bool percent_decode(char *to, size_t to_n, const char *text);

#endif
