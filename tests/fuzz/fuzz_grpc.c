/* fuzz_grpc: bytes of a client at a gRPC server. The first byte chooses, the second seeds how
 * the rest is sliced; with WITH_HELLO the preface and SETTINGS stand before it, so that the
 * fuzzer begins where frames do.
 * Properties: nothing crashes or hangs; each stream that was handed out ends exactly once;
 * when the client is gone, so is all that it held; what the server says are whole frames. */
#include <event2/event.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/grpc_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MESSAGE_MAX = 300,
    INPUT_BYTES_MAX = 40000,
    WITH_HELLO = 1, /* bits of the first byte */
    FINISH_AT_MESSAGE = 2,
    LATE = 4,
    SLICED = 8,
};

static struct event_base *base;
static struct grpc_server *server;
static unsigned mode;
static long open_n; /* streams that are ours to end */
static struct grpc_stream *late;

static void require(int ok)
{
    if (!ok)
        abort();
}

static void on_message(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    (void)arg;
    require(n <= MESSAGE_MAX);
    if (mode & FINISH_AT_MESSAGE) {
        open_n--;
        grpc_stream_finish(s, GRPC_ABORTED, "enough");
    } else {
        (void)grpc_stream_send(s, p, n);
    }
}

static void on_half_closed(struct grpc_stream *s, void *arg)
{
    (void)arg;
    open_n--;
    grpc_stream_finish(s, GRPC_OK, NULL);
}

static void on_closed(struct grpc_stream *s, const struct grpc_end *end, void *arg)
{
    (void)arg;
    require(end->code != GRPC_OK && end->text);
    if (late == s)
        late = NULL;
    require(--open_n >= 0);
}

static const struct grpc_stream_cb echo = {
    .on_message = on_message, .on_half_closed = on_half_closed, .on_closed = on_closed};

static void on_open(struct grpc_stream *s, void *arg)
{
    (void)grpc_stream_metadata(s, "authorization");
    open_n++;
    grpc_stream_handle(s, &echo, arg);
}

static void on_request(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    require(n <= MESSAGE_MAX);
    if ((mode & LATE) && !late) {
        late = s;
        open_n++;
        grpc_stream_handle(s, &echo, arg);
    } else {
        grpc_stream_reply(s, p, n);
    }
}

static const struct grpc_method methods[] = {{.path = "/s", .on_open = on_open},
                                             {.path = "/u", .on_request = on_request}};

static void start(void)
{
    struct grpc_server_opts o;
    struct lq_fault fault;
    (void)signal(SIGPIPE, SIG_IGN);
    grpc_server_opts_init(&o);
    o.message_max = MESSAGE_MAX;
    require((base = event_base_new()) && grpc_server_new(base, &o, methods, 2, NULL, &server, &fault) == LQ_OK);
}

static void turn(int fd, struct evbuffer *got)
{
    event_base_loop(base, EVLOOP_NONBLOCK);
    if (late) {
        struct grpc_stream *s = late;
        late = NULL;
        open_n--;
        grpc_stream_reply(s, (const uint8_t *)"late", 4);
    }
    event_base_loop(base, EVLOOP_NONBLOCK);
    while (evbuffer_read(got, fd, -1) > 0) {
    }
}

/* Whole frames to the last byte, none over 16 KB. */
static void judge(struct evbuffer *got)
{
    uint8_t head[9];
    while (evbuffer_copyout(got, head, sizeof head) == sizeof head) {
        size_t n = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        require(n <= 16384 && evbuffer_get_length(got) >= sizeof head + n);
        evbuffer_drain(got, sizeof head + n);
    }
    require(evbuffer_get_length(got) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char hello[] = NGHTTP2_CLIENT_MAGIC "\0\0\0\4\0\0\0\0\0";
    int fd[2];
    if (size < 2 || size > INPUT_BYTES_MAX)
        return 0;
    if (!server)
        start();
    mode = data[0];
    uint32_t seed = data[1];
    struct evbuffer *got = evbuffer_new();
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    require(h2_server_take(server, fd[0], NULL, 0));
    if (mode & WITH_HELLO)
        require(write(fd[1], hello, sizeof hello - 1) == (ssize_t)sizeof hello - 1);
    for (size_t at = 2; at < size;) {
        size_t take = size - at;
        seed = seed * 1664525 + 1013904223;
        if ((mode & SLICED) && take > 1 + (seed >> 8) % 40)
            take = 1 + (seed >> 8) % 40;
        ssize_t sent = write(fd[1], data + at, take);
        if (sent < 0) /* it has closed */
            break;
        at += (size_t)sent;
        turn(fd[1], got);
    }
    turn(fd[1], got);
    turn(fd[1], got);
    close(fd[1]);
    for (int i = 0; i < 10 && grpc_server_connections_n(server) > 0; i++)
        event_base_loop(base, EVLOOP_NONBLOCK);
    require(grpc_server_connections_n(server) == 0 && grpc_server_streams_n(server) == 0 && open_n == 0 && !late);
    judge(got);
    evbuffer_free(got);
    return 0;
}
