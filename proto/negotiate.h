/* negotiate: (Content-Type, Accept, server switches) -> formats, a pure function
 * (docs/protocol.md, 3). Header strings may be NULL (absent); several Accept
 * lines come joined by ", ". */
#ifndef LQ_PROTO_NEGOTIATE_H
#define LQ_PROTO_NEGOTIATE_H

#include <stdbool.h>

#include "proto/wire.h"

struct wire_switches {
    bool f16_on, i8_on;
    bool compact_ties; /* --wire-preference compact: at equal q the smallest wins */
};

struct negotiated {
    bool json;               /* the body is JSON, and so is the answer */
    enum wire_format body;   /* of a binary request */
    enum wire_format answer; /* of a binary request */
    bool accepts_f32;        /* Accept names f32 (or a wildcard) with q > 0, or there is no Accept */
};

/* LQ_BAD_MEDIA with the text that names the fix (check 7). */
enum lq_err negotiate(const char *content_type, const char *accept, const struct wire_switches *sw,
                      struct negotiated *out, struct lq_fault *fault) LQ_MUST_CHECK;

/* What a router needs: is the body JSON or one of the three binary types?
 * Switches are the shard's; an i8 body without opt-in is the shard's 415 too. */
enum lq_err negotiate_body(const char *content_type, bool *json, enum wire_format *body,
                           struct lq_fault *fault) LQ_MUST_CHECK;

/* The Accept that our client sends: wanted first, more precise ones at falling q,
 * f32 last. A constant string. */
const char *negotiate_client_accept(enum wire_format wanted);

/* The format that a response's Content-Type names (parameters ignored);
 * LQ_BAD_ANSWER when it is none of the three. */
enum lq_err negotiate_answer(const char *content_type, enum wire_format *out, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
