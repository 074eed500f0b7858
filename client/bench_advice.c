/* bench_advice: what the figures come to, and which format they speak for. */
#include <stdlib.h>
#include <string.h>

#include "client/bench.h"
#include "client/quantile.h"

static double mean_of(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return n ? sum / (double)n : 0;
}

static double share_of(const bool *v, size_t n)
{
    size_t yes = 0;
    for (size_t i = 0; i < n; i++)
        yes += v[i];
    return n ? (double)yes / (double)n : 0;
}

bool bench_summarize(const struct bench *b, const struct bench_column *c, struct bench_summary *out)
{
    size_t n = b->workers_n * b->steps_n;
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return false;
    memcpy(sorted, c->ms, n * sizeof *sorted);
    *out = (struct bench_summary){
        .ms_mean = mean_of(c->ms, n),
        .ms_p50 = quantile(sorted, n, 0.50),
        .ms_p95 = quantile(sorted, n, 0.95),
        .ms_p99 = quantile(sorted, n, 0.99),
        .kb_up = (double)c->bytes_up / 1e3 / (double)n,
        .kb_down = (double)c->bytes_down / 1e3 / (double)n,
        .encode_us = c->encode_us / (double)b->steps_n,
        .decode_us = c->decode_us / (double)b->steps_n,
        .top1 = share_of(c->top1, n),
        .top5 = share_of(c->top5, n),
        .topk = share_of(c->topk, n),
        .kl_mean = mean_of(c->kl, n),
    };
    free(sorted);
    out->tok_per_s = out->ms_mean > 0 ? (double)b->workers_n * 1000.0 / out->ms_mean : 0;
    for (size_t i = 0; i < n; i++)
        if (!(c->kl[i] <= out->kl_max)) { /* NaN too */
            out->kl_max = c->kl[i];
            out->kl_max_step = i % b->steps_n;
        }
    return true;
}

/* Tested formats, the one with the fewest bytes first. */
static size_t by_size(const struct bench *b, const struct bench_column *out[BENCH_COLUMNS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < b->columns_n; i++) {
        const struct bench_column *c = &b->columns[i];
        if (c->policy)
            continue;
        size_t at = n++;
        uint32_t h = b->arch.hidden_n;
        for (; at > 0 && wire_row_bytes(c->format, h) < wire_row_bytes(out[at - 1]->format, h); at--)
            out[at] = out[at - 1];
        out[at] = c;
    }
    return n;
}

static bool layer_holds(const struct bench_layer *l, enum wire_format f)
{
    for (size_t way = 0; way < 2; way++)
        if (l->trip[way][f].saturated_n > 0 || !(l->trip[way][f].error_max <= BENCH_LAYER_ERROR_MAX))
            return false;
    return true;
}

/* One miss is no verdict, however few the steps: two candidates may be as good as tied. */
static bool holds(const struct bench *b, const struct bench_summary *s)
{
    double missed = (1 - s->top1) * (double)b->steps_n, allowed = (1 - BENCH_TOP1_MIN) * (double)b->steps_n;
    return missed <= (allowed > 1 ? allowed : 1) + 1e-6 && s->kl_mean <= BENCH_KL_MAX;
}

enum lq_err bench_advise(struct bench *b, struct lq_fault *fault)
{
    const struct bench_column *tested[BENCH_COLUMNS_MAX];
    size_t n = by_size(b, tested);
    struct bench_summary s;
    b->advice = calloc(b->arch.layers_n, sizeof *b->advice);
    if (!b->advice)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    for (uint32_t i = 0; i < b->arch.layers_n; i++) {
        b->advice[i] = WIRE_F32;
        for (size_t k = 0; k < n; k++)
            if (layer_holds(&b->layers[i], tested[k]->format)) {
                b->advice[i] = tested[k]->format;
                break;
            }
    }
    b->safe = &b->columns[0];
    for (size_t k = 0; k < n; k++) {
        if (!bench_summarize(b, tested[k], &s))
            return lq_fail(fault, LQ_NOMEM, "out of memory");
        if (holds(b, &s)) {
            b->safe = tested[k];
            break;
        }
    }
    return LQ_OK;
}
