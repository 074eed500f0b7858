/* http: HTTP/1.0 and 1.1 for servers and clients, on libevent bufferevents with
 * llhttp as tokenizer (ADR 0003: why not evhttp). Strict as docs/protocol.md 6b.
 * Bodies stream both ways and are moved between evbuffers by reference.
 * Owner : everything belongs to the thread of its event_base; no locks.
 * Rules : a request is answered exactly once (asserted); no callback runs after
 *         its object is freed; an object may be ended inside its own callback.
 * TCP_NODELAY is set on every TCP socket. */
#ifndef LQ_COMMON_HTTP_H
#define LQ_COMMON_HTTP_H

#include <event2/buffer.h>
#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "proto/err.h"

enum {
    HTTP_HEADER_BYTES_MAX = 16384, /* start line + headers: 431 beyond */
    HTTP_HEADERS_MAX = 128,
    HTTP_HIGH_WATER_BYTES = 256 * 1024, /* a streamed direction pauses its source above */
};
#define HTTP_LENGTH_UNKNOWN UINT64_MAX

/* ---- headers: a small ordered list ---------------------------------- */

struct http_headers; /* names compare without case */

struct http_headers *http_headers_new(void);
void http_headers_free(struct http_headers *h);
/* Copies both. False: out of memory, or a byte that would break the framing. */
bool http_headers_add(struct http_headers *h, const char *name, const char *value) LQ_MUST_CHECK;
bool http_headers_add_u64(struct http_headers *h, const char *name, uint64_t v) LQ_MUST_CHECK;
/* First line of that name, or NULL; lives as long as h is unchanged. */
const char *http_headers_get(const struct http_headers *h, const char *name);
/* All lines of that name joined by ", " into buf; NULL when there is none;
 * a list that does not fit is cut at the last whole line. */
const char *http_headers_join(const struct http_headers *h, const char *name, char *buf, size_t buf_n);
size_t http_headers_n(const struct http_headers *h);
/* Adds from's line i. */
bool http_headers_copy(struct http_headers *to, const struct http_headers *from, size_t i) LQ_MUST_CHECK;
void http_headers_at(const struct http_headers *h, size_t i, const char **name, const char **value);

/* ---- server ---------------------------------------------------------- */

struct http_server;
struct keys;
struct tls;
struct http_req; /* one exchange; lives from on_request until answered or gone */

struct http_server_opts {
    const char *host; /* name or address; ignored with unix_path */
    int port;         /* 0: a free one */
    const char *unix_path;
    uint32_t header_timeout_ms; /* 10000: header not whole -> 408 */
    uint32_t body_timeout_ms;   /* 30000: body without a byte, answer unread -> 408 / close */
    uint32_t idle_timeout_ms;   /* 75000: keep-alive */
    uint32_t connections_max;   /* 0: what the open-file limit allows, less 64 */
    const char *server_name;    /* Server: header */
    /* NULL: plain. Borrowed; must outlive the server. A handshake must end within
     * header_timeout_ms. Without effect on a unix socket. */
    struct tls *tls;
    /* Several loops, one listener: the second and further servers name the first, whose
     * socket they accept from too (EPOLLEXCLUSIVE, not SO_REUSEPORT: a port has one
     * owner). It must outlive their http_server_new() only. Each takes its share of
     * connections_max. */
    const struct http_server *shared; /* NULL: binds a socket of its own */
    uint32_t loops_n;                 /* how many share it, this one included; 0 as 1 */
};
void http_server_opts_init(struct http_server_opts *o); /* the defaults above */

/* Called when the header is whole and legal. It must, now or later, either answer
 * or read the body and then answer. Expect: 100-continue is answered by
 * http_req_read() when the length is within its limit. */
typedef void (*http_on_request)(struct http_req *r, void *arg);

/* Binds and listens (SO_REUSEADDR, not SO_REUSEPORT). LQ_IO names host, port, cause. */
enum lq_err http_server_new(struct event_base *base, const struct http_server_opts *o, http_on_request on_request,
                            void *arg, struct http_server **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* "http://HOST:PORT" (https:// with TLS) with the real port, IPv6 in brackets, or "unix:/path". */
const char *http_server_url(const struct http_server *s);
size_t http_server_connections_n(const struct http_server *s); /* from any thread */
/* Stops accepting, closes idle connections, answers carry Connection: close. */
void http_server_drain(struct http_server *s);
/* Closes everything; open requests get their on_gone. */
void http_server_free(struct http_server *s);

/* What the listener and the framing turn away, by reason; QUEUE and KEY are for handlers.
 * CONNECTIONS: how often accepting stopped at connections_max, or for want of descriptors
 * (newcomers then wait in the backlog); TIMEOUT: a head or body too slow, an answer unread. */
enum http_refused {
    HTTP_REFUSED_CONNECTIONS,
    HTTP_REFUSED_HEADER,
    HTTP_REFUSED_FRAMING,
    HTTP_REFUSED_BODY,
    HTTP_REFUSED_TIMEOUT,
    HTTP_REFUSED_QUEUE,
    HTTP_REFUSED_KEY,
    HTTP_REFUSED_N
};
#define HTTP_REFUSED_WORDS "connections", "header", "framing", "body", "timeout", "queue", "key"
struct metric;
/* Counts them from now on, in counters[HTTP_REFUSED_N], which must outlive the server. */
void http_server_count_refused(struct http_server *s, struct metric *const *counters);

/* Facts of a request; strings live as long as it does. */
const char *http_req_method(const struct http_req *r); /* "POST" */
const char *http_req_path(const struct http_req *r);   /* decoded no further than split at '?' */
const char *http_req_query(const struct http_req *r);  /* after '?', or "" */
const struct http_headers *http_req_headers(const struct http_req *r);
uint64_t
http_req_length(const struct http_req *r); /* Content-Length; 0 without a body; HTTP_LENGTH_UNKNOWN: chunked */
const char *http_req_id(const struct http_req *r); /* X-Request-Id of the client, or one made here */
struct event_base *http_req_base(const struct http_req *r);
uint64_t http_req_start_us(const struct http_req *r); /* header whole */
/* Who sent it: the socket's peer. False: not known. */
bool http_req_peer(const struct http_req *r, struct sockaddr_storage *a);

/* May r's body be read? LQ_BAD_EXPECT, or LQ_BIG_BODY when its length is over limit_bytes:
 * what http_req_read() answers by itself, for who must know before. */
enum lq_err http_req_may_read(const struct http_req *r, uint64_t limit_bytes, struct lq_fault *fault) LQ_MUST_CHECK;

/* Reads the body. Over limit_bytes (by Content-Length, or while reading) the
 * layer itself answers 413 `body of N bytes is over the limit of M`, then
 * on_gone. on_data gets all body bytes that are there in `in` and drains what
 * it takes; what it leaves stays for the next call, and at HTTP_HIGH_WATER_BYTES
 * left the socket is no longer read until http_req_resume(). on_end: all bytes
 * came (and `in` may still hold what on_data left). on_data NULL: everything is
 * kept, and on_end finds the whole body in `in`.
 * Legal to call once. Callbacks may come before it returns. */
typedef void (*http_req_on_data)(struct http_req *r, struct evbuffer *in, void *arg);
void http_req_read(struct http_req *r, uint64_t limit_bytes, http_req_on_data on_data, http_req_on_data on_end,
                   void *arg);
void http_req_resume(struct http_req *r); /* on_data again as soon as may be: the taker has room */

/* The client left, broke the framing or ran into a timeout before the answer was
 * begun or ended: r is gone when fn returns. Without fn set r must not be held. */
void http_req_on_gone(struct http_req *r, void (*fn)(struct http_req *r, void *arg), void *arg);

/* Answers. `headers` is borrowed and may be NULL; Content-Length, Date, Server,
 * Connection, X-Request-Id are added here. body (NULL: none) is drained, by
 * reference. After http_req_reply() / _reply_end() r is gone. With request bytes
 * unread the connection is closed the gentle way (docs/protocol.md, 4, end). */
void http_req_reply(struct http_req *r, int status, const struct http_headers *headers, struct evbuffer *body);
/* The JSON error of a fault: status by code, {"error","request_id"}, Retry-After: 1
 * on 503 and 10 on 429, WWW-Authenticate on 401, Allow when `allow` is given. */
void http_req_reply_fault(struct http_req *r, const struct lq_fault *fault, const char *allow);
/* Convenience: a JSON text of n bytes (copied). */
void http_req_reply_text(struct http_req *r, int status, const char *content_type, const char *text, size_t n);

/* Streamed answer: start, data (drained, by reference) until true is no longer
 * returned (then wait for on_room), end. length HTTP_LENGTH_UNKNOWN: chunked
 * (HTTP/1.0: until close). _abort closes the connection, so that a cut body never
 * looks complete; also legal before _start. */
void http_req_reply_start(struct http_req *r, int status, const struct http_headers *headers, uint64_t length);
bool http_req_reply_data(struct http_req *r, struct evbuffer *data);
void http_req_on_room(struct http_req *r, void (*fn)(struct http_req *r, void *arg), void *arg);
void http_req_reply_end(struct http_req *r);
void http_req_abort(struct http_req *r);

/* ---- client: a pool of keep-alive connections to one origin ---------- */

struct http_pool;
struct http_call;

struct http_pool_opts {
    uint32_t connect_timeout_ms; /* 1000; TLS's handshake included */
    uint32_t idle_timeout_ms;    /* 60000: shorter than the servers' 75 s */
    uint32_t inflight_max;       /* 64; further calls wait in order (their deadline runs) */
    uint32_t idle_max;           /* 64 connections kept */
    struct tls *tls;             /* for https://; borrowed, must outlive the pool */
    /* Each call carries `Authorization: Bearer` with the first of them, as it is then; NULL:
     * none. Borrowed, must outlive the pool. */
    const struct keys *keys;
    /* The peer ended a connection that was kept: perhaps it is gone. Starts no call. NULL: not wanted. */
    void (*on_idle_end)(void *arg);
    void *arg;
};
void http_pool_opts_init(struct http_pool_opts *o);

/* url: http://HOST[:PORT][/] (80), https:// (443; needs o->tls), unix:/path. Anything else:
 * LQ_USAGE naming it. A trailing slash is ignored. Names are resolved without blocking. */
enum lq_err http_pool_new(struct event_base *base, const char *url, const struct http_pool_opts *o,
                          struct http_pool **out, struct lq_fault *fault) LQ_MUST_CHECK;
const char *http_pool_url(const struct http_pool *p);     /* without the trailing slash */
uint32_t http_pool_inflight_n(const struct http_pool *p); /* from any thread */
/* Open calls end with LQ_CANCELLED (their on_end runs). */
void http_pool_free(struct http_pool *p);

struct http_call_cb {
    /* Head of the answer (1xx are swallowed). NULL: not wanted. */
    void (*on_head)(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg);
    /* Body bytes; same rules as http_req_on_data with http_call_resume(). NULL: the
     * body is kept, up to answer_max bytes, for on_end. */
    void (*on_data)(struct http_call *c, struct evbuffer *in, void *arg);
    /* Exactly once, then c is gone. LQ_OK: a whole answer (any status), `in` holds
     * what on_data left. LQ_SHARD_DOWN (connect, reset, closed early), LQ_BAD_ANSWER
     * (framing), LQ_BIG_BODY (over answer_max), LQ_DEADLINE, LQ_CANCELLED, LQ_NOMEM: fault
     * says why. */
    void (*on_end)(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault, void *arg);
    /* A streamed request body may go on: below the high-water mark. */
    void (*on_room)(struct http_call *c, void *arg);
};

struct http_call_opts {
    const char *method, *path;          /* copied */
    const struct http_headers *headers; /* copied; Host, Content-Length are added here */
    struct evbuffer *body;              /* whole body: referenced, not drained, so that it can be sent again;
                                         * unchanged while the call lives; NULL: none, or streamed */
    uint64_t stream_length;             /* with http_call_send(): Content-Length, or HTTP_LENGTH_UNKNOWN: chunked */
    bool streamed;
    uint64_t deadline_ms; /* from now, everything included; 0: none */
    uint64_t answer_max;  /* bytes of an answer kept or passed; 0: no limit */
};

/* Starts a call; on_end is never called from inside this function. When it returns
 * an error no callback runs. A pooled connection that the peer had closed before
 * a byte of the answer is retried once here, on a fresh connection, when the body
 * is whole; a streamed one always gets a fresh connection. */
enum lq_err http_call_start(struct http_pool *p, const struct http_call_opts *o, const struct http_call_cb *cb,
                            void *arg, struct http_call **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* Streamed body: drains data; false: wait for on_room before more. Then _send_end. */
bool http_call_send(struct http_call *c, struct evbuffer *data);
void http_call_send_end(struct http_call *c);
void http_call_resume(struct http_call *c);
/* Ends it without on_end; c is gone. */
void http_call_cancel(struct http_call *c);

#endif
