/* timer: see timer.h. */
#include "bench/support/timer.h"

#include <time.h>

uint64_t timer_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

double timer_best_ns(void (*fn)(void *arg), void *arg, unsigned ms)
{
    uint64_t begin = timer_now_ns(), best = UINT64_MAX;
    for (unsigned turn = 0; turn < 3 || timer_now_ns() - begin < (uint64_t)ms * 1000000u; turn++) {
        uint64_t t = timer_now_ns();
        fn(arg);
        t = timer_now_ns() - t;
        best = t < best ? t : best;
    }
    return (double)best;
}
