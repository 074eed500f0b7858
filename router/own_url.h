/* own_url: does a URL mean the machine that reads it? Announced by a shard of another host
 * it would make the router ask itself. */
#ifndef LQ_ROUTER_OWN_URL_H
#define LQ_ROUTER_OWN_URL_H

#include <stdbool.h>

/* Loopback, the wildcard or a Unix socket; names are not looked up. */
bool own_url(const char *url);

#endif
