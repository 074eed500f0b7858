/* http_headers: a small ordered list; see http.h. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/http_parse.h"

struct http_headers {
    size_t n, cap;
    struct {
        char *name; /* one allocation: name, NUL, value, NUL */
        const char *value;
        size_t name_n, value_n;
    } * at;
};

struct http_headers *http_headers_new(void)
{
    return calloc(1, sizeof(struct http_headers));
}

void http_headers_free(struct http_headers *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n; i++)
        free(h->at[i].name);
    free(h->at);
    free(h);
}

/* RFC 9110, 5.6.2: what a field name is made of. */
bool http_is_token(const char *s, size_t n)
{
    static const bool token[256] = {
        ['0' ... '9'] = true, ['A' ... 'Z'] = true, ['a' ... 'z'] = true, ['!'] = true, ['#'] = true, ['$'] = true,
        ['%'] = true,         ['&'] = true,         ['\''] = true,        ['*'] = true, ['+'] = true, ['-'] = true,
        ['.'] = true,         ['^'] = true,         ['_'] = true,         ['`'] = true, ['|'] = true, ['~'] = true,
    };
    for (size_t i = 0; i < n; i++)
        if (!token[(unsigned char)s[i]])
            return false;
    return n > 0;
}

static bool is_value(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f)
            return false;
    return true;
}

enum lq_err http_headers_add_n(struct http_headers *h, const char *name, size_t name_n, const char *value,
                               size_t value_n)
{
    if (!http_is_token(name, name_n) || !is_value(value, value_n))
        return LQ_BAD_FRAMING;
    if (h->n == HTTP_HEADERS_MAX)
        return LQ_BIG_HEADERS;
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 8;
        void *p = realloc(h->at, cap * sizeof *h->at);
        if (!p)
            return LQ_NOMEM;
        h->at = p;
        h->cap = cap;
    }
    char *p = malloc(name_n + value_n + 2);
    if (!p)
        return LQ_NOMEM;
    memcpy(p, name, name_n);
    p[name_n] = '\0';
    memcpy(p + name_n + 1, value, value_n);
    p[name_n + 1 + value_n] = '\0';
    h->at[h->n].name = p;
    h->at[h->n].name_n = name_n;
    h->at[h->n].value = p + name_n + 1;
    h->at[h->n++].value_n = value_n;
    return LQ_OK;
}

bool http_headers_add(struct http_headers *h, const char *name, const char *value)
{
    return http_headers_add_n(h, name, strlen(name), value, strlen(value)) == LQ_OK;
}

const char *http_headers_get(const struct http_headers *h, const char *name)
{
    size_t name_n = strlen(name);
    for (size_t i = 0; i < h->n; i++)
        if (h->at[i].name_n == name_n && strcasecmp(h->at[i].name, name) == 0)
            return h->at[i].value;
    return NULL;
}

const char *http_headers_join(const struct http_headers *h, const char *name, char *buf, size_t buf_n)
{
    size_t used = 0;
    bool any = false;
    for (size_t i = 0; i < h->n; i++) {
        if (strcasecmp(h->at[i].name, name) != 0)
            continue;
        size_t n = strlen(h->at[i].value);
        if (used + (any ? 2 : 0) + n + 1 > buf_n)
            break;
        if (any) {
            memcpy(buf + used, ", ", 2);
            used += 2;
        }
        memcpy(buf + used, h->at[i].value, n);
        used += n;
        any = true;
    }
    if (!any)
        return NULL;
    buf[used] = '\0';
    return buf;
}

size_t http_headers_n(const struct http_headers *h)
{
    return h->n;
}

void http_headers_at(const struct http_headers *h, size_t i, const char **name, const char **value)
{
    *name = h->at[i].name;
    *value = h->at[i].value;
}

static char *put(char *to, const char *s, size_t n)
{
    memcpy(to, s, n);
    return to + n;
}

/* One piece of the buffer for all lines: a printf for each was a tenth of a forwarded request. */
bool http_headers_write(const struct http_headers *h, const char *end, struct evbuffer *out)
{
    struct evbuffer_iovec v;
    size_t end_n = strlen(end), n = end_n;
    for (size_t i = 0; h && i < h->n; i++)
        n += h->at[i].name_n + h->at[i].value_n + 4;
    if (evbuffer_reserve_space(out, (ev_ssize_t)n, &v, 1) != 1)
        return false;
    char *p = v.iov_base;
    for (size_t i = 0; h && i < h->n; i++) {
        p = put(p, h->at[i].name, h->at[i].name_n);
        p = put(p, ": ", 2);
        p = put(p, h->at[i].value, h->at[i].value_n);
        p = put(p, "\r\n", 2);
    }
    (void)put(p, end, end_n);
    v.iov_len = n;
    return evbuffer_commit_space(out, &v, 1) == 0;
}
