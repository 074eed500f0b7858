/* args: see args.h. */
#include "common/args.h"

#include <ctype.h>
#include <string.h>
#include <sys/resource.h>

#include "common/log.h"

void args_trim(const char **p, size_t *n)
{
    while (*n && isspace((unsigned char)**p))
        ++*p, --*n;
    while (*n && isspace((unsigned char)(*p)[*n - 1]))
        --*n;
}

/* Digits only: no sign, no blank inside; below 2^32 - 1 (the batch marker is no layer). */
static bool number(const char *p, size_t n, uint32_t *out)
{
    uint64_t v = 0;
    if (n == 0 || n > 10)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(p[i] - '0');
    }
    *out = (uint32_t)v;
    return v < UINT32_MAX;
}

enum lq_err args_range(const char *text, size_t n, uint32_t *first, uint32_t *last, struct lq_fault *fault)
{
    args_trim(&text, &n);
    const char *dash = memchr(text, '-', n);
    const char *a = text, *b = dash ? dash + 1 : text;
    size_t a_n = dash ? (size_t)(dash - text) : n, b_n = dash ? n - a_n - 1 : n;
    if (n == 0)
        return lq_fail(fault, LQ_USAGE, "expected 'START-END', got '%.*s'", (int)n, text);
    args_trim(&a, &a_n);
    args_trim(&b, &b_n);
    if (!number(a, a_n, first))
        return lq_fail(fault, LQ_USAGE, "invalid start '%.*s'", (int)a_n, a);
    if (!number(b, b_n, last))
        return lq_fail(fault, LQ_USAGE, "invalid end '%.*s'", (int)b_n, b);
    if (*last < *first)
        return lq_fail(fault, LQ_USAGE, "end (%u) must be >= start (%u)", *last, *first);
    return LQ_OK;
}

void args_raise_open_files(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return;
    rlim_t before = lim.rlim_cur;
    lim.rlim_cur = lim.rlim_max;
    if (lim.rlim_cur != before && setrlimit(RLIMIT_NOFILE, &lim) == 0)
        log_debug("open_files limit=%llu", (unsigned long long)lim.rlim_cur);
}
