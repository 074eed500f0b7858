/* budget: see budget.h. */
#include "router/budget.h"

#include <stddef.h>

static size_t slot_of(struct retry_budget *b, uint64_t second)
{
    size_t i = second % BUDGET_SECONDS;
    uint64_t was = atomic_load_explicit(&b->slots[i].second, memory_order_relaxed);
    /* Who comes first in a new second clears the slot; a count lost to the race is no loss. */
    if (was != second && atomic_compare_exchange_strong(&b->slots[i].second, &was, second)) {
        atomic_store_explicit(&b->slots[i].requests_n, 0, memory_order_relaxed);
        atomic_store_explicit(&b->slots[i].extras_n, 0, memory_order_relaxed);
    }
    return i;
}

uint64_t budget_left(const struct retry_budget *b, uint64_t now_us)
{
    uint64_t second = now_us / 1000000, requests_n = 0, extras_n = 0;
    for (size_t i = 0; i < BUDGET_SECONDS; i++) {
        if (b->slots[i].second + BUDGET_SECONDS <= second)
            continue;
        requests_n += b->slots[i].requests_n;
        extras_n += b->slots[i].extras_n;
    }
    uint64_t may_n = requests_n / BUDGET_PART;
    if (may_n < BUDGET_FLOOR)
        may_n = BUDGET_FLOOR;
    return extras_n < may_n ? may_n - extras_n : 0;
}

void budget_request(struct retry_budget *b, uint64_t now_us)
{
    size_t i = slot_of(b, now_us / 1000000);
    atomic_fetch_add_explicit(&b->slots[i].requests_n, 1, memory_order_relaxed);
}

bool budget_take(struct retry_budget *b, uint64_t now_us)
{
    if (budget_left(b, now_us) == 0)
        return false;
    atomic_fetch_add_explicit(&b->slots[slot_of(b, now_us / 1000000)].extras_n, 1, memory_order_relaxed);
    return true;
}
