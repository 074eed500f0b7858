/* health: see health.h. */
#include "router/health.h"

#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "router/hot.h"
#include "router/link.h"
#include "router/registry.h"

enum {
    TICK_MS = 100,
    PROBE_DOWN_US = 1000000,
    PROBE_UP_US = 10000000,
    PROBE_DEADLINE_MS = 2000,
    PROBE_APART_US = 200000,   /* suspicion asks no more often */
    SILENT_US = 1000000,       /* requests under way and none answered for so long */
    STATS_BYTES_MAX = 8 << 20, /* 65,536 layer hashes */
};

struct health {
    struct crew *crew;
    struct event *tick_ev;
    struct hot *hot;
    size_t first_left_n;
    void (*on_first)(struct crew *crew);
};

static void tell_down(struct crew *crew)
{
    for (size_t i = 0; i < crew->routers_n; i++)
        if (!atomic_exchange(&crew->routers[i].down_posted, true))
            loop_post(crew->routers[i].loop, &crew->routers[i].down_msg);
}

void health_ejected(struct crew *crew, struct member *m, const char *why)
{
    if (!member_set_health(m, MEMBER_DOWN, why))
        return;
    metric_add(crew->routers->m.ejections[0], 1);
    m->probe_at_us = clock_us() + PROBE_DOWN_US;
    tell_down(crew);
}

void health_suspect(struct crew *crew, struct member *m)
{
    (void)crew;
    uint64_t now = clock_us();
    if (now - m->probed_us > PROBE_APART_US)
        m->probe_at_us = now;
}

/* why NULL: it answered, and what it says is taken. */
static void probe_ended(struct health *h, struct member *m, struct peer_stats *stats, const char *why)
{
    struct lq_fault fault;
    if (why && member_set_health(m, MEMBER_DOWN, why)) {
        metric_add(h->crew->routers->m.ejections[1], 1);
        tell_down(h->crew);
    } else if (!why) {
        (void)member_set_health(m, MEMBER_UP, "answers /v1/stats");
    }
    m->probed_us = clock_us();
    m->probe_at_us = m->probed_us + (why ? PROBE_DOWN_US : PROBE_UP_US);
    enum lq_err rc = registry_probed(h->crew->registry, m, stats, why, &fault);
    if (!m->probed_once) {
        m->probed_once = true;
        if (h->first_left_n > 0 && !m->joined && --h->first_left_n == 0)
            h->on_first(h->crew);
    }
    if (m->on_probed)
        m->on_probed(m->probed_arg, m, rc == LQ_NOT_READY, rc ? fault.text : NULL);
}

static void on_probe_end(struct http_call *c, enum lq_err rc, struct evbuffer *in, const struct lq_fault *fault,
                         void *arg)
{
    (void)c;
    struct member *m = member_ref(arg);
    struct health *h = m->health_of;
    size_t n = in ? evbuffer_get_length(in) : 0;
    struct peer_stats stats;
    struct lq_fault bad;
    m->probe = NULL;
    if (rc == LQ_NOMEM) { /* ours, not the shard's */
        m->probe_at_us = clock_us() + PROBE_DOWN_US;
        log_warn("probe_not_made url=%s why=%s", m->url, log_q(fault->text));
    } else if (rc != LQ_OK) {
        probe_ended(h, m, NULL, fault->text);
    } else if (link_refuses_key(m->probe_status, &bad)) {
        probe_ended(h, m, NULL, bad.text);
    } else if (peer_stats_read(n ? (const char *)evbuffer_pullup(in, -1) : "", n, &stats, &bad) != LQ_OK) {
        probe_ended(h, m, NULL, bad.text);
    } else {
        probe_ended(h, m, &stats, NULL);
        peer_stats_release(&stats);
    }
    member_unref(m);
}

static void on_probe_head(struct http_call *c, int status, const struct http_headers *h, uint64_t length, void *arg)
{
    (void)c, (void)h, (void)length;
    ((struct member *)arg)->probe_status = status;
}

/* Who is killed ends its connections: known at once, without a request. */
static void on_idle_end(void *arg)
{
    struct member *m = arg;
    uint64_t now = clock_us(), at = m->probed_us + PROBE_DOWN_US; /* some close after each answer */
    at = at > now ? at : now;
    if (at < m->probe_at_us)
        m->probe_at_us = at;
}

static void probe(struct health *h, struct member *m)
{
    static const struct http_call_cb cb = {.on_head = on_probe_head, .on_end = on_probe_end};
    struct event_base *base = loop_base(h->crew->routers->loop);
    struct http_pool_opts po;
    struct lq_fault fault;
    http_pool_opts_init(&po);
    po.tls = h->crew->trust.dial;
    po.keys = h->crew->trust.grid;
    po.idle_max = 1; /* of its own, so that a busy shard's requests are not waited for */
    po.on_idle_end = on_idle_end;
    po.arg = m;
    const struct http_call_opts o = {
        .method = "GET", .path = "/v1/stats", .deadline_ms = PROBE_DEADLINE_MS, .answer_max = STATS_BYTES_MAX};
    m->health_of = h;
    m->probed_us = clock_us();
    if ((!m->probe_pool && http_pool_new(base, m->url, &po, &m->probe_pool, &fault) != LQ_OK) ||
        http_call_start(m->probe_pool, &o, &cb, m, &m->probe, &fault) != LQ_OK)
        probe_ended(h, m, NULL, fault.text);
}

static bool is_silent(const struct member *m, uint64_t now)
{
    double patience = 4 * m->p95_us;
    uint64_t silent_us = patience > SILENT_US ? (uint64_t)patience : SILENT_US;
    return m->inflight_n > 0 && now - m->last_answer_us > silent_us && now - m->probed_us > SILENT_US;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct health *h = arg;
    uint64_t now = clock_us();
    size_t n;
    /* The list is the table's: it stays as it is while probes change the registry. */
    struct route_table *t = route_table_ref(h->crew->routers->table);
    struct member *const *members = registry_members(h->crew->registry, &n);
    for (size_t i = 0; i < n; i++) {
        struct member *m = members[i];
        if (!m->probe && !m->left && (now >= m->probe_at_us || is_silent(m, now)))
            probe(h, m);
    }
    hot_tick(h->hot, h->crew, t);
    route_table_unref(t);
}

void health_watch(struct health *h, struct member *m, health_on_probed fn, void *arg)
{
    m->on_probed = fn;
    m->probed_arg = arg;
    probe(h, m);
}

void health_forget(struct member *m)
{
    m->left = true;
    m->on_probed = NULL;
    if (m->probe)
        http_call_cancel(m->probe);
    m->probe = NULL;
    http_pool_free(m->probe_pool);
    m->probe_pool = NULL;
}

enum lq_err health_new(struct crew *crew, struct health **out, struct lq_fault *fault)
{
    struct health *h = calloc(1, sizeof *h);
    if (!h)
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    h->crew = crew;
    h->hot = hot_new();
    h->tick_ev = event_new(loop_base(crew->routers->loop), -1, EV_PERSIST, on_tick, h);
    if (!h->hot || !h->tick_ev) {
        health_free(h);
        return lq_fail(fault, LQ_NOMEM, "out of memory at start");
    }
    *out = h;
    return LQ_OK;
}

void health_start(struct health *h, void (*on_first)(struct crew *crew))
{
    static const struct timeval tick = {.tv_usec = TICK_MS * 1000};
    const struct route_table *t = h->crew->routers->table;
    h->on_first = on_first;
    h->first_left_n = t->members_n;
    evtimer_add(h->tick_ev, &tick);
    event_active(h->tick_ev, EV_TIMEOUT, 0);
    if (t->members_n == 0)
        on_first(h->crew);
}

void health_free(struct health *h)
{
    if (!h)
        return;
    if (h->tick_ev)
        event_free(h->tick_ev);
    hot_free(h->hot);
    free(h);
}
