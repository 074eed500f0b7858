/* spin: see spin.h. */
#include "common/spin.h"

#include <sched.h>
#include <unistd.h>

#include "common/clock.h"

bool spin_init(struct spin *s, uint64_t poll_us, unsigned threads_n)
{
    cpu_set_t cpus;
    *s = (struct spin){.poll_us = poll_us, .last_us = clock_us()};
    /* A mask that does not fit is of a machine that has enough. Who is polled for may run
     * on this host: one CPU stays free, though perhaps not one of ours. */
    bool ours = sched_getaffinity(0, sizeof cpus, &cpus) != 0 || (unsigned)CPU_COUNT(&cpus) >= threads_n;
    if (poll_us == 0 || (ours && sysconf(_SC_NPROCESSORS_ONLN) > (long)threads_n))
        return true;
    s->poll_us = 0;
    return false;
}

/* Has a callback run since this was asked last? */
static bool any_event(struct event_base *base)
{
    return event_base_get_max_events(base, EVENT_BASE_COUNT_ACTIVE, 1) > 0;
}

static int sleep_turn(struct spin *s, struct event_base *base)
{
    int rc = event_base_loop(base, EVLOOP_ONCE);
    (void)any_event(base);
    s->last_us = clock_us();
    return rc;
}

int spin_turn(struct spin *s, struct event_base *base)
{
    if (s->poll_us == 0)
        return event_base_loop(base, EVLOOP_ONCE);
    if (s->rest_n > 0) {
        s->rest_n--;
        return sleep_turn(s, base);
    }
    int rc = event_base_loop(base, EVLOOP_NONBLOCK);
    if (rc != 0)
        return rc;
    if (any_event(base)) {
        s->last_us = clock_us();
        s->misses_n = 0;
        return 0;
    }
    if (clock_us() - s->last_us < s->poll_us)
        return 0;
    if (++s->misses_n >= SPIN_MISSES_MAX)
        s->rest_n = SPIN_REST_TURNS;
    return sleep_turn(s, base);
}
