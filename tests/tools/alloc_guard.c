/* alloc_guard: linked into a larql-shard of its own (build/guard), it stands before
 * malloc, for the program and for its libraries alike. After SIGUSR1 (the warm-up is
 * over: "alloc_guard armed" on stderr) an allocation on the compute path ends the process
 * with a message that names the phase (shard/work.h). JSON may allocate, unless
 * LQ_ALLOC_GUARD_JSON=0: so a test can see that the guard bites. */
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shard/work.h"

/* glibc's own, under the names that it keeps for this use. */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static atomic_bool armed, json_may = true;

static void on_arm(int sig)
{
    (void)sig;
    static const char text[] = "alloc_guard armed\n";
    atomic_store(&armed, true);
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(99);
}

__attribute__((constructor)) static void install(void)
{
    const char *json = getenv("LQ_ALLOC_GUARD_JSON");
    atomic_store(&json_may, !json || strcmp(json, "0") != 0);
    struct sigaction act = {.sa_handler = on_arm, .sa_flags = SA_RESTART};
    if (sigaction(SIGUSR1, &act, NULL) != 0)
        abort();
}

static void check(const char *what, size_t n)
{
    if (!atomic_load_explicit(&armed, memory_order_relaxed))
        return;
    char name[16] = "";
    const char *phase = work_phase;
    if (!phase && prctl(PR_GET_NAME, name) == 0 && strcmp(name, "ffn") == 0)
        phase = "compute (pool thread)";
    if (!phase || (atomic_load(&json_may) && strcmp(phase, "json") == 0))
        return;
    atomic_store(&armed, false); /* what follows may allocate */
    char text[160];
    int text_n = snprintf(text, sizeof text, "alloc_guard: %s of %zu bytes in phase %s\n", what, n, phase);
    if (write(STDERR_FILENO, text, (size_t)text_n) < 0)
        _exit(99);
    abort();
}

void *malloc(size_t n)
{
    check("malloc", n);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    check("calloc", n * size);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    check("realloc", n);
    return __libc_realloc(p, n);
}

void *memalign(size_t alignment, size_t n);
void *memalign(size_t alignment, size_t n)
{
    check("memalign", n);
    return __libc_memalign(alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    check("aligned_alloc", n);
    return __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    check("posix_memalign", n);
    *out = __libc_memalign(alignment, n);
    return *out ? 0 : 12; /* ENOMEM */
}
