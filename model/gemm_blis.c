/* gemm_blis: see gemm_blis.h. */
#include "model/gemm_blis.h"

#include <blis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cpu.h"

/* One single-threaded product; what a pool's thread runs. */
void gemm_xwt(const float *x, size_t seq_n, const float *w, size_t rows_n, size_t k, float *out, size_t ldo)
{
    float one = 1.0f, zero = 0.0f; /* BLIS takes no const */
    rntm_t rntm;
    bli_rntm_init(&rntm);
    bli_rntm_set_num_threads(1, &rntm);
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, (dim_t)seq_n, (dim_t)rows_n, (dim_t)k, &one,
                 (float *)(uintptr_t)x, (inc_t)k, 1, (float *)(uintptr_t)w, 1, (inc_t)k, &zero, out, (inc_t)ldo, 1,
                 NULL, &rntm);
}

/* Does BLIS take this value? A refused one aborts, so a child asks. It inherits one
 * thread only: nothing has used BLIS or started threads yet (gemm_init's contract). */
static bool child_accepts(const char *value)
{
    pid_t pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0) {
        float a[4] = {1, 2, 3, 4}, b[4] = {1, 0, 0, 1}, c[4];
        (void)signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(1);
        setenv("BLIS_ARCH_TYPE", value, 1);
        bli_init();
        gemm_xwt(a, 2, b, 2, 2, c, 2);
        _exit(c[0] == 1 && c[1] == 2 && c[2] == 3 && c[3] == 4 ? 0 : 1);
    }
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Candidates, best first, by the enumerators of the BLIS that we were built with. */
static size_t candidates(arch_t list[4])
{
    size_t n = 0;
    unsigned cpu = cpu_detect();
    if (cpu & CPU_AVX512)
        list[n++] = BLIS_ARCH_SKX; /* also on newer AMD: measured faster than zen3 there */
#if defined(__x86_64__)
    __builtin_cpu_init();
    if ((cpu & CPU_AVX2) && __builtin_cpu_is("amd"))
        list[n++] = BLIS_ARCH_ZEN3;
#endif
    if (cpu & CPU_AVX2)
        list[n++] = BLIS_ARCH_HASWELL;
    return n; /* none: BLIS knows the rest (ARM, old x86) by itself */
}

enum lq_err gemm_init(struct lq_fault *fault)
{
    static bool done;
    if (done)
        return LQ_OK;
    const char *asked = getenv("BLIS_ARCH_TYPE");
    if (asked && *asked) {
        char copy[32];
        snprintf(copy, sizeof copy, "%s", asked);
        if (!child_accepts(copy))
            return lq_fail(fault, LQ_USAGE,
                           "BLIS_ARCH_TYPE=%s: this CPU or this BLIS refuses it; unset it to have one chosen", copy);
    } else {
        arch_t list[4];
        size_t n = candidates(list);
        for (size_t i = 0; i < n; i++) {
            char value[16];
            snprintf(value, sizeof value, "%d", (int)list[i]);
            if (child_accepts(value)) {
                setenv("BLIS_ARCH_TYPE", value, 1);
                break;
            }
        }
    }
    bli_init();
    done = true;
    return LQ_OK;
}

const char *gemm_config(void)
{
    return bli_arch_string(bli_arch_query_id());
}
