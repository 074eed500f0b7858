/* grpc_text: the small texts of gRPC over HTTP/2: codes, grpc-message, grpc-timeout. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/grpc_impl.h"

const char *grpc_code_word(enum grpc_code code)
{
    static const char *const words[] = {
        "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED",
    };
    return (unsigned)code < sizeof words / sizeof *words ? words[code] : "UNKNOWN";
}

/* How many bytes the UTF-8 character at p has; 1 where there is none. */
static size_t character_n(const char *p)
{
    unsigned char lead = (unsigned char)*p;
    size_t n = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)p[i] & 0xc0) != 0x80)
            return 1;
    return n;
}

void grpc_text_encode(const char *in, char *out, size_t out_n)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t at = 0;
    while (*in) {
        size_t n = character_n(in);
        bool plain = n == 1 && *in >= 0x20 && *in <= 0x7e && *in != '%';
        if (at + (plain ? 1 : 3 * n) >= out_n)
            break;
        if (plain)
            out[at++] = *in++;
        else
            for (; n > 0; n--, in++) {
                out[at++] = '%';
                out[at++] = hex[(unsigned char)*in >> 4];
                out[at++] = hex[(unsigned char)*in & 15];
            }
    }
    out[at] = '\0';
}

static int nibble(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* What is no escape stays as it is: a message with a flaw is better than none. */
void grpc_text_decode(const char *in, size_t in_n, char *out, size_t out_n)
{
    size_t at = 0;
    for (size_t i = 0; i < in_n && at + 1 < out_n; i++) {
        int high = in[i] == '%' && i + 2 < in_n ? nibble(in[i + 1]) : -1;
        int low = high >= 0 ? nibble(in[i + 2]) : -1;
        if (low >= 0 && (high | low) != 0) { /* %00 would end the text */
            out[at++] = (char)(high << 4 | low);
            i += 2;
        } else {
            out[at++] = in[i];
        }
    }
    out[at] = '\0';
}

bool grpc_timeout_parse(const char *text, uint64_t *us)
{
    uint64_t v = 0;
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 8 || strlen(text) != n + 1)
        return false;
    for (size_t i = 0; i < n; i++)
        v = v * 10 + (uint64_t)(text[i] - '0');
    switch (text[n]) {
    case 'H':
        *us = v * 3600 * 1000000;
        return true;
    case 'M':
        *us = v * 60 * 1000000;
        return true;
    case 'S':
        *us = v * 1000000;
        return true;
    case 'm':
        *us = v * 1000;
        return true;
    case 'u':
        *us = v;
        return true;
    case 'n':
        *us = v / 1000;
        return true;
    default:
        return false;
    }
}

void grpc_timeout_text(uint32_t ms, char out[16])
{
    if (ms < 100000000)
        snprintf(out, 16, "%" PRIu32 "m", ms);
    else
        snprintf(out, 16, "%" PRIu32 "S", ms / 1000);
}

/* What an answer of something else than a gRPC server means. */
enum grpc_code grpc_code_of_http(int status)
{
    switch (status) {
    case 400:
        return GRPC_INTERNAL;
    case 401:
        return GRPC_UNAUTHENTICATED;
    case 403:
        return GRPC_PERMISSION_DENIED;
    case 404:
        return GRPC_UNIMPLEMENTED;
    case 429:
    case 502:
    case 503:
    case 504:
        return GRPC_UNAVAILABLE;
    default:
        return GRPC_UNKNOWN;
    }
}

enum grpc_code grpc_code_of_h2(uint32_t error)
{
    switch (error) {
    case NGHTTP2_REFUSED_STREAM:
        return GRPC_UNAVAILABLE;
    case NGHTTP2_CANCEL:
        return GRPC_CANCELLED;
    case NGHTTP2_ENHANCE_YOUR_CALM:
        return GRPC_RESOURCE_EXHAUSTED;
    case NGHTTP2_INADEQUATE_SECURITY:
        return GRPC_PERMISSION_DENIED;
    default:
        return GRPC_INTERNAL;
    }
}
