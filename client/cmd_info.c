/* larql info: what a model file is, as one JSON object on stdout. For people, and
 * for scripts that split layers over shards. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"
#include "common/opt.h"
#include "model/arch.h"
#include "model/gguf.h"
#include "model/quant.h"
#include "model/vindex.h"

/* Bytes of the FFN's tensors: what a grid takes away from the client. */
static uint64_t ffn_tensor_bytes(const struct gguf *g)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < gguf_tensors_n(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (strncmp(t->name, "blk.", 4) == 0 &&
            (strstr(t->name, ".ffn_gate.") || strstr(t->name, ".ffn_up.") || strstr(t->name, ".ffn_down.")))
            bytes += t->bytes;
    }
    return bytes;
}

static int print_info(const struct gguf *g, const struct arch *a)
{
    json_t *o = json_pack("{ss,ss,ss,sI,sI,sI,sI,sI,sI,sI,sI,sI,sI}", "path", gguf_path(g), "name", a->name, "family",
                          a->family, "layers", (json_int_t)a->layers_n, "hidden_size", (json_int_t)a->hidden_n,
                          "intermediate_size", (json_int_t)a->ffn_n, "vocab_size", (json_int_t)a->vocab_n,
                          "context_length", (json_int_t)a->context_n, "heads", (json_int_t)a->heads_n, "kv_heads",
                          (json_int_t)a->kv_heads_n, "head_dim", (json_int_t)a->head_dim, "file_bytes",
                          (json_int_t)gguf_file_bytes(g), "ffn_bytes", (json_int_t)ffn_tensor_bytes(g));
    if (!o || json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER) != 0) {
        fprintf(stderr, "larql info: out of memory, or stdout is closed\n");
        json_decref(o);
        return EXIT_FAILURE;
    }
    putchar('\n');
    json_decref(o);
    return EXIT_SUCCESS;
}

int cmd_info(int argc, char **argv)
{
    const struct opt_program program = {
        .name = "larql info",
        .synopsis = "MODEL",
        .about = "Print the shape of a model as JSON: of a GGUF file or a vindex directory.\nExit codes: 0 ok, 2 wrong use, 4 the model file cannot be used.",
        .args_min = 1,
        .args_max = 1,
    };
    char **args;
    int args_n;
    enum opt_result parsed = opt_parse(&program, argc, argv, &args, &args_n);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : CMD_EXIT_USAGE;
    const struct model_want want = {.ffn = false}; /* heads only */
    struct gguf *g = NULL;
    struct arch a;
    struct lq_fault fault;
    int code = CMD_EXIT_MODEL;
    if (model_open(args[0], &want, &g, &fault) != LQ_OK || arch_read(g, &a, &fault) != LQ_OK)
        fprintf(stderr, "larql info: %s\n", fault.text);
    else
        code = print_info(g, &a);
    gguf_free(g);
    return code;
}
