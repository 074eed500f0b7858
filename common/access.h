/* access: who may do what at a server's door (docs/protocol.md, 4, row 3).
 *   ACCESS_GRID    the grid key; without one configured as ACCESS_READER
 *   ACCESS_READER  the grid key or a client's, where either is configured
 *   ACCESS_CLIENT  a client's key or the grid key, where client keys are configured (a
 *                  shard's: or a grid key, since nobody but routers should ask it)
 *   ACCESS_ANY     everybody
 * 401 for a missing or unknown key, 403 for a client's where the grid key is needed, 429 for
 * wrong keys beyond ACCESS_GUESSES_MAX of one address in ACCESS_WINDOW_S. A good key is
 * always good: who shares an address with a guesser, a router perhaps, is not locked out.
 * Thread: any, after access_init(). */
#ifndef LQ_COMMON_ACCESS_H
#define LQ_COMMON_ACCESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/keys.h"
#include "common/log.h"
#include "common/metrics.h"

enum access_who { ACCESS_GRID, ACCESS_READER, ACCESS_CLIENT, ACCESS_ANY };

enum { ACCESS_GUESSES_MAX = 10, ACCESS_WINDOW_S = 10, ACCESS_PEERS_N = 1024 };

struct access_peer { /* an address that sent a wrong key; IPv6 by its /64 */
    uint8_t address[8];
    uint64_t since_us; /* 0: free */
    uint32_t guesses_n;
};

struct access {
    const struct keys *client, *grid; /* NULL: none configured */
    bool grid_guards_clients;
    struct metric *missing, *wrong, *forbidden, *limited; /* NULL until access_metrics() */
    pthread_mutex_t mu;                                   /* guards what follows; taken on failure alone */
    struct access_peer peers[ACCESS_PEERS_N];
    struct log_limit log;
};

void access_init(struct access *a, const struct keys *client, const struct keys *grid, bool grid_guards_clients);
void access_release(struct access *a);
/* PREFIX_auth_failures_total{why=}. False: out of memory. */
bool access_metrics(struct access *a, struct metrics *m, const char *prefix);

/* Would who have to show a key? */
bool access_is_guarded(const struct access *a, enum access_who who);

/* authorization: the whole field's value, NULL: absent. what: path or method, for the
 * messages. LQ_NO_KEY, LQ_WRONG_KEY or LQ_FORBIDDEN, which access_failed() is to hear of. */
enum lq_err access_check(const struct access *a, enum access_who who, const char *authorization, const char *what,
                         struct lq_fault *fault) LQ_MUST_CHECK;
/* Counts it, logs it (once a second), and gives the code to answer with: rc, or LQ_TOO_MANY
 * with its text in *fault. peer may be NULL or of a unix socket: those are one address. */
enum lq_err access_failed(struct access *a, enum lq_err rc, const struct sockaddr *peer, const char *what,
                          struct lq_fault *fault) LQ_MUST_CHECK;

#endif
