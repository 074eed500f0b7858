/* metrics: see metrics.h. Text format: Prometheus exposition format 0.0.4. */
#include "common/metrics.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Upper bounds in microseconds; +Inf follows. */
static const uint64_t bound_us[] = {100,    200,    500,    1000,    2000,    5000,    10000,    20000,   50000,
                                    100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000, 30000000};
enum { BOUNDS_N = sizeof bound_us / sizeof *bound_us };

enum kind { COUNTER, GAUGE, HISTOGRAM };

struct metric {
    struct metric *next;
    enum kind kind;
    const char *name, *help; /* literals of the caller */
    char *labels;            /* owned */
    _Atomic uint64_t count;  /* counter's value, histogram's count, gauge's bits */
    _Atomic uint64_t sum_us;
    _Atomic uint64_t bucket[BOUNDS_N]; /* not cumulative here, cumulative in print */
};

struct metrics {
    struct metric *first, **last;
};

struct metrics *metrics_new(void)
{
    struct metrics *m = calloc(1, sizeof *m);
    if (m)
        m->last = &m->first;
    return m;
}

void metrics_free(struct metrics *m)
{
    while (m && m->first) {
        struct metric *x = m->first;
        m->first = x->next;
        free(x->labels);
        free(x);
    }
    free(m);
}

static struct metric *add(struct metrics *m, enum kind kind, const char *name, const char *help, const char *labels)
{
    struct metric *x = calloc(1, sizeof *x);
    if (!x || !(x->labels = strdup(labels))) {
        free(x);
        return NULL;
    }
    x->kind = kind;
    x->name = name;
    x->help = help;
    *m->last = x;
    m->last = &x->next;
    return x;
}

struct metric *metrics_counter(struct metrics *m, const char *name, const char *help, const char *labels)
{
    return add(m, COUNTER, name, help, labels);
}

struct metric *metrics_gauge(struct metrics *m, const char *name, const char *help, const char *labels)
{
    return add(m, GAUGE, name, help, labels);
}

struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help, const char *labels)
{
    return add(m, HISTOGRAM, name, help, labels);
}

void metric_add(struct metric *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->count, n, memory_order_relaxed);
}

void metric_set(struct metric *g, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(&g->count, bits, memory_order_relaxed);
}

void metric_observe_us(struct metric *h, uint64_t us)
{
    size_t i = 0;
    while (i < BOUNDS_N && us > bound_us[i])
        i++;
    if (i < BOUNDS_N)
        atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->count, 1, memory_order_relaxed);
}

uint64_t metric_count(const struct metric *c)
{
    return atomic_load_explicit(&c->count, memory_order_relaxed);
}

static bool print_histogram(const struct metric *x, struct evbuffer *out)
{
    const char *comma = *x->labels ? "," : "";
    const char *open = *x->labels ? "{" : "", *close = *x->labels ? "}" : "";
    /* Taken first: a bucket must never exceed the count printed after it. */
    uint64_t seen = 0, in[BOUNDS_N];
    for (size_t i = 0; i < BOUNDS_N; i++)
        in[i] = atomic_load_explicit(&x->bucket[i], memory_order_relaxed);
    uint64_t count = metric_count(x);
    bool ok = true;
    for (size_t i = 0; i < BOUNDS_N; i++) {
        seen += in[i];
        ok &= evbuffer_add_printf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", x->name, x->labels, comma,
                                  (double)bound_us[i] / 1e6, (unsigned long long)seen) > 0;
    }
    if (count < seen)
        count = seen;
    ok &= evbuffer_add_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", x->name, x->labels, comma,
                              (unsigned long long)count) > 0;
    ok &= evbuffer_add_printf(out, "%s_sum%s%s%s %.6f\n", x->name, open, x->labels, close,
                              (double)atomic_load_explicit(&x->sum_us, memory_order_relaxed) / 1e6) > 0;
    return ok & (evbuffer_add_printf(out, "%s_count%s%s%s %llu\n", x->name, open, x->labels, close,
                                     (unsigned long long)count) > 0);
}

bool metrics_print(const struct metrics *m, struct evbuffer *out)
{
    static const char *const word[] = {"counter", "gauge", "histogram"};
    const char *last = "";
    bool ok = true;
    for (const struct metric *x = m->first; x && ok; x = x->next) {
        if (strcmp(last, x->name) != 0)
            ok &= evbuffer_add_printf(out, "# HELP %s %s\n# TYPE %s %s\n", x->name, x->help, x->name, word[x->kind]) >
                  0;
        last = x->name;
        const char *open = *x->labels ? "{" : "", *close = *x->labels ? "}" : "";
        if (x->kind == HISTOGRAM) {
            ok &= print_histogram(x, out);
        } else if (x->kind == COUNTER) {
            ok &= evbuffer_add_printf(out, "%s%s%s%s %llu\n", x->name, open, x->labels, close,
                                      (unsigned long long)metric_count(x)) > 0;
        } else {
            uint64_t bits = metric_count(x);
            double v;
            memcpy(&v, &bits, sizeof v);
            ok &= evbuffer_add_printf(out, "%s%s%s%s %.17g\n", x->name, open, x->labels, close, v) > 0;
        }
    }
    return ok;
}
