/* args: small readers of option values that several programs share. */
#ifndef LQ_COMMON_ARGS_H
#define LQ_COMMON_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

/* Moves both ends inwards over white space. */
void args_trim(const char **p, size_t *n);

/* "A-B" or "A", inclusive, blanks trimmed; n bytes of text. The messages are those
 * of docs/protocol.md, 6.6. */
enum lq_err args_range(const char *text, size_t n, uint32_t *first, uint32_t *last,
                       struct lq_fault *fault) LQ_MUST_CHECK;

/* Raises the open-file limit to the hard one; never fails, logs what it got. */
void args_raise_open_files(void);

#endif
