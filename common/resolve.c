/* resolve: see resolve.h. */
#include "common/resolve.h"

#include <event2/dns.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Outlives its owner while look-ups are under way: libevent ends them only in the loop. */
struct resolve {
    struct event_base *base;
    struct evdns_base *dns;
    unsigned jobs_n;
    bool closed; /* its owner let go */
};

struct resolve_job {
    struct resolve *resolve;
    struct evdns_getaddrinfo_request *request; /* NULL: it was answered at once */
    struct event *soon;                        /* tells what was known at once, from the loop */
    int error;
    struct addrinfo *list;
    resolve_on_done on_done; /* NULL: cancelled */
    void *arg;
    bool starting;
};

struct resolve *resolve_new(struct event_base *base)
{
    struct resolve *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->base = base;
    r->dns = evdns_base_new(base, EVDNS_BASE_INITIALIZE_NAMESERVERS | EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!r->dns && (r->dns = evdns_base_new(base, 0))) /* no resolv.conf: the hosts file alone */
        (void)evdns_base_load_hosts(r->dns, NULL);
    if (r->dns)
        return r;
    free(r);
    return NULL;
}

static void on_unused(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct resolve *r = arg;
    evdns_base_free(r->dns, 0);
    free(r);
}

void resolve_free(struct resolve *r)
{
    if (!r)
        return;
    r->closed = true;
    if (r->jobs_n == 0)
        on_unused(-1, 0, r);
}

static void job_free(struct resolve_job *j)
{
    struct resolve *r = j->resolve;
    static const struct timeval now = {0};
    if (j->soon)
        event_free(j->soon);
    if (j->list)
        evutil_freeaddrinfo(j->list);
    free(j);
    /* evdns still holds itself under its callback: its end waits for the next turn. */
    if (--r->jobs_n == 0 && r->closed)
        (void)event_base_once(r->base, -1, EV_TIMEOUT, on_unused, r, &now);
}

static void tell(struct resolve_job *j)
{
    resolve_on_done on_done = j->on_done;
    void *arg = j->arg;
    struct addrinfo *list = j->error ? NULL : j->list;
    const char *error = j->error ? evutil_gai_strerror(j->error) : NULL;
    if (list)
        j->list = NULL;
    job_free(j);
    if (on_done)
        on_done(error, list, arg);
}

static void on_soon(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    tell(arg);
}

static void on_resolved(int error, struct evutil_addrinfo *list, void *arg)
{
    struct resolve_job *j = arg;
    j->error = error;
    j->list = list;
    if (j->starting)
        event_active(j->soon, 0, 0);
    else
        tell(j);
}

struct resolve_job *resolve_start(struct resolve *r, const char *host, const char *port, resolve_on_done on_done,
                                  void *arg)
{
    struct evutil_addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP};
    struct resolve_job *j = calloc(1, sizeof *j);
    if (!j || !(j->soon = event_new(r->base, -1, 0, on_soon, j))) {
        free(j);
        return NULL;
    }
    j->resolve = r;
    j->on_done = on_done;
    j->arg = arg;
    r->jobs_n++;
    j->starting = true;
    j->request = evdns_getaddrinfo(r->dns, host, port, &want, on_resolved, j);
    j->starting = false;
    return j;
}

void resolve_cancel(struct resolve_job *j)
{
    if (!j)
        return;
    j->on_done = NULL;
    if (j->request)
        evdns_getaddrinfo_cancel(j->request); /* on_resolved() frees it */
    else
        job_free(j);
}
