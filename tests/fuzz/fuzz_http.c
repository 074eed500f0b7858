/* fuzz_http: bytes of a client at the server, and bytes of a server at the reader of
 * answers. The first byte chooses, the second seeds how the rest is sliced.
 * Properties: what the server says is well-formed to the last byte; how the bytes were
 * sliced changes neither what it says nor what is read. */
#include <event2/bufferevent.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/http_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    LIMIT_BYTES = 300, /* of a body: within a fuzzer's reach */
    INPUT_BYTES_MAX = 40000,
    TO_CLIENT = 1, /* bits of the first byte */
    STREAMED = 2,
    LATE = 4,
    TO_HEAD = 8,
};

static void require(int ok)
{
    if (!ok)
        abort();
}

/* A slice of 1 to `most` bytes, from a generator that the input seeds. */
static size_t slice(uint32_t *state, size_t left, size_t most)
{
    *state = *state * 1664525 + 1013904223;
    size_t n = 1 + (*state >> 8) % most;
    return n < left ? n : left;
}

/* ---- the reader of answers --------------------------------------------------------------- */

struct reading {
    enum lq_err rc;
    int status;
    uint64_t body_n;
    bool head_done, whole;
};

static struct reading read_answer(const uint8_t *p, size_t n, unsigned mode, uint32_t seed, size_t most)
{
    struct http_parse parse;
    struct lq_fault fault;
    struct evbuffer *in = evbuffer_new(), *to = evbuffer_new();
    struct reading r = {0};
    http_parse_init(&parse, false);
    parse.to_head = mode & TO_HEAD;
    parse.limit = LIMIT_BYTES;
    for (size_t at = 0, take; at < n && !r.rc && !parse.whole; at += take) {
        take = most ? slice(&seed, n - at, most) : n;
        evbuffer_add(in, p + at, take);
        if (!parse.head_done)
            r.rc = http_parse_head(&parse, in, &fault);
        if (!r.rc && parse.head_done)
            r.rc = http_parse_body(&parse, in, to, SIZE_MAX, &fault);
        require(parse.body_n == evbuffer_get_length(to) && parse.body_n <= LIMIT_BYTES);
    }
    if (parse.head_done && !r.rc)
        (void)http_parse_eof(&parse);
    r.status = parse.status;
    r.body_n = r.rc ? 0 : parse.body_n; /* of a refused one: as much as had come before the fault was seen */
    r.head_done = parse.head_done;
    r.whole = parse.whole;
    require(!r.whole || r.rc || parse.kind != HTTP_BODY_LENGTH || parse.body_n == parse.length);
    http_parse_release(&parse);
    evbuffer_free(in);
    evbuffer_free(to);
    return r;
}

static void fuzz_client(const uint8_t *p, size_t n, unsigned mode, uint32_t seed)
{
    struct reading a = read_answer(p, n, mode, seed, 0), b = read_answer(p, n, mode, seed, 7);
    require(a.rc == b.rc && a.status == b.status && a.body_n == b.body_n && a.head_done == b.head_done &&
            a.whole == b.whole);
}

/* ---- the server ---------------------------------------------------------------------------- */

static struct event_base *base;
static struct http_server *server;
static unsigned mode_now;
static struct http_req *late;

static void on_gone(struct http_req *r, void *arg)
{
    (void)r, (void)arg;
    late = NULL;
}

static void on_data(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)arg;
    (void)http_req_reply_data(r, in);
}

static void on_end(struct http_req *r, struct evbuffer *in, void *arg)
{
    (void)arg;
    if (mode_now & STREAMED) {
        (void)http_req_reply_data(r, in);
        http_req_reply_end(r);
    } else if (mode_now & LATE) {
        late = r;
    } else {
        http_req_reply(r, 200, NULL, in);
    }
}

static void on_request(struct http_req *r, void *arg)
{
    (void)arg;
    require(http_req_path(r)[0] != '\0' && http_req_id(r)[0] != '\0');
    http_req_on_gone(r, on_gone, NULL);
    if (mode_now & STREAMED)
        http_req_reply_start(r, 200, NULL, http_req_length(r));
    http_req_read(r, LIMIT_BYTES, mode_now & STREAMED ? on_data : NULL, on_end, NULL);
}

static void turn(int fd, struct evbuffer *got)
{
    event_base_loop(base, EVLOOP_NONBLOCK);
    while (late) {
        struct http_req *r = late;
        late = NULL;
        http_req_reply_text(r, 200, "text/plain", "late", 4);
        event_base_loop(base, EVLOOP_NONBLOCK);
    }
    while (evbuffer_read(got, fd, -1) > 0) {
    }
}

/* What the server says must be a row of whole answers; only a stream that an error or the
 * client's leaving cut may lack its end. */
static struct reading judge(struct evbuffer *got, bool may_be_cut)
{
    struct reading r = {0};
    struct http_parse p;
    struct lq_fault fault;
    struct evbuffer *to = evbuffer_new();
    http_parse_init(&p, false);
    while (evbuffer_get_length(got) > 0) {
        require(http_parse_head(&p, got, &fault) == LQ_OK && p.head_done);
        require(http_parse_body(&p, got, to, SIZE_MAX, &fault) == LQ_OK);
        require(p.whole || p.kind == HTTP_BODY_UNTIL_CLOSE || (may_be_cut && p.status == 200));
        r.status = (int)((unsigned)r.status * 31 + (unsigned)p.status); /* all of them */
        http_parse_reset(&p);
    }
    r.body_n = evbuffer_get_length(to);
    http_parse_release(&p);
    evbuffer_free(to);
    return r;
}

static struct reading exchange(const uint8_t *p, size_t n, uint32_t seed, size_t most)
{
    int fd[2];
    struct evbuffer *got = evbuffer_new();
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    server_take(server, fd[0]);
    for (size_t at = 0, take; at < n; at += take) {
        take = most ? slice(&seed, n - at, most) : n;
        ssize_t sent = write(fd[1], p + at, take);
        if (sent < 0) /* it has closed */
            break;
        take = (size_t)sent;
        turn(fd[1], got);
    }
    turn(fd[1], got);
    close(fd[1]);
    for (int i = 0; i < 10 && http_server_connections_n(server) > 0; i++)
        event_base_loop(base, EVLOOP_NONBLOCK);
    require(http_server_connections_n(server) == 0 && !late);
    struct reading r = judge(got, mode_now & STREAMED);
    evbuffer_free(got);
    return r;
}

static void fuzz_server(const uint8_t *p, size_t n, uint32_t seed)
{
    if (!server) {
        struct http_server_opts o;
        struct lq_fault fault;
        (void)signal(SIGPIPE, SIG_IGN);
        http_server_opts_init(&o);
        require((base = event_base_new()) && http_server_new(base, &o, on_request, NULL, &server, &fault) == LQ_OK);
    }
    if (memmem(p, n, "HEAD", 4)) /* judge() cannot know which answer is to a HEAD */
        return;
    struct reading a = exchange(p, n, seed, 0), b = exchange(p, n, seed, 11);
    if (mode_now & STREAMED) /* it is cut wherever the error was seen */
        return;
    require(a.status == b.status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > INPUT_BYTES_MAX)
        return 0;
    mode_now = data[0];
    if (mode_now & TO_CLIENT)
        fuzz_client(data + 2, size - 2, mode_now, data[1]);
    else
        fuzz_server(data + 2, size - 2, data[1]);
    return 0;
}
