/* wire_policy: which wire format each layer's calls take, as a small JSON file: written by
 * `larql bench --write-policy`, followed by `larql run --wire-policy` (docs/fidelity.md). */
#ifndef LQ_CLIENT_WIRE_POLICY_H
#define LQ_CLIENT_WIRE_POLICY_H

#include "proto/err.h"
#include "proto/wire.h"

/* n bytes of JSON for a model of that shape -> *out, layers_n formats, malloc'd. LQ_USAGE: not a
 * policy, or another model's; `name` begins the message. */
enum lq_err wire_policy_parse(const char *name, const char *text, size_t n, uint32_t layers_n, uint32_t hidden,
                              enum wire_format **out, struct lq_fault *fault) LQ_MUST_CHECK;
/* The same from a file; LQ_IO where it cannot be read. */
enum lq_err wire_policy_read(const char *path, uint32_t layers_n, uint32_t hidden, enum wire_format **out,
                             struct lq_fault *fault) LQ_MUST_CHECK;
/* Replaces the file in one step. model: for people. */
enum lq_err wire_policy_write(const char *path, const char *model, uint32_t hidden, const enum wire_format *formats,
                              uint32_t layers_n, struct lq_fault *fault) LQ_MUST_CHECK;

/* WIRE_FORMATS_N: no such name. */
enum wire_format wire_policy_format(const char *name, size_t n);

#endif
