/* negotiate: see negotiate.h. Accept is read as RFC 9110, 12.5.1 and 5.6 say. */
#include "proto/negotiate.h"

#include <string.h>
#include <strings.h>

struct slice {
    const char *p;
    size_t n;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static struct slice trimmed(const char *p, size_t n)
{
    while (n && is_blank(*p))
        p++, n--;
    while (n && is_blank(p[n - 1]))
        n--;
    return (struct slice){p, n};
}

static bool is(struct slice s, const char *word)
{
    return strlen(word) == s.n && strncasecmp(s.p, word, s.n) == 0;
}

/* Length of p up to one of the two stop bytes that is not inside a quoted string;
 * *open: the string never ends. */
static size_t span(const char *p, size_t n, char stop, bool *open)
{
    bool quoted = false;
    size_t i = 0;
    for (; i < n && (quoted || p[i] != stop); i++) {
        if (quoted && p[i] == '\\' && i + 1 < n)
            i++;
        else if (p[i] == '"')
            quoted = !quoted;
    }
    *open = quoted;
    return i;
}

/* qvalue = 0[.ddd] or 1[.000], in thousandths; -1: malformed. */
static int qvalue(struct slice s)
{
    if (s.n == 0 || s.n > 5 || (s.p[0] != '0' && s.p[0] != '1') || (s.n > 1 && s.p[1] != '.'))
        return -1;
    int q = (s.p[0] - '0') * 1000;
    for (size_t i = 2, unit = 100; i < s.n; i++, unit /= 10) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return -1;
        q += (s.p[i] - '0') * (int)unit;
    }
    return q <= 1000 ? q : -1;
}

/* The media type of a Content-Type or of one member of Accept, without parameters. */
static struct slice media_type(struct slice s)
{
    const char *semi = memchr(s.p, ';', s.n);
    return trimmed(s.p, semi ? (size_t)(semi - s.p) : s.n);
}

static int format_of(struct slice type)
{
    for (int f = WIRE_F32; f < WIRE_FORMATS_N; f++)
        if (is(type, wire_content_type((enum wire_format)f)))
            return f;
    return -1;
}

enum { Q_ABSENT = -1 };

/* One member: its q into q_of[] of the format that it names. */
static void take_member(struct slice m, int q_of[WIRE_FORMATS_N], int *q_wild)
{
    struct slice type = media_type(m);
    int q = 1000, f = format_of(type);
    bool wild = is(type, "*/*") || is(type, "application/*"), open, first = true;
    if (f < 0 && !wild)
        return;
    for (size_t at = type.n ? (size_t)(type.p + type.n - m.p) : 0; at < m.n;) {
        size_t n = span(m.p + at, m.n - at, ';', &open);
        struct slice param = trimmed(m.p + at, n);
        if (open)
            return;
        at += n + 1;
        if (first && param.n == 0) { /* what stands before the first ';' is the type */
            first = false;
            continue;
        }
        first = false;
        if (param.n == 0)
            continue;
        const char *eq = memchr(param.p, '=', param.n);
        if (!eq || eq == param.p)
            return; /* malformed: skipped whole */
        if (eq == param.p + 1 && (param.p[0] == 'q' || param.p[0] == 'Q')) {
            q = qvalue((struct slice){eq + 1, param.n - 2});
            if (q < 0)
                return;
        }
    }
    int *to = wild ? q_wild : &q_of[f];
    if (*to == Q_ABSENT) /* a type named twice counts by its first mention */
        *to = q;
}

static void read_accept(const char *accept, int q_of[WIRE_FORMATS_N])
{
    int q_wild = Q_ABSENT;
    for (int f = 0; f < WIRE_FORMATS_N; f++)
        q_of[f] = Q_ABSENT;
    for (size_t n = strlen(accept), at = 0; at < n;) {
        bool open;
        size_t len = span(accept + at, n - at, ',', &open);
        struct slice m = trimmed(accept + at, len);
        if (m.n > 0 && !open)
            take_member(m, q_of, &q_wild);
        at += len + 1;
    }
    if (q_of[WIRE_F32] == Q_ABSENT) /* a wildcard names the highest precision only */
        q_of[WIRE_F32] = q_wild;
}

static enum lq_err unknown_type(struct slice type, struct lq_fault *fault)
{
    if (is(type, "application/x-www-form-urlencoded"))
        return lq_fail(fault, LQ_BAD_MEDIA,
                       "Content-Type %.*s is a form: send JSON with `curl --json`, not `curl -d`", (int)type.n,
                       type.p);
    return lq_fail(fault, LQ_BAD_MEDIA,
                   "Content-Type '%.*s' is not served: use application/json or application/x-larql-ffn[-f16|-i8]",
                   type.n > 100 ? 100 : (int)type.n, type.p);
}

enum lq_err negotiate_body(const char *content_type, bool *json, enum wire_format *body, struct lq_fault *fault)
{
    struct slice type =
        content_type ? media_type((struct slice){content_type, strlen(content_type)}) : (struct slice){"", 0};
    *json = type.n == 0 || is(type, "application/json");
    *body = WIRE_F32;
    if (*json)
        return LQ_OK;
    int f = format_of(type);
    if (f < 0)
        return unknown_type(type, fault);
    *body = (enum wire_format)f;
    return LQ_OK;
}

static bool is_on(const struct wire_switches *sw, enum wire_format f)
{
    return f == WIRE_F32 || (f == WIRE_F16 ? sw->f16_on : sw->i8_on);
}

enum lq_err negotiate(const char *content_type, const char *accept, const struct wire_switches *sw,
                      struct negotiated *out, struct lq_fault *fault)
{
    int q_of[WIRE_FORMATS_N] = {Q_ABSENT, Q_ABSENT, Q_ABSENT};
    *out = (struct negotiated){.answer = WIRE_F32, .accepts_f32 = true};
    enum lq_err rc = negotiate_body(content_type, &out->json, &out->body, fault);
    if (rc || out->json)
        return rc;
    bool asked = accept && trimmed(accept, strlen(accept)).n > 0;
    if (asked) {
        read_accept(accept, q_of);
        out->accepts_f32 = q_of[WIRE_F32] > 0;
    }
    if (!is_on(sw, out->body))
        return lq_fail(fault, LQ_BAD_MEDIA, "%s bodies are switched off here: send application/x-larql-ffn (f32)",
                       wire_name(out->body));
    if (out->body == WIRE_I8 && q_of[WIRE_I8] <= 0)
        return lq_fail(fault, LQ_BAD_MEDIA,
                       "an i8 body needs an opt-in: send 'Accept: application/x-larql-ffn-i8' with q > 0");
    int best_q = 0;
    for (int f = WIRE_F32; f < WIRE_FORMATS_N; f++) { /* precise first: a tie keeps it */
        int q = is_on(sw, (enum wire_format)f) ? q_of[f] : Q_ABSENT;
        if (q > best_q || (q > 0 && q == best_q && sw->compact_ties)) {
            best_q = q;
            out->answer = (enum wire_format)f;
        }
    }
    return LQ_OK;
}

const char *negotiate_client_accept(enum wire_format wanted)
{
    static const char *const accept[WIRE_FORMATS_N] = {
        "application/x-larql-ffn",
        "application/x-larql-ffn-f16, application/x-larql-ffn;q=0.5",
        "application/x-larql-ffn-i8, application/x-larql-ffn-f16;q=0.9, application/x-larql-ffn;q=0.5",
    };
    return accept[wanted];
}

enum lq_err negotiate_answer(const char *content_type, enum wire_format *out, struct lq_fault *fault)
{
    struct slice type =
        media_type((struct slice){content_type ? content_type : "", content_type ? strlen(content_type) : 0});
    int f = format_of(type);
    if (f < 0)
        return lq_fail(fault, LQ_BAD_ANSWER,
                       "answer has Content-Type '%.*s', not one of application/x-larql-ffn[-f16|-i8]",
                       type.n > 100 ? 100 : (int)type.n, type.p);
    *out = (enum wire_format)f;
    return LQ_OK;
}
