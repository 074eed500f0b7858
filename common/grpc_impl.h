/* grpc_impl: structs of common/grpc_*.c, private to them.
 *
 *   grpc_server.c  listener, methods      grpc_channel.c  addresses, calls, unary
 *            \                               /
 *             grpc_conn.c   one HTTP/2 connection: session, keep-alive, rations
 *             grpc_stream.c one call: messages in and out, status, deadline
 *
 * What crosses these files is called h2_... Re-entrance: nghttp2 runs only from the loop (on_read, on_kick), never
 * under a function of grpc.h, which only submit and kick. So callbacks come from the loop alone, and a callback may
 * end anything: connections and their streams are marked dead at once and freed when the last frame on the stack has
 * left them (busy). */
#ifndef LQ_COMMON_GRPC_IMPL_H
#define LQ_COMMON_GRPC_IMPL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <nghttp2/nghttp2.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "common/grpc.h"
#include "common/http.h" /* struct http_headers */
#include "common/log.h"

enum { GRPC_PEER_CHARS = 64 + 8, GRPC_PREFIX_BYTES = 5 };

struct grpc_limits {
    uint32_t message_max;
    uint32_t unary_timeout_ms, ping_interval_ms, ping_timeout_ms, hello_timeout_ms, idle_timeout_ms;
};

struct grpc_stream {
    TAILQ_ENTRY(grpc_stream) entry;
    struct grpc_conn *conn;
    int32_t id;
    struct event *timer;  /* deadline; or the end of an answer that is not read; or an end after this turn */
    uint64_t deadline_us; /* 0: none */

    /* who hears of it */
    bool held;    /* its owner has not ended it, nor heard on_closed */
    bool handled; /* server: grpc_stream_handle() was called */
    struct grpc_stream_cb cb;
    void *arg;
    struct unary *unary; /* client: of grpc_unary(), freed with the stream */

    /* head */
    const struct grpc_method *method; /* server, once it is open */
    struct http_headers *headers;     /* without pseudo-headers */
    size_t header_bytes;
    char *path;
    bool is_post, open;
    int http_status; /* client: 0 until the answer's head came */
    int status;      /* client: grpc-status, -1 until it came */
    char *text;      /* grpc-message, of the one who ends it */

    /* messages in */
    uint8_t prefix[GRPC_PREFIX_BYTES];
    size_t prefix_n;
    uint8_t *message; /* what has come of one */
    size_t message_n, message_have, message_cap;
    size_t messages_n;
    bool half_closed; /* the peer sends no more */

    /* messages out */
    struct evbuffer *out;
    bool answered;       /* server: its headers are submitted */
    bool parked;         /* nghttp2 waits for nghttp2_session_resume_data() */
    bool wants_room;     /* its owner was told to wait */
    bool over;           /* more than GRPC_QUEUED_BYTES_MAX, or out of memory */
    bool last;           /* nothing after what is queued but the end */
    enum grpc_code code; /* server: that end */
};
TAILQ_HEAD(grpc_streams, grpc_stream);

struct grpc_conn {
    TAILQ_ENTRY(grpc_conn) entry; /* of its server or channel */
    struct event_base *base;
    struct grpc_server *server; /* NULL: client's, or the server is gone */
    struct grpc_channel *channel;
    bool is_client, is_tls;
    struct grpc_limits limits;
    struct bufferevent *bev; /* NULL: not dialled */
    nghttp2_session *h2;
    struct event *timer, *kick;
    unsigned busy;  /* frames on the stack that use it */
    bool connected; /* TCP and TLS are there */
    bool up;        /* the peer's SETTINGS came */
    bool going;     /* GOAWAY went or came: no new streams */
    bool dying;     /* only what is in the output goes out */
    bool dead;
    bool paused; /* the output is full: not read */
    struct grpc_streams streams;
    size_t streams_n;
    size_t held_bytes; /* of messages that have come in part */
    uint64_t born_us, heard_us, idle_us;
    uint64_t wrote_us; /* paused or going: when the peer took something, or was told to go */
    uint64_t ping_us; /* when a PING went out that is not answered; 0: none */
    uint64_t ration_us;
    double ration; /* control frames the peer may still send */
    char peer[GRPC_PEER_CHARS];
    bool peer_is_loopback;
    struct sockaddr_storage address; /* its; family 0: none */
    /* client: dialling */
    struct resolve_job *lookup;
    struct addrinfo *addrs, *addrs_left;
    char dial_error[200];
};
TAILQ_HEAD(grpc_conns, grpc_conn);

/* ---- grpc_conn.c ---- */

/* A connection without a socket; NULL: out of memory. */
struct grpc_conn *h2_conn_new(struct event_base *base, bool is_client, const struct grpc_limits *limits);
/* Takes bev: accepted, or about to be told to connect. One that c had is freed. */
void h2_conn_open(struct grpc_conn *c, struct bufferevent *bev, bool is_tls);
void h2_conn_set_peer(struct grpc_conn *c, const struct sockaddr *a, socklen_t a_n);
/* Around everything that may call back: between the two c stays, if only as a shell. */
void h2_conn_enter(struct grpc_conn *c);
void h2_conn_leave(struct grpc_conn *c);
/* Soon: sends what is submitted. */
void h2_conn_kick(struct grpc_conn *c);
void h2_conn_arm(struct grpc_conn *c);
/* GOAWAY; closes when its last stream has ended. */
void h2_conn_drain(struct grpc_conn *c);
/* Closes now. Open streams hear of it: lost, with that code and text. */
void h2_conn_close(struct grpc_conn *c, enum grpc_code code, const char *text);

/* ---- grpc_stream.c ---- */

struct grpc_stream *h2_stream_new(struct grpc_conn *c); /* in c's list */
void h2_stream_free(struct grpc_stream *s);
void h2_stream_set_deadline(struct grpc_stream *s, uint64_t us);
/* Its end reaches the owner, if it holds it still. */
void h2_stream_closed(struct grpc_stream *s, enum grpc_code code, bool lost, const char *text);
/* Ends it on our side's account: the peer is told, then the owner. */
void h2_stream_fail(struct grpc_stream *s, enum grpc_code code, const char *fmt, ...) LQ_PRINTF(3, 4);
/* False: out of memory. */
bool h2_stream_header(struct grpc_stream *s, const char *name, size_t name_n, const char *value, size_t value_n);
void h2_stream_data(struct grpc_stream *s, const uint8_t *p, size_t n);
void h2_stream_half_closed(struct grpc_stream *s);
/* Server: the request's head is whole. */
void h2_stream_open(struct grpc_stream *s);
/* Client: a block of the answer's headers is whole. */
void h2_stream_answer(struct grpc_stream *s);
/* Client: sends the request's head. */
bool h2_stream_request(struct grpc_stream *s, const nghttp2_nv *nv, size_t nv_n);

/* ---- grpc_server.c ---- */

/* NULL: no such method. arg: for its callbacks. */
const struct grpc_method *h2_server_method(const struct grpc_server *s, const char *path, void **arg);
/* A connected socket becomes a connection of s. False: out of memory, and closed. */
bool h2_server_take(struct grpc_server *s, int fd, const struct sockaddr *a, socklen_t a_n);
void h2_server_forget(struct grpc_server *s, struct grpc_conn *c);
void h2_server_count_streams(struct grpc_server *s, int more);

/* ---- grpc_channel.c ---- */

void h2_channel_dial(struct grpc_conn *c);
/* That address did not answer: the next. False: there is none; c->dial_error says why. */
bool h2_channel_dial_next(struct grpc_conn *c);
/* TCP is there. True: c goes on to TLS, or is closed. */
bool h2_channel_encrypt(struct grpc_conn *c);
void h2_channel_dial_end(struct grpc_conn *c);
void h2_channel_forget(struct grpc_channel *ch, struct grpc_conn *c);
void h2_unary_free(struct unary *u);           /* NULL is fine */
void h2_channel_calm(struct grpc_channel *ch); /* the server finds our PINGs too many */

/* ---- grpc_tls.c ---- */

/* NULL: out of memory. Takes fd on success only. */
struct bufferevent *grpc_tls_accept(struct event_base *base, struct tls *tls, int fd);
struct bufferevent *grpc_tls_connect(struct event_base *base, struct tls *tls, const char *host, int fd);
bool grpc_tls_is_h2(struct bufferevent *bev);
/* Why a connection failed, into buf. */
void grpc_tls_why(struct bufferevent *bev, int error, char *buf, size_t buf_n);
void grpc_tls_goodbye(struct bufferevent *bev); /* close_notify, as far as the socket takes it */

/* ---- grpc_text.c ---- */

/* grpc-message: percent-encoded, cut to fit out_n (whole characters), terminated. */
void grpc_text_encode(const char *in, char *out, size_t out_n);
void grpc_text_decode(const char *in, size_t in_n, char *out, size_t out_n);
bool grpc_timeout_parse(const char *text, uint64_t *us); /* "100m" */
void grpc_timeout_text(uint32_t ms, char out[16]);
enum grpc_code grpc_code_of_http(int status);
enum grpc_code grpc_code_of_h2(uint32_t error);

#endif
