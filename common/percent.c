/* percent: see percent.h. */
#include "common/percent.h"

#include <string.h>

static const char hex[] = "0123456789ABCDEF";

/* ASCII, whatever the locale says. */
static bool is_unreserved(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-._~", c));
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

bool percent_encode(char *to, size_t to_n, const char *text)
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (n + 4 > to_n)
            return false;
        if (is_unreserved(*p)) {
            to[n++] = (char)*p;
            continue;
        }
        to[n++] = '%';
        to[n++] = hex[*p >> 4];
        to[n++] = hex[*p & 15];
    }
    if (n >= to_n)
        return false;
    to[n] = '\0';
    return true;
}

bool percent_decode(char *to, size_t to_n, const char *text)
{
    size_t n = 0;
    for (const char *p = text; *p && *p != '&'; p++) {
        int high = 0, low = 0;
        if (*p == '%' && ((high = digit(p[1])) < 0 || (low = digit(p[2])) < 0))
            return false;
        char c = *p == '%' ? (char)(high * 16 + low) : *p;
        if (c == '\0' || n + 1 >= to_n)
            return false;
        to[n++] = c;
        p += *p == '%' ? 2 : 0;
    }
    if (n >= to_n)
        return false;
    to[n] = '\0';
    return true;
}
