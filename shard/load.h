/* load: how busy this process is, as heartbeats and metrics tell it.
 * Owner : the shard. Thread: loop only. */
#ifndef LQ_SHARD_LOAD_H
#define LQ_SHARD_LOAD_H

#include <stdint.h>

struct shard_load {
    float cpu_pct;           /* of one CPU, all threads together: 250 is two and a half CPUs */
    uint64_t ram_used_bytes; /* resident, pages of the mapped model file included */
    uint32_t in_flight;      /* walk-ffn requests begun and not answered */
    float requests_per_s;    /* a mean over about the last 10 s, later ones weighing more */
};

struct load_meter { /* all zero is a meter that has seen nothing */
    uint32_t in_flight;
    float rate_per_s; /* as it was at rate_us */
    uint64_t rate_us;
    uint64_t cpu_us, cpu_at_us; /* CPU time used, and when it was read */
    float cpu_pct;              /* between the last two readings */
};

/* A request begins, at now_us (clock_us()), and ends. */
void load_enter(struct load_meter *m, uint64_t now_us);
void load_leave(struct load_meter *m);

/* cpu_pct is taken over the time since the last reading, but over a second at least: who
 * asks sooner hears the last one again. The first covers the process's life from
 * load_begin() on. ram_used_bytes is 0 where /proc is not there. */
void load_begin(struct load_meter *m, uint64_t now_us);
void load_read(struct load_meter *m, uint64_t now_us, struct shard_load *out);

#endif
