/* load: see load.h. */
#include "shard/load.h"

#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RATE_TAU_US = 10 * 1000000, CPU_INTERVAL_US = 1000000 };

/* Each request adds 1/tau and fades with exp(-t/tau): the sum is a rate. */
static float rate_at(const struct load_meter *m, uint64_t now_us)
{
    uint64_t age_us = now_us > m->rate_us ? now_us - m->rate_us : 0;
    return m->rate_per_s * expf(-(float)age_us / (float)RATE_TAU_US);
}

void load_enter(struct load_meter *m, uint64_t now_us)
{
    m->in_flight++;
    m->rate_per_s = rate_at(m, now_us) + 1e6f / (float)RATE_TAU_US;
    m->rate_us = now_us;
}

void load_leave(struct load_meter *m)
{
    assert(m->in_flight > 0);
    m->in_flight--;
}

static uint64_t cpu_used_us(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) != 0)
        return 0;
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t resident_bytes(void)
{
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *second = strchr(text, ' ');
    return second ? strtoull(second + 1, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void load_begin(struct load_meter *m, uint64_t now_us)
{
    m->cpu_us = cpu_used_us();
    m->cpu_at_us = now_us;
}

void load_read(struct load_meter *m, uint64_t now_us, struct shard_load *out)
{
    uint64_t passed_us = now_us - m->cpu_at_us;
    if (passed_us >= CPU_INTERVAL_US) {
        uint64_t used_us = cpu_used_us();
        m->cpu_pct = (float)((double)(used_us - m->cpu_us) * 100.0 / (double)passed_us);
        m->cpu_us = used_us;
        m->cpu_at_us = now_us;
    }
    *out = (struct shard_load){.cpu_pct = m->cpu_pct,
                               .ram_used_bytes = resident_bytes(),
                               .in_flight = m->in_flight,
                               .requests_per_s = rate_at(m, now_us)};
}
