/* trust: the keys and certificates of one program, from its options: what it shows, and
 * whom it believes. Read again on SIGHUP, all at once for every loop.
 * Owner: main(); outlives servers and pools. Thread: members as their own headers say. */
#ifndef LQ_COMMON_TRUST_H
#define LQ_COMMON_TRUST_H

#include "common/access.h"
#include "common/keys.h"
#include "common/opt.h"

#include "common/tls.h"

struct trust_opts {
    const char *tls_cert, *tls_key, *tls_ca, *tls_client_ca;
    const char *api_key_file, *grid_key_file; /* LARQL_GRID_KEY where the latter is NULL */
    bool insecure;
};
enum { TRUST_OPTS_N = 7, TRUST_TLS_MAX = 4 };
void trust_opt_rows(struct trust_opts *o, struct opt *rows); /* TRUST_OPTS_N of them */

struct trust {
    struct trust_opts opts;     /* its texts are argv's */
    struct tls *listen;         /* NULL: no certificate, plain */
    struct tls *dial;           /* for https:// peers */
    struct keys *client, *grid; /* NULL: none */
    struct access access;
    struct tls *more[TRUST_TLS_MAX]; /* trust_tls() */
    size_t more_n;
};

/* grid_guards_clients: see access.h. LQ_USAGE says what is wrong with which option. `t` is
 * to be released on failure too. */
enum lq_err trust_init(struct trust *t, const struct trust_opts *o, bool grid_guards_clients,
                       struct lq_fault *fault) LQ_MUST_CHECK;
void trust_release(struct trust *t);

/* Another context of the same files, for other protocols ({"h2", NULL}) or a pinned peer; it is
 * t's, and read again with the rest. At start, before other threads. */
enum lq_err trust_tls(struct trust *t, enum tls_side side, const char *const *protocols, const char *pin,
                      struct tls **out, struct lq_fault *fault) LQ_MUST_CHECK;

/* Reads everything again; what cannot be read stays as it was, and the log says so. */
void trust_reload(struct trust *t);

/* May it listen there? An address off loopback wants TLS and a key, or --insecure: LQ_USAGE
 * says what to give. A name that does not resolve is left to who binds it. */
enum lq_err trust_may_listen(const struct trust *t, const char *host, struct lq_fault *fault) LQ_MUST_CHECK;
/* The same for the port that shards join at: it wants the grid's key, also where clients have some. */
enum lq_err trust_may_join(const struct trust *t, const char *host, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
