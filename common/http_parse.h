/* http_parse: one message after another out of an evbuffer, for both sides.
 * llhttp is the tokenizer; what it lets pass and docs/protocol.md 6b does not is
 * refused here. Private to common/http_*. No I/O.
 * A message: http_parse_head() until it is there, then http_parse_body() until
 * `whole`, then http_parse_reset(). */
#ifndef LQ_COMMON_HTTP_PARSE_H
#define LQ_COMMON_HTTP_PARSE_H

#include <llhttp.h>

#include "common/http.h"

enum http_body_kind { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };

struct http_parse {
    llhttp_t ll;
    bool is_request;
    bool to_head; /* answers: the request was a HEAD, so no body comes */
    /* of the head */
    size_t scanned_n, line_at;    /* bytes of the head, or of the trailers, that the strict scan has passed; */
    bool head_done;               /* where their last line begins */
    char *target;                 /* requests: as sent; owned */
    struct http_headers *headers; /* owned */
    struct http_piece {           /* into the buffered head, while it is tokenized */
        const char *p;
        size_t n;
    } field, value, url;
    int minor, status;
    uint8_t method;
    bool keep_alive;
    /* of the body */
    enum http_body_kind kind;
    uint64_t length;     /* HTTP_LENGTH_UNKNOWN: chunked or until close; 0: none */
    uint64_t limit;      /* body bytes allowed */
    uint64_t body_n;     /* body bytes so far */
    uint64_t framing_n;  /* chunked: what is not body; bounded, see .c */
    bool trailing;       /* chunked: the last chunk is past, trailers follow */
    struct evbuffer *to; /* where body bytes go, during http_parse_body() */
    bool whole;
    enum lq_err rc; /* of a callback */
    struct lq_fault *fault;
};

void http_parse_init(struct http_parse *p, bool is_request);
void http_parse_release(struct http_parse *p);
void http_parse_reset(struct http_parse *p); /* for the next message */

/* Looks for a whole head at the front of `in` and takes it out. LQ_OK with
 * p->head_done false: more is needed. LQ_BAD_FRAMING, LQ_BIG_HEADERS, LQ_NOMEM. */
enum lq_err http_parse_head(struct http_parse *p, struct evbuffer *in, struct lq_fault *fault) LQ_MUST_CHECK;

/* Moves body bytes from `in` to `to`, at most max_n, by reference where there is a
 * length. Sets p->whole at the end. LQ_BAD_FRAMING; LQ_BIG_BODY over p->limit. */
enum lq_err http_parse_body(struct http_parse *p, struct evbuffer *in, struct evbuffer *to, size_t max_n,
                            struct lq_fault *fault) LQ_MUST_CHECK;

/* http_headers_add() for strings that do not end: LQ_BAD_FRAMING, LQ_BIG_HEADERS, LQ_NOMEM. */
enum lq_err http_headers_add_n(struct http_headers *h, const char *name, size_t name_n, const char *value,
                               size_t value_n) LQ_MUST_CHECK;
size_t http_headers_count(const struct http_headers *h, const char *name);
/* v in decimal; the text lies at the end of `text`. */
enum { HTTP_DECIMAL_CHARS = 21 };
const char *http_decimal(uint64_t v, char text[HTTP_DECIMAL_CHARS]);
/* Appends a head: the parts of begin, each of h (NULL: none) as a line, the parts of end;
 * both lists end with NULL. False: out of memory, nothing added. */
bool http_head_write(const char *const *begin, const struct http_headers *h, const char *const *end,
                     struct evbuffer *out) LQ_MUST_CHECK;
bool http_is_token(const char *s, size_t n);
/* How many bytes at the front of text are no control bytes. */
size_t http_text_n(const void *text, size_t n);

/* The peer closed. True: that is the end of this message. */
bool http_parse_eof(struct http_parse *p);

#endif
