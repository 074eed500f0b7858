/* llama MODEL.gguf [THREADS [ROUNDS]]: llama.cpp's own speed on a file, as one line of
 * JSON: 256 tokens in one batch, and 128 greedy tokens after a prompt of 64 (which is not
 * timed). Each is the best of the rounds, since load by others only ever adds. */
#include <stdio.h>
#include <stdlib.h>

#include "bench/support/llama.h"
#include "bench/support/timer.h"

enum { PROMPT_N = 256, FIRST_N = 64, MADE_N = 128 };

/* Milliseconds, or a negative number when llama.cpp failed. */
static double prompt_ms(struct llama_judge *j, const int32_t *ids)
{
    uint64_t begin = timer_now_ns();
    bool ok = llama_judge_prompt(j, ids, PROMPT_N);
    return ok ? (double)(timer_now_ns() - begin) / 1e6 : -1;
}

static double make_ms(struct llama_judge *j, const int32_t *ids)
{
    int32_t id = llama_judge_prompt(j, ids, FIRST_N - 1) ? ids[FIRST_N - 1] : -1;
    uint64_t begin = timer_now_ns();
    for (int i = 0; i < MADE_N && id >= 0; i++)
        id = llama_judge_next(j, id);
    return id >= 0 ? (double)(timer_now_ns() - begin) / 1e6 : -1;
}

int main(int argc, char **argv)
{
    int threads_n = argc > 2 ? atoi(argv[2]) : 2, rounds_n = argc > 3 ? atoi(argv[3]) : 3, rc = 1;
    const char *why = "usage: llama MODEL.gguf [THREADS [ROUNDS]]";
    struct ggml_judge *g = argc > 1 ? ggml_judge_open(&why) : NULL;
    struct llama_judge *j = g ? llama_judge_open(g, argv[1], threads_n, &why) : NULL;
    double prompt = 1e99, made = 1e99;
    int32_t ids[PROMPT_N];
    if (!j) {
        fprintf(stderr, "llama: %s\n", why);
        goto out;
    }
    for (int i = 0; i < PROMPT_N; i++) /* any will do: how fast a token goes does not depend on which */
        ids[i] = 3 + i * 97 % (llama_judge_vocab_n(j) - 3);
    for (int i = 0; i < rounds_n; i++) {
        double p = prompt_ms(j, ids), m = make_ms(j, ids);
        if (p < 0 || m < 0) {
            fprintf(stderr, "llama: llama.cpp failed\n");
            goto out;
        }
        prompt = p < prompt ? p : prompt;
        made = m < made ? m : made;
    }
    printf("{\"prompt_n\":%d,\"prompt_ms\":%.3f,\"first_n\":%d,\"made_n\":%d,\"made_ms\":%.3f,\"threads\":%d,"
           "\"variant\":\"%s\"}\n",
           PROMPT_N, prompt, FIRST_N, MADE_N, made, threads_n, ggml_judge_variant(g));
    rc = 0;
out:
    llama_judge_close(j);
    ggml_judge_close(g);
    return rc;
}
