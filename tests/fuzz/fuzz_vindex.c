/* fuzz_vindex: the JSON files of a directory. The first byte says which: i index.json,
 * w weight_manifest.json, b a manifest of blocks, t tokenizer.json. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_impl.h"
#include "model/vindex_open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the rest of the program takes for granted of a row. */
static void check_rows(const struct vindex_rows *rows, const struct vindex_index *x)
{
    for (size_t i = 0; i < rows->n; i++) {
        const struct vindex_row *r = &rows->p[i];
        char name[GGUF_NAME_BYTES_MAX], key[VINDEX_KEY_BYTES];
        uint32_t layer;
        if (!*r->key || strchr(r->file, '/') || r->offset + r->length < r->offset || r->dims_n < 1 || r->dims_n > 2)
            abort();
        if (r->length && r->length / r->dims[0] != quant_row_bytes(r->type, (size_t)r->dims[1]))
            abort();
        if (vindex_gguf_name(x, r->key, name, &layer) &&
            (!vindex_key_of(x->gemma_norms, name, key) || strcmp(key, r->key) != 0))
            abort();
    }
}

static void parse_tokenizer(const char *text, size_t n)
{
    const struct vindex_index x = {.vocab_n = 300, .layers_n = 1};
    struct gguf *g = gguf_new(1);
    struct lq_fault fault;
    if (!g || !(g->vindex = calloc(1, sizeof *g->vindex)))
        abort();
    g->parts[0].name = "fuzz";
    struct vindex_keys k = {.g = g, .v = g->vindex};
    if (vindex_tokenizer_parse("tokenizer.json", text, n, NULL, &x, &k, &fault) == LQ_OK) {
        struct gguf_array tokens;
        if (gguf_index(g, &fault) != LQ_OK || gguf_get_array(g, "tokenizer.ggml.tokens", &tokens, &fault) != LQ_OK ||
            tokens.n != x.vocab_n)
            abort();
        for (uint64_t i = 0; i < tokens.n; i++)
            if (!tokens.strings[i].p)
                abort();
    }
    gguf_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    struct vindex_index x = {.layers_n = 8, .gemma_norms = size % 2};
    struct vindex_rows rows;
    struct lq_fault fault;
    switch (data[0]) {
    case 'i':
        if (vindex_index_read("index.json", text, n, &x, &fault) == LQ_OK) {
            if (!x.arch || !x.gates || !x.layers_n || !x.hidden_n || !x.ffn_n)
                abort();
            vindex_index_release(&x);
        }
        break;
    case 'w':
        if (vindex_weights_read("weight_manifest.json", text, n, &rows, &fault) == LQ_OK) {
            check_rows(&rows, &x);
            vindex_rows_release(&rows);
        }
        break;
    case 'b':
        if (vindex_blocks_read("interleaved_q4k_manifest.json", "interleaved_q4k.bin", text, n, &rows, &fault) ==
            LQ_OK) {
            check_rows(&rows, &x);
            vindex_rows_release(&rows);
        }
        break;
    case 't':
        parse_tokenizer(text, n);
        break;
    default:
        break;
    }
    return 0;
}
