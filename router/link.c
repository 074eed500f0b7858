/* link: see link.h. */
#include "router/link.h"

#include <stdlib.h>

#include "common/clock.h"
#include "router/health.h"

enum { BUSY_S_MAX = 5 };

struct link *link_of(struct router *rt, struct member *m, struct lq_fault *fault)
{
    struct link *l = m->links[rt->index];
    if (l)
        return l;
    if (!(l = calloc(1, sizeof *l))) {
        (void)lq_fail(fault, LQ_NOMEM, "out of memory for shard %s", m->url);
        return NULL;
    }
    struct http_pool_opts o;
    http_pool_opts_init(&o);
    o.inflight_max /= (uint32_t)rt->crew->routers_n; /* docs/protocol.md 6.8: that many per shard, of all loops */
    o.tls = rt->crew->trust.dial;
    o.keys = rt->crew->trust.grid; /* the client's own Authorization ends here */
    if (http_pool_new(loop_base(rt->loop), m->url, &o, &l->pool, fault) != LQ_OK) {
        free(l);
        return NULL;
    }
    l->router = rt;
    l->member = member_ref(m);
    l->refs = 1;
    l->generation = rt->table ? rt->table->generation : 0;
    TAILQ_INIT(&l->uses);
    TAILQ_INSERT_TAIL(&rt->links, l, entry);
    m->links[rt->index] = l;
    return l;
}

static void link_free(void *arg)
{
    struct link *l = arg;
    http_pool_free(l->pool);
    member_unref(l->member);
    free(l);
}

/* Its pool may be in a callback: it goes after this turn. */
static void link_unref(struct link *l)
{
    if (--l->refs == 0)
        loop_later(l->router->loop, link_free, l);
}

static void retire(struct link *l)
{
    TAILQ_REMOVE(&l->router->links, l, entry);
    l->member->links[l->router->index] = NULL;
    link_unref(l);
}

void link_use_begin(struct link *l, struct link_use *u)
{
    l->refs++;
    u->link = l;
    u->start_us = clock_us();
    TAILQ_INSERT_TAIL(&l->uses, u, entry);
    atomic_fetch_add_explicit(&l->member->inflight_n, 1, memory_order_relaxed);
}

void link_use_end(struct link_use *u)
{
    struct link *l = u->link;
    TAILQ_REMOVE(&l->uses, u, entry);
    atomic_fetch_sub_explicit(&l->member->inflight_n, 1, memory_order_relaxed);
    u->link = NULL;
    link_unref(l);
}

void link_answered(const struct link_use *u)
{
    member_answered(u->link->member, clock_us() - u->start_us);
}

void link_failed(const struct link_use *u, const char *why)
{
    struct member *m = u->link->member;
    atomic_fetch_add_explicit(&m->failures_n, 1, memory_order_relaxed);
    health_ejected(u->link->router->crew, m, why);
}

void link_busy(const struct link_use *u, const char *retry_after)
{
    unsigned long s = retry_after ? strtoul(retry_after, NULL, 10) : 1;
    u->link->member->busy_until_us = clock_us() + (s < BUSY_S_MAX ? s : BUSY_S_MAX) * 1000000;
}

bool link_refuses_key(int status, struct lq_fault *fault)
{
    if (status != 401 && status != 403 && status != 429)
        return false;
    (void)lq_fail(fault, LQ_SHARD_DOWN, "it refuses this router's key (status %d): see --grid-key-file", status);
    return true;
}

static void retire_old(struct router *rt)
{
    struct link *l, *next;
    for (size_t i = 0; i < rt->table->members_n; i++)
        if ((l = rt->table->members[i]->links[rt->index]))
            l->generation = rt->table->generation;
    for (l = TAILQ_FIRST(&rt->links); l; l = next) {
        next = TAILQ_NEXT(l, entry);
        if (l->generation != rt->table->generation)
            retire(l);
    }
}

static void table_unref(void *arg)
{
    route_table_unref(arg);
}

bool link_take_table(struct router *rt)
{
    struct route_table *t = rt->next_table ? atomic_exchange(&rt->next_table, NULL) : NULL, *old = rt->table;
    if (!t)
        return false;
    rt->table = t;
    if (!rt->telling) /* a walk over the links: it retires at its end */
        retire_old(rt);
    if (old)
        loop_later(rt->loop, table_unref, old);
    return true;
}

void link_retire_all(struct router *rt)
{
    struct link *l;
    while ((l = TAILQ_FIRST(&rt->links)))
        retire(l);
}

/* One that has not heard of this round; each may end others, its own request's. */
static struct link_use *next_untold(struct link *l, uint64_t round)
{
    struct link_use *u;
    TAILQ_FOREACH(u, &l->uses, entry) {
        if (u->told != round)
            return u;
    }
    return NULL;
}

void link_tell_down(struct router *rt)
{
    struct link *l, *next;
    struct link_use *u;
    uint64_t round = ++rt->down_rounds;
    rt->telling = true;
    for (l = TAILQ_FIRST(&rt->links); l; l = next) {
        l->refs++; /* its uses may all end */
        while (l->member->health == MEMBER_DOWN && (u = next_untold(l, round))) {
            u->told = round;
            if (u->on_down)
                u->on_down(u);
        }
        next = TAILQ_NEXT(l, entry); /* new links go to the end; none is retired meanwhile */
        link_unref(l);
    }
    rt->telling = false;
    retire_old(rt);
}
