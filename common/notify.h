/* notify: tells the service manager how this process fares, as sd_notify(3) says: one
 * datagram of VARIABLE=value lines to the unix socket that $NOTIFY_SOCKET names (a path,
 * or '@' and a name in the abstract space). Without the variable nothing is done. Any thread. */
#ifndef LQ_COMMON_NOTIFY_H
#define LQ_COMMON_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

/* The variable is set: somebody listens. */
bool notify_is_on(void);

/* fmt: the lines, such as "READY=1\nSTATUS=...". A manager that cannot be reached
 * within 100 ms, or a text of over 1 KiB, is a line in the log and no error. */
void notify_send(const char *fmt, ...) LQ_PRINTF(1, 2);

/* How long the manager waits for WATCHDOG=1 before it kills this process; 0: it does not. */
uint64_t notify_watchdog_us(void);

#endif
