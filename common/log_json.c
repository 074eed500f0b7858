/* log_json: see log_json.h. */
#include "common/log_json.h"

#include <stdbool.h>
#include <string.h>

enum { NUMBER_DIGITS_MAX = 15 }; /* exact in a double */

struct cursor {
    const char *p, *end;
};

static char *put(char *to, const char *text)
{
    size_t n = strlen(text);
    memcpy(to, text, n);
    return to + n;
}

/* Length of the UTF-8 sequence at p; 0: it is none. */
static size_t utf8_n(const char *p, const char *end)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (n == 1)
        return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4 || (size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool beyond = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f); /* surrogates; the last plane */
    return overlong || beyond ? 0 : n;
}

static char *put_escaped(char *to, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    to = put(to, "\\u00");
    *to++ = hex[c >> 4];
    *to++ = hex[c & 15];
    return to;
}

/* One character of c, as JSON wants it inside quotes. */
static char *put_char(char *to, struct cursor *c)
{
    unsigned char byte = (unsigned char)*c->p;
    size_t n = utf8_n(c->p, c->end);
    if (n == 0) {
        c->p++;
        return put(to, "\\ufffd");
    }
    if (byte < 0x20 || byte == 0x7f) {
        c->p++;
        return put_escaped(to, byte);
    }
    if (byte == '"' || byte == '\\')
        *to++ = '\\';
    memcpy(to, c->p, n);
    c->p += n;
    return to + n;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* What log_q() wrote, from behind its first quote to behind its last (or the end). */
static char *put_quoted(char *to, struct cursor *c)
{
    *to++ = '"';
    while (c->p < c->end && *c->p != '"') {
        if (*c->p == '\\' && c->end - c->p >= 4 && c->p[1] == 'x' && hex_digit(c->p[2]) >= 0 &&
            hex_digit(c->p[3]) >= 0) {
            to = put_escaped(to, (unsigned char)(hex_digit(c->p[2]) * 16 + hex_digit(c->p[3])));
            c->p += 4;
            continue;
        }
        if (*c->p == '\\' && c->end - c->p >= 2)
            c->p++;
        to = put_char(to, c);
    }
    if (c->p < c->end)
        c->p++;
    *to++ = '"';
    return to;
}

/* -?(0|[1-9][0-9]*)(.[0-9]+)?, so few digits that a double keeps them. */
static bool is_number(const char *p, const char *end)
{
    if (p < end && *p == '-')
        p++;
    if (p == end || end - p > NUMBER_DIGITS_MAX + 1 || (*p == '0' && p + 1 < end && p[1] != '.'))
        return false;
    bool point = false;
    for (const char *s = p; s < end; s++) {
        if (*s == '.' && !point && s > p && s + 1 < end)
            point = true;
        else if (*s < '0' || *s > '9')
            return false;
    }
    return point || end - p <= NUMBER_DIGITS_MAX;
}

static bool key_is(struct cursor key, const char *name)
{
    return (size_t)(key.end - key.p) == strlen(name) && memcmp(key.p, name, strlen(name)) == 0;
}

static char *put_string(char *to, struct cursor c)
{
    *to++ = '"';
    while (c.p < c.end)
        to = put_char(to, &c);
    *to++ = '"';
    return to;
}

/* c stands behind `key=`. */
static char *put_value(char *to, struct cursor key, struct cursor *c)
{
    if (c->p < c->end && *c->p == '"') {
        c->p++;
        return put_quoted(to, c);
    }
    struct cursor bare = *c;
    while (c->p < c->end && *c->p != ' ')
        c->p++;
    bare.end = c->p;
    if (is_number(bare.p, bare.end) && !key_is(key, "req") && !key_is(key, "layer") && !key_is(key, "id")) {
        memcpy(to, bare.p, (size_t)(bare.end - bare.p));
        return to + (bare.end - bare.p);
    }
    return put_string(to, bare);
}

/* Is [p, end) a key? Letters, digits and _, as the call sites write them. */
static bool is_key(const char *p, const char *end)
{
    if (p == end)
        return false;
    for (; p < end; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_'))
            return false;
    return true;
}

/* The end of the word at p. */
static const char *word_end(const char *p, const char *end)
{
    const char *space = memchr(p, ' ', (size_t)(end - p));
    return space ? space : end;
}

size_t log_json(const char *ts, const char *level, const char *text, size_t n, char *out)
{
    struct cursor c = {text, text + n}, word = {text, word_end(text, text + n)};
    char *to = put(put(put(put(put(out, "{\"ts\":\""), ts), "\",\"level\":\""), level), "\",\"event\":");
    to = put_string(to, word);
    c.p = word.end;
    while (c.p < c.end) {
        if (*c.p == ' ') {
            c.p++;
            continue;
        }
        const char *end = word_end(c.p, c.end), *equals = memchr(c.p, '=', (size_t)(end - c.p));
        if (!equals || !is_key(c.p, equals)) {
            to = put_string(put(to, ",\"text\":"), c);
            break;
        }
        struct cursor key = {c.p, equals};
        *to++ = ',';
        to = put_string(to, key);
        *to++ = ':';
        c.p = equals + 1;
        to = put_value(to, key, &c);
    }
    *to++ = '}';
    return (size_t)(to - out);
}
