/* chat: a user's message in the form the model was tuned on. The template in the
 * GGUF (Jinja) is recognised by its marks, not run (ADR 0008): gemma, chatml
 * (qwen2, qwen3, SmolLM2), llama 3, llama 2 / mistral [INST]. */
#ifndef LQ_CLIENT_CHAT_H
#define LQ_CLIENT_CHAT_H

#include "model/gguf.h"

/* system may be NULL. *out malloc'd and terminated, for tokenizer_encode(add_special,
 * parse_special = true): no bos text in it. LQ_UNSUPPORTED when the file has no
 * template or none we know. */
enum lq_err chat_format(const struct gguf *g, const char *system, const char *user, char **out,
                        struct lq_fault *fault) LQ_MUST_CHECK;

#endif
