/* access: see access.h. */
#include "common/access.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"

enum { WAYS = 4, LOG_INTERVAL_US = 1000000 };
_Static_assert(ACCESS_PEERS_N % WAYS == 0, "whole sets");

void access_init(struct access *a, const struct keys *client, const struct keys *grid, bool grid_guards_clients)
{
    *a = (struct access){.client = client, .grid = grid, .grid_guards_clients = grid_guards_clients};
    pthread_mutex_init(&a->mu, NULL);
}

void access_release(struct access *a)
{
    pthread_mutex_destroy(&a->mu);
}

bool access_metrics(struct access *a, struct metrics *m, const char *prefix)
{
    const struct {
        struct metric **to;
        const char *why;
    } series[] = {{&a->missing, "missing"}, {&a->wrong, "wrong"}, {&a->forbidden, "forbidden"}, {&a->limited, "limited"}};
    bool ok = true;
    for (size_t i = 0; i < sizeof series / sizeof *series; i++) {
        char name[64], labels[32];
        snprintf(name, sizeof name, "%s_auth_failures_total", prefix);
        snprintf(labels, sizeof labels, "why=\"%s\"", series[i].why);
        *series[i].to = metrics_counter(m, name, "requests refused for their key", labels);
        ok &= *series[i].to != NULL;
    }
    return ok;
}

bool access_is_guarded(const struct access *a, enum access_who who)
{
    switch (who) {
    case ACCESS_GRID:
    case ACCESS_READER:
        return a->grid || a->client;
    case ACCESS_CLIENT:
        return a->client || (a->grid && a->grid_guards_clients);
    case ACCESS_ANY:
        return false;
    }
    return true;
}

/* ---- guesses by address ---------------------------------------------------------------- */

/* What one host can choose freely of its address does not make it another one. */
static void address_of(const struct sockaddr *peer, uint8_t out[8])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(out, 0, 8);
    if (peer && peer->sa_family == AF_INET) {
        out[3] = 4;
        memcpy(out + 4, &((const struct sockaddr_in *)(const void *)peer)->sin_addr, 4);
    } else if (peer && peer->sa_family == AF_INET6) {
        const uint8_t *a = ((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr.s6_addr;
        if (memcmp(a, mapped, sizeof mapped) == 0) {
            out[3] = 4;
            memcpy(out + 4, a + 12, 4);
        } else {
            memcpy(out, a, 8);
        }
    }
}

/* Counts one more; under the mutex. A table that is full forgets the oldest of a set. */
static uint32_t count_guess(struct access *a, const struct sockaddr *peer, uint64_t now)
{
    uint8_t address[8];
    uint32_t hash = 2166136261u;
    address_of(peer, address);
    for (size_t i = 0; i < sizeof address; i++)
        hash = (hash ^ address[i]) * 16777619u;
    struct access_peer *set = a->peers + hash % (ACCESS_PEERS_N / WAYS) * WAYS, *p = set;
    for (size_t i = 0; i < WAYS; i++) {
        if (set[i].since_us && memcmp(set[i].address, address, sizeof address) == 0) {
            p = &set[i];
            break;
        }
        if (set[i].since_us < p->since_us)
            p = &set[i];
    }
    if (memcmp(p->address, address, sizeof address) != 0 || now - p->since_us >= ACCESS_WINDOW_S * 1000000ull) {
        *p = (struct access_peer){.since_us = now};
        memcpy(p->address, address, sizeof address);
    }
    return p->guesses_n < UINT32_MAX ? ++p->guesses_n : p->guesses_n;
}

/* ---- the check ------------------------------------------------------------------------------ */

/* The key of `Bearer KEY`; NULL: another scheme, or none. */
static const char *bearer(const char *authorization, size_t *n)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    const char *key = authorization + 7;
    key += strspn(key, " \t");
    *n = strlen(key);
    while (*n > 0 && (key[*n - 1] == ' ' || key[*n - 1] == '\t'))
        --*n;
    return *n > 0 ? key : NULL;
}

enum lq_err access_check(const struct access *a, enum access_who who, const char *authorization, const char *what,
                         struct lq_fault *fault)
{
    if (!access_is_guarded(a, who))
        return LQ_OK;
    size_t n = 0;
    const char *key = bearer(authorization, &n);
    if (!key)
        return lq_fail(fault, LQ_NO_KEY, "%.200s needs a key: send Authorization: Bearer KEY", what);
    bool of_grid = keys_have(a->grid, key, n), of_client = keys_have(a->client, key, n); /* both, always */
    if (of_grid || (of_client && (who != ACCESS_GRID || !a->grid)))
        return LQ_OK;
    if (of_client)
        return lq_fail(fault, LQ_FORBIDDEN, "%.200s needs the grid key, and this is a client's", what);
    return lq_fail(fault, LQ_WRONG_KEY, "the key is not known here");
}

static void say(const char *why, bool limited, const struct sockaddr *peer, const char *what,
                unsigned long long before)
{
    char host[64] = "unix";
    socklen_t n = peer && peer->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (peer && peer->sa_family != AF_UNIX && getnameinfo(peer, n, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
        memcpy(host, "?", 2);
    log_warn("auth_failed why=%s peer=%s what=%s limited=%d before=%llu", why, host, log_q(what), limited, before);
}

enum lq_err access_failed(struct access *a, enum lq_err rc, const struct sockaddr *peer, const char *what,
                          struct lq_fault *fault)
{
    const char *why = rc == LQ_NO_KEY ? "missing" : rc == LQ_FORBIDDEN ? "forbidden" : "wrong";
    struct metric *counter = rc == LQ_NO_KEY ? a->missing : rc == LQ_FORBIDDEN ? a->forbidden : a->wrong;
    unsigned long long before;
    pthread_mutex_lock(&a->mu);
    bool limited = rc == LQ_WRONG_KEY && count_guess(a, peer, clock_us()) > ACCESS_GUESSES_MAX;
    bool said = log_limit_pass(&a->log, LOG_INTERVAL_US, &before);
    pthread_mutex_unlock(&a->mu);
    if (counter)
        metric_add(counter, 1);
    if (limited && a->limited)
        metric_add(a->limited, 1);
    if (said)
        say(why, limited, peer, what, before);
    if (limited)
        return lq_fail(fault, LQ_TOO_MANY, "too many wrong keys from this address: wait %d s", ACCESS_WINDOW_S);
    return rc;
}
