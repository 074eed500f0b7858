/* bench: opening and releasing; see bench.h. */
#include "client/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"
#include "client/wire_policy.h"
#include "model/vindex.h"
#include "proto/cpu.h"

static int fail(int code, const char *text)
{
    fprintf(stderr, "larql bench: %s\n", text);
    return code;
}

static int code_of(enum lq_err rc)
{
    return rc == LQ_USAGE                               ? CMD_EXIT_USAGE
           : rc == LQ_BAD_MODEL || rc == LQ_UNSUPPORTED ? CMD_EXIT_MODEL
           : rc == LQ_SHARD_DOWN                        ? CMD_EXIT_GRID
                                                        : CMD_EXIT_FAILED;
}

/* ---- columns ------------------------------------------------------------------------------- */

static bool has_format(const struct bench *b, enum wire_format f)
{
    for (size_t i = 0; i < b->columns_n; i++)
        if (b->columns[i].format == f)
            return true;
    return false;
}

static struct bench_column *add_column(struct bench *b, const char *name, enum wire_format f)
{
    struct bench_column *c = &b->columns[b->columns_n++];
    *c = (struct bench_column){.format = f, .divergence = -1};
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

/* "f32,f16,i8": f32 first, whether it is named or not. */
static enum lq_err read_columns(struct bench *b, struct lq_fault *fault)
{
    add_column(b, wire_name(WIRE_F32), WIRE_F32);
    for (const char *p = b->o->wire;;) {
        size_t n = strcspn(p, ",");
        enum wire_format f = wire_policy_format(p, n);
        if (f == WIRE_FORMATS_N)
            return lq_fail(fault, LQ_USAGE, "--wire %s: '%.*s' is no wire format", b->o->wire, (int)(n < 40 ? n : 40),
                           p);
        if (!has_format(b, f))
            add_column(b, wire_name(f), f);
        if (!p[n])
            break;
        p += n + 1;
    }
    if (!b->o->wire_policy)
        return LQ_OK;
    enum lq_err rc = wire_policy_read(b->o->wire_policy, b->arch.layers_n, b->arch.hidden_n, &b->policy, fault);
    if (!rc)
        add_column(b, "policy", WIRE_FORMATS_N)->policy = b->policy;
    return rc;
}

static enum lq_err make_columns(struct bench *b, struct lq_fault *fault)
{
    size_t n = b->workers_n * b->steps_n;
    for (size_t i = 0; i < b->columns_n; i++) {
        struct bench_column *c = &b->columns[i];
        c->ms = calloc(n, sizeof *c->ms);
        c->kl = calloc(n, sizeof *c->kl);
        c->top1 = calloc(n, sizeof *c->top1);
        c->top5 = calloc(n, sizeof *c->top5);
        c->topk = calloc(n, sizeof *c->topk);
        if (!c->ms || !c->kl || !c->top1 || !c->top5 || !c->topk)
            return lq_fail(fault, LQ_NOMEM, "out of memory for %zu steps", n);
    }
    b->layers = calloc(b->arch.layers_n, sizeof *b->layers);
    return b->layers ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory for %u layers", b->arch.layers_n);
}

/* ---- workers --------------------------------------------------------------------------------- */

static enum lq_err ffn_there(void *arg, uint32_t layer, const float *x, size_t rows_n, float *out,
                             struct lq_fault *fault)
{
    struct bench_lane *l = arg;
    struct bench_worker *w = l->worker;
    char why[LQ_WHY_BYTES];
    if (l->column->policy)
        (void)lq_ffn_set_wire(l->ffn, (enum lq_ffn_wire)l->column->policy[layer]);
    if (lq_ffn_forward(l->ffn, layer, x, (uint32_t)rows_n, out, why) != LQ_FFN_OK)
        return lq_fail(fault, LQ_SHARD_DOWN, "%s", why);
    if (w->rows[0] && l == &w->lanes[0]) {
        size_t n = w->b->arch.hidden_n;
        memcpy(w->rows[0] + layer * n, x, n * sizeof *x);
        memcpy(w->rows[1] + layer * n, out, n * sizeof *out);
    }
    return LQ_OK;
}

static int connect_lane(const struct bench *b, struct bench_lane *l)
{
    struct lq_ffn_opts opts;
    char why[LQ_WHY_BYTES];
    lq_ffn_opts_init(&opts);
    opts.deadline_ms = (uint64_t)b->o->deadline_ms;
    opts.busy_poll_us = (uint64_t)b->o->busy_poll_us;
    opts.model_id = b->o->model_id;
    opts.api_key_file = b->o->api_key_file; /* else LARQL_API_KEY */
    opts.tls_ca = b->o->tls_ca;
    opts.tls_cert = b->o->tls_cert;
    opts.tls_key = b->o->tls_key;
    opts.wire = l->column->policy ? LQ_FFN_WIRE_F32 : (enum lq_ffn_wire)l->column->format;
    enum lq_ffn_rc rc = lq_ffn_connect(b->o->ffn, &opts, &l->ffn, why);
    if (rc)
        return fail(rc == LQ_FFN_USAGE ? CMD_EXIT_USAGE : CMD_EXIT_GRID, why);
    if (lq_ffn_hidden(l->ffn) == b->arch.hidden_n && lq_ffn_layers(l->ffn) == b->arch.layers_n)
        return 0;
    fprintf(stderr, "larql bench: %s serves %u layers of hidden size %u, %s has %u of %u: not the same model\n",
            b->o->ffn, lq_ffn_layers(l->ffn), lq_ffn_hidden(l->ffn), b->o->model_path, b->arch.layers_n,
            b->arch.hidden_n);
    return CMD_EXIT_GRID;
}

static enum lq_err make_rows(struct bench_worker *w, struct lq_fault *fault)
{
    size_t hidden = w->b->arch.hidden_n, n = hidden * w->b->arch.layers_n;
    size_t bytes = 0;
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++)
        bytes =
            wire_row_bytes(f, w->b->arch.hidden_n) > bytes ? (size_t)wire_row_bytes(f, w->b->arch.hidden_n) : bytes;
    w->rows[0] = malloc(n * sizeof(float));
    w->rows[1] = malloc(n * sizeof(float));
    w->decoded = malloc(n * sizeof(float));
    w->medians = malloc(w->b->arch.layers_n * sizeof(float));
    w->scratch = malloc(hidden * sizeof(float));
    w->encoded = malloc(bytes * w->b->arch.layers_n);
    return w->rows[0] && w->rows[1] && w->decoded && w->medians && w->scratch && w->encoded
               ? LQ_OK
               : lq_fail(fault, LQ_NOMEM, "out of memory for the rows of %u layers", w->b->arch.layers_n);
}

static int open_worker(struct bench *b, size_t index, enum mat_activations activations)
{
    struct bench_worker *w = &b->workers[index];
    struct lq_fault fault;
    size_t wide = b->arch.heads_n * (size_t)b->arch.head_dim, threads = (size_t)b->o->threads;
    wide = b->arch.hidden_n > wide ? b->arch.hidden_n : wide;
    *w = (struct bench_worker){.b = b, .index = index};
    if (b->workers_n > 1) /* else as `larql run` */
        threads = threads > b->workers_n ? threads / b->workers_n : 1;
    enum lq_err rc = compute_new(threads, wide, activations, &w->compute, &fault);
    if (!rc && index == 0)
        rc = make_rows(w, &fault);
    for (size_t i = 0; i < b->columns_n && !rc; i++) {
        struct bench_lane *l = &w->lanes[i];
        l->worker = w;
        l->column = &b->columns[i];
        int code = connect_lane(b, l);
        if (code)
            return code;
        rc = decoder_new(b->gguf, &b->arch, w->compute, (uint32_t)b->context_n, 1, ffn_there, l, &l->decoder, &fault);
    }
    return rc ? fail(code_of(rc), fault.text) : 0;
}

int bench_open(struct bench *b)
{
    struct lq_fault fault;
    static const struct model_want want = {.client = true};
    enum mat_activations activations;
    unsigned cpu;
    b->workers_n = (size_t)b->o->concurrent;
    b->top_n = b->o->assert_k ? (size_t)b->o->assert_k : 10;
    atomic_init(&b->failed_turn, SIZE_MAX);
    b->gate = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    enum lq_err rc = mat_activations_read(b->o->activations, &activations, &fault);
    if (!rc)
        rc = cpu_allowed(&cpu, &fault);
    if (!rc)
        rc = model_open(b->o->model_path, &want, &b->gguf, &fault);
    if (!rc)
        rc = arch_read(b->gguf, &b->arch, &fault);
    if (!rc)
        rc = tokenizer_new(b->gguf, &b->tokenizer, &fault);
    if (!rc)
        rc = bench_read_input(b, &fault);
    if (!rc)
        rc = read_columns(b, &fault);
    if (!rc && b->top_n > b->arch.vocab_n)
        rc = lq_fail(&fault, LQ_USAGE, "--assert-topk-match %zu of a vocabulary of %u", b->top_n, b->arch.vocab_n);
    if (!rc)
        rc = make_columns(b, &fault);
    if (!rc && !(b->workers = calloc(b->workers_n, sizeof *b->workers)))
        rc = lq_fail(&fault, LQ_NOMEM, "out of memory");
    if (!rc && b->workers_n > 1) {
        b->barrier_made = pthread_barrier_init(&b->barrier, NULL, (unsigned)b->workers_n) == 0;
        if (!b->barrier_made)
            rc = lq_fail(&fault, LQ_NOMEM, "no barrier for %zu workers", b->workers_n);
    }
    if (rc)
        return fail(code_of(rc), fault.text);
    codec_init(&b->codec, cpu);
    int code = 0;
    for (size_t i = 0; i < b->workers_n && !code; i++)
        code = open_worker(b, i, activations);
    return code;
}

static void release_worker(struct bench_worker *w)
{
    for (size_t i = 0; i < BENCH_COLUMNS_MAX; i++) {
        decoder_free(w->lanes[i].decoder);
        lq_ffn_close(w->lanes[i].ffn);
    }
    compute_free(w->compute);
    free(w->rows[0]);
    free(w->rows[1]);
    free(w->decoded);
    free(w->medians);
    free(w->scratch);
    free(w->encoded);
}

void bench_release(struct bench *b)
{
    for (size_t i = 0; b->workers && i < b->workers_n; i++)
        release_worker(&b->workers[i]);
    for (size_t i = 0; i < b->columns_n; i++) {
        struct bench_column *c = &b->columns[i];
        void *parts[] = {c->ms, c->kl, c->top1, c->top5, c->topk, c->mismatch};
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            free(parts[k]);
    }
    if (b->barrier_made)
        pthread_barrier_destroy(&b->barrier);
    tokenizer_free(b->tokenizer);
    gguf_free(b->gguf);
    free(b->workers);
    free(b->layers);
    free(b->advice);
    free(b->policy);
    free(b->passages);
    free(b->tokens);
}
