/* link: see link.h. */
#include "router/link.h"

#include <assert.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/log.h"

enum { PROBE_DOWN_MS = 1000, PROBE_UP_MS = 10000, PROBE_DEADLINE_MS = 2000, STATS_BYTES_MAX = 1 << 20 };

static const char *const state_name[LINK_STATES_N] = {"new", "up", "down"};
static const unsigned step_ok[LINK_STATES_N] = {
    [LINK_NEW] = 1u << LINK_UP | 1u << LINK_DOWN,
    [LINK_UP] = 1u << LINK_DOWN,
    [LINK_DOWN] = 1u << LINK_UP,
};

const char *link_state_name(enum link_state s)
{
    return state_name[s];
}

/* The only place that assigns a state; each step is logged once, with its reason. */
static void set_state(struct link *l, enum link_state to, const char *why)
{
    struct shard_view *v = l->view;
    if (to == LINK_DOWN) { /* before the state, which says that it is there */
        pthread_mutex_lock(&v->mu);
        if (v->state != LINK_DOWN)
            snprintf(v->why, sizeof v->why, "%s", why);
        pthread_mutex_unlock(&v->mu);
    }
    if (v->state == to)
        return;
    enum link_state from = atomic_exchange(&v->state, to);
    if (from == to) /* another loop was faster */
        return;
    assert(step_ok[from] & 1u << to);
    enum log_level level = to == LINK_DOWN ? LOG_WARN : LOG_INFO;
    log_line(level, "shard_state url=%s from=%s to=%s why=%s", l->url, state_name[from], state_name[to], log_q(why));
}

void shard_view_init(struct shard_view *v)
{
    *v = (struct shard_view){.state = LINK_NEW};
    pthread_mutex_init(&v->mu, NULL);
}

void shard_view_release(struct shard_view *v)
{
    pthread_mutex_destroy(&v->mu);
}

static void probe_in(struct link *l, unsigned ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    evtimer_add(l->probe_ev, &tv);
}

/* One grid serves one model here: another shape is said aloud. */
static void compare_with_peers(const struct link *l)
{
    const struct router *rt = l->router;
    for (size_t i = 0; i < rt->links_n; i++) {
        const struct link *peer = &rt->links[i];
        if (peer != l && peer->stats.hidden &&
            (peer->stats.hidden != l->stats.hidden || peer->stats.layers != l->stats.layers))
            log_error("shard_mismatch url=%s hidden_size=%u layers=%u peer=%s peer_hidden_size=%u peer_layers=%u",
                      l->url, l->stats.hidden, l->stats.layers, peer->url, peer->stats.hidden, peer->stats.layers);
    }
}

/* why: NULL when it answered what we need. */
static void probe_done(struct link *l, const char *why)
{
    if (why)
        set_state(l, LINK_DOWN, why);
    else
        set_state(l, LINK_UP, "answers /v1/stats");
    probe_in(l, why ? PROBE_DOWN_MS : PROBE_UP_MS);
    if (!l->probed_once) {
        l->probed_once = true;
        struct crew *crew = l->router->crew;
        if (atomic_fetch_sub(&crew->first_probes_left, 1) == 1)
            crew->on_first_probes(crew);
    }
}

bool link_refuses_key(int status, struct lq_fault *fault)
{
    if (status != 401 && status != 403 && status != 429)
        return false;
    (void)lq_fail(fault, LQ_SHARD_DOWN, "it refuses this router's key (status %d): see --grid-key-file", status);
    return true;
}

static void on_probe_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg)
{
    (void)c, (void)h, (void)length;
    ((struct link *)arg)->probe_status = status;
}

static void on_probe_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault,
                         void *arg)
{
    (void)c;
    struct link *l = arg;
    size_t n = in ? evbuffer_get_length(in) : 0;
    bool known = l->stats.hidden != 0;
    struct peer_stats stats;
    struct lq_fault bad;
    l->probe = NULL;
    if (rc != LQ_OK) {
        probe_done(l, fault->text);
    } else if (link_refuses_key(l->probe_status, &bad)) {
        probe_done(l, bad.text);
    } else if (peer_stats_read(n ? (const char *)evbuffer_pullup(in, -1) : "", n, &stats, &bad) != LQ_OK) {
        probe_done(l, bad.text);
    } else {
        l->stats = stats;
        if (!known)
            compare_with_peers(l);
        probe_done(l, NULL);
    }
}

static void on_probe(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    static const struct http_call_cb cb = {.on_head = on_probe_head, .on_end = on_probe_end};
    struct link *l = arg;
    struct lq_fault fault;
    const struct http_call_opts o = {
        .method = "GET", .path = "/v1/stats", .deadline_ms = PROBE_DEADLINE_MS, .answer_max = STATS_BYTES_MAX};
    if (!l->probe && http_call_start(l->pool, &o, &cb, l, &l->probe, &fault) != LQ_OK)
        probe_done(l, fault.text);
}

enum lq_err link_init(struct link *l, struct router *rt, const char *url, struct lq_fault *fault)
{
    *l = (struct link){.router = rt, .url = url, .view = &rt->crew->views[l - rt->links]};
    struct http_pool_opts o;
    http_pool_opts_init(&o);
    o.inflight_max /= (uint32_t)rt->crew->routers_n; /* docs/protocol.md 6.8: that many per shard, of all loops */
    o.tls = rt->crew->trust.dial;
    o.keys = rt->crew->trust.grid; /* the client's own Authorization ends here */
    enum lq_err rc = http_pool_new(loop_base(rt->loop), url, &o, &l->pool, fault);
    if (rc)
        return rc;
    l->probe_ev = evtimer_new(loop_base(rt->loop), on_probe, l);
    if (!l->probe_ev)
        return lq_fail(fault, LQ_NOMEM, "out of memory for shard %s", url);
    probe_in(l, 0);
    return LQ_OK;
}

void link_release(struct link *l)
{
    if (l->probe)
        http_call_cancel(l->probe);
    if (l->probe_ev)
        event_free(l->probe_ev);
    http_pool_free(l->pool);
    *l = (struct link){0};
}

void link_answered(struct link *l, uint64_t us)
{
    struct shard_view *v = l->view;
    double mean = atomic_load_explicit(&v->latency_us, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&v->answers_n, 1, memory_order_relaxed) == 0)
        mean = (double)us;
    atomic_store_explicit(&v->latency_us, mean + 0.1 * ((double)us - mean), memory_order_relaxed);
    if (v->state != LINK_UP) {
        set_state(l, LINK_UP, "answered a request");
        probe_in(l, l->stats.hidden ? PROBE_UP_MS : 0); /* its stats may be missing still */
    }
}

void link_failed(struct link *l, const char *why)
{
    set_state(l, LINK_DOWN, why);
    probe_in(l, PROBE_DOWN_MS);
}
