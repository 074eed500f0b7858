/* http_headers: a small ordered list; see http.h. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/http_parse.h"

enum { FIRST_N = 8, ROOM_BYTES = 480 };

struct line {
    char *name; /* name, NUL, value, NUL: in `room`, or an allocation of its own */
    const char *value;
    size_t name_n, value_n;
};

/* One allocation for what most messages bring. */
struct http_headers {
    size_t n, cap, room_used_n;
    struct line *at; /* first, or an allocation */
    struct line first[FIRST_N];
    char room[ROOM_BYTES];
};

struct http_headers *http_headers_new(void)
{
    struct http_headers *h = malloc(sizeof *h);
    if (!h)
        return NULL;
    h->n = h->room_used_n = 0;
    h->cap = FIRST_N;
    h->at = h->first;
    return h;
}

void http_headers_free(struct http_headers *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n; i++)
        if (h->at[i].name < h->room || h->at[i].name >= h->room + ROOM_BYTES)
            free(h->at[i].name);
    if (h->at != h->first)
        free(h->at);
    free(h);
}

static bool grow(struct http_headers *h)
{
    struct line *p = malloc(2 * h->cap * sizeof *p);
    if (!p)
        return false;
    memcpy(p, h->at, h->n * sizeof *p);
    if (h->at != h->first)
        free(h->at);
    h->at = p;
    h->cap *= 2;
    return true;
}

/* n bytes for one line, NULL: out of memory. */
static char *text_new(struct http_headers *h, size_t n)
{
    if (n > ROOM_BYTES - h->room_used_n)
        return malloc(n);
    h->room_used_n += n;
    return h->room + h->room_used_n - n;
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

/* Eight bytes at once, in the way of "is there a zero byte": exact for a whole word. */
static bool has_control(uint64_t x)
{
    const uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
    uint64_t del = x ^ 0x7f * ones;
    return (((x - 0x20 * ones) & ~x) | ((del - ones) & ~del)) & tops;
}

size_t http_text_n(const void *text, size_t n)
{
    const unsigned char *s = text;
    size_t i = 0;
    for (uint64_t x; i + sizeof x <= n; i += sizeof x) {
        memcpy(&x, s + i, sizeof x);
        if (has_control(x))
            break;
    }
    while (i < n && s[i] >= 0x20 && s[i] != 0x7f)
        i++;
    return i;
}

static bool is_value(const char *s, size_t n)
{
    size_t i = http_text_n(s, n);
    while (i < n && s[i] == '\t') {
        i++;
        i += http_text_n(s + i, n - i);
    }
    return i == n;
}

/* Of a line that is known to be fit. */
static enum lq_err append(struct http_headers *h, const char *name, size_t name_n, const char *value, size_t value_n)
{
    if (h->n == HTTP_HEADERS_MAX)
        return LQ_BIG_HEADERS;
    if (h->n == h->cap && !grow(h))
        return LQ_NOMEM;
    char *p = text_new(h, name_n + value_n + 2);
    if (!p)
        return LQ_NOMEM;
    memcpy(p, name, name_n);
    p[name_n] = '\0';
    memcpy(p + name_n + 1, value, value_n);
    p[name_n + 1 + value_n] = '\0';
    h->at[h->n++] = (struct line){.name = p, .value = p + name_n + 1, .name_n = name_n, .value_n = value_n};
    return LQ_OK;
}

enum lq_err http_headers_add_n(struct http_headers *h, const char *name, size_t name_n, const char *value,
                               size_t value_n)
{
    if (!http_is_token(name, name_n) || !is_value(value, value_n))
        return LQ_BAD_FRAMING;
    return append(h, name, name_n, value, value_n);
}

bool http_headers_copy(struct http_headers *to, const struct http_headers *from, size_t i)
{
    const struct line *l = &from->at[i];
    return append(to, l->name, l->name_n, l->value, l->value_n) == LQ_OK;
}

bool http_headers_add(struct http_headers *h, const char *name, const char *value)
{
    return http_headers_add_n(h, name, strlen(name), value, strlen(value)) == LQ_OK;
}

bool http_headers_add_u64(struct http_headers *h, const char *name, uint64_t v)
{
    char text[HTTP_DECIMAL_CHARS];
    return http_headers_add(h, name, http_decimal(v, text));
}

static bool is_named(const struct line *l, const char *name, size_t name_n)
{
    return l->name_n == name_n && strcasecmp(l->name, name) == 0;
}

const char *http_headers_get(const struct http_headers *h, const char *name)
{
    size_t name_n = strlen(name);
    for (size_t i = 0; i < h->n; i++)
        if (is_named(&h->at[i], name, name_n))
            return h->at[i].value;
    return NULL;
}

size_t http_headers_count(const struct http_headers *h, const char *name)
{
    size_t name_n = strlen(name), found_n = 0;
    for (size_t i = 0; i < h->n; i++)
        found_n += is_named(&h->at[i], name, name_n);
    return found_n;
}

const char *http_headers_join(const struct http_headers *h, const char *name, char *buf, size_t buf_n)
{
    size_t used = 0, name_n = strlen(name);
    bool any = false;
    for (size_t i = 0; i < h->n; i++) {
        if (!is_named(&h->at[i], name, name_n))
            continue;
        size_t n = h->at[i].value_n;
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

const char *http_decimal(uint64_t v, char text[HTTP_DECIMAL_CHARS])
{
    char *p = text + HTTP_DECIMAL_CHARS - 1;
    *p = '\0';
    do
        *--p = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    return p;
}

static char *put(char *to, const char *s, size_t n)
{
    memcpy(to, s, n);
    return to + n;
}

static char *put_all(char *to, const char *const *parts)
{
    for (; *parts; parts++)
        to = put(to, *parts, strlen(*parts));
    return to;
}

static size_t parts_bytes(const char *const *parts)
{
    size_t n = 0;
    for (; *parts; parts++)
        n += strlen(*parts);
    return n;
}

/* One piece of the buffer for all of it: a printf for each line was a tenth of a forwarded request. */
bool http_head_write(const char *const *begin, const struct http_headers *h, const char *const *end,
                     struct evbuffer *out)
{
    struct evbuffer_iovec v;
    size_t n = parts_bytes(begin) + parts_bytes(end);
    for (size_t i = 0; h && i < h->n; i++)
        n += h->at[i].name_n + h->at[i].value_n + 4;
    if (evbuffer_reserve_space(out, (ev_ssize_t)n, &v, 1) != 1)
        return false;
    char *p = put_all(v.iov_base, begin);
    for (size_t i = 0; h && i < h->n; i++) {
        p = put(p, h->at[i].name, h->at[i].name_n);
        p = put(p, ": ", 2);
        p = put(p, h->at[i].value, h->at[i].value_n);
        p = put(p, "\r\n", 2);
    }
    (void)put_all(p, end);
    v.iov_len = n;
    return evbuffer_commit_space(out, &v, 1) == 0;
}
