/* chat: see chat.h. */
#include "client/chat.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* %s of a row: system first where the form has a place for it, then the user's text. */
static const struct form {
    const char *mark;   /* a text that only this form's template holds */
    const char *system; /* NULL: the system text is put before the user's */
    const char *user;
} forms[] = {
    {"<start_of_turn>", NULL, "<start_of_turn>user\n%s<end_of_turn>\n<start_of_turn>model\n"},
    {"<|im_start|>", "<|im_start|>system\n%s<|im_end|>\n", "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"},
    {"<|start_header_id|>", "<|start_header_id|>system<|end_header_id|>\n\n%s<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"[INST]", NULL, "[INST] %s [/INST]"},
};

static bool holds(struct gguf_string s, const char *mark)
{
    return memmem(s.p, (size_t)s.n, mark, strlen(mark)) != NULL;
}

/* SmolLM2's template brings a system text of its own where none is given. */
static const char *default_system(struct gguf_string template)
{
    static const char smol[] = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    return holds(template, smol) ? smol : NULL;
}

static enum lq_err format(const struct form *f, const char *system, const char *user, char **out,
                          struct lq_fault *fault)
{
    char *before = NULL, *joined = NULL;
    int n = 0;
    if (system && f->system)
        n = asprintf(&before, f->system, system);
    else if (system)
        n = asprintf(&joined, "%s\n\n%s", system, user);
    char *turn = NULL;
    if (n >= 0)
        n = asprintf(&turn, f->user, joined ? joined : user);
    if (n >= 0)
        n = asprintf(out, "%s%s", before ? before : "", turn);
    free(before);
    free(joined);
    free(n >= 0 ? turn : NULL);
    return n >= 0 ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory for a chat turn");
}

enum lq_err chat_format(const struct gguf *g, const char *system, const char *user, char **out,
                        struct lq_fault *fault)
{
    struct gguf_string template;
    if (!gguf_has(g, "tokenizer.chat_template"))
        return lq_fail(fault, LQ_UNSUPPORTED, "%s: the model has no chat template: run it without --chat",
                       gguf_path(g));
    enum lq_err rc = gguf_get_string(g, "tokenizer.chat_template", &template, fault);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (holds(template, forms[i].mark))
            return format(&forms[i], system ? system : default_system(template), user, out, fault);
    return lq_fail(fault, LQ_UNSUPPORTED,
                   "%s: the chat template is none of gemma, chatml, llama 3, [INST]: format the prompt yourself",
                   gguf_path(g));
}
