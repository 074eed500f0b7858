/* budget: retries and hedges together stay a small part of all requests, so that they
 * cannot turn a slow grid into a dead one: in the last 10 s at most a tenth of the
 * requests, but never fewer than 64, so that a kill among few requests is healed.
 * Any thread; no lock. */
#ifndef LQ_ROUTER_BUDGET_H
#define LQ_ROUTER_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { BUDGET_SECONDS = 10, BUDGET_FLOOR = 64, BUDGET_PART = 10 };

struct retry_budget {
    struct {
        _Atomic uint64_t second; /* whose counts these are */
        _Atomic uint32_t requests_n, extras_n;
    } slots[BUDGET_SECONDS];
};

void budget_request(struct retry_budget *b, uint64_t now_us);
/* One retry or hedge: false: there were too many. */
bool budget_take(struct retry_budget *b, uint64_t now_us);
/* How many are left now. */
uint64_t budget_left(const struct retry_budget *b, uint64_t now_us);

#endif
