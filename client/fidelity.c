/* fidelity: see fidelity.h. Sums in double: vocabularies have 10^5 entries. */
#include "client/fidelity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Is logit a before logit b in the order of fidelity_top()? */
static bool before(const float *v, size_t a, size_t b)
{
    if (isnan(v[a]) || isnan(v[b]))
        return isnan(v[b]) && (!isnan(v[a]) || a < b);
    return v[a] != v[b] ? v[a] > v[b] : a < b;
}

void fidelity_top(const float *logits, size_t n, size_t k, uint32_t *ids)
{
    size_t have = 0;
    for (size_t i = 0; i < n; i++) {
        if (have == k && !before(logits, i, ids[k - 1])) /* nearly always */
            continue;
        size_t at = have < k ? have++ : k - 1;
        for (; at > 0 && before(logits, i, ids[at - 1]); at--)
            ids[at] = ids[at - 1];
        ids[at] = (uint32_t)i;
    }
}

static bool is_in(uint32_t id, const uint32_t *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

bool fidelity_top_match(const uint32_t *want, const uint32_t *got, size_t k, bool ordered)
{
    if (ordered)
        return memcmp(want, got, k * sizeof *want) == 0;
    bool same = want[0] == got[0];
    for (size_t i = 0; i < k && same; i++)
        same = is_in(want[i], got, k);
    return same;
}

double fidelity_log_sum(const float *logits, size_t n)
{
    float most = logits[0];
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)most);
    return (double)most + log(sum);
}

double fidelity_kl(const float *want, double want_log_sum, const float *got, size_t n)
{
    double got_log_sum = fidelity_log_sum(got, n), sum = 0;
    for (size_t i = 0; i < n; i++) {
        double log_p = (double)want[i] - want_log_sum, log_q = (double)got[i] - got_log_sum;
        sum += exp(log_p) * (log_p - log_q);
    }
    return sum < 0 ? 0 : sum; /* rounding */
}

/* Quickselect: ends with scratch[k] where sorting would put it. */
float fidelity_median(const float *row, size_t n, float *scratch)
{
    size_t low = 0, high = n - 1, k = n / 2;
    for (size_t i = 0; i < n; i++)
        scratch[i] = fabsf(row[i]);
    while (low < high) {
        float pivot = scratch[low + (high - low) / 2];
        size_t i = low, j = high;
        for (;;) {
            while (scratch[i] < pivot)
                i++;
            while (scratch[j] > pivot)
                j--;
            if (i >= j)
                break;
            float t = scratch[i];
            scratch[i++] = scratch[j];
            scratch[j--] = t;
        }
        if (k <= j)
            high = j;
        else
            low = j + 1;
    }
    return scratch[k];
}

void fidelity_row(const float *row, const float *got, size_t n, float median, struct fidelity_row *out)
{
    double off = 0, all = 0;
    *out = (struct fidelity_row){0};
    for (size_t i = 0; i < n; i++) {
        out->nonzero_n += row[i] != 0.0f;
        out->zeroed_n += row[i] != 0.0f && got[i] == 0.0f;
        if (!(fabsf(row[i]) < FIDELITY_ORDINARY_X * median))
            continue;
        double d = (double)got[i] - (double)row[i];
        out->ordinary_n++;
        off += d * d;
        all += (double)row[i] * (double)row[i];
    }
    out->error = all > 0 ? sqrt(off / all) : 0;
}
