/* bench_baseline: a result of `larql bench` beside an earlier one. */
#ifndef LQ_CLIENT_BENCH_BASELINE_H
#define LQ_CLIENT_BENCH_BASELINE_H

#include <jansson.h>
#include <stdio.h>

#include "proto/err.h"

/* Divergences below this are rounding: a baseline's counts as at least so much. */
#define BASELINE_KL_FLOOR 1e-6

struct baseline_ratios {
    double bytes, kl, ms; /* now <= ratio x then; ms 0: not compared */
    double agreement;     /* now >= ratio x then */
};

struct baseline {
    json_t *then; /* a result of version 1 */
    struct baseline_ratios ratios;
};

/* "bytes=1.02,ms=1.5"; what is not named stays. LQ_USAGE. */
enum lq_err baseline_ratios_parse(const char *text, struct baseline_ratios *to, struct lq_fault *fault) LQ_MUST_CHECK;

/* ratios NULL: the defaults. To be released either way. LQ_IO, LQ_USAGE. */
enum lq_err baseline_read(const char *path, const char *ratios, struct baseline *out,
                          struct lq_fault *fault) LQ_MUST_CHECK;
void baseline_release(struct baseline *b);

/* A line on `to` for each figure that is worse than allowed; *worse_n of them. Only what both hold
 * is compared. LQ_USAGE: of another model or input, or a format of the baseline was not run. */
enum lq_err baseline_compare(const struct baseline *b, const json_t *now, FILE *to, size_t *worse_n,
                             struct lq_fault *fault) LQ_MUST_CHECK;

#endif
