/* trust: see trust.h. */
#include "common/trust.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

void trust_opt_rows(struct trust_opts *o, struct opt *rows)
{
    const struct opt table[TRUST_OPTS_N] = {
        {"tls-cert", 0, OPT_TEXT, "FILE", NULL,
         "PEM, leaf first: speak TLS with it; also shown to https:// peers that ask for one", 0, 0, &o->tls_cert},
        {"tls-key", 0, OPT_TEXT, "FILE", NULL, "its private key, PEM", 0, 0, &o->tls_key},
        {"tls-ca", 0, OPT_TEXT, "FILE", NULL, "PEM, whom https:// peers must be certified by (default: the system's)",
         0, 0, &o->tls_ca},
        {"tls-client-ca", 0, OPT_TEXT, "FILE", NULL, "PEM, require client certificates of these", 0, 0,
         &o->tls_client_ca},
        {"api-key-file", 0, OPT_TEXT, "FILE", NULL, "keys of clients, one a line; without it they need none", 0, 0,
         &o->api_key_file},
        {"grid-key-file", 0, OPT_TEXT, "FILE", NULL,
         "keys of the grid's own machines and admins, the first is sent (or the key itself in LARQL_GRID_KEY)", 0, 0,
         &o->grid_key_file},
        {"insecure", 0, OPT_FLAG, NULL, NULL, "listen off loopback without TLS or without a key", 0, 0, &o->insecure},
    };
    memcpy(rows, table, sizeof table);
}

static enum lq_err make_tls(const struct trust_opts *o, enum tls_side side, const char *const *protocols,
                            const char *pin, struct tls **out, struct lq_fault *fault)
{
    const struct tls_opts t = {.side = side,
                               .cert_path = o->tls_cert,
                               .key_path = o->tls_key,
                               .ca_path = side == TLS_SERVER ? o->tls_client_ca : o->tls_ca,
                               .pin = pin,
                               .protocols = protocols};
    return tls_new(&t, out, fault);
}

enum lq_err trust_init(struct trust *t, const struct trust_opts *o, bool grid_guards_clients, struct lq_fault *fault)
{
    const char *grid_key = getenv("LARQL_GRID_KEY");
    enum lq_err rc = LQ_OK;
    *t = (struct trust){.opts = *o};
    if (!o->tls_cert != !o->tls_key)
        rc = lq_fail(fault, LQ_USAGE, "--tls-cert and --tls-key are given together");
    else if (o->tls_client_ca && !o->tls_cert)
        rc = lq_fail(fault, LQ_USAGE, "--tls-client-ca is for a TLS server: give --tls-cert and --tls-key");
    if (!rc && o->tls_cert)
        rc = make_tls(o, TLS_SERVER, NULL, NULL, &t->listen, fault);
    if (!rc)
        rc = make_tls(o, TLS_CLIENT, NULL, NULL, &t->dial, fault);
    if (!rc && o->api_key_file)
        rc = keys_new(o->api_key_file, NULL, NULL, &t->client, fault);
    if (!rc && (o->grid_key_file || (grid_key && *grid_key)))
        rc = keys_new(o->grid_key_file, grid_key, "LARQL_GRID_KEY", &t->grid, fault);
    access_init(&t->access, t->client, t->grid, grid_guards_clients);
    return rc;
}

void trust_release(struct trust *t)
{
    access_release(&t->access);
    keys_free(t->client);
    keys_free(t->grid);
    tls_free(t->listen);
    tls_free(t->dial);
    for (size_t i = 0; i < t->more_n; i++)
        tls_free(t->more[i]);
    *t = (struct trust){0};
}

enum lq_err trust_tls(struct trust *t, enum tls_side side, const char *const *protocols, const char *pin,
                      struct tls **out, struct lq_fault *fault)
{
    if (t->more_n == TRUST_TLS_MAX)
        return lq_fail(fault, LQ_INTERNAL, "more than %d kinds of TLS", TRUST_TLS_MAX);
    enum lq_err rc = make_tls(&t->opts, side, protocols, pin, out, fault);
    if (!rc)
        t->more[t->more_n++] = *out;
    return rc;
}

static void say(const char *what, enum lq_err rc, const struct lq_fault *fault)
{
    if (rc)
        log_error("reload_failed what=%s kept=old why=%s", what, log_q(fault->text));
    else
        log_info("reloaded what=%s", what);
}

void trust_reload(struct trust *t)
{
    struct lq_fault fault;
    if (t->listen)
        say("tls_server", tls_reload(t->listen, &fault), &fault);
    say("tls_client", tls_reload(t->dial, &fault), &fault);
    for (size_t i = 0; i < t->more_n; i++)
        say("tls_grid", tls_reload(t->more[i], &fault), &fault);
    if (t->client)
        say("api_keys", keys_reload(t->client, &fault), &fault);
    if (t->grid)
        say("grid_keys", keys_reload(t->grid, &fault), &fault);
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static bool is_reachable(const char *host)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list;
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return false;
    bool loopback = true;
    for (const struct addrinfo *a = list; a; a = a->ai_next)
        loopback &= is_loopback(a->ai_addr);
    freeaddrinfo(list);
    return !loopback;
}

static enum lq_err may_listen(const struct trust *t, const char *host, bool key, const char *keys,
                              struct lq_fault *fault)
{
    if ((t->listen && key) || t->opts.insecure || !is_reachable(host))
        return LQ_OK;
    return lq_fail(fault, LQ_USAGE,
                   "--host %s can be reached from other machines: give %s%s%s, or --insecure inside a network that "
                   "you trust",
                   host, t->listen ? "" : "--tls-cert and --tls-key", t->listen || key ? "" : ", and ",
                   key ? "" : keys);
}

enum lq_err trust_may_listen(const struct trust *t, const char *host, struct lq_fault *fault)
{
    return may_listen(t, host, access_is_guarded(&t->access, ACCESS_CLIENT),
                      t->access.grid_guards_clients ? "--grid-key-file or --api-key-file" : "--api-key-file", fault);
}

enum lq_err trust_may_join(const struct trust *t, const char *host, struct lq_fault *fault)
{
    if (t->client && !t->grid)
        return lq_fail(fault, LQ_USAGE,
                       "--grid-port with --api-key-file needs --grid-key-file too: else every client could join shards "
                       "and drain them");
    return may_listen(t, host, t->grid != NULL, "--grid-key-file", fault);
}
