/* http_headers: a small ordered list; see http.h. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/http.h"

struct http_headers {
    size_t n, cap;
    struct {
        char *name; /* one allocation: name, NUL, value, NUL */
        const char *value;
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
static bool is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!strchr("!#$%&'*+-.^_`|~", *s) && !(*s >= '0' && *s <= '9') && !((*s | 32) >= 'a' && (*s | 32) <= 'z'))
            return false;
    return true;
}

static bool is_value(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7f)
            return false;
    return true;
}

bool http_headers_add(struct http_headers *h, const char *name, const char *value)
{
    if (!is_token(name) || !is_value(value) || h->n == HTTP_HEADERS_MAX)
        return false;
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 8;
        void *p = realloc(h->at, cap * sizeof *h->at);
        if (!p)
            return false;
        h->at = p;
        h->cap = cap;
    }
    size_t name_n = strlen(name) + 1, value_n = strlen(value) + 1;
    char *p = malloc(name_n + value_n);
    if (!p)
        return false;
    memcpy(p, name, name_n);
    memcpy(p + name_n, value, value_n);
    h->at[h->n].name = p;
    h->at[h->n++].value = p + name_n;
    return true;
}

const char *http_headers_get(const struct http_headers *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++)
        if (strcasecmp(h->at[i].name, name) == 0)
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
        if (used + n + 3 > buf_n)
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
