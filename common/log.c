/* log: see log.h. One write() a line, so that lines of several threads and
 * processes on one stderr do not mix. */
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

enum { LINE_BYTES = 2048, QUOTED_BYTES = 600, QUOTED_N = 8 };

static const char *const level_word[] = {"debug", "info", "warn", "error"};
static _Atomic int level_now = LOG_INFO;

enum lq_err log_level_set(const char *word, struct lq_fault *fault)
{
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++) {
        if (strcmp(word, level_word[i]) == 0) {
            atomic_store_explicit(&level_now, i, memory_order_relaxed);
            return LQ_OK;
        }
    }
    return lq_fail(fault, LQ_USAGE, "log level %s: use debug, info, warn or error", log_q(word));
}

void log_line(enum log_level level, const char *fmt, ...)
{
    if ((int)level < atomic_load_explicit(&level_now, memory_order_relaxed))
        return;
    int saved = errno;
    char line[LINE_BYTES];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s ", ts.tv_nsec / 1000000, level_word[level]);

    va_list ap;
    va_start(ap, fmt);
    int wrote = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (wrote > 0)
        n += (size_t)wrote < sizeof line - n - 1 ? (size_t)wrote : sizeof line - n - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0) {
        /* Nowhere left to say it. */
    }
    errno = saved;
}

const char *log_q(const char *s)
{
    static _Thread_local char buf[QUOTED_N][QUOTED_BYTES];
    static _Thread_local unsigned turn;
    char *out = buf[turn++ % QUOTED_N], *p = out, *end = out + QUOTED_BYTES - 8;
    *p++ = '"';
    for (; *s && p < end; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            *p++ = '\\';
            *p++ = (char)c;
        } else if (c < 0x20 || c == 0x7f) {
            p += snprintf(p, 5, "\\x%02x", c);
        } else {
            *p++ = (char)c;
        }
    }
    if (*s) {
        memcpy(p, "...", 3);
        p += 3;
    }
    *p++ = '"';
    *p = '\0';
    return out;
}

int log_limit_pass(struct log_limit *l, unsigned long long interval_us, unsigned long long *held)
{
    uint64_t now = clock_us();
    if (now < l->next_us) {
        l->held_n++;
        return 0;
    }
    *held = l->held_n;
    l->held_n = 0;
    l->next_us = now + interval_us;
    return 1;
}
