/* grpc_peer: our gRPC and our messages as a server and as a client, for another
 * implementation to talk to (tests/grid/test_grpc_interop.py).
 *   grpc_peer serve [CERT KEY]        ready url=HOST:PORT; until it is terminated
 *   grpc_peer join HOST:PORT [CA]     joins, beats, asks; one line for all that it hears */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grid_msg.h"
#include "common/loop.h"
#include "common/tls.h"

enum { BEATS_N = 200 };

static struct loop *loop;
static struct grpc_server *server;
static struct grpc_channel *channel;
static struct grpc_stream *join;
static int asks_left_n = 3;
static char big_reason[100001];

static void die(const struct lq_fault *fault)
{
    fprintf(stderr, "grpc_peer: %s\n", fault->text);
    exit(1);
}

static struct tls *make_tls(enum tls_side side, const char *cert, const char *key, const char *ca)
{
    static const char *const h2[] = {"h2", NULL};
    struct tls_opts o = {.side = side, .cert_path = cert, .key_path = key, .ca_path = ca, .protocols = h2};
    struct tls *tls;
    struct lq_fault fault;
    if (!cert && !ca)
        return NULL;
    if (tls_new(&o, &tls, &fault) != LQ_OK)
        die(&fault);
    return tls;
}

/* ---- a server ------------------------------------------------------------------------------- */

/* Announced: acknowledged. Each beat: an assignment of as many layers. Dropping: the end. */
static void on_shard_message(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    (void)arg;
    struct lq_fault fault;
    Larql__Grid__V1__ServerMessage *m = grid_msg_parse(&larql__grid__v1__server_message__descriptor, p, n, &fault);
    Larql__Grid__V1__RouterMessage out = LARQL__GRID__V1__ROUTER_MESSAGE__INIT;
    Larql__Grid__V1__AckMsg ack = LARQL__GRID__V1__ACK_MSG__INIT;
    Larql__Grid__V1__AssignMsg assign = LARQL__GRID__V1__ASSIGN_MSG__INIT;
    if (!m) {
        grpc_stream_finish(s, GRPC_INVALID_ARGUMENT, fault.text);
        return;
    }
    if (m->payload_case == LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_ANNOUNCE) {
        out.payload_case = LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ACK;
        out.ack = &ack;
        ack.server_id = m->announce->listen_url;
        (void)grid_msg_send(s, &out.base);
    } else if (m->payload_case == LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_HEARTBEAT) {
        out.payload_case = LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ASSIGN;
        out.assign = &assign;
        assign.layer_end = (uint32_t)m->heartbeat->n_layer_stats;
        (void)grid_msg_send(s, &out.base);
    } else if (m->payload_case == LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_DROPPING) {
        grpc_stream_finish(s, GRPC_ABORTED, m->dropping->reason);
    }
    grid_msg_free(m);
}

static void on_shard_half_closed(struct grpc_stream *s, void *arg)
{
    (void)arg;
    grpc_stream_finish(s, GRPC_OK, NULL);
}

static void on_shard_closed(struct grpc_stream *s, const struct grpc_end *end, void *arg)
{
    (void)s, (void)arg;
    fprintf(stderr, "closed code=%s lost=%d\n", grpc_code_word(end->code), end->lost);
}

static void on_join(struct grpc_stream *s, void *arg)
{
    static const struct grpc_stream_cb cb = {
        .on_message = on_shard_message, .on_half_closed = on_shard_half_closed, .on_closed = on_shard_closed};
    const char *key = grpc_stream_metadata(s, "authorization");
    if (key && strcmp(key, "Bearer sesame") == 0)
        grpc_stream_handle(s, &cb, arg);
    else
        grpc_stream_finish(s, GRPC_UNAUTHENTICATED, "invalid grid key: 100 % f\xc3\xa4lsch");
}

static void on_status(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    (void)p, (void)n, (void)arg;
    enum { SERVERS_N = 3000 };
    static Larql__Grid__V1__ServerInfo one[SERVERS_N];
    static Larql__Grid__V1__ServerInfo *list[SERVERS_N];
    Larql__Grid__V1__StatusResponse out = LARQL__GRID__V1__STATUS_RESPONSE__INIT;
    for (size_t i = 0; i < SERVERS_N; i++) {
        one[i] = (Larql__Grid__V1__ServerInfo)LARQL__GRID__V1__SERVER_INFO__INIT;
        one[i].server_id = (char *)(uintptr_t) "s";
        one[i].listen_url = (char *)(uintptr_t) "http://a-rather-long-name-of-a-host.example:8080";
        one[i].layer_end = (uint32_t)i;
        list[i] = &one[i];
    }
    out.n_servers = SERVERS_N;
    out.servers = list;
    grid_msg_reply(s, &out.base);
}

static void on_drain_server(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    (void)arg;
    struct lq_fault fault;
    Larql__Grid__V1__DrainRequest *m = grid_msg_parse(&larql__grid__v1__drain_request__descriptor, p, n, &fault);
    Larql__Grid__V1__AdminAck out = LARQL__GRID__V1__ADMIN_ACK__INIT;
    if (!m) {
        grpc_stream_finish(s, GRPC_INVALID_ARGUMENT, fault.text);
        return;
    }
    out.ok = 1;
    out.message = m->reason;
    grid_msg_reply(s, &out.base);
    grid_msg_free(m);
}

static void on_sigterm(void *arg)
{
    (void)arg;
    loop_stop(loop);
}

static int serve(const char *cert, const char *key)
{
    static const struct grpc_method methods[] = {{.path = GRID_JOIN_PATH, .on_open = on_join},
                                                 {.path = GRID_STATUS_PATH, .on_request = on_status},
                                                 {.path = GRID_DRAIN_PATH, .on_request = on_drain_server}};
    struct grpc_server_opts o;
    struct lq_fault fault;
    struct tls *tls = make_tls(TLS_SERVER, cert, key, NULL);
    grpc_server_opts_init(&o);
    o.tls = tls;
    if (grpc_server_new(loop_base(loop), &o, methods, sizeof methods / sizeof *methods, NULL, &server, &fault) !=
        LQ_OK)
        die(&fault);
    if (loop_on_signals(loop, on_sigterm, NULL) != LQ_OK)
        return 1;
    printf("ready url=%s\n", grpc_server_address(server));
    fflush(stdout);
    loop_run(loop);
    grpc_server_free(server);
    tls_free(tls);
    return 0;
}

/* ---- a client -------------------------------------------------------------------------------- */

static void on_router_message(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    (void)s, (void)arg;
    struct lq_fault fault;
    Larql__Grid__V1__RouterMessage *m = grid_msg_parse(&larql__grid__v1__router_message__descriptor, p, n, &fault);
    if (!m)
        printf("bad %s\n", fault.text);
    else if (m->payload_case == LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ACK)
        printf("ack %s\n", m->ack->server_id);
    else if (m->payload_case == LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_UNASSIGN)
        printf("unassign %u %zu\n", m->unassign->layer_end, strlen(m->unassign->reason));
    else
        printf("kind %d\n", (int)m->payload_case);
    grid_msg_free(m);
}

static void asked(void)
{
    if (--asks_left_n == 0)
        loop_stop(loop);
}

static void on_done(const struct grpc_end *end, const uint8_t *p, size_t n, void *arg)
{
    struct lq_fault fault;
    Larql__Grid__V1__AdminAck *m = p ? grid_msg_parse(&larql__grid__v1__admin_ack__descriptor, p, n, &fault) : NULL;
    printf("%s %s %s %s\n", (const char *)arg, grpc_code_word(end->code), m && m->ok ? "ok" : "-",
           m ? m->message : end->text);
    grid_msg_free(m);
    asked();
}

static void on_joined_end(struct grpc_stream *s, const struct grpc_end *end, void *arg)
{
    (void)s, (void)arg;
    printf("end %s lost=%d %s\n", grpc_code_word(end->code), end->lost, end->text);
    asked();
}

static void ask(const char *path, uint32_t deadline_ms)
{
    Larql__Grid__V1__DrainRequest m = LARQL__GRID__V1__DRAIN_REQUEST__INIT;
    struct grpc_call_opts o = {.path = path, .deadline_ms = deadline_ms};
    struct lq_fault fault;
    size_t n;
    m.server_id = (char *)(uintptr_t) "s-1";
    uint8_t *p = grid_msg_pack(&m.base, &n);
    if (!p || grpc_unary(channel, &o, p, n, on_done, (void *)(uintptr_t)path, NULL, &fault) != LQ_OK)
        die(&fault);
    free(p);
}

static void say_all(void)
{
    Larql__Grid__V1__ServerMessage m = LARQL__GRID__V1__SERVER_MESSAGE__INIT;
    Larql__Grid__V1__AnnounceMsg announce = LARQL__GRID__V1__ANNOUNCE_MSG__INIT;
    Larql__Grid__V1__HeartbeatMsg beat = LARQL__GRID__V1__HEARTBEAT_MSG__INIT;
    Larql__Grid__V1__DroppingMsg dropping = LARQL__GRID__V1__DROPPING_MSG__INIT;
    announce.model_id = (char *)(uintptr_t) "gemma-\xc3\xa4";
    announce.layer_end = 25;
    announce.ram_bytes = UINT64_C(1) << 40;
    announce.listen_url = (char *)(uintptr_t) "http://10.0.0.1:8080";
    m.payload_case = LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_ANNOUNCE;
    m.announce = &announce;
    (void)grid_msg_send(join, &m.base);
    m.payload_case = LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_HEARTBEAT;
    m.heartbeat = &beat;
    for (unsigned i = 0; i < BEATS_N; i++) {
        beat.requests_in_flight = i;
        beat.cpu_pct = 12.5f;
        (void)grid_msg_send(join, &m.base);
    }
    memset(big_reason, 'x', sizeof big_reason - 1); /* over a frame, and over HTTP/2's first window */
    dropping.reason = big_reason;
    m.payload_case = LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_DROPPING;
    m.dropping = &dropping;
    (void)grid_msg_send(join, &m.base);
    grpc_stream_half_close(join);
}

static int join_it(const char *address, const char *ca)
{
    static const struct grpc_stream_cb cb = {.on_message = on_router_message, .on_closed = on_joined_end};
    static const struct grpc_metadata key = {"authorization", "Bearer sesame"};
    struct grpc_call_opts call = {.path = GRID_JOIN_PATH, .metadata = &key, .metadata_n = 1};
    struct grpc_channel_opts o;
    struct lq_fault fault;
    struct tls *tls = make_tls(TLS_CLIENT, NULL, NULL, ca);
    grpc_channel_opts_init(&o);
    o.tls = tls;
    if (grpc_channel_new(loop_base(loop), address, &o, &channel, &fault) != LQ_OK ||
        grpc_call(channel, &call, &cb, NULL, &join, &fault) != LQ_OK)
        die(&fault);
    say_all();
    ask(GRID_DRAIN_PATH, 20000);
    ask(GRID_ASSIGN_PATH, 300);
    loop_run(loop);
    grpc_channel_free(channel);
    tls_free(tls);
    return 0;
}

int main(int argc, char **argv)
{
    int rc = 2;
    loop = loop_new();
    if (argc >= 2 && strcmp(argv[1], "serve") == 0)
        rc = serve(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL);
    else if (argc >= 3 && strcmp(argv[1], "join") == 0)
        rc = join_it(argv[2], argc > 3 ? argv[3] : NULL);
    else
        fprintf(stderr, "usage: grpc_peer serve [CERT KEY] | join HOST:PORT [CA]\n");
    loop_free(loop);
    return rc;
}
