/* member: see member.h. */
#include "router/member.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "router/event_log.h"

static const char *const health_name[MEMBER_HEALTHS_N] = {"new", "up", "down"};
static const char *const standing_name[MEMBER_STANDINGS_N] = {"serving", "joining", "draining", "refused"};

struct member *member_new(const char *url, const char *id, bool joined, size_t links_n, struct event_log *events)
{
    static _Atomic uint64_t last_serial;
    struct member *m = calloc(1, sizeof *m + links_n * sizeof *m->links);
    if (!m || !(m->url = strdup(url))) {
        free(m);
        return NULL;
    }
    m->refs = 1;
    m->serial = atomic_fetch_add_explicit(&last_serial, 1, memory_order_relaxed) + 1;
    m->joined = joined;
    m->standing = joined ? MEMBER_JOINING : MEMBER_SERVING;
    m->events = events;
    snprintf(m->id, sizeof m->id, "%s", id);
    pthread_mutex_init(&m->mu, NULL);
    return m;
}

struct member *member_ref(struct member *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void member_unref(struct member *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    peer_stats_release(&m->stats);
    pthread_mutex_destroy(&m->mu);
    free(m->url);
    free(m);
}

const char *member_health_name(enum member_health h)
{
    return health_name[h];
}

const char *member_state_name(const struct member *m)
{
    enum member_standing s = m->standing;
    enum member_health h = m->health; /* as an index itself gcc would load it as if it were not atomic */
    return s == MEMBER_SERVING ? health_name[h] : standing_name[s];
}

void member_why(struct member *m, char *buf, size_t buf_n)
{
    pthread_mutex_lock(&m->mu);
    snprintf(buf, buf_n, "%s", m->why);
    pthread_mutex_unlock(&m->mu);
}

static void say(struct member *m, enum log_level level, const char *from, const char *to, const char *why)
{
    log_line(level, "shard_state server_id=%s url=%s from=%s to=%s why=%s", m->id, m->url, from, to, log_q(why));
    event_log_add(m->events, "shard_state", m->id, "%s: %s -> %s (%s)", m->url, from, to, why);
}

bool member_set_health(struct member *m, enum member_health to, const char *why)
{
    if (m->health == to)
        return false;
    if (to == MEMBER_DOWN) { /* before the state, which says that it is there */
        pthread_mutex_lock(&m->mu);
        if (m->health != MEMBER_DOWN)
            snprintf(m->why, sizeof m->why, "%s", why);
        pthread_mutex_unlock(&m->mu);
    }
    enum member_health from = atomic_exchange(&m->health, to);
    if (from == to) /* another loop was faster */
        return false;
    assert(to != MEMBER_NEW);
    say(m, to == MEMBER_DOWN ? LOG_WARN : LOG_INFO, health_name[from], health_name[to], why);
    return true;
}

bool member_set_standing(struct member *m, enum member_standing to, const char *why)
{
    enum member_standing from = m->standing;
    if (from == to)
        return false;
    pthread_mutex_lock(&m->mu);
    if (to != MEMBER_SERVING)
        snprintf(m->why, sizeof m->why, "%s", why);
    pthread_mutex_unlock(&m->mu);
    m->standing = to;
    if (*why)
        say(m, to == MEMBER_REFUSED ? LOG_ERROR : LOG_INFO, standing_name[from], standing_name[to], why);
    return true;
}

/* The 95th percentile by small steps: up by 19 parts when an answer was slower, down by
 * one when not, so that it rests where one in twenty is slower. */
static double p95_step(double p95, double us, double mean)
{
    double step = mean * 0.01;
    return us > p95 ? p95 + 19 * step : p95 > step ? p95 - step : p95;
}

void member_answered(struct member *m, uint64_t us)
{
    double mean = atomic_load_explicit(&m->latency_us, memory_order_relaxed), now = (double)us;
    double p95 = atomic_load_explicit(&m->p95_us, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&m->answers_n, 1, memory_order_relaxed) == 0 && mean <= 0)
        mean = now; /* else it began at its group's median */
    mean += 0.1 * (now - mean);
    atomic_store_explicit(&m->latency_us, mean, memory_order_relaxed);
    atomic_store_explicit(&m->p95_us, p95 > 0 ? p95_step(p95, now, mean) : 2 * now, memory_order_relaxed);
    atomic_store_explicit(&m->last_answer_us, clock_us(), memory_order_relaxed);
    if (member_set_health(m, MEMBER_UP, "answered a request"))
        m->probe_at_us = 0; /* is it still who it was? */
}

double member_cost(const struct member *m)
{
    double latency = atomic_load_explicit(&m->latency_us, memory_order_relaxed);
    uint32_t n = atomic_load_explicit(&m->inflight_n, memory_order_relaxed);
    return ((double)n + 1) * (latency > 0 ? latency : 1);
}
