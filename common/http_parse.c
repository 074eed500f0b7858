/* http_parse: see http_parse.h. */
#include "common/http_parse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    PIECE_BYTES_MAX = 64 * 1024,      /* fed to llhttp at once */
    FRAMING_BYTES_FREE = 16 * 1024,   /* chunk sizes and extensions: this much, */
    FRAMING_BYTES_PER_BODY_BYTE = 16, /* and so much a body byte (chunks of one byte are legal) */
    TRAILER_BYTES_MAX = 16 * 1024,
};

static enum lq_err bad(struct lq_fault *fault, const char *why)
{
    return lq_fail(fault, LQ_BAD_FRAMING, "bad HTTP framing: %s", why);
}

/* ---- llhttp's callbacks ------------------------------------------------------ */

static int fail(struct http_parse *p, enum lq_err rc)
{
    p->rc = rc;
    return HPE_USER;
}

/* The head is tokenized in one go, so that its pieces are found in place. */
static int extend(struct http_parse *p, struct http_piece *piece, const char *at, size_t n)
{
    if (piece->n > 0 && piece->p + piece->n != at)
        return fail(p, bad(p->fault, "a header in pieces"));
    if (piece->n == 0)
        piece->p = at;
    piece->n += n;
    return 0;
}

static int on_url(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parse *p = ll->data;
    return extend(p, &p->url, at, n);
}

static int on_field(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parse *p = ll->data;
    return extend(p, &p->field, at, n);
}

static int on_value(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parse *p = ll->data;
    return extend(p, &p->value, at, n);
}

static int on_value_complete(llhttp_t *ll)
{
    struct http_parse *p = ll->data;
    struct http_piece *v = &p->value;
    while (v->n > 0 && (v->p[v->n - 1] == ' ' || v->p[v->n - 1] == '\t'))
        v->n--;
    switch (http_headers_add_n(p->headers, p->field.p, p->field.n, v->n ? v->p : "", v->n)) {
    case LQ_OK:
        p->field = p->value = (struct http_piece){0};
        return 0;
    case LQ_BIG_HEADERS:
        return fail(p, lq_fail(p->fault, LQ_BIG_HEADERS, "over %d headers", HTTP_HEADERS_MAX));
    case LQ_NOMEM:
        return fail(p, lq_fail(p->fault, LQ_NOMEM, "out of memory for a header"));
    default:
        return fail(p, bad(p->fault, "a header holds a byte that is not allowed"));
    }
}

static int on_headers_complete(llhttp_t *ll)
{
    struct http_parse *p = ll->data;
    p->head_done = true;
    ll->upgrade = 0; /* Upgrade is ignored */
    return HPE_PAUSED;
}

static int on_body(llhttp_t *ll, const char *at, size_t n)
{
    struct http_parse *p = ll->data;
    p->body_n += n; /* the chunk's size was held against the limit */
    if (evbuffer_add(p->to, at, n) != 0)
        return fail(p, lq_fail(p->fault, LQ_NOMEM, "out of memory for a body"));
    return 0;
}

static int on_chunk_header(llhttp_t *ll)
{
    struct http_parse *p = ll->data;
    uint64_t left = p->limit - p->body_n;
    if (ll->content_length == 0) {
        p->trailing = true;
        return HPE_PAUSED;
    }
    if (ll->content_length > p->limit) /* no body could hold it: framing, not a large body */
        return fail(p, bad(p->fault, "chunk size is over the limit of a body"));
    if (ll->content_length > left)
        return fail(p, lq_fail(p->fault, LQ_BIG_BODY, "body of %" PRIu64 " bytes is over the limit of %" PRIu64,
                               p->body_n + ll->content_length, p->limit));
    return 0;
}

static const llhttp_settings_t settings = {.on_url = on_url,
                                           .on_header_field = on_field,
                                           .on_header_value = on_value,
                                           .on_header_value_complete = on_value_complete,
                                           .on_headers_complete = on_headers_complete,
                                           .on_body = on_body,
                                           .on_chunk_header = on_chunk_header};

/* ---- life ----------------------------------------------------------------------- */

void http_parse_init(struct http_parse *p, bool is_request)
{
    *p = (struct http_parse){.is_request = is_request, .limit = UINT64_MAX};
}

void http_parse_release(struct http_parse *p)
{
    free(p->target);
    http_headers_free(p->headers);
    p->target = NULL;
    p->headers = NULL;
}

void http_parse_reset(struct http_parse *p)
{
    bool is_request = p->is_request;
    http_parse_release(p);
    http_parse_init(p, is_request);
}

/* ---- head and trailers ---------------------------------------------------------------- */

static const char *wrong_beginning(const struct http_parse *p, unsigned char c)
{
    if (p->trailing)
        return NULL;
    if (p->is_request)
        return c >= 'A' && c <= 'Z' ? NULL : "the first byte cannot begin a method (TLS on a plain port?)";
    return c == 'H' ? NULL : "the answer does not begin with HTTP/";
}

/* Walks the n buffered bytes of a head, or of trailers, on from p->scanned_n. *end: the
 * length up to and with the empty line, 0 when it goes on. Refuses what llhttp would let
 * pass: LF without CR, folded lines, control bytes, a line that begins with ':'. */
static enum lq_err scan(struct http_parse *p, const unsigned char *s, size_t n, size_t *end, struct lq_fault *fault)
{
    *end = 0;
    for (size_t i = p->scanned_n; i < n; i++) {
        if (i > p->line_at && s[i - 1] != '\r') /* most bytes; ' ' and ':' matter only where a line begins */
            i += http_text_n(s + i, n - i);
        if (i == n)
            break;
        unsigned char c = s[i];
        bool after_cr = i > p->line_at && s[i - 1] == '\r';
        if (i == 0 && wrong_beginning(p, c))
            return bad(fault, wrong_beginning(p, c));
        if (c == '\n' && !after_cr)
            return bad(fault, "LF without CR");
        if (c != '\n' && after_cr)
            return bad(fault, "CR without LF");
        if ((c < 0x20 && c != '\r' && c != '\n' && c != '\t') || c == 0x7f)
            return bad(fault, "a control byte in a header");
        if (i == p->line_at && (c == ' ' || c == '\t'))
            return bad(fault, "a folded header line");
        if (i == p->line_at && c == ':')
            return bad(fault, "empty header name");
        if (c == '\n' && i == p->line_at + 1) { /* an empty line */
            *end = i + 1;
            return LQ_OK;
        }
        if (c == '\n')
            p->line_at = i + 1;
    }
    p->scanned_n = n;
    return LQ_OK;
}

static bool is_digits(const char *s)
{
    for (; *s; s++)
        if (*s < '0' || *s > '9')
            return false;
    return true;
}

/* Is `word` a member of the list that Connection holds? */
static bool connection_says(const struct http_headers *h, const char *word)
{
    char list[1024];
    const char *s = http_headers_join(h, "Connection", list, sizeof list);
    for (char *save, *w = s ? strtok_r(list, ", \t", &save) : NULL; w; w = strtok_r(NULL, ", \t", &save))
        if (strcasecmp(w, word) == 0)
            return true;
    return false;
}

/* RFC 9112, 6.3, without its lenient cases. */
static enum lq_err judge(struct http_parse *p, struct lq_fault *fault)
{
    const struct http_headers *h = p->headers;
    size_t lengths_n = http_headers_count(h, "Content-Length"),
           codings_n = http_headers_count(h, "Transfer-Encoding"), hosts_n = http_headers_count(h, "Host");
    if (p->ll.http_major != 1 || p->ll.http_minor > 1)
        return bad(fault, "only HTTP/1.0 and 1.1 are spoken here");
    if (!p->is_request && p->status < 100)
        return bad(fault, "the status has fewer than three digits");
    if (p->is_request && (hosts_n > 1 || (hosts_n == 0 && p->minor == 1)))
        return bad(fault, hosts_n ? "two Host headers" : "no Host header");
    if (lengths_n > 1)
        return bad(fault, "two Content-Length headers");
    if (codings_n > 0 && lengths_n > 0)
        return bad(fault, "Content-Length together with Transfer-Encoding");
    if (codings_n > 1 || (codings_n == 1 && strcasecmp(http_headers_get(h, "Transfer-Encoding"), "chunked") != 0))
        return bad(fault, "a Transfer-Encoding other than chunked");
    if (codings_n == 1 && p->minor == 0)
        return bad(fault, "Transfer-Encoding in HTTP/1.0");
    if (codings_n == 1 && !(p->ll.flags & F_CHUNKED)) /* llhttp and this file must see one message */
        return bad(fault, "a Transfer-Encoding that is not understood");
    const char *length = http_headers_get(h, "Content-Length");
    if (length && (!*length || strlen(length) > 18 || !is_digits(length)))
        return bad(fault, "Content-Length is no plain number");

    bool none = !p->is_request && (p->to_head || p->status / 100 == 1 || p->status == 204 || p->status == 304);
    p->kind = none            ? HTTP_BODY_NONE
              : codings_n     ? HTTP_BODY_CHUNKED
              : length        ? HTTP_BODY_LENGTH
              : p->is_request ? HTTP_BODY_NONE
                              : HTTP_BODY_UNTIL_CLOSE;
    p->length = p->kind == HTTP_BODY_LENGTH ? strtoull(length, NULL, 10)
                : p->kind == HTTP_BODY_NONE ? 0
                                            : HTTP_LENGTH_UNKNOWN;
    p->whole = p->kind == HTTP_BODY_NONE || p->length == 0;
    p->keep_alive = p->minor == 1 ? !connection_says(h, "close") : connection_says(h, "keep-alive");
    if (p->kind == HTTP_BODY_UNTIL_CLOSE)
        p->keep_alive = false;
    return LQ_OK;
}

static enum lq_err tokenize(struct http_parse *p, const char *s, size_t n, struct lq_fault *fault)
{
    llhttp_init(&p->ll, p->is_request ? HTTP_REQUEST : HTTP_RESPONSE, &settings);
    p->ll.data = p;
    p->fault = fault;
    p->rc = LQ_OK;
    if (!(p->headers = http_headers_new()))
        return lq_fail(fault, LQ_NOMEM, "out of memory for a request");
    enum llhttp_errno e = llhttp_execute(&p->ll, s, n);
    if (p->rc != LQ_OK)
        return p->rc;
    if (e != HPE_PAUSED || !p->head_done)
        return bad(fault, e == HPE_OK ? "the head does not end" : llhttp_get_error_reason(&p->ll));
    p->minor = p->ll.http_minor;
    p->status = p->ll.status_code;
    p->method = p->ll.method;
    if (p->is_request && !(p->target = strndup(p->url.p, p->url.n)))
        return lq_fail(fault, LQ_NOMEM, "out of memory for a request");
    return judge(p, fault);
}

enum lq_err http_parse_head(struct http_parse *p, struct evbuffer *in, struct lq_fault *fault)
{
    if (p->is_request && p->scanned_n == 0) { /* RFC 9112, 2.2: an empty line before a request */
        char two[2];
        while (evbuffer_get_length(in) >= 2 && evbuffer_copyout(in, two, 2) == 2 && memcmp(two, "\r\n", 2) == 0)
            evbuffer_drain(in, 2);
        if (evbuffer_get_length(in) == 1 && evbuffer_copyout(in, two, 1) == 1 && two[0] == '\r')
            return LQ_OK;
    }
    size_t n = evbuffer_get_length(in), end;
    if (n > HTTP_HEADER_BYTES_MAX)
        n = HTTP_HEADER_BYTES_MAX;
    if (n == p->scanned_n && n < HTTP_HEADER_BYTES_MAX)
        return LQ_OK;
    unsigned char *s = evbuffer_pullup(in, (ev_ssize_t)n);
    if (!s)
        return n ? lq_fail(fault, LQ_NOMEM, "out of memory for a head") : LQ_OK;
    enum lq_err rc = scan(p, s, n, &end, fault);
    if (rc)
        return rc;
    if (end == 0)
        return n == HTTP_HEADER_BYTES_MAX
                   ? lq_fail(fault, LQ_BIG_HEADERS, "headers are over %d bytes", HTTP_HEADER_BYTES_MAX)
                   : LQ_OK;
    rc = tokenize(p, (const char *)s, end, fault);
    if (!rc)
        evbuffer_drain(in, end);
    return rc;
}

/* ---- body --------------------------------------------------------------------------- */

/* Trailers are checked and dropped. llhttp takes a bare LF there for their end. */
static enum lq_err take_trailers(struct http_parse *p, struct evbuffer *in, struct lq_fault *fault)
{
    size_t n = evbuffer_get_length(in), end;
    n = n < TRAILER_BYTES_MAX ? n : TRAILER_BYTES_MAX;
    if (n == 0)
        return LQ_OK;
    const char *s = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (!s)
        return lq_fail(fault, LQ_NOMEM, "out of memory for trailers");
    enum lq_err rc = scan(p, (const unsigned char *)s, n, &end, fault);
    if (!rc && end == 0 && n == TRAILER_BYTES_MAX)
        rc = bad(fault, "trailers without end");
    if (rc || end == 0)
        return rc;
    const char *last = s + end - 2; /* the empty line */
    for (const char *line = s, *next; line < last; line = next + 2) {
        next = memmem(line, (size_t)(last - line), "\r\n", 2);
        const char *colon = memchr(line, ':', (size_t)(next - line));
        if (!colon || !http_is_token(line, (size_t)(colon - line)))
            return bad(fault, "a trailer without a name");
    }
    evbuffer_drain(in, end);
    p->whole = true;
    return LQ_OK;
}

/* One piece of what is buffered, through llhttp. */
static enum lq_err take_piece(struct http_parse *p, struct evbuffer *in, const char *s, size_t n,
                              struct lq_fault *fault)
{
    uint64_t before = p->body_n;
    if (llhttp_get_errno(&p->ll) == HPE_PAUSED)
        llhttp_resume(&p->ll);
    p->rc = LQ_OK;
    enum llhttp_errno e = llhttp_execute(&p->ll, s, n);
    if (p->rc != LQ_OK)
        return p->rc;
    if (e == HPE_PAUSED) /* the last chunk, inside what was fed */
        n = (size_t)(llhttp_get_error_pos(&p->ll) - s);
    else if (e != HPE_OK)
        return bad(fault, llhttp_get_error_reason(&p->ll));
    evbuffer_drain(in, n);
    p->framing_n += n - (p->body_n - before);
    if (p->framing_n > FRAMING_BYTES_FREE + FRAMING_BYTES_PER_BODY_BYTE * p->body_n)
        return bad(fault, "chunk extensions without end");
    p->scanned_n = p->line_at = 0; /* of the trailers */
    return LQ_OK;
}

static enum lq_err take_chunked(struct http_parse *p, struct evbuffer *in, size_t max_n, struct lq_fault *fault)
{
    uint64_t begin = p->body_n;
    p->fault = fault;
    while (!p->trailing && p->body_n - begin < max_n) {
        struct evbuffer_iovec v;
        size_t n = max_n - (size_t)(p->body_n - begin);
        n = n < PIECE_BYTES_MAX ? n : PIECE_BYTES_MAX;
        if (evbuffer_peek(in, (ev_ssize_t)n, NULL, &v, 1) < 1 || v.iov_len == 0)
            return LQ_OK;
        enum lq_err rc = take_piece(p, in, v.iov_base, v.iov_len < n ? v.iov_len : n, fault);
        if (rc)
            return rc;
    }
    return p->trailing ? take_trailers(p, in, fault) : LQ_OK;
}

enum lq_err http_parse_body(struct http_parse *p, struct evbuffer *in, struct evbuffer *to, size_t max_n,
                            struct lq_fault *fault)
{
    if (p->whole)
        return LQ_OK;
    p->to = to;
    if (p->kind == HTTP_BODY_CHUNKED)
        return take_chunked(p, in, max_n, fault);
    size_t n = evbuffer_get_length(in);
    n = n < max_n ? n : max_n;
    if (p->kind == HTTP_BODY_LENGTH && n > p->length - p->body_n)
        n = (size_t)(p->length - p->body_n);
    if (n > p->limit - p->body_n)
        return lq_fail(fault, LQ_BIG_BODY, "body is over the limit of %" PRIu64 " bytes", p->limit);
    if (n > 0 && evbuffer_remove_buffer(in, to, n) != (int)n)
        return lq_fail(fault, LQ_NOMEM, "out of memory for a body");
    p->body_n += n;
    p->whole = p->kind == HTTP_BODY_LENGTH && p->body_n == p->length;
    return LQ_OK;
}

bool http_parse_eof(struct http_parse *p)
{
    if (p->head_done && p->kind == HTTP_BODY_UNTIL_CLOSE)
        p->whole = true;
    return p->whole;
}
