/* run: one `larql run`: what cmd_run.c reads from the command line, run.c does and
 * run_report.c tells. Private to the program. */
#ifndef LQ_CLIENT_RUN_H
#define LQ_CLIENT_RUN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/decoder.h"
#include "client/larql_ffn.h"
#include "client/sampler.h"
#include "client/tokenizer.h"
#include "model/ffn.h"
#include "proto/wire.h"

struct run_options {
    const char *model_path, *ffn, *prompt, *prompt_file, *wire, *system, *stats_path, *teacher_path, *logits_path,
        *activations, *model_id, *wire_policy, *api_key_file, *tls_ca, *tls_cert, *tls_key;
    int64_t tokens, threads, context, chunk, top_k, seed, deadline_ms, busy_poll_us;
    double temperature, top_p;
    bool chat, ignore_eos, quiet;
};

struct run {
    const struct run_options *o;
    struct gguf *gguf;
    struct arch arch;
    struct compute *compute;
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    struct sampler *sampler;
    /* one of the two */
    struct ffn *local;
    float *local_scratch;
    struct lq_ffn *remote;
    enum wire_format *policy; /* of the remote one, per layer; NULL: --wire everywhere */
    /* tokens */
    uint32_t *prompt, *made; /* made: o->tokens of room */
    size_t prompt_n, made_n;
    uint64_t prefill_us, *step_us; /* step_us[i]: token made[i + 1]'s */
    size_t steps_n;
    /* the logits dump */
    FILE *logits_file;
    uint32_t logits_n;
    bool logits_failed;
};

/* Runs it all; the exit code. Says what fails on stderr. */
int run_all(struct run *r);
void run_release(struct run *r);

/* run_report.c: the summary for people, the JSON for programs. False: not written. */
void report_print(const struct run *r);
bool report_write(const struct run *r, const char *path);

/* The dump of --logits-out: "LQLG", u32 version 1, u32 vocabulary, u32 positions, then
 * per position the f32 logits after its token; little-endian. */
bool logits_open(struct run *r, const char *path);
void logits_add(void *run, uint32_t pos, const float *logits);
bool logits_close(struct run *r);

#endif
