/* bench: one `larql bench`: a model's tokens through a grid once per wire format, side by side.
 *
 *   cmd_bench.c  options -> bench_open() -> bench_play() -> [bench_advise()] -> table, JSON, plot,
 *                policy, baseline
 *
 * A column is what is compared: a wire format, or a policy's mix of them. Column 0 is f32, the
 * reference. A worker is one sequence: a decoder and a connection per column (its lanes). A step
 * feeds one token to each lane in turn, so that noise of machine and network meets all columns
 * alike, and compares their logits at once: nothing of a vocabulary's size is kept.
 * Private to the program. */
#ifndef LQ_CLIENT_BENCH_H
#define LQ_CLIENT_BENCH_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/decoder.h"
#include "client/fidelity.h"
#include "client/larql_ffn.h"
#include "client/tokenizer.h"
#include "proto/wire.h"

enum {
    BENCH_COLUMNS_MAX = WIRE_FORMATS_N + 1, /* and a policy */
    BENCH_STEPS_MAX = 1 << 20,
    BENCH_WORKERS_MAX = 256,
    BENCH_FREE_PROMPT_N = 32, /* tokens of a text that its free run begins with */
};

/* Bars of the recommendation (docs/fidelity.md). */
#define BENCH_LAYER_ERROR_MAX 1e-2 /* of a layer's worst row, ordinary values */
#define BENCH_TOP1_MIN 0.99
#define BENCH_KL_MAX 1e-2

struct bench_options {
    const char *model_path, *ffn, *wire, *prompt, *text_path, *output, *output_file, *plot_path, *baseline_path,
        *baseline_ratios, *write_policy, *wire_policy, *activations, *model_id, *api_key_file, *tls_ca, *tls_cert,
        *tls_key;
    int64_t steps, window, assert_k, concurrent, warmup, threads, deadline_ms, busy_poll_us;
    bool ordered, quiet;
};

/* How far a layer's rows were from themselves after one trip in a format. */
struct bench_trip {
    uint64_t nonzero_n, zeroed_n, saturated_n, rows_n;
    double error_sum, error_max; /* over rows, of their ordinary values */
};

struct bench_layer { /* of the f32 run; [0]: request, [1]: answer */
    float max_abs[2];
    struct bench_trip trip[2][WIRE_FORMATS_N];
};

struct bench_mismatch { /* the first step where an assertion failed */
    size_t step;
    uint32_t want[FIDELITY_TOP_MAX], got[FIDELITY_TOP_MAX];
};

/* Per step arrays: workers_n x steps_n, worker by worker. */
struct bench_column {
    char name[16]; /* of the format, or "policy" */
    enum wire_format format;
    const enum wire_format *policy; /* NULL: format everywhere */
    double *ms, *kl;
    bool *top1, *top5, *topk;
    uint64_t bytes_up, bytes_down, range_fallbacks, saturated, retries;
    double encode_us, decode_us;     /* sums over the measured steps of worker 0 */
    struct bench_mismatch *mismatch; /* NULL: none. worker 0's */
    size_t mismatches_n;
    /* the free run: tokens compared, and the first that differs, or -1 */
    size_t free_n;
    int64_t divergence;
};

/* One stretch of tokens from an empty cache: ids as given, then what f32 (or, in the free run,
 * each column) chooses. Steps from measured_from on count. */
struct bench_passage {
    const uint32_t *ids;
    size_t ids_n, measured_from, steps_n; /* measured ones */
    size_t step_at;                       /* of its first measured step in the per-step arrays */
};

struct bench_lane {
    struct bench_worker *worker;
    struct bench_column *column;
    struct decoder *decoder;
    struct lq_ffn *ffn;
    const float *logits; /* after the last step */
    uint32_t chosen;
    struct lq_ffn_stats counted; /* over the measured steps */
};

struct bench_worker {
    struct bench *b;
    size_t index, turn;
    bool stopped; /* another one failed */
    pthread_t thread;
    struct compute *compute;
    struct bench_lane lanes[BENCH_COLUMNS_MAX];
    /* worker 0: rows of the last f32 step, layers_n x hidden: requests and answers */
    float *rows[2], *decoded, *medians, *scratch; /* medians: layers_n; scratch: hidden */
    uint8_t *encoded;
    enum lq_err rc;
    struct lq_fault fault;
};

struct bench {
    const struct bench_options *o;
    struct gguf *gguf;
    struct arch arch;
    struct tokenizer *tokenizer;
    struct codec_ops codec;
    enum wire_format *policy;
    size_t top_n; /* of the top-K figures */
    uint32_t *tokens;
    struct bench_passage *passages, free_passage;
    size_t passages_n, steps_n, context_n; /* steps_n: measured steps of a worker */
    struct bench_column columns[BENCH_COLUMNS_MAX];
    size_t columns_n;
    struct bench_layer *layers;
    struct bench_worker *workers;
    size_t workers_n;
    pthread_barrier_t barrier;
    bool barrier_made;
    pthread_mutex_t gate;       /* held until all workers have their threads */
    _Atomic size_t failed_turn; /* SIZE_MAX: none */
    /* the recommendation */
    enum wire_format *advice;        /* per layer */
    const struct bench_column *safe; /* the cheapest single format that holds the bars; never NULL */
};

/* Model, tokens, columns, connections. The exit code (cmd.h); what is wrong is on stderr. */
int bench_open(struct bench *b);
void bench_release(struct bench *b);
/* bench_input.c: tokens and passages. */
enum lq_err bench_read_input(struct bench *b, struct lq_fault *fault);

/* Warm-up, the measured steps of all workers, the free run. */
int bench_play(struct bench *b);

/* bench_layers.c: what each format does to the rows of the step that w, worker 0, took last. */
enum lq_err bench_measure_layers(struct bench_worker *w, bool timed) LQ_MUST_CHECK;

/* bench_advice.c: fills advice and safe. */
enum lq_err bench_advise(struct bench *b, struct lq_fault *fault);

/* What the per-step arrays come to. */
struct bench_summary {
    double tok_per_s, ms_mean, ms_p50, ms_p95, ms_p99;
    double kb_up, kb_down; /* per token */
    double encode_us, decode_us;
    double top1, top5, topk; /* shares of steps */
    double kl_mean, kl_max;
    size_t kl_max_step;
};
/* False: out of memory. */
bool bench_summarize(const struct bench *b, const struct bench_column *c, struct bench_summary *out) LQ_MUST_CHECK;

/* The table and the recommendation. */
bool bench_print(const struct bench *b, FILE *to);
/* The lines of failed assertions; their number. */
size_t bench_print_mismatches(const struct bench *b, FILE *to);

/* docs/fidelity.md has the schema. times false: what differs from machine to machine is left out.
 * NULL: out of memory. */
json_t *bench_json(const struct bench *b, bool times);

/* LQ_IO, LQ_NOMEM. */
enum lq_err bench_plot(const struct bench *b, const char *path, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
