/* log_json: a log line as text turned into one JSON object. Private to log.c and tests. */
#ifndef LQ_COMMON_LOG_JSON_H
#define LQ_COMMON_LOG_JSON_H

#include <stddef.h>

/* The most bytes that an object of n bytes of text can take. */
#define LOG_JSON_BYTES(n) (6 * (n) + 256)

/* text: `event key=value ...`, n bytes, values bare or quoted as log_q() does it. Writes
 * {"ts":..,"level":..,"event":..,"key":value,..} without a newline and returns its length;
 * out holds LOG_JSON_BYTES(n). A bare value that is a plain decimal number of up to 15
 * digits becomes a number, unless its key is `req`, `layer` or `id`: text that may look like
 * one. From the first word that is no key=value on, the rest is "text". Whatever text
 * holds, cut short or not, the object is valid JSON in UTF-8 (a byte that is not becomes U+FFFD). */
size_t log_json(const char *ts, const char *level, const char *text, size_t n, char *out);

#endif
