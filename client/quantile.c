/* quantile: see quantile.h. */
#include "client/quantile.h"

#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile(double *v, size_t n, double q)
{
    qsort(v, n, sizeof *v, by_size);
    return v[(size_t)(q * (double)(n - 1) + 0.5)];
}
