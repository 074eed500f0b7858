/* join: see join.h.
 *   JOIN_WAITING -> JOIN_ASKING -> JOIN_IN -> JOIN_LEAVING (told to drain) -> JOIN_OUT
 *        ^--------------'-----------'  the stream ended: again, later */
#include "shard/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "common/grid_msg.h"
#include "common/keys.h"
#include "common/log.h"
#include "shard/layer_stats.h"
#include "shard/load.h"
#include "shard/shard.h"

enum {
    HEARTBEAT_MS = 10000,
    RETRY_FIRST_MS = 100,
    RETRY_LAST_MS = 30000,
    DRAIN_POLL_MS = 100,
    DRAIN_LAST_US = 30000000,
    ROUTERS_MAX = 64,
    LAYERS_TOLD_MAX = 1024,
    ROUTER_TEXT = 256,
};

enum link_up { JOIN_WAITING, JOIN_ASKING, JOIN_IN, JOIN_LEAVING, JOIN_OUT };

struct router_link {
    struct join *join;
    struct grpc_channel *channel;
    struct grpc_stream *stream; /* NULL: none */
    struct event *timer;        /* the next try, heartbeat, or look at what is in flight */
    enum link_up state;
    uint32_t retry_ms;
    bool rejected;
    uint64_t leave_us, beat_us; /* when it was told to drain; the last heartbeat */
    char id[64];       /* what the router calls us */
    char assigned[ROUTER_TEXT]; /* a spare: the model that it loads for this router; "": nothing */
    uint32_t first, last;
};

struct join {
    struct shard *s;
    struct join_opts opts;
    struct router_link links[ROUTERS_MAX];
    size_t links_n;
    bool draining;
};

static void timer_in(struct router_link *l, uint32_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    evtimer_add(l->timer, &tv);
}

/* Half of it fixed, half by chance: many shards of one router do not come back at once. */
static void try_later(struct router_link *l)
{
    uint32_t jitter = (uint32_t)(((uint64_t)random() * (l->retry_ms / 2 + 1)) >> 31);
    l->state = JOIN_WAITING;
    l->stream = NULL;
    timer_in(l, l->retry_ms / 2 + jitter);
    l->retry_ms = l->retry_ms < RETRY_LAST_MS / 2 ? l->retry_ms * 2 : RETRY_LAST_MS;
}

/* ---- what is said ---------------------------------------------------------------- */

static void send_msg(struct router_link *l, Larql__Grid__V1__ServerMessage__PayloadCase kind, void *msg)
{
    Larql__Grid__V1__ServerMessage out = LARQL__GRID__V1__SERVER_MESSAGE__INIT;
    out.payload_case = kind;
    out.announce = msg; /* a union of pointers */
    (void)grid_msg_send(l->stream, &out.base);
}

static void announce(struct router_link *l)
{
    const struct shard *s = l->join->s;
    char identity[HASH256_TEXT_BYTES];
    struct shard_load load;
    load_read(&l->join->s->load, clock_us(), &load);
    Larql__Grid__V1__AnnounceMsg msg = LARQL__GRID__V1__ANNOUNCE_MSG__INIT;
    msg.model_id = (char *)(uintptr_t)s->model_id;
    msg.layer_start = s->layer_first;
    msg.layer_end = s->layer_last;
    msg.ram_bytes = load.ram_used_bytes;
    msg.listen_url = (char *)(uintptr_t)l->join->opts.public_url;
    msg.vindex_hash = (char *)(uintptr_t)hash256_text(&s->identity.model, identity);
    send_msg(l, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_ANNOUNCE, &msg);
}

static void heartbeat(struct router_link *l)
{
    struct shard *s = l->join->s;
    struct shard_load load;
    struct layer_latency lat[LAYERS_TOLD_MAX];
    Larql__Grid__V1__LayerLatency told[LAYERS_TOLD_MAX], *list[LAYERS_TOLD_MAX];
    Larql__Grid__V1__HeartbeatMsg msg = LARQL__GRID__V1__HEARTBEAT_MSG__INIT;
    load_read(&s->load, clock_us(), &load);
    msg.cpu_pct = load.cpu_pct;
    msg.ram_used = load.ram_used_bytes;
    msg.requests_in_flight = load.in_flight;
    msg.req_per_sec = load.requests_per_s;
    msg.n_layer_stats = s->layer_stats ? layer_stats_snapshot(s->layer_stats, lat, LAYERS_TOLD_MAX) : 0;
    msg.layer_stats = list;
    for (size_t i = 0; i < msg.n_layer_stats; i++) {
        larql__grid__v1__layer_latency__init(&told[i]);
        told[i].layer = lat[i].layer;
        told[i].avg_ms = lat[i].avg_ms;
        told[i].p99_ms = lat[i].p99_ms;
        list[i] = &told[i];
    }
    send_msg(l, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_HEARTBEAT, &msg);
    l->beat_us = clock_us();
}

static void available(struct router_link *l)
{
    Larql__Grid__V1__AvailableMsg msg = LARQL__GRID__V1__AVAILABLE_MSG__INIT;
    msg.ram_bytes = l->join->opts.ram_bytes;
    msg.disk_bytes = l->join->opts.disk_bytes;
    msg.store_path = (char *)(uintptr_t)l->join->opts.store;
    send_msg(l, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_AVAILABLE, &msg);
    l->state = JOIN_IN; /* nothing comes back until there is something to load */
    l->assigned[0] = '\0';
    timer_in(l, HEARTBEAT_MS);
}

static void refuse(struct router_link *l, const char *model, uint32_t first, uint32_t last, const char *why)
{
    Larql__Grid__V1__RefuseMsg msg = LARQL__GRID__V1__REFUSE_MSG__INIT;
    msg.model_id = (char *)(uintptr_t)model;
    msg.layer_start = first;
    msg.layer_end = last;
    msg.reason = (char *)(uintptr_t)why;
    send_msg(l, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_REFUSE, &msg);
}

/* Says so, and ends the stream in the orderly way. */
static void drop(struct router_link *l, const char *why)
{
    const struct shard *s = l->join->s;
    Larql__Grid__V1__DroppingMsg msg = LARQL__GRID__V1__DROPPING_MSG__INIT;
    msg.model_id = (char *)(uintptr_t)s->model_id;
    msg.layer_start = s->layer_first;
    msg.layer_end = s->layer_last;
    msg.reason = (char *)(uintptr_t)why;
    if (!l->join->opts.spare)
        send_msg(l, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_DROPPING, &msg);
    grpc_stream_half_close(l->stream);
    l->state = JOIN_OUT;
    evtimer_del(l->timer);
}

/* ---- what is heard ------------------------------------------------------------------ */

static void on_ack(struct router_link *l, const Larql__Grid__V1__AckMsg *a)
{
    snprintf(l->id, sizeof l->id, "%s", a->server_id);
    l->retry_ms = RETRY_FIRST_MS;
    l->state = JOIN_IN;
    log_info("joined router=%s server_id=%s", grpc_channel_address(l->channel), log_q(l->id));
    heartbeat(l);
    timer_in(l, HEARTBEAT_MS);
}

static void on_reject(struct router_link *l, const Larql__Grid__V1__RejectMsg *r)
{
    log_error("join_rejected router=%s why=%s", grpc_channel_address(l->channel), log_q(r->reason));
    l->rejected = true; /* the end of the stream follows */
}

static void on_unassign(struct router_link *l, const Larql__Grid__V1__UnassignMsg *u)
{
    log_info("unassigned router=%s why=%s", grpc_channel_address(l->channel), log_q(u->reason));
    l->state = JOIN_LEAVING;
    l->leave_us = clock_us();
    timer_in(l, DRAIN_POLL_MS);
}

static void on_assign(struct router_link *l, const Larql__Grid__V1__AssignMsg *a)
{
    struct join *j = l->join;
    const struct join_assignment what = {.model_id = a->model_id,
                                         .origin_url = a->origin_url,
                                         .hash = a->shard_hash,
                                         .first = a->layer_start,
                                         .last = a->layer_end};
    const char *why = j->opts.spare ? j->opts.on_assign(j->opts.arg, &what) : "it serves layers already";
    log_info("assigned router=%s model=%s layers=%u-%u origin=%s refused=%s", grpc_channel_address(l->channel),
             log_q(a->model_id), a->layer_start, a->layer_end, log_q(a->origin_url), log_q(why ? why : ""));
    if (why) {
        refuse(l, a->model_id, a->layer_start, a->layer_end, why);
        return;
    }
    snprintf(l->assigned, sizeof l->assigned, "%s", a->model_id);
    l->first = a->layer_start;
    l->last = a->layer_end;
}

void join_refuse(struct join *j, const char *why)
{
    for (size_t i = 0; i < j->links_n; i++) {
        struct router_link *l = &j->links[i];
        if (l->stream && l->assigned[0])
            refuse(l, l->assigned, l->first, l->last, why);
        l->assigned[0] = '\0';
    }
}

static void on_message(struct grpc_stream *stream, const uint8_t *p, size_t n, void *arg)
{
    struct router_link *l = arg;
    struct lq_fault fault;
    Larql__Grid__V1__RouterMessage *msg =
        grid_msg_parse(&larql__grid__v1__router_message__descriptor, p, n, &fault);
    if (!msg) {
        log_warn("router_message router=%s why=%s", grpc_channel_address(l->channel), log_q(fault.text));
        grpc_stream_cancel(stream);
        try_later(l);
        return;
    }
    l->retry_ms = l->join->opts.spare ? RETRY_FIRST_MS : l->retry_ms;
    if (l->state == JOIN_OUT) { /* it crossed our leave: nothing is to be said any more */
        grid_msg_free(msg);
        return;
    }
    switch (msg->payload_case) {
    case LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ACK:
        on_ack(l, msg->ack);
        break;
    case LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_REJECT:
        on_reject(l, msg->reject);
        break;
    case LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_UNASSIGN:
        on_unassign(l, msg->unassign);
        break;
    case LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ASSIGN:
        on_assign(l, msg->assign);
        break;
    default: /* grid_msg_parse() lets none through */
        break;
    }
    grid_msg_free(msg);
}

static void on_closed(struct grpc_stream *stream, const struct grpc_end *end, void *arg)
{
    (void)stream;
    struct router_link *l = arg;
    l->stream = NULL;
    l->assigned[0] = '\0';
    if (l->state == JOIN_OUT || l->state == JOIN_LEAVING) { /* told to go, it does not come back */
        l->state = JOIN_OUT;
        evtimer_del(l->timer);
        log_info("left router=%s", grpc_channel_address(l->channel));
        return;
    }
    bool was_in = l->state == JOIN_IN;
    bool refused = l->rejected || end->code == GRPC_UNAUTHENTICATED || end->code == GRPC_PERMISSION_DENIED ||
                   end->code == GRPC_RESOURCE_EXHAUSTED; /* too many wrong keys, or too many shards */
    if (refused)
        l->retry_ms = RETRY_LAST_MS;
    log_line(was_in || refused ? LOG_WARN : LOG_INFO, "router_lost router=%s code=%s why=%s again_ms=%u",
             grpc_channel_address(l->channel), grpc_code_word(end->code), log_q(end->text), l->retry_ms);
    l->rejected = false;
    try_later(l);
}

/* ---- life ------------------------------------------------------------------------------ */

static void ask(struct router_link *l)
{
    static const struct grpc_stream_cb cb = {.on_message = on_message, .on_closed = on_closed};
    char bearer[KEY_BEARER_CHARS + 1] = "";
    struct lq_fault fault;
    if (l->join->opts.keys)
        keys_bearer(l->join->opts.keys, bearer);
    const struct grpc_metadata key = {"authorization", bearer};
    const struct grpc_call_opts o = {.path = GRID_JOIN_PATH, .metadata = &key, .metadata_n = *bearer != '\0'};
    enum lq_err rc = grpc_call(l->channel, &o, &cb, l, &l->stream, &fault);
    explicit_bzero(bearer, sizeof bearer);
    if (rc) {
        log_error("join router=%s why=%s", grpc_channel_address(l->channel), log_q(fault.text));
        try_later(l);
        return;
    }
    l->state = JOIN_ASKING;
    if (l->join->opts.spare)
        available(l);
    else
        announce(l);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct router_link *l = arg;
    switch (l->state) {
    case JOIN_WAITING:
        ask(l);
        break;
    case JOIN_IN:
        heartbeat(l);
        timer_in(l, HEARTBEAT_MS);
        break;
    case JOIN_LEAVING:
        if (clock_us() - l->beat_us > HEARTBEAT_MS * 1000ull) /* a drain may last longer than a router's patience */
            heartbeat(l);
        if (l->join->s->load.in_flight == 0 || clock_us() - l->leave_us > DRAIN_LAST_US)
            drop(l, "reassigned");
        else
            timer_in(l, DRAIN_POLL_MS);
        break;
    case JOIN_ASKING:
    case JOIN_OUT:
        break;
    }
}

static enum lq_err add_router(struct join *j, const char *address, struct lq_fault *fault)
{
    struct grpc_channel_opts o;
    grpc_channel_opts_init(&o);
    if (j->links_n == ROUTERS_MAX)
        return lq_fail(fault, LQ_USAGE, "--join: over %d routers", ROUTERS_MAX);
    struct router_link *l = &j->links[j->links_n++];
    *l = (struct router_link){.join = j, .retry_ms = RETRY_FIRST_MS};
    static const struct {
        const char *text;
        bool tls;
    } schemes[] = {{"http://", false}, {"grpc://", false}, {"https://", true}};
    bool tls = j->opts.tls_always;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strncasecmp(address, schemes[i].text, strlen(schemes[i].text)) == 0) {
            address += strlen(schemes[i].text);
            tls = schemes[i].tls;
            break;
        }
    o.tls = tls ? j->opts.tls : NULL;
    enum lq_err rc = grpc_channel_new(loop_base(j->s->loop), address, &o, &l->channel, fault);
    if (rc) {
        struct lq_fault why = *fault;
        return lq_fail(fault, rc, "--join %s: %s", address, why.text);
    }
    l->timer = evtimer_new(loop_base(j->s->loop), on_timer, l);
    if (!l->timer)
        return lq_fail(fault, LQ_NOMEM, "out of memory for router %s", address);
    timer_in(l, 0);
    return LQ_OK;
}

enum lq_err join_new(struct shard *s, const struct join_opts *o, struct join **out, struct lq_fault *fault)
{
    struct join *j = calloc(1, sizeof *j);
    char *list = strdup(o->routers), *rest = list;
    enum lq_err rc = LQ_OK;
    if (!j || !list) {
        free(j);
        free(list);
        return lq_fail(fault, LQ_NOMEM, "out of memory for --join");
    }
    *out = j; /* join_free() takes what there is */
    j->s = s;
    j->opts = *o;
    srandom((unsigned)clock_us());
    for (char *word; !rc && (word = strsep(&rest, ","));) {
        word += strspn(word, " ");
        for (size_t n = strlen(word); n > 0 && (word[n - 1] == ' ' || word[n - 1] == '/'); n--)
            word[n - 1] = '\0';
        if (*word)
            rc = add_router(j, word, fault);
    }
    if (!rc && j->links_n == 0)
        rc = lq_fail(fault, LQ_USAGE, "--join names no router: expected HOST:PORT[,HOST:PORT...]");
    free(list);
    return rc;
}

void join_free(struct join *j)
{
    if (!j)
        return;
    for (size_t i = 0; i < j->links_n; i++) {
        struct router_link *l = &j->links[i];
        if (l->stream)
            grpc_stream_cancel(l->stream);
        l->stream = NULL;
        grpc_channel_free(l->channel);
        if (l->timer)
            event_free(l->timer);
    }
    free(j);
}

void join_drain(struct join *j)
{
    for (size_t i = 0; j && i < j->links_n; i++) {
        struct router_link *l = &j->links[i];
        if (l->state == JOIN_OUT)
            continue;
        if (l->stream)
            drop(l, "shutdown");
        l->state = JOIN_OUT;
        evtimer_del(l->timer);
    }
}

unsigned join_acked_n(const struct join *j)
{
    unsigned n = 0;
    for (size_t i = 0; j && i < j->links_n; i++)
        n += j->links[i].state == JOIN_IN;
    return n;
}
