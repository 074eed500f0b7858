/* own_url: see own_url.h. */
#include "router/own_url.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* An address that means the machine itself wherever it is read: loopback, or the wildcard. */
static bool is_own(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        uint32_t v4 = ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr);
        return v4 >> 24 == 127 || v4 == 0;
    }
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    bool mapped = IN6_IS_ADDR_V4MAPPED(v6);
    return IN6_IS_ADDR_LOOPBACK(v6) || IN6_IS_ADDR_UNSPECIFIED(v6) ||
           (mapped && (v6->s6_addr[12] == 127 || v6->s6_addr[12] == 0));
}

/* Numbers in every spelling that connect() takes ("0", "127.1", "0x7f000001"), and the names
 * that /etc/hosts has for it. */
bool own_url(const char *url)
{
    static const char *const names[] = {"localhost", "ip6-localhost", "ip6-loopback"};
    const char *host = strstr(url, "://");
    char name[256];
    if (strncasecmp(url, "unix:", 5) == 0)
        return true;
    host = host ? host + 3 : url;
    bool bracket = *host == '[';
    size_t n = strcspn(host += bracket, bracket ? "]" : ":/?#");
    snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, host);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    if (n > 10 && n < sizeof name && strcasecmp(name + n - 10, ".localhost") == 0)
        return true;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    if (getaddrinfo(name, NULL, &hints, &list) != 0)
        return false;
    bool own = is_own(list->ai_addr);
    freeaddrinfo(list);
    return own;
}
