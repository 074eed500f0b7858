/* keys: a set of API keys, from a file or the environment; compared in constant time.
 * File  : a key a line; blank lines, and from '#' to the line's end, are skipped. A key is
 *         KEY_CHARS_MIN to KEY_CHARS_MAX characters of A-Z a-z 0-9 - . _ ~ + / =
 *         (what `Authorization: Bearer` can carry). Its text is in no log and no error.
 * Owner : who made it. Thread: any; keys_reload() swaps a whole set at once. */
#ifndef LQ_COMMON_KEYS_H
#define LQ_COMMON_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

enum { KEY_CHARS_MIN = 16, KEY_CHARS_MAX = 256, KEYS_MAX = 1024 };

struct keys;

/* path, or where that is NULL one key as text; `from` names the text's source in errors
 * ("LARQL_GRID_KEY"). LQ_USAGE: file, line and what is wrong; a file without a key too.
 * Warns in the log when others can read the file. */
enum lq_err keys_new(const char *path, const char *text, const char *from, struct keys **out,
                     struct lq_fault *fault) LQ_MUST_CHECK;
void keys_free(struct keys *k);

/* Reads the file again. On failure the old set stays. Nothing to do for a text. */
enum lq_err keys_reload(struct keys *k, struct lq_fault *fault) LQ_MUST_CHECK;

/* Is it one of them? Takes as long whichever it is, and whatever is wrong with it. NULL has none. */
bool keys_have(const struct keys *k, const char *key, size_t n);

/* The first key, to be shown to others: "Bearer KEY". */
enum { KEY_BEARER_CHARS = 7 + KEY_CHARS_MAX };
void keys_bearer(const struct keys *k, char text[KEY_BEARER_CHARS + 1]);

#endif
