/* metrics: counters, gauges and histograms as Prometheus text 0.0.4.
 * Values are atomic: any thread may add. Registration happens at start, on one
 * thread; label sets are fixed then. */
#ifndef LQ_COMMON_METRICS_H
#define LQ_COMMON_METRICS_H

#include <event2/buffer.h>
#include <stdatomic.h>
#include <stdint.h>

struct metrics;
struct metric; /* one time series */

struct metrics *metrics_new(void);
void metrics_free(struct metrics *m);

/* labels: `wire="f16",code="200"` or "". Series of one name must be registered one
 * after the other. NULL: out of memory. */
struct metric *metrics_counter(struct metrics *m, const char *name, const char *help, const char *labels);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *help, const char *labels);
/* Seconds, buckets 100 us .. 30 s, about three a decade. */
struct metric *metrics_histogram(struct metrics *m, const char *name, const char *help, const char *labels);

void metric_add(struct metric *c, uint64_t n);
void metric_set(struct metric *g, double v);
void metric_observe_us(struct metric *h, uint64_t us);
uint64_t metric_count(const struct metric *c); /* counter's value; histogram's count */

/* Appends the whole page. False: out of memory. */
_Bool metrics_print(const struct metrics *m, struct evbuffer *out);
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
