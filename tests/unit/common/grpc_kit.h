/* grpc_kit: a gRPC server and channels in one loop, and what each side heard. */
#ifndef LQ_TESTS_UNIT_COMMON_GRPC_KIT_H
#define LQ_TESTS_UNIT_COMMON_GRPC_KIT_H

#include "common/grpc_impl.h"
#include "tests/unit/common/http_kit.h"

struct heard {
    size_t messages_n, bytes, last_n, rooms_n;
    uint8_t last[64]; /* its beginning */
    int half_closed_n, closed_n;
    enum grpc_code code;
    bool lost;
    char text[1100];
    void (*on_each)(struct grpc_stream *s, const uint8_t *p, size_t n, struct heard *h);
    void (*on_over)(struct heard *h);
    struct grpc_site *site;
    struct grpc_stream *stream; /* until it is gone */
};

struct grpc_site {
    struct event_base *base;
    struct grpc_server *server;
    struct grpc_channel *channel;
    struct heard at_server; /* of all its streams */
    char peer[80], key[80];
    bool peer_is_loopback;
    size_t spew_n, spew_left; /* /t/Spew: messages to send, of 1000 bytes */
};

static inline void heard_message(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    struct heard *h = arg;
    h->messages_n++;
    h->bytes += n;
    h->last_n = n;
    memcpy(h->last, p, n < sizeof h->last ? n : sizeof h->last);
    if (h->on_each)
        h->on_each(s, p, n, h);
}

static inline void heard_half_closed(struct grpc_stream *s, void *arg)
{
    (void)s;
    struct heard *h = arg;
    h->half_closed_n++;
}

static inline void heard_room(struct grpc_stream *s, void *arg)
{
    (void)s;
    struct heard *h = arg;
    h->rooms_n++;
}

static inline void heard_closed(struct grpc_stream *s, const struct grpc_end *end, void *arg)
{
    (void)s;
    struct heard *h = arg;
    h->closed_n++;
    h->code = end->code;
    h->lost = end->lost;
    h->stream = NULL;
    snprintf(h->text, sizeof h->text, "%s", end->text);
    if (h->on_over)
        h->on_over(h);
}

static const struct grpc_stream_cb heard_cb = {.on_message = heard_message,
                                               .on_half_closed = heard_half_closed,
                                               .on_room = heard_room,
                                               .on_closed = heard_closed};

static inline void heard_done(const struct grpc_end *end, const uint8_t *p, size_t n, void *arg)
{
    if (p)
        heard_message(NULL, p, n, arg);
    heard_closed(NULL, end, arg);
}

/* ---- methods -------------------------------------------------------------------------------- */

static inline void echo_message(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    struct grpc_site *w = arg;
    heard_message(s, p, n, &w->at_server);
    (void)grpc_stream_send(s, p, n);
}

static inline void echo_half_closed(struct grpc_stream *s, void *arg)
{
    struct grpc_site *w = arg;
    w->at_server.half_closed_n++;
    w->at_server.stream = NULL;
    grpc_stream_finish(s, GRPC_OK, NULL);
}

static inline void site_closed(struct grpc_stream *s, const struct grpc_end *end, void *arg)
{
    heard_closed(s, end, &((struct grpc_site *)arg)->at_server);
}

static inline void on_echo(struct grpc_stream *s, void *arg)
{
    static const struct grpc_stream_cb cb = {
        .on_message = echo_message, .on_half_closed = echo_half_closed, .on_closed = site_closed};
    struct grpc_site *w = arg;
    const char *key = grpc_stream_metadata(s, "authorization");
    snprintf(w->key, sizeof w->key, "%s", key ? key : "");
    snprintf(w->peer, sizeof w->peer, "%s", grpc_stream_peer(s));
    w->peer_is_loopback = grpc_stream_peer_is_loopback(s);
    w->at_server.stream = s;
    grpc_stream_handle(s, &cb, arg);
}

/* Takes what comes, says nothing. */
static inline void on_sink(struct grpc_stream *s, void *arg)
{
    struct grpc_site *w = arg;
    w->at_server.stream = s;
    grpc_stream_handle(s, &heard_cb, &w->at_server);
}

#define REFUSED_TEXT "invalid grid key: 100 % f\xc3\xa4lsch\n"
static inline void on_refuse(struct grpc_stream *s, void *arg)
{
    (void)arg;
    grpc_stream_finish(s, GRPC_UNAUTHENTICATED, REFUSED_TEXT);
}

static inline void spew(struct grpc_stream *s, void *arg)
{
    static const uint8_t some[1000];
    struct grpc_site *w = arg;
    while (w->spew_left > 0) {
        w->spew_left--;
        if (!grpc_stream_send(s, some, sizeof some))
            return;
    }
    w->at_server.stream = NULL;
    grpc_stream_finish(s, GRPC_OK, "that is all");
}

static inline void on_spew(struct grpc_stream *s, void *arg)
{
    static const struct grpc_stream_cb cb = {.on_room = spew, .on_closed = site_closed};
    struct grpc_site *w = arg;
    w->at_server.stream = s;
    grpc_stream_handle(s, &cb, arg);
    w->spew_left = w->spew_n;
    spew(s, arg);
}

static inline void on_unary(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    struct grpc_site *w = arg;
    heard_message(s, p, n, &w->at_server);
    grpc_stream_reply(s, p, n);
}

/* Answers when the test says so. */
static inline void on_late(struct grpc_stream *s, const uint8_t *p, size_t n, void *arg)
{
    struct grpc_site *w = arg;
    (void)p, (void)n;
    w->at_server.stream = s;
    grpc_stream_handle(s, &heard_cb, &w->at_server);
}

static const struct grpc_method site_methods[] = {
    {.path = "/t/Echo", .on_open = on_echo},      {.path = "/t/Sink", .on_open = on_sink},
    {.path = "/t/Refuse", .on_open = on_refuse},  {.path = "/t/Spew", .on_open = on_spew},
    {.path = "/t/Unary", .on_request = on_unary}, {.path = "/t/Late", .on_request = on_late},
};

/* ---- a site ----------------------------------------------------------------------------------- */

static inline void site_open(struct grpc_site *w, const struct grpc_server_opts *so,
                             const struct grpc_channel_opts *co)
{
    struct grpc_server_opts sd;
    struct grpc_channel_opts cd;
    struct lq_fault fault = {0};
    grpc_server_opts_init(&sd);
    grpc_channel_opts_init(&cd);
    *w = (struct grpc_site){.base = kit_base()};
    w->at_server.site = w;
    ck_assert_msg(grpc_server_new(w->base, so ? so : &sd, site_methods, sizeof site_methods / sizeof *site_methods, w,
                                  &w->server, &fault) == LQ_OK,
                  "%s", fault.text);
    ck_assert_msg(grpc_channel_new(w->base, grpc_server_address(w->server), co ? co : &cd, &w->channel, &fault) ==
                      LQ_OK,
                  "%s", fault.text);
}

static inline void site_close(struct grpc_site *w)
{
    grpc_channel_free(w->channel);
    grpc_server_free(w->server);
    kit_turns(w->base, 4);
    event_base_free(w->base);
    libevent_global_shutdown();
}

static inline struct grpc_stream *call(struct grpc_site *w, const char *path, uint32_t deadline_ms, struct heard *h)
{
    static const struct grpc_metadata key = {"authorization", "Bearer sesame"};
    struct grpc_call_opts o = {.path = path, .metadata = &key, .metadata_n = 1, .deadline_ms = deadline_ms};
    struct lq_fault fault = {0};
    h->site = w;
    ck_assert_msg(grpc_call(w->channel, &o, &heard_cb, h, &h->stream, &fault) == LQ_OK, "%s", fault.text);
    return h->stream;
}

static inline void unary(struct grpc_site *w, const char *path, const void *p, size_t n, uint32_t deadline_ms,
                         struct heard *h)
{
    struct grpc_call_opts o = {.path = path, .deadline_ms = deadline_ms};
    struct lq_fault fault = {0};
    h->site = w;
    ck_assert_msg(grpc_unary(w->channel, &o, p, n, heard_done, h, &h->stream, &fault) == LQ_OK, "%s", fault.text);
}

#endif
