/* metrics: see metrics.h. Text format: Prometheus exposition format 0.0.4. */
#include "common/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Upper bounds in microseconds; +Inf follows. */
static const uint64_t bound_us[HISTOGRAM_BOUNDS_N] = {50,     100,     200,     500,     1000,     2000,
                                                      5000,   10000,   20000,   50000,   100000,   200000,
                                                      500000, 1000000, 2000000, 5000000, 10000000, 30000000};

enum kind { COUNTER, GAUGE, HISTOGRAM, FAMILY };

struct metric {
    struct metric *next;
    enum kind kind;
    char *name, *labels;    /* owned */
    const char *help;       /* a literal of the caller */
    _Atomic uint64_t value; /* counter's value, gauge's bits */
    struct histogram histogram;
    /* of a family */
    metrics_print_fn print;
    void (*release)(void *arg);
    void *arg;
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
        if (x->release)
            x->release(x->arg);
        free(x->name);
        free(x->labels);
        free(x);
    }
    free(m);
}

static struct metric *add(struct metrics *m, enum kind kind, const char *name, const char *help, const char *labels)
{
    struct metric *x = calloc(1, sizeof *x);
    char *own_name = strdup(name), *own_labels = strdup(labels);
    if (!x || !own_name || !own_labels) {
        free(x);
        free(own_name);
        free(own_labels);
        return NULL;
    }
    x->kind = kind;
    x->name = own_name;
    x->labels = own_labels;
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

bool metrics_family_take(struct metrics *m, const char *name, const char *help, metrics_print_fn print,
                         void (*release)(void *arg), void *arg)
{
    struct metric *x = arg ? add(m, FAMILY, name, help, "") : NULL;
    if (!x) {
        if (arg)
            release(arg);
        return false;
    }
    x->print = print;
    x->release = release;
    x->arg = arg;
    return true;
}

void metric_add(struct metric *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->value, n, memory_order_relaxed);
}

void metric_set(struct metric *g, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(&g->value, bits, memory_order_relaxed);
}

void histogram_observe_us(struct histogram *h, uint64_t us)
{
    size_t i = 0;
    while (i < HISTOGRAM_BOUNDS_N && us > bound_us[i])
        i++;
    atomic_fetch_add_explicit(&h->bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

void metric_observe_us(struct metric *h, uint64_t us)
{
    histogram_observe_us(&h->histogram, us);
}

uint64_t histogram_count(const struct histogram *h)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= HISTOGRAM_BOUNDS_N; i++)
        n += atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
    return n;
}

uint64_t metric_count(const struct metric *c)
{
    return c->kind == HISTOGRAM ? histogram_count(&c->histogram)
                                : atomic_load_explicit(&c->value, memory_order_relaxed);
}

bool histogram_print(const struct histogram *h, const char *name, const char *labels, struct evbuffer *out)
{
    const char *comma = *labels ? "," : "", *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    uint64_t seen = 0;
    bool ok = true;
    for (size_t i = 0; i <= HISTOGRAM_BOUNDS_N; i++) {
        char bound[32] = "+Inf";
        if (i < HISTOGRAM_BOUNDS_N)
            snprintf(bound, sizeof bound, "%g", (double)bound_us[i] / 1e6);
        seen += atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        ok &= evbuffer_add_printf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, labels, comma, bound,
                                  (unsigned long long)seen) > 0;
    }
    return ok & (evbuffer_add_printf(out, "%s_sum%s%s%s %.6f\n%s_count%s%s%s %llu\n", name, open, labels, close,
                                     (double)atomic_load_explicit(&h->sum_us, memory_order_relaxed) / 1e6, name, open,
                                     labels, close, (unsigned long long)seen) > 0);
}

static bool print_value(const struct metric *x, struct evbuffer *out)
{
    const char *open = *x->labels ? "{" : "", *close = *x->labels ? "}" : "";
    uint64_t bits = metric_count(x);
    double v;
    memcpy(&v, &bits, sizeof v);
    return x->kind == COUNTER ? evbuffer_add_printf(out, "%s%s%s%s %llu\n", x->name, open, x->labels, close,
                                                    (unsigned long long)bits) > 0
                              : evbuffer_add_printf(out, "%s%s%s%s %.17g\n", x->name, open, x->labels, close, v) > 0;
}

bool metrics_print(const struct metrics *m, struct evbuffer *out)
{
    static const char *const word[] = {"counter", "gauge", "histogram", "histogram"};
    const char *last = "";
    bool ok = true;
    for (const struct metric *x = m->first; x && ok; x = x->next) {
        if (strcmp(last, x->name) != 0)
            ok &= evbuffer_add_printf(out, "# HELP %s %s\n# TYPE %s %s\n", x->name, x->help, x->name, word[x->kind]) >
                  0;
        last = x->name;
        ok &= x->kind == FAMILY      ? x->print(x->arg, x->name, out)
              : x->kind == HISTOGRAM ? histogram_print(&x->histogram, x->name, x->labels, out)
                                     : print_value(x, out);
    }
    return ok;
}
