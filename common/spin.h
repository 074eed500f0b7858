/* spin: turns of a loop that poll for a while before they sleep (ADR 0009). To be woken
 * costs more than to forward 10 KB; a loop that does not sleep is not woken. The price
 * is a core for poll_us after each event, so it gives up by itself where that core is
 * wanted or nothing comes. Owner: the thread of the event_base. */
#ifndef LQ_COMMON_SPIN_H
#define LQ_COMMON_SPIN_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SPIN_MISSES_MAX = 8,  /* spins in a row that found nothing, */
    SPIN_REST_TURNS = 64, /* and so many turns sleep at once; then one is tried again */
    SPIN_US_MAX = 1000000,
};

struct spin {
    uint64_t poll_us; /* 0: never */
    uint64_t last_us; /* of the last event */
    unsigned misses_n, rest_n;
};

/* False, and nothing will spin: poll_us is not 0, but the process may run on fewer CPUs
 * than threads_n, the threads that want to spin, or the host has no CPU more than those. */
bool spin_init(struct spin *s, uint64_t poll_us, unsigned threads_n);
/* One turn, which sleeps only when nothing came for poll_us. As event_base_loop(): 0 ok,
 * 1 nothing to wait for, -1 error. */
int spin_turn(struct spin *s, struct event_base *base);

#endif
