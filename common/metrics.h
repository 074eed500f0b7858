/* metrics: counters, gauges and histograms as Prometheus text 0.0.4.
 * Values are atomic: any thread may add. Registration happens at start, on one
 * thread; label sets are fixed then. */
#ifndef LQ_COMMON_METRICS_H
#define LQ_COMMON_METRICS_H

#include <event2/buffer.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct metrics;
struct metric; /* one time series */

struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);

/* name and labels (`wire="f16",code="200"` or "") are copied, help is not. Series of one name must be registered one
 * after the other. NULL: out of memory. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *help, const char *labels);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *help, const char *labels);
/* Seconds, buckets 50 us .. 30 s, about three a decade. */
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help, const char *labels);

void metric_add(struct metric *c, uint64_t n);
void metric_set(struct metric *g, double v);
void metric_observe_us(struct metric *h, uint64_t us);
uint64_t metric_count(const struct metric *c); /* counter's value; histogram's count */

/* A histogram by itself, for a family whose labels come as they are seen. All zero is an
 * empty one. Buckets are not cumulative here, the last is +Inf's. */
enum { HISTOGRAM_BOUNDS_N = 18 };
struct histogram {
    _Atomic uint64_t sum_us, bucket[HISTOGRAM_BOUNDS_N + 1];
};
void histogram_observe_us(struct histogram *h, uint64_t us);
uint64_t histogram_count(const struct histogram *h);
bool histogram_print(const struct histogram *h, const char *name, const char *labels, struct evbuffer *out);

/* A family of histograms that prints its own series. Takes arg: released with m, or at
 * once on failure. False: out of memory, or arg is NULL. */
typedef bool (*metrics_print_fn)(const void *arg, const char *name, struct evbuffer *out);
bool metrics_family_take(struct metrics *m, const char *name, const char *help, metrics_print_fn print,
                         void (*release)(void *arg), void *arg);

/* Appends the whole page. False: out of memory. */
bool metrics_print(const struct metrics *m, struct evbuffer *out);
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
