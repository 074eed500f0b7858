/* ggml: see ggml.h. The declarations are those of ggml's public C API as of the release
 * that tests/golden/run.sh names (llama.cpp v0.4.0); all structs of it stay opaque, save
 * the three words of ggml_init_params. */
#include "bench/support/ggml.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_CPU = 0, STATUS_SUCCESS = 0 };

struct init_params {
    size_t mem_bytes;
    void *mem;
    bool no_alloc;
};
/* ggml_threadpool_params, filled by its own initialiser: 528 bytes in this release. */
struct pool_params {
    _Alignas(16) unsigned char opaque[2048];
};

typedef void log_fn(int level, const char *text, void *arg);
typedef void **extra_bufts_fn(void *device);

/* name, result, arguments. All pointers to ggml's structs are void * here. */
#define BASE_API(X)                                                                                                  \
    X(log_set, void, (log_fn * fn, void *arg))                                                                       \
    X(init, void *, (struct init_params p))                                                                          \
    X(free, void, (void *context))                                                                                   \
    X(tensor_overhead, size_t, (void))                                                                               \
    X(graph_overhead, size_t, (void))                                                                                \
    X(nbytes, size_t, (const void *tensor))                                                                          \
    X(new_tensor_2d, void *, (void *context, int type, int64_t ne0, int64_t ne1))                                    \
    X(mul_mat, void *, (void *context, void *a, void *b))                                                            \
    X(new_graph, void *, (void *context))                                                                            \
    X(build_forward_expand, void, (void *graph, void *tensor))                                                       \
    X(get_data, void *, (const void *tensor))                                                                        \
    X(quantize_chunk, size_t,                                                                                        \
      (int type, const float *x, void *out, int64_t at, int64_t rows_n, int64_t cols_n, const float *importance))    \
    X(threadpool_params_init, void, (struct pool_params * p, int threads_n))                                         \
    X(backend_load_all_from_path, void, (const char *dir))                                                           \
    X(backend_dev_by_type, void *, (int type))                                                                       \
    X(backend_dev_init, void *, (void *device, const char *params))                                                  \
    X(backend_dev_backend_reg, void *, (void *device))                                                               \
    X(backend_dev_buffer_type, void *, (void *device))                                                               \
    X(backend_dev_supports_op, bool, (void *device, const void *op))                                                 \
    X(backend_reg_get_proc_address, void *, (void *reg, const char *name))                                           \
    X(backend_free, void, (void *backend))                                                                           \
    X(backend_graph_compute, int, (void *backend, void *graph))                                                      \
    X(backend_buft_name, const char *, (void *buft))                                                                 \
    X(backend_buft_alloc_buffer, void *, (void *buft, size_t bytes))                                                 \
    X(backend_buft_get_alloc_size, size_t, (void *buft, const void *tensor))                                         \
    X(backend_cpu_buffer_from_ptr, void *, (void *p, size_t bytes))                                                  \
    X(backend_buffer_get_base, void *, (void *buffer))                                                               \
    X(backend_buffer_free, void, (void *buffer))                                                                     \
    X(backend_tensor_alloc, int, (void *buffer, void *tensor, void *at))                                             \
    X(backend_tensor_set, void, (void *tensor, const void *data, size_t offset, size_t bytes))
/* In the CPU variant's own library. */
#define CPU_API(X)                                                                                                   \
    X(backend_cpu_set_n_threads, void, (void *backend, int threads_n))                                               \
    X(backend_cpu_set_threadpool, void, (void *backend, void *pool))                                                 \
    X(threadpool_new, void *, (struct pool_params * p))                                                              \
    X(threadpool_free, void, (void *pool))                                                                           \
    X(threadpool_pause, void, (void *pool))

struct ggml_judge {
    void *lib, *cpu_lib, *device, *backend;
    void *pools[GGML_JUDGE_THREADS_MAX + 1]; /* by thread count; NULL: not made yet */
    char variant[64];
#define X(name, result, arguments) result(*name) arguments;
    BASE_API(X) CPU_API(X)
#undef X
};

struct ggml_job {
    struct ggml_judge *judge;
    void *context, *graph;
    void *weights, *in, *out;                      /* tensors of the context */
    void *weights_buffer, *in_buffer, *out_buffer; /* what they lie in */
    const char *layout;
    int threads_n;
};

static void on_log(int level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_JUDGE_LOG_ERROR)
        fputs(text, stderr);
}

static void *open_main_library(const char *dir)
{
    char pattern[4096];
    glob_t found = {0};
    void *lib = NULL;
    snprintf(pattern, sizeof pattern, "%s/libggml.*so", dir); /* not libggml-base, libggml-cpu-* */
    if (glob(pattern, 0, NULL, &found) == 0)
        lib = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return lib;
}

/* Of the CPU variants, the one that ggml_backend_load_all_from_path() left loaded. */
static int on_loaded(struct dl_phdr_info *info, size_t n, void *arg)
{
    (void)n;
    const char **path = arg;
    if (!strstr(info->dlpi_name, "/libggml-cpu"))
        return 0;
    *path = info->dlpi_name;
    return 1;
}

static bool bind(struct ggml_judge *j, const char *dir, const char **why)
{
    static char missing[96];
#define FIND(from, name)                                                                                             \
    *(void **)&j->name = dlsym(from, "ggml_" #name);                                                                 \
    if (!j->name) {                                                                                                  \
        snprintf(missing, sizeof missing, "another ggml: no ggml_" #name);                                           \
        *why = missing;                                                                                              \
        return false;                                                                                                \
    }
#define X(name, result, arguments) FIND(j->lib, name)
    BASE_API(X)
#undef X
    j->log_set(on_log, NULL);
    j->backend_load_all_from_path(dir);
    const char *path = NULL;
    dl_iterate_phdr(on_loaded, &path);
    j->device = j->backend_dev_by_type(DEVICE_CPU);
    j->cpu_lib = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (!j->device || !j->cpu_lib) {
        *why = "ggml has no variant for this CPU";
        return false;
    }
    snprintf(j->variant, sizeof j->variant, "%s", strrchr(path, '/') + 1);
#define X(name, result, arguments) FIND(j->cpu_lib, name)
    CPU_API(X)
#undef X
#undef FIND
    return true;
}

struct ggml_judge *ggml_judge_open(const char **why)
{
    const char *dir = getenv("LQ_GGML_DIR");
    if (!dir || !*dir) {
        *why = "LQ_GGML_DIR is not set: run by `make bench`";
        return NULL;
    }
    struct ggml_judge *j = calloc(1, sizeof *j);
    if (!j) {
        *why = "out of memory";
        return NULL;
    }
    j->lib = open_main_library(dir);
    if (!j->lib) {
        *why = "no libggml that loads in LQ_GGML_DIR";
        goto fail;
    }
    if (!bind(j, dir, why))
        goto fail;
    j->backend = j->backend_dev_init(j->device, NULL);
    if (j->backend)
        return j;
    *why = "ggml's CPU backend does not start";
fail:
    ggml_judge_close(j);
    return NULL;
}

void ggml_judge_close(struct ggml_judge *j)
{
    if (!j)
        return;
    if (j->backend)
        j->backend_free(j->backend);
    for (int n = 1; n <= GGML_JUDGE_THREADS_MAX; n++)
        if (j->pools[n])
            j->threadpool_free(j->pools[n]);
    if (j->cpu_lib)
        dlclose(j->cpu_lib);
    if (j->lib)
        dlclose(j->lib);
    free(j);
}

const char *ggml_judge_variant(const struct ggml_judge *j)
{
    return j->variant;
}

void ggml_judge_rest(struct ggml_judge *j)
{
    for (int n = 2; n <= GGML_JUDGE_THREADS_MAX; n++)
        if (j->pools[n])
            j->threadpool_pause(j->pools[n]);
}

void *ggml_judge_pool(struct ggml_judge *j, int threads_n)
{
    if (threads_n < 1 || threads_n > GGML_JUDGE_THREADS_MAX)
        return NULL;
    if (!j->pools[threads_n]) {
        struct pool_params p;
        j->threadpool_params_init(&p, threads_n);
        j->pools[threads_n] = j->threadpool_new(&p);
    }
    return j->pools[threads_n];
}

size_t ggml_judge_quantize(struct ggml_judge *j, uint32_t ggml_type, const float *x, size_t rows_n, size_t cols_n,
                           void *out)
{
    return j->quantize_chunk((int)ggml_type, x, out, 0, (int64_t)rows_n, (int64_t)cols_n, NULL);
}

/* The nodes of the graph; no values yet. */
static bool describe(struct ggml_job *job, uint32_t type, size_t cols_n, size_t rows_n, size_t seq_n)
{
    struct ggml_judge *j = job->judge;
    enum { TENSORS_N = 8 }; /* three are made, the rest is room */
    job->context = j->init((struct init_params){TENSORS_N * j->tensor_overhead() + j->graph_overhead(), NULL, true});
    if (!job->context)
        return false;
    job->weights = j->new_tensor_2d(job->context, (int)type, (int64_t)cols_n, (int64_t)rows_n);
    job->in = j->new_tensor_2d(job->context, 0, (int64_t)cols_n, (int64_t)seq_n);
    job->out = j->mul_mat(job->context, job->weights, job->in);
    job->graph = j->new_graph(job->context);
    j->build_forward_expand(job->graph, job->out);
    return true;
}

static void *lay(struct ggml_judge *j, void *buft, void *tensor)
{
    void *buffer = j->backend_buft_alloc_buffer(buft, j->backend_buft_get_alloc_size(buft, tensor));
    if (buffer && j->backend_tensor_alloc(buffer, tensor, j->backend_buffer_get_base(buffer)) == STATUS_SUCCESS)
        return buffer;
    if (buffer)
        j->backend_buffer_free(buffer);
    return NULL;
}

static void forget(struct ggml_job *job)
{
    struct ggml_judge *j = job->judge;
    void *buffers[] = {job->weights_buffer, job->in_buffer, job->out_buffer};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i])
            j->backend_buffer_free(buffers[i]);
    if (job->context)
        j->free(job->context);
    *job = (struct ggml_job){.judge = j, .threads_n = job->threads_n};
}

/* Tries the weights in one buffer type, as llama.cpp's loader does; NULL: in place. */
static bool build(struct ggml_job *job, void *buft, uint32_t type, size_t cols_n, size_t rows_n, const void *weights,
                  size_t seq_n)
{
    struct ggml_judge *j = job->judge;
    void *plain = j->backend_dev_buffer_type(j->device);
    if (!describe(job, type, cols_n, rows_n, seq_n))
        return false;
    job->in_buffer = lay(j, plain, job->in);
    job->out_buffer = lay(j, plain, job->out);
    if (buft) {
        job->weights_buffer = lay(j, buft, job->weights);
    } else {
        void *p = (void *)(uintptr_t)weights; /* ggml only reads it */
        job->weights_buffer = j->backend_cpu_buffer_from_ptr(p, j->nbytes(job->weights));
        if (job->weights_buffer && j->backend_tensor_alloc(job->weights_buffer, job->weights, p) != STATUS_SUCCESS)
            return false;
    }
    if (!job->weights_buffer || !job->in_buffer || !job->out_buffer ||
        !j->backend_dev_supports_op(j->device, job->out))
        return false;
    if (buft)
        j->backend_tensor_set(job->weights, weights, 0, j->nbytes(job->weights));
    job->layout = j->backend_buft_name(buft ? buft : plain);
    return true;
}

struct ggml_job *ggml_job_new(struct ggml_judge *j, uint32_t ggml_type, size_t cols_n, size_t rows_n,
                              const void *weights, size_t seq_n, int threads_n, const char **why)
{
    struct ggml_job *job = calloc(1, sizeof *job);
    if (!job || (uintptr_t)weights % 32 || !ggml_judge_pool(j, threads_n)) {
        *why = "weights must be aligned to 32 bytes, threads 1 to 64; or no memory";
        free(job);
        return NULL;
    }
    job->judge = j;
    job->threads_n = threads_n;
    extra_bufts_fn *extra_bufts;
    *(void **)&extra_bufts =
        j->backend_reg_get_proc_address(j->backend_dev_backend_reg(j->device), "ggml_backend_dev_get_extra_bufts");
    void **bufts = extra_bufts ? extra_bufts(j->device) : NULL;
    for (; bufts && *bufts; bufts++) {
        if (build(job, *bufts, ggml_type, cols_n, rows_n, weights, seq_n))
            return job;
        forget(job);
    }
    if (build(job, NULL, ggml_type, cols_n, rows_n, weights, seq_n))
        return job;
    *why = "ggml has no product for this type and size, or no memory";
    ggml_job_free(job);
    return NULL;
}

void ggml_job_free(struct ggml_job *job)
{
    if (!job)
        return;
    forget(job);
    free(job);
}

float *ggml_job_in(struct ggml_job *job)
{
    return job->judge->get_data(job->in);
}

const float *ggml_job_out(struct ggml_job *job)
{
    return job->judge->get_data(job->out);
}

const char *ggml_job_layout(const struct ggml_job *job)
{
    return job->layout;
}

bool ggml_job_run(struct ggml_job *job)
{
    struct ggml_judge *j = job->judge;
    j->backend_cpu_set_n_threads(j->backend, job->threads_n);
    j->backend_cpu_set_threadpool(j->backend, job->judge->pools[job->threads_n]);
    return j->backend_graph_compute(j->backend, job->graph) == STATUS_SUCCESS;
}
