/* work: jobs on the compute path, top to bottom:
 *
 *   run_batch (the first job, and those of the same layers that waited with it)
 *     each job  : gone? late? -> values (check 13) -> layers (14, 15) -> size (16)
 *     pass      : each layer -> each chunk of rows: compute, then each job:
 *                 finite (18), encode
 *     second pass, alone, of a job that fell back to f32 half-way
 *
 * A job in a batch has its own rows, faults and format, and gets the bytes that it
 * would have got alone (ADR 0009). Layers are encoded as they are computed, so that
 * one chunk of floats is held and not the whole answer. */
#include "shard/work.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proto/bytes.h"

_Thread_local const char *work_phase;

enum lq_err work_check_layer(const struct shard *s, uint32_t layer, struct lq_fault *fault)
{
    if (layer >= s->arch.layers_n)
        return lq_fail(fault, LQ_BAD_LAYER, "layer %u out of range (num_layers = %u)", layer, s->arch.layers_n);
    if (layer < s->layer_first || layer > s->layer_last)
        return lq_fail(fault, LQ_BAD_LAYER, "layer %u not served by this shard (owned: %u–%u)", layer, s->layer_first,
                       s->layer_last);
    return LQ_OK;
}

enum lq_err work_check_answer_size(const struct shard *s, uint64_t bytes, struct lq_fault *fault)
{
    if (bytes > s->answer_max)
        return lq_fail(fault, LQ_BIG_ANSWER, "the answer would be %llu bytes, the limit is %llu",
                       (unsigned long long)bytes, (unsigned long long)s->answer_max);
    return LQ_OK;
}

/* Jobs that go through the layers together: rows_n rows, their layers those of job[0]. */
struct batch {
    struct job *job[BATCH_ROWS_MAX];
    size_t jobs_n;
    uint32_t rows_n;
    uint64_t encode_us; /* so far */
};

static bool has_ended(const struct job *j)
{
    return j->fault.code != LQ_OK || j->again;
}

/* Does nobody wait for the batch any more? */
static bool is_over(struct batch *b)
{
    bool over = true;
    for (size_t i = 0; i < b->jobs_n; i++) {
        struct job *j = b->job[i];
        if (!has_ended(j) && atomic_load_explicit(&j->gone, memory_order_relaxed))
            (void)lq_fail(&j->fault, LQ_CANCELLED, "the client left");
        over &= has_ended(j);
    }
    return over;
}

/* Did its turn come too late? */
static bool has_lapsed(struct job *j)
{
    if (atomic_load(&j->gone))
        (void)lq_fail(&j->fault, LQ_CANCELLED, "the client left before its turn");
    else if (clock_us() >= j->deadline_us)
        (void)lq_fail(&j->fault, LQ_DEADLINE, "the deadline passed while the request waited");
    return j->fault.code != LQ_OK;
}

static enum lq_err decode_rows(struct job *j, uint32_t first, uint32_t rows_n, float *x)
{
    const struct shard *s = j->shard;
    return wire_rows_decode(&s->codec, j->form.body, j->body_p + j->head.payload_at, first, rows_n, s->arch.hidden_n,
                            x, "residual", &j->fault);
}

/* Is j to be computed? Its rows are then in w->x from row `row` on (of a job longer than
 * a chunk: none), and it is known to be good as far as checks 13 to 16 go. */
static bool admit(struct work *w, struct job *j, uint32_t row)
{
    const struct shard *s = j->shard;
    const struct wire_head *h = &j->head;
    work_phase = "decode";
    if (has_lapsed(j))
        return false;
    float *x = w->x + (size_t)row * s->arch.hidden_n;
    for (uint32_t at = 0; at < h->seq_len; at += FFN_CHUNK_ROWS) {
        uint32_t n = h->seq_len - at < FFN_CHUNK_ROWS ? h->seq_len - at : FFN_CHUNK_ROWS;
        if (decode_rows(j, at, n, x))
            return false;
    }
    for (uint32_t i = 0; i < h->layers_n; i++)
        if (work_check_layer(s, wire_head_layer(h, i), &j->fault))
            return false;
    if (work_check_answer_size(s, wire_answer_bytes(j->form.answer, h->layers_n, h->seq_len, s->arch.hidden_n),
                               &j->fault))
        return false;
    j->batch_row = row;
    j->rows_n = (uint64_t)h->seq_len * h->layers_n;
    return true;
}

static size_t payload_bytes(const struct job *j)
{
    return (size_t)wire_row_bytes(j->form.answer, j->shard->arch.hidden_n) * j->head.seq_len;
}

/* Where entry i's payload starts in the answer. */
static uint8_t *entry(const struct job *j, size_t i)
{
    if (j->head.layers_n == 1)
        return j->answer + WIRE_ANSWER_HEAD_BYTES;
    return j->answer + WIRE_ANSWER_HEAD_BYTES + i * (WIRE_ENTRY_HEAD_BYTES + payload_bytes(j)) +
           WIRE_ENTRY_HEAD_BYTES;
}

static void entry_head(const struct job *j, uint32_t i)
{
    const struct wire_head *h = &j->head;
    if (h->layers_n > 1)
        wire_entry_head_encode(wire_head_layer(h, i), h->seq_len, h->seq_len * j->shard->arch.hidden_n,
                               entry(j, i) - WIRE_ENTRY_HEAD_BYTES);
}

/* rows_n rows of layer number i, the job's from `row` on, to their place in the answer. */
static void deliver(struct job *j, uint32_t i, const float *out, uint32_t row, uint32_t rows_n)
{
    const struct shard *s = j->shard;
    uint32_t hidden = s->arch.hidden_n;
    size_t n = (size_t)rows_n * hidden, bad = s->codec.finite(out, n);
    if (bad < n) {
        (void)lq_fail(&j->fault, LQ_NOT_FINITE, "FFN output is not finite at layer %u, row %zu, index %zu",
                      wire_head_layer(&j->head, i), row + bad / hidden, bad % hidden);
        return;
    }
    if (j->may_fall_back && j->form.answer == WIRE_F16 && s->codec.f16_saturates(out, n) > 0) {
        j->form.answer = WIRE_F32;
        j->fell_back = true;
        j->again = i > 0 || row > 0; /* a pure function: what came before is computed again */
        if (j->again)
            return;
    }
    if (row == 0)
        entry_head(j, i);
    j->saturated_n += wire_payload_encode(&s->codec, j->form.answer, out, rows_n, hidden,
                                          entry(j, i) + wire_row_bytes(j->form.answer, hidden) * row);
}

/* One layer, already computed as number `twin`, again. */
static void repeat(struct batch *b, uint32_t i, uint32_t twin)
{
    for (size_t k = 0; k < b->jobs_n; k++) {
        struct job *j = b->job[k];
        if (has_ended(j))
            continue;
        entry_head(j, i);
        memcpy(entry(j, i), entry(j, twin), payload_bytes(j));
    }
}

/* Every layer for every job of the batch whose rows are in w->x (a job longer than a
 * chunk is alone, and its rows come here chunk by chunk). */
static void pass(struct work *w, struct batch *b)
{
    const struct wire_head *h = &b->job[0]->head;
    const struct shard *s = b->job[0]->shard;
    bool whole = b->rows_n <= FFN_CHUNK_ROWS;
    for (uint32_t i = 0; i < h->layers_n; i++) {
        uint32_t layer = wire_head_layer(h, i), twin = 0;
        while (wire_head_layer(h, twin) != layer)
            twin++;
        if (twin < i) {
            repeat(b, i, twin);
            continue;
        }
        uint64_t layer_us = 0;
        for (uint32_t row = 0; row < b->rows_n; row += FFN_CHUNK_ROWS) {
            uint32_t n = b->rows_n - row < FFN_CHUNK_ROWS ? b->rows_n - row : FFN_CHUNK_ROWS;
            if (is_over(b)) /* asked once a chunk, so that a job nobody waits for ends soon */
                return;
            if (!whole && decode_rows(b->job[0], row, n, w->x))
                return;
            work_phase = "compute";
            uint64_t begin_us = clock_us();
            ffn_forward(s->ffn, w->compute, layer, w->x, n, w->scratch, w->out);
            uint64_t end_us = clock_us();
            layer_us += end_us - begin_us;
            work_phase = "encode";
            for (size_t k = 0; k < b->jobs_n; k++) {
                struct job *j = b->job[k];
                if (has_ended(j))
                    continue;
                if (whole)
                    deliver(j, i, w->out + (size_t)j->batch_row * s->arch.hidden_n, 0, j->head.seq_len);
                else
                    deliver(j, i, w->out, row, n);
            }
            b->encode_us += clock_us() - end_us;
        }
        layer_stats_note(s->layer_stats, layer, layer_us);
    }
}

void work_timing(struct job *j, uint64_t start_us, uint64_t encode_us)
{
    j->queue_us = (uint32_t)(start_us - j->queued_us);
    j->encode_us = (uint32_t)encode_us;
    j->compute_us = (uint32_t)(clock_us() - start_us - encode_us);
}

static void finish(struct job *j, uint64_t start_us, uint64_t encode_us)
{
    const struct wire_head *h = &j->head;
    work_timing(j, start_us, encode_us);
    float latency_ms = (float)(j->compute_us + j->encode_us) / 1000.0f;
    j->answer_n = (size_t)wire_answer_bytes(j->form.answer, h->layers_n, h->seq_len, j->shard->arch.hidden_n);
    j->content_type = wire_content_type(j->form.answer);
    wire_answer_head_encode(h->layers_n, wire_head_layer(h, 0), h->seq_len, latency_ms, j->answer);
}

static void count(const struct shard *s, const struct batch *b, uint64_t us)
{
    metric_observe_us(s->m.compute_seconds, us);
    if (b->jobs_n == 0)
        return;
    size_t class = 0;
    while (class + 1 < BATCH_CLASSES_N && (size_t)1 << class < b->jobs_n)
        class ++;
    metric_add(s->m.batches[class], 1);
    metric_add(s->m.batch_rows, b->rows_n);
}

static void run_batch(struct offload_task *t, void *arg)
{
    struct job *first = (struct job *)t; /* its first member */
    struct work *w = arg;
    struct batch b = {.jobs_n = 0};
    uint64_t start_us = clock_us();
    for (struct job *j = first; j; j = (struct job *)j->task.next) {
        if (admit(w, j, b.rows_n)) {
            b.job[b.jobs_n++] = j;
            b.rows_n += j->head.seq_len;
        }
    }
    if (b.jobs_n > 0)
        pass(w, &b);
    for (size_t k = 0; k < b.jobs_n; k++) {
        struct job *j = b.job[k];
        if (j->again) {
            struct batch alone = {.job = {j}, .jobs_n = 1, .rows_n = j->head.seq_len};
            j->again = false;
            j->saturated_n = 0;
            if (admit(w, j, 0))
                pass(w, &alone);
            b.encode_us += alone.encode_us;
        }
        if (j->fault.code == LQ_OK)
            finish(j, start_us, b.encode_us);
    }
    uint64_t us = clock_us() - start_us;
    if (b.jobs_n == 1 && b.rows_n == 1 && b.job[0]->fault.code == LQ_OK)
        b.job[0]->row_us = (uint32_t)(us / b.job[0]->rows_n) + 1;
    count(first->shard, &b, us);
    work_phase = NULL;
}

static void run_json(struct offload_task *t, void *arg)
{
    struct job *j = (struct job *)t; /* its first member */
    uint64_t start_us = clock_us();
    work_phase = "json";
    if (!has_lapsed(j))
        j->fault.code = work_json(arg, j);
    metric_observe_us(j->shard->m.compute_seconds, clock_us() - start_us);
    work_phase = NULL;
}

static bool joins(struct offload_task *first, const struct offload_task *t)
{
    struct job *f = (struct job *)first;
    const struct job *j = (const struct job *)t;
    if (f->head.layers_n != j->head.layers_n ||
        memcmp(f->head.layers_le, j->head.layers_le, 4 * (size_t)f->head.layers_n) != 0 ||
        f->batch_rows_n + j->head.seq_len > f->shard->batch_rows_max)
        return false;
    f->batch_rows_n += j->head.seq_len;
    return true;
}

void work_prepare(struct job *j)
{
    j->task.run = j->form.json ? run_json : run_batch;
    j->batch_rows_n = j->head.seq_len;
    if (!j->form.json && j->head.seq_len < j->shard->batch_rows_max)
        j->task.joins = joins;
}

struct work *work_new(const struct shard *s, size_t threads_n, enum mat_activations activations,
                      struct lq_fault *fault)
{
    size_t wide = s->arch.ffn_n > s->arch.hidden_n ? s->arch.ffn_n : s->arch.hidden_n;
    size_t chunk_bytes = (size_t)s->arch.hidden_n * FFN_CHUNK_ROWS * sizeof(float);
    struct work *w = calloc(1, sizeof *w);
    if (!w) {
        (void)lq_fail(fault, LQ_NOMEM, "out of memory");
        return NULL;
    }
    if (compute_new(threads_n, wide, activations, &w->compute, fault))
        goto fail;
    w->scratch = malloc(ffn_scratch_floats(s->ffn, FFN_CHUNK_ROWS) * sizeof(float));
    w->x = malloc(chunk_bytes);
    w->out = malloc(chunk_bytes);
    if (w->scratch && w->x && w->out)
        return w;
    (void)lq_fail(fault, LQ_NOMEM, "out of memory for the scratch of %d rows", FFN_CHUNK_ROWS);
fail:
    work_free(w);
    return NULL;
}

void work_free(struct work *w)
{
    if (!w)
        return;
    compute_free(w->compute);
    free(w->scratch);
    free(w->x);
    free(w->out);
    free(w);
}

struct compute *work_compute(struct work *w)
{
    return w->compute;
}
