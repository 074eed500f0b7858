/* timer: the shortest of many turns of a function, in nanoseconds; what other load on
 * the machine disturbs least. */
#ifndef LQ_BENCH_SUPPORT_TIMER_H
#define LQ_BENCH_SUPPORT_TIMER_H

#include <stdint.h>

uint64_t timer_now_ns(void); /* monotonic */

/* Runs fn(arg) for about ms milliseconds, at least three times. */
double timer_best_ns(void (*fn)(void *arg), void *arg, unsigned ms);

#endif
