/* fidelity: how far one run of a model is from another, and what a wire format does to
 * the ordinary values of a row. Pure functions on arrays; docs/fidelity.md tells the
 * definitions, tests/unit/client/test_fidelity.c holds them against numpy's figures. */
#ifndef LQ_CLIENT_FIDELITY_H
#define LQ_CLIENT_FIDELITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIDELITY_TOP_MAX = 100 };
/* A value is ordinary when its magnitude is below this many times the row's median one. */
#define FIDELITY_ORDINARY_X 100.0f

/* ids of the k (1 to FIDELITY_TOP_MAX, at most n) largest, the largest first; of equal ones the
 * lower id first; NaN counts as the least of all. */
void fidelity_top(const float *logits, size_t n, size_t k, uint32_t *ids);
/* Of two such lists: the same set and the same first one; ordered: the same list. */
bool fidelity_top_match(const uint32_t *want, const uint32_t *got, size_t k, bool ordered);

/* log of the sum of e^v. */
double fidelity_log_sum(const float *logits, size_t n);
/* Kullback-Leibler divergence of softmax(got) from softmax(want) in nats, at least 0; NaN where
 * a logit is not finite. want_log_sum = fidelity_log_sum(want). */
double fidelity_kl(const float *want, double want_log_sum, const float *got, size_t n);

/* Median magnitude of n >= 1 values (of an even number the upper one); scratch: n floats. */
float fidelity_median(const float *row, size_t n, float *scratch);

/* What became of one row on its way. */
struct fidelity_row {
    size_t nonzero_n, zeroed_n; /* values that were not zero; those of them that are now */
    size_t ordinary_n;
    double error; /* of the ordinary values: |got - row| / |row|, both as Euclidean norms; 0 without any */
};
void fidelity_row(const float *row, const float *got, size_t n, float median, struct fidelity_row *out);

#endif
