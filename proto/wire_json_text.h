/* wire_json_text: a growing JSON text, private to proto. Sticky on failure: after
 * one failed allocation every call does nothing and _take gives NULL.
 * By hand since a DOM of 100,000 numbers takes many times their text. */
#ifndef LQ_PROTO_WIRE_JSON_TEXT_H
#define LQ_PROTO_WIRE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

struct json_text { /* {0} is valid */
    char *p;
    size_t n, cap;
    bool failed;
};

void json_text_put(struct json_text *t, const char *s);
void json_text_bytes(struct json_text *t, const char *s, size_t n);
/* At most 127 bytes. */
void json_text_printf(struct json_text *t, const char *fmt, ...) LQ_PRINTF(2, 3);
/* Quoted and escaped; bytes that are not UTF-8 become U+FFFD. */
void json_text_string(struct json_text *t, const char *s);
/* [..] with 9 significant digits each. */
void json_text_floats(struct json_text *t, const float *x, size_t n);
/* The malloc'd, terminated text and its length; t is {0} again. NULL: out of memory. */
char *json_text_take(struct json_text *t, size_t *n);

#endif
