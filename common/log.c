/* log: see log.h. One write() a line, so that lines of several threads and
 * processes on one stderr do not mix. */
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log_json.h"

enum { LINE_BYTES = 2048, QUOTED_BYTES = 600, QUOTED_N = 8 };

static const char *const level_word[] = {"debug", "info", "warn", "error"};
static _Atomic int level_now = LOG_INFO, requests_level = LOG_DEBUG;
static _Atomic bool as_json;

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

enum lq_err log_format_set(const char *word, struct lq_fault *fault)
{
    bool json = strcmp(word, "json") == 0;
    if (!json && strcmp(word, "text") != 0)
        return lq_fail(fault, LQ_USAGE, "log format %s: use text or json", log_q(word));
    atomic_store_explicit(&as_json, json, memory_order_relaxed);
    return LQ_OK;
}

static bool is_on(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&level_now, memory_order_relaxed);
}

void log_requests_set(bool wanted)
{
    atomic_store_explicit(&requests_level, wanted ? LOG_INFO : LOG_DEBUG, memory_order_relaxed);
}

enum log_level log_requests_level(void)
{
    return (enum log_level)atomic_load_explicit(&requests_level, memory_order_relaxed);
}

bool log_requests_wanted(void)
{
    return is_on(log_requests_level());
}

static void write_line(char *line, size_t n)
{
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0) {
        /* Nowhere left to say it. */
    }
}

void log_line(enum log_level level, const char *fmt, ...)
{
    if (!is_on(level))
        return;
    int saved = errno;
    char text[LINE_BYTES], ts[40], line[LOG_JSON_BYTES(LINE_BYTES)];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t ts_n = strftime(ts, sizeof ts, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(ts + ts_n, sizeof ts - ts_n, ".%03ldZ", now.tv_nsec / 1000000);

    va_list ap;
    va_start(ap, fmt);
    int wrote = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t n = wrote < 0 ? 0 : (size_t)wrote < sizeof text ? (size_t)wrote : sizeof text - 1;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) /* what was not given to log_q() */
            text[i] = '?';
    if (atomic_load_explicit(&as_json, memory_order_relaxed))
        write_line(line, log_json(ts, level_word[level], text, n, line));
    else
        write_line(line, (size_t)snprintf(line, sizeof line, "%s %s %s", ts, level_word[level], text));
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
