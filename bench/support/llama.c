/* llama: see llama.h. llama.cpp's public C API, its structs opaque: parameters are taken
 * as its own functions make them and handed on by value, in room to spare for growth. */
#include "bench/support/llama.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

struct params {
    _Alignas(16) unsigned char opaque[512];
};
struct batch {
    _Alignas(16) unsigned char opaque[256];
};
typedef void log_fn(int level, const char *text, void *arg);

#define LLAMA_API(X)                                                                                                 \
    X(log_set, void, (log_fn * fn, void *arg))                                                                       \
    X(backend_init, void, (void))                                                                                    \
    X(model_default_params, struct params, (void))                                                                   \
    X(context_default_params, struct params, (void))                                                                 \
    X(model_load_from_file, void *, (const char *path, struct params p))                                             \
    X(model_free, void, (void *model))                                                                               \
    X(model_get_vocab, const void *, (const void *model))                                                            \
    X(vocab_n_tokens, int32_t, (const void *vocab))                                                                  \
    X(init_from_model, void *, (void *model, struct params p))                                                       \
    X(free, void, (void *context))                                                                                   \
    X(n_ctx, uint32_t, (const void *context))                                                                        \
    X(set_n_threads, void, (void *context, int32_t one, int32_t many))                                               \
    X(attach_threadpool, void, (void *context, void *one, void *many))                                               \
    X(get_memory, void *, (void *context))                                                                           \
    X(memory_clear, void, (void *memory, bool data))                                                                 \
    X(batch_get_one, struct batch, (int32_t * ids, int32_t n))                                                       \
    X(decode, int32_t, (void *context, struct batch batch))                                                          \
    X(get_logits_ith, float *, (void *context, int32_t i))

struct llama_judge {
    void *lib, *model, *context;
    int32_t vocab_n;
#define X(name, result, arguments) result(*name) arguments;
    LLAMA_API(X)
#undef X
};

static void on_log(int level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_JUDGE_LOG_ERROR)
        fputs(text, stderr);
}

static bool bind(struct llama_judge *j, const char **why)
{
    char pattern[4096];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/libllama.*so", getenv("LQ_GGML_DIR"));
    if (glob(pattern, 0, NULL, &found) == 0)
        j->lib = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    if (!j->lib) {
        *why = "no libllama that loads in LQ_GGML_DIR";
        return false;
    }
#define X(name, result, arguments)                                                                                   \
    *(void **)&j->name = dlsym(j->lib, "llama_" #name);                                                              \
    if (!j->name) {                                                                                                  \
        *why = "another llama.cpp: no llama_" #name;                                                                 \
        return false;                                                                                                \
    }
    LLAMA_API(X)
#undef X
    return true;
}

struct llama_judge *llama_judge_open(struct ggml_judge *g, const char *model_path, int threads_n, const char **why)
{
    struct llama_judge *j = calloc(1, sizeof *j);
    if (!j) {
        *why = "out of memory";
        return NULL;
    }
    void *pool = ggml_judge_pool(g, threads_n);
    if (!pool) {
        *why = "no thread pool of this size";
        goto fail;
    }
    if (!bind(j, why))
        goto fail;
    j->log_set(on_log, NULL);
    j->backend_init();
    j->model = j->model_load_from_file(model_path, j->model_default_params());
    j->context = j->model ? j->init_from_model(j->model, j->context_default_params()) : NULL;
    if (!j->context || j->n_ctx(j->context) < LLAMA_CONTEXT_N) {
        *why = "llama.cpp does not load this model";
        goto fail;
    }
    j->vocab_n = j->vocab_n_tokens(j->model_get_vocab(j->model));
    j->set_n_threads(j->context, threads_n, threads_n);
    j->attach_threadpool(j->context, pool, pool);
    return j;
fail:
    llama_judge_close(j);
    return NULL;
}

void llama_judge_close(struct llama_judge *j)
{
    if (!j)
        return;
    if (j->context)
        j->free(j->context);
    if (j->model)
        j->model_free(j->model);
    if (j->lib)
        dlclose(j->lib);
    free(j);
}

int32_t llama_judge_vocab_n(const struct llama_judge *j)
{
    return j->vocab_n;
}

bool llama_judge_prompt(struct llama_judge *j, const int32_t *ids, size_t n)
{
    int32_t copy[LLAMA_CONTEXT_N]; /* its API wants them writable */
    if (n > LLAMA_CONTEXT_N)
        return false;
    for (size_t i = 0; i < n; i++)
        copy[i] = ids[i];
    j->memory_clear(j->get_memory(j->context), true);
    return j->decode(j->context, j->batch_get_one(copy, (int32_t)n)) == 0;
}

int32_t llama_judge_next(struct llama_judge *j, int32_t id)
{
    if (j->decode(j->context, j->batch_get_one(&id, 1)) != 0)
        return -1;
    const float *logits = j->get_logits_ith(j->context, -1);
    int32_t best = 0;
    for (int32_t i = 1; i < j->vocab_n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}
