/* log: one line an event, to stderr: `ts level event key=value ...`, or the same as one
 * JSON object a line.
 * Thread-safe (one write a line). Never payload values, never keys.
 * Values that people choose (paths, URLs, messages) are quoted with log_q(). */
#ifndef LQ_COMMON_LOG_H
#define LQ_COMMON_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* "debug".."error"; LQ_USAGE otherwise. Level at start: info. */
enum lq_err log_level_set(const char *word, struct lq_fault *fault) LQ_MUST_CHECK;

/* "text" (at start) or "json"; LQ_USAGE otherwise. */
enum lq_err log_format_set(const char *word, struct lq_fault *fault) LQ_MUST_CHECK;

/* fmt is `event key=value ...`, each key once, none of them ts, level or event (a test
 * reads all call sites). Lines over 2 KiB are cut; control bytes become '?'. */
void log_line(enum log_level level, const char *fmt, ...) LQ_PRINTF(2, 3);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* One line for each request: at debug level, or at info when they are asked for. */
void log_requests_set(bool wanted);
bool log_requests_wanted(void); /* would log_request() print? */
#define log_request(...) log_line(log_requests_level(), __VA_ARGS__)
enum log_level log_requests_level(void);

/* s in double quotes with quotes, backslashes and control bytes escaped, in one
 * of eight thread-local buffers of 600 bytes: good until the eighth next call. */
const char *log_q(const char *s);

/* True at most once per interval_us for this counter; *held = calls swallowed
 * since the last true. One caller thread per struct. */
struct log_limit {
    unsigned long long next_us, held_n;
};
int log_limit_pass(struct log_limit *l, unsigned long long interval_us, unsigned long long *held);

#endif
