/* fuzz_gguf: a whole model file out of thin air: parser, getters, architecture, binding,
 * and the values of small tensors. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/arch.h"
#include "model/ffn.h"
#include "model/kern.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DEQUANT_MAX = 1 << 16 };

static void touch_tensor(const struct gguf_tensor *t)
{
    int q = quant_of_ggml(t->type);
    if (q < 0 || !t->data || t->dims[0] > DEQUANT_MAX)
        return;
    float *out = malloc((size_t)t->dims[0] * sizeof *out);
    kern_ref.dequant[q](t->data, (size_t)t->dims[0], out);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct arch a;
    struct ffn *f;
    struct lq_fault fault;
    if (gguf_open_memory(data, size, "fuzz.gguf", &g, &fault) != LQ_OK)
        return 0;
    for (size_t i = 0; i < gguf_tensors_n(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (gguf_tensor(g, t->name) != t)
            abort();
        touch_tensor(t);
    }
    if (arch_read(g, &a, &fault) == LQ_OK && ffn_new(g, &a, 0, a.layers_n - 1, &f, &fault) == LQ_OK)
        ffn_free(f);
    gguf_free(g);
    return 0;
}
