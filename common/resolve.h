/* resolve: names to addresses without blocking, by /etc/hosts and the name servers of
 * resolv.conf. Owner: the thread of its event_base. */
#ifndef LQ_COMMON_RESOLVE_H
#define LQ_COMMON_RESOLVE_H

#include <event2/event.h>
#include <netdb.h>

struct resolve;
struct resolve_job;

/* NULL: out of memory. */
struct resolve *resolve_new(struct event_base *base);
void resolve_free(struct resolve *r); /* NULL is fine; all its jobs must be over or cancelled */

/* error NULL: list is the taker's (evutil_freeaddrinfo()). The job is over. */
typedef void (*resolve_on_done)(const char *error, struct addrinfo *list, void *arg);
/* Never calls back from inside. NULL: out of memory. */
struct resolve_job *resolve_start(struct resolve *r, const char *host, const char *port, resolve_on_done on_done,
                                  void *arg);
void resolve_cancel(struct resolve_job *j); /* NULL is fine; no callback */

#endif
