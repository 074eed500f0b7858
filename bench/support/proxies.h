/* proxies: the contestants of bench/router.c: larql-router and its rivals, each before the
 * same back end, set up as their manuals advise for this work: keep-alive on both sides,
 * no buffering, no access log. Configuration files live in a folder of the run's own. */
#ifndef LQ_BENCH_SUPPORT_PROXIES_H
#define LQ_BENCH_SUPPORT_PROXIES_H

#include "bench/support/peers.h"

/* Makes the folder; NULL in *why, or what is missing here. */
void proxies_init(void);
void proxies_release(void); /* ends the processes, removes the folder */
const char *proxies_dir(void);

struct proxy {
    pid_t pid;
    struct load_addr at;
};
/* shard: a URL. extra: more arguments, ended by NULL. */
struct proxy proxy_larql(const char *shard, unsigned threads, unsigned busy_poll_us);
struct proxy proxy_nginx(int to_port, unsigned workers);
struct proxy proxy_haproxy(int to_port);

#endif
