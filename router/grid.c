/* grid: see grid.h. Sessions: one Join stream each. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "router/event_log.h"
#include "router/grid_impl.h"
#include "router/health.h"
#include "router/own_url.h"
#include "router/registry.h"

enum {
    TICK_MS = 500,
    SILENT_US = 25000000,    /* heartbeats come every 10 s */
    JOIN_US = 10000000,      /* its URL may take so long to answer the first probe */
    ASSIGNED_SILENT_US = 120000000, /* a spare that loads sends heartbeats too; this is the last resort */
    LAYER_REPORTS_MAX = 1024,
};

static const char *const state_name[SESSION_STATES_N] = {"open", "joining", "serving", "leaving", "spare", "assigned"};

void session_set_state(struct session *s, enum session_state to)
{
    if (s->state != to)
        log_debug("session id=%s from=%s to=%s", session_id(s), state_name[s->state], state_name[to]);
    s->grid->spares_n -= s->state == SESSION_SPARE;
    s->grid->spares_n += to == SESSION_SPARE;
    s->state = to;
    s->since_us = clock_us();
}

const char *session_id(const struct session *s)
{
    return s->m ? s->m->id : s->id;
}

struct session *session_find(struct grid *g, const char *id_or_url)
{
    struct session *s;
    TAILQ_FOREACH(s, &g->sessions, entry)
    {
        if (strcmp(session_id(s), id_or_url) == 0 || (s->m && strcmp(s->m->url, id_or_url) == 0))
            return s;
    }
    return NULL;
}

void session_send(struct session *s, Larql__Grid__V1__RouterMessage__PayloadCase kind, void *msg)
{
    Larql__Grid__V1__RouterMessage out = LARQL__GRID__V1__ROUTER_MESSAGE__INIT;
    out.payload_case = kind;
    out.ack = msg; /* a union of pointers */
    (void)grid_msg_send(s->stream, &out.base); /* a peer that reads nothing is ended by grpc */
}

/* ---- the end ------------------------------------------------------------------- */

static void leave(struct session *s, const char *why)
{
    if (!s->m)
        return;
    metric_add(s->grid->crew->routers->m.leaves, s->state == SESSION_SERVING || s->state == SESSION_LEAVING);
    registry_leave(s->grid->crew->registry, s->m, why);
    member_unref(s->m);
    s->m = NULL;
}

static void session_free(struct session *s)
{
    TAILQ_REMOVE(&s->grid->sessions, s, entry);
    s->grid->sessions_n--;
    s->grid->spares_n -= s->state == SESSION_SPARE;
    free(s->layers);
    free(s);
}

static void end_of(struct session *s, const char *why)
{
    if (s->state == SESSION_ASSIGNED)
        spare_expect(s->grid, s);
    leave(s, why);
    session_free(s);
}

static void on_closed(struct grpc_stream *stream, const struct grpc_end *end, void *arg)
{
    (void)stream;
    struct session *s = arg;
    char why[160];
    snprintf(why, sizeof why, "its stream ended: %s", end->text);
    end_of(s, why);
}

static void session_end(struct session *s, enum grpc_code code, const char *why)
{
    grpc_stream_finish(s->stream, code, why);
    end_of(s, why);
}

/* The reason for its operator, twice: as the message that the protocol has for it, and as
 * the call's status. */
static void reject(struct session *s, const char *why)
{
    Larql__Grid__V1__RejectMsg msg = LARQL__GRID__V1__REJECT_MSG__INIT;
    log_warn("join_refused peer=%s model=%s layers=%u-%u why=%s", grpc_stream_peer(s->stream), log_q(s->model),
             s->first, s->last, log_q(why));
    event_log_add(s->grid->crew->events, "refused", session_id(s), "%s: %s", grpc_stream_peer(s->stream), why);
    msg.reason = (char *)(uintptr_t)why;
    session_send(s, LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_REJECT, &msg);
    session_end(s, GRPC_FAILED_PRECONDITION, why);
}

/* ---- joining ---------------------------------------------------------------------- */

/* A probe of its URL ended: health.h. */
static void on_probed(void *arg, struct member *m, bool again, const char *why)
{
    struct session *s = arg;
    char text[400];
    if (!why && s->state == SESSION_JOINING) {
        Larql__Grid__V1__AckMsg ack = LARQL__GRID__V1__ACK_MSG__INIT;
        ack.server_id = m->id;
        session_set_state(s, SESSION_SERVING);
        log_info("shard_joined server_id=%s url=%s model=%s layers=%u-%u", m->id, m->url, log_q(s->model), s->first,
                 s->last);
        event_log_add(s->grid->crew->events, "joined", m->id, "%s: layers %u-%u of %s", m->url, s->first, s->last,
                      s->model);
        session_send(s, LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_ACK, &ack);
        spare_tick(s->grid);
    } else if (why && !again) {
        reject(s, why);
    } else if (why && s->state == SESSION_JOINING && clock_us() - s->since_us > JOIN_US) {
        snprintf(text, sizeof text, "its public URL %s does not answer from this router: %s", m->url, why);
        metric_add(s->grid->crew->routers->m.refusals, 1);
        reject(s, text);
    } /* else it is down, or not up yet: asked again */
}

static void begin_join(struct session *s, const char *model, uint32_t first, uint32_t last, const char *url,
                       const char *tag)
{
    struct lq_fault fault;
    const struct join j = {.url = url, .model_id = model, .tag = tag, .first = first, .last = last};
    struct member *m;
    leave(s, "announced anew");
    snprintf(s->model, sizeof s->model, "%s", model);
    s->first = first;
    s->last = last;
    if (own_url(url) && !grpc_stream_peer_is_loopback(s->stream)) {
        (void)lq_fail(&fault, LQ_USAGE,
                      "it announced %s, an address of its own machine, from %s: give --public-url an address that "
                      "this router can reach",
                      url, grpc_stream_peer(s->stream));
    } else if (registry_join(s->grid->crew->registry, &j, &m, &fault) == LQ_OK) {
        s->m = member_ref(m);
        spare_arrived(s->grid, s);
        session_set_state(s, SESSION_JOINING);
        health_watch(s->grid->crew->health, m, on_probed, s);
        return;
    }
    metric_add(s->grid->crew->routers->m.refusals, 1);
    reject(s, fault.text);
}

static void on_announce(struct session *s, const Larql__Grid__V1__AnnounceMsg *a)
{
    if (a->expert_start != 0 || a->expert_end != 0)
        reject(s, "it announced a range of experts, which this router does not route yet");
    else
        begin_join(s, a->model_id, a->layer_start, a->layer_end, a->listen_url, a->vindex_hash);
}

static void on_available(struct session *s, const Larql__Grid__V1__AvailableMsg *a)
{
    leave(s, "became a spare");
    if (!s->id[0])
        snprintf(s->id, sizeof s->id, "spare-%llu", (unsigned long long)++s->grid->next_spare);
    s->ram_bytes = a->ram_bytes;
    s->disk_bytes = a->disk_bytes;
    session_set_state(s, SESSION_SPARE);
    log_info("spare_available id=%s peer=%s ram_bytes=%llu disk_bytes=%llu", s->id, grpc_stream_peer(s->stream),
             (unsigned long long)a->ram_bytes, (unsigned long long)a->disk_bytes);
    event_log_add(s->grid->crew->events, "spare", s->id, "a spare at %s", grpc_stream_peer(s->stream));
    spare_tick(s->grid);
}

static void on_refuse(struct session *s, const Larql__Grid__V1__RefuseMsg *r)
{
    log_warn("assignment_refused id=%s layers=%u-%u why=%s", s->id, r->layer_start, r->layer_end, log_q(r->reason));
    event_log_add(s->grid->crew->events, "refused", s->id, "layers %u-%u: %s", r->layer_start, r->layer_end,
                  r->reason);
    snprintf(s->refused, sizeof s->refused, "%s/%u-%u", s->model, s->first, s->last);
    s->refused_us = clock_us();
    if (s->state == SESSION_ASSIGNED)
        session_set_state(s, SESSION_SPARE);
}

/* ---- while it serves ---------------------------------------------------------------- */

static float sane(float v)
{
    return isfinite(v) && v >= 0 ? v : 0;
}

static void on_heartbeat(struct session *s, const Larql__Grid__V1__HeartbeatMsg *h)
{
    size_t n = h->n_layer_stats < LAYER_REPORTS_MAX ? h->n_layer_stats : LAYER_REPORTS_MAX;
    struct layer_report *more = n > s->layers_n ? realloc(s->layers, n * sizeof *more) : s->layers;
    if (more || n == 0) {
        s->layers = more;
        s->layers_n = n;
        for (size_t i = 0; i < n; i++)
            s->layers[i] = (struct layer_report){h->layer_stats[i]->layer, sane(h->layer_stats[i]->avg_ms),
                                                 sane(h->layer_stats[i]->p99_ms)};
    }
    if (!s->m)
        return;
    pthread_mutex_lock(&s->m->mu);
    s->m->load = (struct member_load){.cpu_pct = sane(h->cpu_pct),
                                      .requests_per_s = sane(h->req_per_sec),
                                      .ram_used_bytes = h->ram_used <= INT64_MAX ? h->ram_used : 0,
                                      .in_flight = h->requests_in_flight};
    pthread_mutex_unlock(&s->m->mu);
}

static void on_message(struct grpc_stream *stream, const uint8_t *p, size_t n, void *arg)
{
    (void)stream;
    struct session *s = arg;
    struct lq_fault fault;
    Larql__Grid__V1__ServerMessage *msg =
        grid_msg_parse(&larql__grid__v1__server_message__descriptor, p, n, &fault);
    if (!msg) {
        session_end(s, GRPC_INVALID_ARGUMENT, fault.text);
        return;
    }
    s->heard_us = clock_us();
    switch (msg->payload_case) {
    case LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_ANNOUNCE:
        on_announce(s, msg->announce);
        break;
    case LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_AVAILABLE:
        on_available(s, msg->available);
        break;
    case LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_READY:
        begin_join(s, msg->ready->model_id, msg->ready->layer_start, msg->ready->layer_end, msg->ready->listen_url,
                   "");
        break;
    case LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_HEARTBEAT:
        on_heartbeat(s, msg->heartbeat);
        break;
    case LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_DROPPING:
        leave(s, msg->dropping->reason);
        session_set_state(s, SESSION_OPEN);
        spare_tick(s->grid);
        break;
    case LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_REFUSE:
        on_refuse(s, msg->refuse);
        break;
    default: /* grid_msg_parse() lets none through */
        break;
    }
    grid_msg_free(msg);
}

static void on_half_closed(struct grpc_stream *stream, void *arg)
{
    (void)stream;
    session_end(arg, GRPC_OK, "it left");
}

/* 401, 403 and 429 as gRPC says them. */
static enum grpc_code code_of(enum lq_err rc)
{
    return rc == LQ_FORBIDDEN ? GRPC_PERMISSION_DENIED
           : rc == LQ_TOO_MANY ? GRPC_RESOURCE_EXHAUSTED
                               : GRPC_UNAUTHENTICATED;
}

bool grid_may(struct grid *g, struct grpc_stream *stream, const char *what)
{
    struct lq_fault fault;
    enum lq_err rc = access_check(&g->crew->trust.access, ACCESS_GRID, grpc_stream_metadata(stream, "authorization"),
                                  what, &fault);
    if (rc)
        rc = access_failed(&g->crew->trust.access, rc, grpc_stream_peer_address(stream), what, &fault);
    if (rc)
        grpc_stream_finish(stream, code_of(rc), rc == LQ_TOO_MANY ? fault.text : "invalid grid key");
    return rc == LQ_OK;
}

static void on_join(struct grpc_stream *stream, void *arg)
{
    static const struct grpc_stream_cb cb = {
        .on_message = on_message, .on_half_closed = on_half_closed, .on_closed = on_closed};
    struct grid *g = arg;
    if (!grid_may(g, stream, "Join"))
        return;
    struct session *s = g->sessions_n < REGISTRY_MEMBERS_MAX ? calloc(1, sizeof *s) : NULL;
    if (!s) {
        grpc_stream_finish(stream, GRPC_RESOURCE_EXHAUSTED, "this router has all the shards that it can have");
        return;
    }
    *s = (struct session){.grid = g, .stream = stream, .heard_us = clock_us(), .since_us = clock_us()};
    TAILQ_INSERT_TAIL(&g->sessions, s, entry);
    g->sessions_n++;
    grpc_stream_handle(stream, &cb, s);
}

/* ---- time ------------------------------------------------------------------------------ */

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct grid *g = arg;
    struct session *s, *next;
    uint64_t now = clock_us();
    for (s = TAILQ_FIRST(&g->sessions); s; s = next) {
        next = TAILQ_NEXT(s, entry);
        uint64_t limit_us = s->state == SESSION_ASSIGNED ? ASSIGNED_SILENT_US : SILENT_US;
        if (now - s->heard_us > limit_us) {
            metric_add(g->crew->routers->m.ejections[2], s->m != NULL);
            session_end(s, GRPC_DEADLINE_EXCEEDED, "no word from it for 25 s");
        }
    }
    spare_tick(g);
}

/* ---- life -------------------------------------------------------------------------------- */

enum lq_err grid_new(struct crew *crew, const struct grid_opts *o, struct grid **out, struct lq_fault *fault)
{
    static const struct grpc_method methods[] = {
        {.path = GRID_JOIN_PATH, .on_open = on_join},
        {.path = GRID_STATUS_PATH, .on_request = grid_on_status},
        {.path = GRID_DRAIN_PATH, .on_request = grid_on_drain},
        {.path = GRID_ASSIGN_PATH, .on_request = grid_on_assign},
    };
    struct grid *g = calloc(1, sizeof *g);
    if (!g)
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    *out = g; /* grid_free() takes what there is */
    g->crew = crew;
    g->opts = *o;
    TAILQ_INIT(&g->sessions);
    struct event_base *base = loop_base(crew->routers->loop);
    struct grpc_server_opts so;
    grpc_server_opts_init(&so);
    so.host = o->host;
    so.port = o->port;
    so.tls = o->tls;
    so.message_max = GRID_ASK_BYTES_MAX;
    enum lq_err rc = spare_origins_parse(g, o->origins, fault);
    if (!rc)
        rc = grpc_server_new(base, &so, methods, sizeof methods / sizeof *methods, g, &g->server, fault);
    if (!rc && !(g->tick_ev = event_new(base, -1, EV_PERSIST, on_tick, g)))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory at start");
    static const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    if (!rc)
        evtimer_add(g->tick_ev, &tick);
    return rc;
}

void grid_free(struct grid *g)
{
    if (!g)
        return;
    if (g->tick_ev)
        event_free(g->tick_ev);
    grpc_server_free(g->server); /* sessions end with their streams */
    assert(TAILQ_EMPTY(&g->sessions));
    spare_release(g);
    free(g);
}

int grid_port(const struct grid *g)
{
    return grpc_server_port(g->server);
}

void grid_drain(struct grid *g)
{
    grpc_server_drain(g->server);
}
