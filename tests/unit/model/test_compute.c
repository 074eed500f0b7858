/* Threads, matrices and the FFN against plain loops in double; BLIS's configuration.
 * All of it in forked tests only: BLIS and threads must not exist before a fork. */
#include <float.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/ffn.h"
#include "model/gemm_blis.h"
#include "proto/cpu.h"
#include "tests/unit/support.h"

/* ---- pool ---- */

struct count {
    _Atomic int seen[1000];
    _Atomic int bad;
    size_t threads_n;
};

static void count_items(void *arg, size_t first, size_t end, size_t thread)
{
    struct count *c = arg;
    if (thread >= c->threads_n || first >= end)
        atomic_store(&c->bad, 1);
    for (size_t i = first; i < end; i++)
        atomic_fetch_add(&c->seen[i], 1);
}

START_TEST(pool_runs_each_item_once)
{
    static struct count c;
    for (size_t threads = 1; threads <= 5; threads += 2) {
        struct pool *p = pool_new(threads);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq(pool_threads_n(p), threads);
        for (size_t n = 0; n <= 1000; n += n < 40 ? 1 : 97)
            for (size_t grain = 1; grain <= 64; grain *= 4) {
                memset(&c, 0, sizeof c);
                c.threads_n = threads;
                pool_run(p, n, grain, count_items, &c);
                for (size_t i = 0; i < 1000; i++)
                    ck_assert_int_eq(c.seen[i], i < n);
                ck_assert_int_eq(c.bad, 0);
            }
        pool_free(p);
    }
}
END_TEST

/* One item a thread, and none ends before all have begun: so each has got one. */
struct meeting {
    _Atomic size_t here_n;
    size_t threads_n;
    size_t item_of[64];
    int cpu_of[64]; /* -1: may run on several */
};

static void meet(void *arg, size_t first, size_t end, size_t thread)
{
    struct meeting *m = arg;
    ck_assert_uint_eq(end, first + 1);
    m->item_of[thread] = first;
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    m->cpu_of[thread] = CPU_COUNT(&set) == 1 ? sched_getcpu() : -1;
    atomic_fetch_add(&m->here_n, 1);
    while (atomic_load(&m->here_n) < m->threads_n)
        sched_yield();
}

START_TEST(pool_gives_each_thread_its_own_share_first)
{
    for (size_t n = 2; n <= 5; n++) {
        struct pool *p = pool_new(n);
        ck_assert_ptr_nonnull(p);
        for (int turn = 0; turn < 20; turn++) {
            struct meeting m = {.threads_n = n};
            pool_run(p, n, 1, meet, &m);
            for (size_t i = 0; i < n; i++)
                ck_assert_uint_eq(m.item_of[i], i);
        }
        pool_free(p);
    }
}
END_TEST

START_TEST(pinned_threads_have_a_cpu_each)
{
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    size_t n = (size_t)CPU_COUNT(&allowed) < 64 ? (size_t)CPU_COUNT(&allowed) : 64;
    struct lq_fault fault;
    struct pool *p = pool_new((size_t)CPU_COUNT(&allowed) + 1);
    ck_assert_int_eq(pool_pin(p, pthread_self(), &fault), LQ_USAGE);
    pool_free(p);
    p = pool_new(n);
    ck_assert_int_eq(pool_pin(p, pthread_self(), &fault), LQ_OK);
    struct meeting m = {.threads_n = n};
    pool_run(p, n, 1, meet, &m);
    for (size_t i = 0; i < n && n > 1; i++) {
        ck_assert_int_ge(m.cpu_of[i], 0);
        for (size_t k = 0; k < i; k++)
            ck_assert_int_ne(m.cpu_of[i], m.cpu_of[k]);
    }
    pool_free(p);
}
END_TEST

/* ---- BLIS ---- */

START_TEST(blis_configuration_fits_the_cpu)
{
    struct lq_fault fault;
    unsetenv("BLIS_ARCH_TYPE");
    ck_assert_msg(gemm_init(&fault) == LQ_OK, "%s", fault.text);
    if (cpu_detect() & CPU_AVX2)
        ck_assert_str_ne(gemm_config(), "generic");
    ck_assert_msg(gemm_init(&fault) == LQ_OK, "%s", fault.text);
}
END_TEST

START_TEST(refused_blis_configuration_is_an_error)
{
    struct lq_fault fault = {.text = ""};
    setenv("BLIS_ARCH_TYPE", "99", 1);
    ck_assert_int_eq(gemm_init(&fault), LQ_USAGE);
    ck_assert_msg(strstr(fault.text, "BLIS_ARCH_TYPE=99") != NULL, "%s", fault.text);
}
END_TEST

/* ---- matrices ---- */

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void fill(float *x, size_t n, uint32_t *seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(next(seed) & 0xffff) - 32768) / 16384.0f;
}

static struct mat random_mat(size_t rows_n, size_t cols_n, enum quant_type t, uint8_t *w, uint32_t *seed)
{
    struct mat m = {w, t, rows_n, cols_n, quant_row_bytes(t, cols_n), 0};
    for (size_t i = 0; i < rows_n * m.row_bytes; i++)
        w[i] = (uint8_t)next(seed);
    if (t == QUANT_F32)
        fill((float *)(void *)w, rows_n * cols_n, seed);
    for (size_t b = 0; t != QUANT_F32 && b < rows_n * m.row_bytes; b += quant_info[t].block_bytes)
        w[b + (t == QUANT_Q6_K ? 209 : 1)] = 0x20; /* the scale: small and finite */
    return m;
}

static const struct {
    enum quant_type type;
    size_t rows_n, cols_n;
} shapes[] = {{QUANT_F32, 7, 5},     {QUANT_F32, 130, 33},   {QUANT_Q8_0, 65, 640},
              {QUANT_Q5_0, 64, 576}, {QUANT_Q4_0, 129, 320}, {QUANT_Q6_K, 70, 512}};

enum { SHAPES_N = sizeof shapes / sizeof *shapes };

START_TEST(product_equals_a_plain_loop)
{
    enum { SEQ_MAX = 100 };
    const enum mat_activations activations = (enum mat_activations)(_i / SHAPES_N);
    const enum quant_type type = shapes[_i % SHAPES_N].type;
    const size_t rows_n = shapes[_i % SHAPES_N].rows_n, cols_n = shapes[_i % SHAPES_N].cols_n;
    const bool digits = activations != MAT_F32 && quant_info[type].block_n > 1;
    const double step = activations == MAT_8 ? 0.5 / 127 : activations == MAT_16 ? 0.5 / 16256 : 0;
    struct compute *one, *three;
    struct lq_fault fault;
    uint32_t seed = 5;
    ck_assert_msg(compute_new(1, cols_n, activations, &one, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(compute_new(3, cols_n, activations, &three, &fault) == LQ_OK, "%s", fault.text);
    uint8_t *w = malloc(rows_n * cols_n * 4);
    struct mat m = random_mat(rows_n, cols_n, type, w, &seed);
    float *x = malloc(SEQ_MAX * cols_n * 4), *a = malloc(SEQ_MAX * rows_n * 4), *b = malloc(SEQ_MAX * rows_n * 4);
    float *row = malloc(cols_n * 4), *alone = malloc(rows_n * 4);
    for (size_t seq = 1; seq <= SEQ_MAX; seq += seq < 18 ? 1 : 41) {
        fill(x, seq * cols_n, &seed);
        memset(a, 0xff, SEQ_MAX * rows_n * 4);
        mat_mul(one, &m, x, seq, a);
        mat_mul(three, &m, x, seq, b);
        ck_assert_msg(memcmp(a, b, seq * rows_n * 4) == 0, "%zu rows: threads change the bits", seq);
        for (size_t r = 0; r < rows_n; r++) {
            mat_row(one, &m, r, row);
            for (size_t s = 0; s < seq; s++) {
                double exact = 0, size = 0, coarse = 0;
                for (size_t c = 0; c < cols_n; c++) {
                    coarse += digits ? fabs((double)row[c]) * 4 * step : 0; /* |x| <= 4 here */
                    exact += (double)row[c] * (double)x[s * cols_n + c];
                    size += fabs((double)row[c] * (double)x[s * cols_n + c]);
                }
                ck_assert_msg(fabs((double)a[s * rows_n + r] - exact) <=
                                  (double)(cols_n + 32) * FLT_EPSILON * size * (digits ? 64 : 1) + coarse,
                              "%zu rows, [%zu, %zu]: %g, exact %g", seq, s, r, (double)a[s * rows_n + r], exact);
            }
        }
        if (digits || seq <= MAT_DOT_ROWS_MAX) /* by kernels: the same bits as each row alone */
            for (size_t s = 0; s < seq; s++) {
                mat_mul(one, &m, x + s * cols_n, 1, alone);
                ck_assert_msg(memcmp(alone, a + s * rows_n, rows_n * 4) == 0, "row %zu of %zu is not as alone", s,
                              seq);
            }
    }
    free(w), free(x), free(a), free(b), free(row), free(alone);
    compute_free(one);
    compute_free(three);
}
END_TEST

/* ---- the FFN of a file ---- */

static const char *const kinds[] = {
    "--arch llama --hidden 48 --ffn 80 --heads 4 --kv-heads 4 --layers 3",
    "--arch gemma3 --hidden 32 --ffn 96 --heads 4 --kv-heads 4 --layers 3 --type Q8_0"};

static void tensor_floats(const struct gguf *g, uint32_t layer, const char *part, float *out)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.ffn_%s.weight", layer, part);
    const struct gguf_tensor *t = gguf_tensor(g, name);
    ck_assert_ptr_nonnull(t);
    kern_ref.dequant[quant_of_ggml(t->type)](t->data, (size_t)(t->dims[0] * t->dims[1]), out);
}

static double act(bool gelu, double x)
{
    return gelu ? 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) : x / (1 + exp(-x));
}

START_TEST(ffn_equals_its_formula)
{
    char path[128], command[512];
    const char *build = getenv("LQ_BUILD");
    snprintf(path, sizeof path, "%s/ffn-%d.gguf", build ? build : "build", _i);
    snprintf(command, sizeof command, "/usr/bin/python3 tests/tools/make_model.py %s %s", path, kinds[_i]);
    ck_assert_msg(system(command) == 0, "%s", command);
    struct gguf *g;
    struct arch a;
    struct ffn *f;
    struct compute *c;
    struct lq_fault fault;
    ck_assert_msg(gguf_open(path, &g, &fault) == LQ_OK && arch_read(g, &a, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_int_eq(ffn_new(g, &a, 1, 3, &f, &fault), LQ_BAD_LAYER);
    ck_assert_int_eq(ffn_new(g, &a, 2, 1, &f, &fault), LQ_BAD_LAYER);
    ck_assert_msg(ffn_new(g, &a, 1, 2, &f, &fault) == LQ_OK, "%s", fault.text);
    ck_assert_msg(compute_new(2, a.ffn_n, MAT_F32, &c, &fault) == LQ_OK, "%s", fault.text);
    size_t h = a.hidden_n, n = a.ffn_n, seq = 11;
    float *gate = malloc(h * n * 4), *up = malloc(h * n * 4), *down = malloc(h * n * 4);
    float *x = malloc(seq * h * 4), *out = malloc(seq * h * 4), *scratch = malloc(ffn_scratch_floats(f, seq) * 4),
          *scores = malloc(n * 4);
    double *mid = malloc(n * sizeof *mid);
    uint32_t seed = 17;
    fill(x, seq * h, &seed);
    tensor_floats(g, 2, "gate", gate);
    tensor_floats(g, 2, "up", up);
    tensor_floats(g, 2, "down", down);
    ffn_forward(f, c, 2, x, seq, scratch, out);
    ffn_gate_scores(f, c, 2, x, scores);
    for (size_t s = 0; s < seq; s++) {
        double biggest = 0;
        for (size_t k = 0; k < n; k++) {
            double gx = 0, ux = 0;
            for (size_t i = 0; i < h; i++) {
                gx += (double)gate[k * h + i] * (double)x[s * h + i];
                ux += (double)up[k * h + i] * (double)x[s * h + i];
            }
            if (s == 0)
                ck_assert_msg(fabs(gx - (double)scores[k]) <= 1e-5 * (1 + fabs(gx)), "score %zu", k);
            mid[k] = act(a.act == ARCH_GELU_TANH, gx) * ux;
            biggest = fmax(biggest, fabs(mid[k]));
        }
        for (size_t i = 0; i < h; i++) {
            double exact = 0, size = 0;
            for (size_t k = 0; k < n; k++) {
                exact += (double)down[i * n + k] * mid[k];
                size += fabs((double)down[i * n + k]) * biggest;
            }
            ck_assert_msg(fabs(exact - (double)out[s * h + i]) <= 1e-5 * size, "row %zu, value %zu: %g, exact %g", s,
                          i, (double)out[s * h + i], exact);
        }
    }
    free(gate), free(up), free(down), free(x), free(out), free(scratch), free(scores), free(mid);
    compute_free(c);
    ffn_free(f);
    gguf_free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("compute");
    TCase *t = tcase_create("compute");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, pool_runs_each_item_once);
    tcase_add_test(t, pool_gives_each_thread_its_own_share_first);
    tcase_add_test(t, pinned_threads_have_a_cpu_each);
    tcase_add_test(t, blis_configuration_fits_the_cpu);
    tcase_add_test(t, refused_blis_configuration_is_an_error);
    tcase_add_loop_test(t, product_equals_a_plain_loop, 0, SHAPES_N * MAT_ACTIVATIONS_N);
    tcase_add_loop_test(t, ffn_equals_its_formula, 0, sizeof kinds / sizeof *kinds);
    suite_add_tcase(s, t);
    return run_suite(s);
}
