/* grpc_raw: HTTP/2 by hand, for what no library would send: frames into a string, a peer's
 * frames read. Heads are HPACK literals without an index. */
#ifndef LQ_TESTS_UNIT_COMMON_GRPC_RAW_H
#define LQ_TESTS_UNIT_COMMON_GRPC_RAW_H

#include <arpa/inet.h>

#include "tests/unit/common/grpc_kit.h"

enum {
    END_STREAM = 1,
    ACK = 1,
    END_HEADERS = 4,
    DATA = 0,
    HEADERS,
    PRIORITY,
    RST,
    SETTINGS,
    PUSH,
    PING,
    GOAWAY,
    WINDOW,
    CONTINUATION
};

struct bytes {
    size_t n;
    uint8_t p[200000];
};

static inline void put(struct bytes *b, const void *p, size_t n)
{
    ck_assert_uint_le(b->n + n, sizeof b->p);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void put_frame(struct bytes *b, int type, int flags, uint32_t id, const void *p, size_t n)
{
    uint8_t head[9] = {(uint8_t)(n >> 16),  (uint8_t)(n >> 8),   (uint8_t)n,         (uint8_t)type, (uint8_t)flags,
                       (uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};
    put(b, head, sizeof head);
    if (n)
        put(b, p, n);
}

static inline void put_text(struct bytes *b, const char *text)
{
    size_t n = strlen(text);
    uint8_t more[] = {127, (uint8_t)((n - 127) % 128 + 128), (uint8_t)((n - 127) / 128)};
    uint8_t few = (uint8_t)n;
    if (n < 127)
        put(b, &few, 1);
    else
        put(b, more, sizeof more);
    put(b, text, n);
}

/* "name\0value\0name\0value\0" as a block. */
static inline void put_lines(struct bytes *b, const char *lines)
{
    for (const char *name = lines; *name;) {
        const char *value = name + strlen(name) + 1;
        put(b, "", 1);
        put_text(b, name);
        put_text(b, value);
        name = value + strlen(value) + 1;
    }
}

#define REQUEST(path) ":method\0POST\0:scheme\0http\0:path\0" path "\0:authority\0h\0te\0trailers\0"
#define GRPC_TYPE "content-type\0application/grpc\0"

static inline void put_head(struct bytes *b, uint32_t id, int flags, const char *lines)
{
    static struct bytes block;
    block.n = 0;
    put_lines(&block, lines);
    put_frame(b, HEADERS, flags, id, block.p, block.n);
}

static inline void put_hello(struct bytes *b)
{
    put(b, NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
    put_frame(b, SETTINGS, 0, 0, NULL, 0);
}

static inline void raw_put(struct raw *r, struct bytes *b)
{
    raw_send(r, (const char *)b->p, b->n);
    b->n = 0;
}

static inline void dial_server(struct raw *r, struct grpc_site *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)grpc_server_port(w->server))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    raw_adopt(r, w->base, fd);
}

/* ---- what the other side says ---------------------------------------------------------------- */

struct said {
    nghttp2_hd_inflater *inflater;
    size_t frames_n[16], data_n;
    uint32_t goaway_error, rst_error, ended_id; /* the last stream that END_STREAM or RST ended */
    char lines[8192];                           /* "name: value\n" of all heads */
};

static inline void said_head(struct said *s, const uint8_t *p, size_t n)
{
    nghttp2_nv nv;
    int flags = 0;
    while (true) {
        ssize_t used = nghttp2_hd_inflate_hd2(s->inflater, &nv, &flags, p, n, 1);
        ck_assert_int_ge((int)used, 0);
        p += used;
        n -= (size_t)used;
        size_t at = strlen(s->lines);
        if (flags & NGHTTP2_HD_INFLATE_EMIT)
            snprintf(s->lines + at, sizeof s->lines - at, "%s: %s\n", (char *)nv.name, (char *)nv.value);
        if ((flags & NGHTTP2_HD_INFLATE_FINAL) || (n == 0 && !(flags & NGHTTP2_HD_INFLATE_EMIT)))
            break;
    }
    nghttp2_hd_inflate_end_headers(s->inflater);
}

/* Takes all whole frames that are there. */
static inline void said_take(struct said *s, struct raw *r)
{
    struct evbuffer *in = bufferevent_get_input(r->bev);
    uint8_t head[9];
    if (!s->inflater)
        ck_assert_int_eq(nghttp2_hd_inflate_new(&s->inflater), 0);
    while (evbuffer_copyout(in, head, 9) == 9) {
        size_t n = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (evbuffer_get_length(in) < 9 + n)
            return;
        const uint8_t *p = evbuffer_pullup(in, (ev_ssize_t)(9 + n)) + 9;
        uint32_t id = (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
        ck_assert_int_lt(head[3], 16);
        s->frames_n[head[3]]++;
        if (head[3] == HEADERS)
            said_head(s, p, n);
        if (head[3] == DATA)
            s->data_n += n;
        if (head[3] == GOAWAY)
            memcpy(&s->goaway_error, p + 4, 4);
        if (head[3] == RST)
            memcpy(&s->rst_error, p, 4);
        if (head[3] == RST || (head[3] <= HEADERS && head[4] & END_STREAM))
            s->ended_id = id;
        evbuffer_drain(in, 9 + n);
    }
}

static inline void said_release(struct said *s)
{
    if (s->inflater)
        nghttp2_hd_inflate_del(s->inflater);
}

#define RUN_UNTIL_SAID(said, raw, condition) RUN_UNTIL((raw)->base, (said_take(said, raw), condition))

#endif
