/* trust: see trust.h. */
#include "common/trust.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/tls.h"

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
        rc = tls_new(&(struct tls_opts){.side = TLS_SERVER,
                                        .cert_path = o->tls_cert,
                                        .key_path = o->tls_key,
                                        .ca_path = o->tls_client_ca},
                     &t->listen, fault);
    if (!rc)
        rc = tls_new(&(struct tls_opts){.side = TLS_CLIENT,
                                        .cert_path = o->tls_cert,
                                        .key_path = o->tls_key,
                                        .ca_path = o->tls_ca},
                     &t->dial, fault);
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
    *t = (struct trust){0};
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

enum lq_err trust_may_listen(const struct trust *t, const char *host, struct lq_fault *fault)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE},
                    *list = NULL;
    bool key = access_is_guarded(&t->access, ACCESS_CLIENT);
    if ((t->listen && key) || t->opts.insecure || getaddrinfo(host, NULL, &hints, &list) != 0)
        return LQ_OK;
    bool loopback = true;
    for (const struct addrinfo *a = list; a; a = a->ai_next)
        loopback &= is_loopback(a->ai_addr);
    freeaddrinfo(list);
    if (loopback)
        return LQ_OK;
    const char *which = t->access.grid_guards_clients ? "--grid-key-file or --api-key-file" : "--api-key-file";
    return lq_fail(fault, LQ_USAGE,
                   "--host %s can be reached from other machines: give %s%s%s, or --insecure inside a network that "
                   "you trust",
                   host, t->listen ? "" : "--tls-cert and --tls-key", t->listen || key ? "" : ", and ",
                   key ? "" : which);
}
