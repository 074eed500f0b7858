/* Requests, legal and hostile, against the real server: what each is answered, and
 * whether the connection survives it; whole, byte by byte, and cut in two anywhere. */
#include <inttypes.h>

#include "tests/unit/common/http_kit.h"

enum { LIMIT_BYTES = 64 };

static void on_whole(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)arg;
    struct evbuffer *body = evbuffer_new();
    evbuffer_add_printf(body, "%s %s?%s ", http_req_method(r), http_req_path(r), http_req_query(r));
    evbuffer_add_buffer(body, in);
    http_req_reply(r, 200, NULL, body);
    evbuffer_free(body);
}

static void on_request(struct http_req *r, void *arg)
{
    http_req_read(r, LIMIT_BYTES, NULL, on_whole, arg);
}

#define POST "POST /p HTTP/1.1\r\nHost: h\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define GET "GET /g HTTP/1.1\r\nHost: h\r\n"

struct exchange {
    const char *name, *bytes;
    size_t n;         /* 0: strlen */
    const char *want; /* statuses, in order; "close" at the end: the server closes */
    const char *body; /* of the last answer; NULL: not looked at */
};

#define NUL(s) s, sizeof s - 1 /* with its zero bytes */

static const struct exchange table[] = {
    /* legal */
    {"get", GET "\r\n", 0, "200", "GET /g? "},
    {"lines before it", "\r\n\r\n" GET "\r\n", 0, "200", "GET /g? "},
    {"query", "GET /a/b?c=d&e HTTP/1.1\r\nHost: h\r\n\r\n", 0, "200", "GET /a/b?c=d&e "},
    {"absolute form", "GET http://h:80/x?y HTTP/1.1\r\nHost: h\r\n\r\n", 0, "200", "GET /x?y "},
    {"absolute form without a path", "GET http://h HTTP/1.1\r\nHost: h\r\n\r\n", 0, "200", "GET /? "},
    {"empty host", "GET /g HTTP/1.1\r\nHost:\r\n\r\n", 0, "200", NULL},
    {"1.0 closes", "GET /g HTTP/1.0\r\n\r\n", 0, "200 close", "GET /g? "},
    {"1.0 keeps when asked", "GET /g HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 0, "200", NULL},
    {"1.1 closes when asked", GET "Connection: foo, Close\r\n\r\n", 0, "200 close", NULL},
    {"length", POST "Content-Length: 3\r\n\r\nabc", 0, "200", "POST /p? abc"},
    {"length 0", POST "Content-Length: 0\r\n\r\n", 0, "200", "POST /p? "},
    {"length with zeros before", POST "Content-Length: 0003\r\n\r\nabc", 0, "200", "POST /p? abc"},
    {"length with blanks around", POST "Content-Length:   3  \r\n\r\nabc", 0, "200", "POST /p? abc"},
    {"post without a body", POST "\r\n", 0, "200", "POST /p? "},
    {"chunked", CHUNKED "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 0, "200", "POST /p? abcde"},
    {"chunked, case", POST "transfer-encoding: ChunKed\r\n\r\n1\r\na\r\n0\r\n\r\n", 0, "200", "POST /p? a"},
    {"chunk sizes in hex", CHUNKED "A\r\n0123456789\r\n00b\r\nabcdefghijk\r\n0\r\n\r\n", 0, "200", NULL},
    {"chunk extensions", CHUNKED "1;x\r\na\r\n1;y=z\r\nb\r\n1;q=\"v w\"\r\nc\r\n0;last\r\n\r\n", 0, "200",
     "POST /p? abc"},
    {"trailers", CHUNKED "1\r\na\r\n0\r\nX-Sum: 1\r\nY: \r\n\r\n", 0, "200", "POST /p? a"},
    {"body at the limit",
     POST "Content-Length: 64\r\n\r\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 0, "200",
     NULL},
    {"two at once", GET "\r\n" GET "\r\n", 0, "200 200", NULL},
    {"two bodies at once", POST "Content-Length: 3\r\n\r\nabc" CHUNKED "1\r\nx\r\n0\r\n\r\n" GET "\r\n", 0,
     "200 200 200", "GET /g? "},
    {"a line between two", POST "Content-Length: 1\r\n\r\na\r\n" GET "\r\n", 0, "200 200", "GET /g? "},
    {"upgrade is ignored", GET "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" GET "\r\n", 0, "200 200", NULL},
    {"upgrade with a body", POST "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\na" GET "\r\n", 0,
     "200 200", NULL},
    {"expect", POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\na", 0, "100 200", "POST /p? a"},
    {"expect without a body", POST "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", 0, "200", NULL},
    {"expect in 1.0", "POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na", 0, "200 close", NULL},
    {"bytes over 127 in a value", GET "X: \xc3\xa4\r\n\r\n", 0, "200", NULL},
    {"tab in a value", GET "X: a\tb\r\n\r\n", 0, "200", NULL},
    {"every token byte in a name", GET "!#$%&'*+-.^_`|~09azAZ: 1\r\n\r\n", 0, "200", NULL},

    /* the first line */
    {"tls hello", NUL("\x16\x03\x01\x02\x00\x01\x00"), "400 close", NULL},
    {"lower-case method", "get /g HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"unknown method", "BREW /g HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"http 2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, "400 close", NULL},
    {"blank before the method", " GET /g HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"no target", "GET HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"0.9", "GET /g\r\n\r\n", 0, "400 close", NULL},
    {"1.2", "GET /g HTTP/1.2\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"2.0", "GET /g HTTP/2.0\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"0.9, said", "GET /g HTTP/0.9\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"1.10", "GET /g HTTP/1.10\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"another protocol", "GET /g ICE/1.0\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"control byte in the target", "GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"high byte in the target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},
    {"blank in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 0, "400 close", NULL},

    /* lines and names */
    {"bare LF", "GET /g HTTP/1.1\nHost: h\n\n", 0, "400 close", NULL},
    {"bare LF in the headers", GET "A: b\nC: d\r\n\r\n", 0, "400 close", NULL},
    {"bare LF at the end", GET "\n", 0, "400 close", NULL},
    {"bare CR", GET "A: b\rC: d\r\n\r\n", 0, "400 close", NULL},
    {"CR CR LF", GET "A: b\r\r\n\r\n", 0, "400 close", NULL},
    {"folded line", GET "A: b\r\n c\r\n\r\n", 0, "400 close", NULL},
    {"folded with a tab", GET "A: b\r\n\tc\r\n\r\n", 0, "400 close", NULL},
    {"folded first line", "GET /g HTTP/1.1\r\n Host: h\r\n\r\n", 0, "400 close", NULL},
    {"empty name", GET ": b\r\n\r\n", 0, "400 close", NULL},
    {"blank after the name", GET "A : b\r\n\r\n", 0, "400 close", NULL},
    {"no colon", GET "A\r\n\r\n", 0, "400 close", NULL},
    {"blank in a name", GET "A B: c\r\n\r\n", 0, "400 close", NULL},
    {"quote in a name", GET "A\"B: c\r\n\r\n", 0, "400 close", NULL},
    {"high byte in a name", GET "\xc3\xa4: c\r\n\r\n", 0, "400 close", NULL},
    {"NUL in a value", NUL(GET "A: b\0c\r\n\r\n"), "400 close", NULL},
    {"NUL in a name", NUL(GET "A\0: c\r\n\r\n"), "400 close", NULL},
    {"control byte in a value", GET "A: \x02\r\n\r\n", 0, "400 close", NULL},
    {"DEL in a value", GET "A: \x7f\r\n\r\n", 0, "400 close", NULL},
    {"no host", "GET /g HTTP/1.1\r\n\r\n", 0, "400 close", NULL},
    {"two hosts", GET "Host: h\r\n\r\n", 0, "400 close", NULL},
    {"two hosts in 1.0", "GET /g HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 0, "400 close", NULL},

    /* lengths */
    {"two lengths", POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 0, "400 close", NULL},
    {"two equal lengths", POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 0, "400 close", NULL},
    {"length list", POST "Content-Length: 3, 3\r\n\r\nabc", 0, "400 close", NULL},
    {"length +", POST "Content-Length: +3\r\n\r\nabc", 0, "400 close", NULL},
    {"length -", POST "Content-Length: -3\r\n\r\nabc", 0, "400 close", NULL},
    {"length hex", POST "Content-Length: 0x3\r\n\r\nabc", 0, "400 close", NULL},
    {"length with a blank inside", POST "Content-Length: 3 0\r\n\r\nabc", 0, "400 close", NULL},
    {"length with a point", POST "Content-Length: 3.0\r\n\r\nabc", 0, "400 close", NULL},
    {"empty length", POST "Content-Length:\r\n\r\n", 0, "400 close", NULL},
    {"length over 2^64", POST "Content-Length: 18446744073709551619\r\n\r\nabc", 0, "400 close", NULL},
    {"length of 2^64-1", POST "Content-Length: 18446744073709551615\r\n\r\nabc", 0, "400 close", NULL},
    {"length over the limit", POST "Content-Length: 65\r\n\r\n", 0, "413 close", NULL},
    {"length over the limit, expect", POST "Expect: 100-continue\r\nContent-Length: 65\r\n\r\n", 0, "413 close",
     NULL},
    {"length and chunked", POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "400 close",
     NULL},
    {"chunked and length", POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 0, "400 close",
     NULL},
    {"chunked twice", POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0,
     "400 close", NULL},
    {"chunked list", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"gzip, chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunked, gzip", POST "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"identity", POST "Transfer-Encoding: identity\r\n\r\n", 0, "400 close", NULL},
    {"chunked in quotes", POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"vertical tab before chunked",
     POST "Transfer-Encoding: \x0b"
          "chunked\r\n\r\n0\r\n\r\n",
     0, "400 close", NULL},
    {"empty coding", POST "Transfer-Encoding:\r\n\r\n", 0, "400 close", NULL},
    {"chunked in 1.0", "POST /p HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, "400 close", NULL},

    /* chunks */
    {"chunk 0x", CHUNKED "0x3\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk +", CHUNKED "+3\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk -", CHUNKED "-3\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk blank before", CHUNKED " 3\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk blank after", CHUNKED "3 \r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk without a size", CHUNKED "\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk, an extension but no size", CHUNKED ";x\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk size of 2^64", CHUNKED "10000000000000000\r\nabc", 0, "400 close", NULL},
    {"chunk size of 2^64 + 3", CHUNKED "10000000000000003\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk size of 2^64 - 1", CHUNKED "ffffffffffffffff\r\nabc", 0, "400 close", NULL},
    {"chunk size over the limit", CHUNKED "41\r\nabc", 0, "400 close", NULL},
    {"chunk over what the limit leaves", CHUNKED "3\r\nabc\r\n3e\r\nabc", 0, "413 close", NULL},
    {"chunk longer than it says", CHUNKED "3\r\nabcd\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk size, bare LF", CHUNKED "3\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk size, bare CR", CHUNKED "3\rabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk data, bare LF", CHUNKED "3\r\nabc\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk data, bare CR", CHUNKED "3\r\nabc\rx0\r\n\r\n", 0, "400 close", NULL},
    {"chunk extension, bare LF", CHUNKED "3;x\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk extension, CR inside", CHUNKED "3;x\ry\r\nabc\r\n0\r\n\r\n", 0, "400 close", NULL},
    {"chunk extension, NUL", NUL(CHUNKED "3;x\0\r\nabc\r\n0\r\n\r\n"), "400 close", NULL},
    {"last chunk, bare LF", CHUNKED "0\n\r\n", 0, "400 close", NULL},
    {"end, bare LF", CHUNKED "0\r\n\n", 0, "400 close", NULL},
    {"end, bare CR", CHUNKED "0\r\n\rX", 0, "400 close", NULL},
    {"trailer, bare LF", CHUNKED "0\r\nA: b\n\r\n", 0, "400 close", NULL},
    {"trailer folded", CHUNKED "0\r\nA: b\r\n c\r\n\r\n", 0, "400 close", NULL},
    {"trailer without a name", CHUNKED "0\r\n: b\r\n\r\n", 0, "400 close", NULL},
    {"trailer without a colon", CHUNKED "0\r\nGET / HTTP/1.1\r\n\r\n", 0, "400 close", NULL},
    {"trailer with NUL", NUL(CHUNKED "0\r\nA: \0\r\n\r\n"), "400 close", NULL},
    {"trailer with a blank in its name", CHUNKED "0\r\nA b: c\r\n\r\n", 0, "400 close", NULL},
    {"trailer that is a length", CHUNKED "1\r\na\r\n0\r\nContent-Length: 5\r\n\r\n" GET "\r\n", 0, "200 200",
     "GET /g? "},
    {"trailer that is a coding", CHUNKED "1\r\na\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n" GET "\r\n", 0, "200 200",
     "GET /g? "},

    /* the rest */
    {"expect magic", POST "Expect: magic\r\nContent-Length: 1\r\n\r\na", 0, "417 close", NULL},
    {"expect twice", POST "Expect: 100-continue\r\nExpect: magic\r\nContent-Length: 1\r\n\r\na", 0, "417 close",
     NULL},
    {"connect", "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", 0, "200", "CONNECT h:80? "},
    {"garbage after a good one",
     GET "\r\n"
         "\x16\x03",
     0, "200 400 close", NULL},
};

/* Gets the answers that e wants, no more, and the close or none. */
static void expect(struct raw *r, const struct exchange *e, const char *how)
{
    char words[64];
    struct answer a = {0};
    bool close = false;
    snprintf(words, sizeof words, "%s", e->want);
    for (char *save, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        if (strcmp(w, "close") == 0) {
            close = true;
            break;
        }
        answer_release(&a);
        RUN_UNTIL(r->base, raw_take(r, &a, false) || r->eof);
        ck_assert_msg(a.status == atoi(w), "%s, %s: %d, not %s", e->name, how, a.status, w);
        if (a.status >= 400) {
            ck_assert_str_eq(http_headers_get(a.headers, "Connection"), "close");
            ck_assert_str_eq(http_headers_get(a.headers, "Content-Type"), "application/json");
        }
    }
    if (e->body)
        ck_assert_msg(strcmp(answer_text(&a), e->body) == 0, "%s, %s: '%s'", e->name, how, answer_text(&a));
    if (close)
        RUN_UNTIL(r->base, r->eof);
    else
        kit_turns(r->base, 3);
    ck_assert_msg(r->eof == close, "%s, %s: closed", e->name, how);
    ck_assert_msg(raw_n(r) == 0, "%s, %s: %zu bytes more", e->name, how, raw_n(r));
    answer_release(&a);
}

static void send_by(struct raw *r, const char *bytes, size_t n, size_t step)
{
    for (size_t i = 0; i < n; i += step) {
        raw_send(r, bytes + i, n - i < step ? n - i : step);
        kit_turns(r->base, 2);
    }
}

START_TEST(requests_get_what_they_earn)
{
    const struct exchange *e = &table[_i];
    size_t n = e->n ? e->n : strlen(e->bytes);
    struct event_base *base = kit_base();
    struct http_server *s = kit_server(base, NULL, on_request, NULL);
    struct raw r;
    char how[32];
    for (size_t cut = 1; cut <= n; cut++) { /* cut == n: whole */
        raw_open(&r, s);
        snprintf(how, sizeof how, "cut at %zu", cut);
        raw_send(&r, e->bytes, cut);
        kit_turns(base, 2);
        raw_send(&r, e->bytes + cut, n - cut);
        expect(&r, e, how);
        raw_close(&r);
    }
    raw_open(&r, s);
    send_by(&r, e->bytes, n, 1);
    expect(&r, e, "byte by byte");
    raw_close(&r);
    http_server_free(s);
    event_base_free(base);
}
END_TEST

/* ---- sizes -------------------------------------------------------------------------- */

/* A head of n bytes in all. */
static char *head_of(size_t n)
{
    static const char begin[] = GET "X: ";
    char *h = malloc(n);
    memset(h, 'x', n);
    memcpy(h, begin, sizeof begin - 1);
    memcpy(h + n - 4, "\r\n\r\n", 4);
    return h;
}

static const struct {
    size_t n, step;
    const char *want;
} heads[] = {
    {HTTP_HEADER_BYTES_MAX, HTTP_HEADER_BYTES_MAX, "200"},
    {HTTP_HEADER_BYTES_MAX, 1000, "200"},
    {HTTP_HEADER_BYTES_MAX + 1, HTTP_HEADER_BYTES_MAX + 1, "431 close"},
    {HTTP_HEADER_BYTES_MAX + 1, 1000, "431 close"},
    {100000, 100000, "431 close"},
};

START_TEST(heads_are_bounded)
{
    struct event_base *base = kit_base();
    struct http_server *s = kit_server(base, NULL, on_request, NULL);
    struct raw r;
    char *h = head_of(heads[_i].n);
    const struct exchange e = {"big head", h, heads[_i].n, heads[_i].want, NULL};
    raw_open(&r, s);
    send_by(&r, h, heads[_i].n, heads[_i].step);
    expect(&r, &e, "");
    raw_close(&r);
    free(h);
    http_server_free(s);
    event_base_free(base);
}
END_TEST

START_TEST(headers_are_counted)
{
    struct event_base *base = kit_base();
    struct http_server *s = kit_server(base, NULL, on_request, NULL);
    for (int n = HTTP_HEADERS_MAX - 1; n <= HTTP_HEADERS_MAX; n++) { /* beside Host */
        struct raw r;
        const struct exchange e = {"many headers", "", 0, n < HTTP_HEADERS_MAX ? "200" : "431 close", NULL};
        raw_open(&r, s);
        raw_text(&r, GET);
        for (int i = 0; i < n; i++)
            raw_text(&r, "A: b\r\n");
        raw_text(&r, "\r\n");
        expect(&r, &e, "");
        raw_close(&r);
    }
    http_server_free(s);
    event_base_free(base);
}
END_TEST

/* Framing that never ends is not read for ever: extensions, trailers, empty lines. */
static const char *const endless[][2] = {
    {CHUNKED "1;", "x"},
    {CHUNKED "0\r\n", "A: b\r\n"},
    {CHUNKED "0\r\nA: ", "b"},
};

START_TEST(framing_is_bounded)
{
    struct event_base *base = kit_base();
    struct http_server *s = kit_server(base, NULL, on_request, NULL);
    const struct exchange e = {"endless framing", "", 0, "400 close", NULL};
    struct raw r;
    raw_open(&r, s);
    raw_text(&r, endless[_i][0]);
    for (size_t n = 0; n < 2 * 16384; n += strlen(endless[_i][1]))
        raw_text(&r, endless[_i][1]);
    expect(&r, &e, endless[_i][0]);
    raw_close(&r);
    http_server_free(s);
    event_base_free(base);
}
END_TEST

/* ---- answers, as the client reads them -------------------------------------------------- */

#define OK "HTTP/1.1 200 OK\r\n"

static const struct {
    const char *name, *bytes;
    bool to_head, eof; /* eof: the server closes then */
    const char *body;  /* NULL: refused, or not whole */
    enum lq_err rc;
} answers[] = {
    {"length", OK "Content-Length: 2\r\n\r\nab", false, false, "ab", LQ_OK},
    {"no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, false, "", LQ_OK},
    {"empty reason", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", false, false, "", LQ_OK},
    {"chunked", OK "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", false, false, "ab", LQ_OK},
    {"to head", OK "Content-Length: 2\r\n\r\n", true, false, "", LQ_OK},
    {"to head, chunked", OK "Transfer-Encoding: chunked\r\n\r\n", true, false, "", LQ_OK},
    {"204", "HTTP/1.1 204 x\r\n\r\n", false, false, "", LQ_OK},
    {"304", "HTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n", false, false, "", LQ_OK},
    {"until close", "HTTP/1.0 200 OK\r\n\r\nabc", false, true, "abc", LQ_OK},
    {"until close, open", "HTTP/1.0 200 OK\r\n\r\nabc", false, false, NULL, LQ_OK},
    {"cut", OK "Content-Length: 3\r\n\r\nab", false, true, NULL, LQ_OK},
    {"cut chunked", OK "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", false, true, NULL, LQ_OK},
    {"bare LF", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", false, false, NULL, LQ_BAD_FRAMING},
    {"no answer", "SSH-2.0-OpenSSH_9.2p1\r\n", false, false, NULL, LQ_BAD_FRAMING},
    {"version", "HTTP/2.0 200 OK\r\n\r\n", false, false, NULL, LQ_BAD_FRAMING},
    {"status", "HTTP/1.1 20 OK\r\n\r\n", false, false, NULL, LQ_BAD_FRAMING},
    {"status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", false, false, NULL, LQ_BAD_FRAMING},
    {"two lengths", OK "Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", false, false, NULL, LQ_BAD_FRAMING},
    {"length and chunked", OK "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nab", false, false, NULL,
     LQ_BAD_FRAMING},
    {"gzip", OK "Transfer-Encoding: gzip\r\n\r\nab", false, false, NULL, LQ_BAD_FRAMING},
    {"folded", OK "A: b\r\n c\r\nContent-Length: 0\r\n\r\n", false, false, NULL, LQ_BAD_FRAMING},
    {"length -", OK "Content-Length: -1\r\n\r\n", false, false, NULL, LQ_BAD_FRAMING},
};

START_TEST(answers_are_read_as_strictly)
{
    struct http_parse p;
    struct lq_fault fault;
    struct evbuffer *in = evbuffer_new(), *to = evbuffer_new();
    const char *bytes = answers[_i].bytes;
    enum lq_err rc = LQ_OK;
    http_parse_init(&p, false);
    p.to_head = answers[_i].to_head;
    for (; *bytes && !rc; bytes++) {
        evbuffer_add(in, bytes, 1);
        rc = p.head_done ? LQ_OK : http_parse_head(&p, in, &fault);
        if (!rc && p.head_done)
            rc = http_parse_body(&p, in, to, SIZE_MAX, &fault);
    }
    ck_assert_msg(rc == answers[_i].rc, "%s: %s", answers[_i].name, rc ? fault.text : "accepted");
    bool whole = p.head_done && (p.whole || (answers[_i].eof && http_parse_eof(&p)));
    ck_assert_msg(whole == (answers[_i].body != NULL), "%s", answers[_i].name);
    if (whole) {
        evbuffer_add(to, "", 1);
        ck_assert_str_eq((const char *)evbuffer_pullup(to, -1), answers[_i].body);
    }
    http_parse_release(&p);
    evbuffer_free(in);
    evbuffer_free(to);
}
END_TEST

#define N(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void)
{
    Suite *s = suite_create("http_parse");
    TCase *t = tcase_create("requests");
    tcase_add_loop_test(t, requests_get_what_they_earn, 0, N(table));
    tcase_add_loop_test(t, heads_are_bounded, 0, N(heads));
    tcase_add_test(t, headers_are_counted);
    tcase_add_loop_test(t, framing_is_bounded, 0, N(endless));
    suite_add_tcase(s, t);
    t = tcase_create("answers");
    tcase_add_loop_test(t, answers_are_read_as_strictly, 0, N(answers));
    suite_add_tcase(s, t);
    return run_suite(s);
}
