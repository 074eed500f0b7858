/* wire_json_text: see wire_json_text.h. */
#include "proto/wire_json_text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_BYTES = 128, FLOAT_BYTES = 24 };

static bool room(struct json_text *t, size_t more)
{
    if (t->failed)
        return false;
    if (more > SIZE_MAX / 4 - t->n) {
        t->failed = true;
        return false;
    }
    if (t->n + more + 1 > t->cap) {
        size_t cap = (t->n + more + 1) * 2;
        char *p = realloc(t->p, cap);
        if (!p) {
            t->failed = true;
            return false;
        }
        t->p = p;
        t->cap = cap;
    }
    return true;
}

void json_text_bytes(struct json_text *t, const char *s, size_t n)
{
    if (!room(t, n))
        return;
    memcpy(t->p + t->n, s, n);
    t->n += n;
}

void json_text_put(struct json_text *t, const char *s)
{
    json_text_bytes(t, s, strlen(s));
}

void json_text_printf(struct json_text *t, const char *fmt, ...)
{
    if (!room(t, SHORT_BYTES))
        return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->p + t->n, SHORT_BYTES, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= SHORT_BYTES)
        t->failed = true;
    else
        t->n += (size_t)n;
}

/* Bytes of the well-formed UTF-8 character at s (0: none): Unicode, table 3-7. */
static size_t utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (n == 0 || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) /* the terminator fails here too */
            return 0;
    return n;
}

void json_text_string(struct json_text *t, const char *s)
{
    json_text_put(t, "\"");
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8_length(p);
        if (n == 0) {
            json_text_put(t, "\xef\xbf\xbd");
            p++;
        } else if (*p == '"' || *p == '\\') {
            json_text_printf(t, "\\%c", *p++);
        } else if (*p < 0x20 || *p == 0x7f) {
            json_text_printf(t, "\\u%04x", *p++);
        } else {
            json_text_bytes(t, (const char *)p, n);
            p += n;
        }
    }
    json_text_put(t, "\"");
}

void json_text_floats(struct json_text *t, const float *x, size_t n)
{
    json_text_put(t, "[");
    for (size_t i = 0; i < n && room(t, FLOAT_BYTES); i++)
        t->n += (size_t)snprintf(t->p + t->n, FLOAT_BYTES, i ? ",%.9g" : "%.9g", (double)x[i]);
    json_text_put(t, "]");
}

char *json_text_take(struct json_text *t, size_t *n)
{
    char *p = t->failed ? NULL : t->p;
    if (p)
        p[t->n] = '\0'; /* room() keeps one byte for it */
    else
        free(t->p);
    *n = p ? t->n : 0;
    *t = (struct json_text){0};
    return p;
}
