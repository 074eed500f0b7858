/* notify: see notify.h. By hand: it is one sendmsg, and libsystemd would be a library
 * more in each program for it (ADR 0020). */
#include "common/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log.h"

enum { TEXT_BYTES = 1024, SEND_TIMEOUT_US = 100000 };

static const char *socket_name(void)
{
    const char *name = getenv("NOTIFY_SOCKET");
    return name && *name ? name : NULL;
}

bool notify_is_on(void)
{
    return socket_name() != NULL;
}

/* 0, or why not as an errno. */
static int send_to(const char *name, const char *text, size_t n)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t name_n = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || name_n < 2)
        return EAFNOSUPPORT;
    if (name_n >= sizeof to.sun_path)
        return ENAMETOOLONG;
    memcpy(to.sun_path, name, name_n);
    if (name[0] == '@')
        to.sun_path[0] = '\0';
    /* An abstract name is all the bytes that are given: its length must not count a last zero. */
    socklen_t to_n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + name_n + (name[0] == '/'));

    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    struct timeval limit = {.tv_usec = SEND_TIMEOUT_US};
    int rc = 0;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        sendto(fd, text, n, MSG_NOSIGNAL, (const struct sockaddr *)&to, to_n) != (ssize_t)n)
        rc = errno;
    close(fd);
    return rc;
}

void notify_send(const char *fmt, ...)
{
    const char *name = socket_name();
    if (!name)
        return;
    char text[TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int why = n < 0 || (size_t)n >= sizeof text ? EMSGSIZE : send_to(name, text, (size_t)n);
    if (why)
        log_warn("notify_failed socket=%s why=%s", log_q(name), log_q(strerror(why)));
}

uint64_t notify_watchdog_us(void)
{
    const char *limit = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!limit || !notify_is_on())
        return 0;
    char *end;
    if (pid && *pid && (strtol(pid, &end, 10) != getpid() || *end)) /* meant for our parent */
        return 0;
    errno = 0;
    unsigned long long us = strtoull(limit, &end, 10);
    return errno || *end || end == limit || *limit == '-' ? 0 : us;
}
