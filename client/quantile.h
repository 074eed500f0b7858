/* quantile: of measurements. */
#ifndef LQ_CLIENT_QUANTILE_H
#define LQ_CLIENT_QUANTILE_H

#include <stddef.h>

/* The q-th quantile (0 to 1, the nearest one) of n >= 1 values, which end up sorted. */
double quantile(double *v, size_t n, double q);

#endif
