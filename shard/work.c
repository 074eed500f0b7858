/* work: a job on the compute thread, top to bottom:
 *
 *   work_run -> run_binary: values (check 13) -> layers (14, 15) -> size (16)
 *                           -> each layer: compute, finite (18), encode
 *            -> run_json  : parse (8, 10..13) -> layers -> size -> output | features
 *
 * Layers are encoded as they are computed, so that a batch holds one layer's
 * floats and not all of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proto/bytes.h"
#include "proto/wire_json.h"
#include "shard/job.h"

enum { JSON_BYTES_PER_VALUE = 16, JSON_BYTES_PER_FEATURE = 24 };

static enum lq_err check_layer(const struct shard *s, uint32_t layer, struct lq_fault *fault)
{
    if (layer >= s->arch.layers_n)
        return lq_fail(fault, LQ_BAD_LAYER, "layer %u out of range (num_layers = %u)", layer, s->arch.layers_n);
    if (layer < s->layer_first || layer > s->layer_last)
        return lq_fail(fault, LQ_BAD_LAYER, "layer %u not served by this shard (owned: %u–%u)", layer, s->layer_first,
                       s->layer_last);
    return LQ_OK;
}

static enum lq_err check_answer_size(const struct shard *s, uint64_t bytes, struct lq_fault *fault)
{
    if (bytes > s->answer_max)
        return lq_fail(fault, LQ_BIG_ANSWER, "the answer would be %llu bytes, the limit is %llu",
                       (unsigned long long)bytes, (unsigned long long)s->answer_max);
    return LQ_OK;
}

/* out = FFN of one layer on seq_len rows, all finite. */
static enum lq_err forward(struct work *w, struct job *j, uint32_t layer, const float *x, uint32_t seq_len,
                           float *out)
{
    const struct shard *s = j->shard;
    uint32_t hidden = s->arch.hidden_n;
    /* In chunks, so that a job nobody waits for ends soon. */
    for (uint32_t row = 0; row < seq_len; row += FFN_CHUNK_ROWS) {
        if (atomic_load_explicit(&j->gone, memory_order_relaxed))
            return lq_fail(&j->fault, LQ_CANCELLED, "the client left");
        uint32_t rows_n = seq_len - row < FFN_CHUNK_ROWS ? seq_len - row : FFN_CHUNK_ROWS;
        ffn_forward(s->ffn, w->compute, layer, x + (size_t)row * hidden, rows_n, w->scratch,
                    out + (size_t)row * hidden);
    }
    size_t n = (size_t)seq_len * hidden, bad = s->codec.finite(out, n);
    if (bad < n)
        return lq_fail(&j->fault, LQ_NOT_FINITE, "FFN output is not finite at layer %u, row %zu, index %zu", layer,
                       bad / hidden, bad % hidden);
    return LQ_OK;
}

/* Hands malloc'd bytes over to the answer; frees them when that fails. */
static enum lq_err give(struct job *j, void *p, size_t n, const char *content_type)
{
    j->content_type = content_type;
    if (http_front_give(j->answer, p, n))
        return LQ_OK;
    return lq_fail(&j->fault, LQ_NOMEM, "out of memory for an answer");
}

/* Where entry i's payload starts in an answer. */
static size_t entry_at(const struct wire_head *h, size_t i, size_t payload_n)
{
    if (h->layers_n == 1)
        return WIRE_ANSWER_HEAD_BYTES;
    return WIRE_ANSWER_HEAD_BYTES + i * (WIRE_ENTRY_HEAD_BYTES + payload_n) + WIRE_ENTRY_HEAD_BYTES;
}

/* Encodes every layer in `form`. *saturates: f16 would clip and the client takes
 * f32, so nothing is finished: begin again in f32. */
static enum lq_err fill_answer(struct work *w, struct job *j, enum wire_format form, bool may_fall_back,
                               const float *x, float *out, uint8_t *answer, size_t payload_n, bool *saturates)
{
    const struct shard *s = j->shard;
    const struct wire_head *h = &j->head;
    uint32_t hidden = s->arch.hidden_n;
    *saturates = false;
    for (uint32_t i = 0; i < h->layers_n; i++) {
        uint32_t layer = wire_head_layer(h, i), twin = 0;
        uint8_t *to = answer + entry_at(h, i, payload_n);
        if (h->layers_n > 1)
            wire_entry_head_encode(layer, h->seq_len, h->seq_len * hidden, to - WIRE_ENTRY_HEAD_BYTES);
        while (wire_head_layer(h, twin) != layer)
            twin++;
        if (twin < i) { /* asked for twice: computed once */
            memcpy(to, answer + entry_at(h, twin, payload_n), payload_n);
            continue;
        }
        enum lq_err rc = forward(w, j, layer, x, h->seq_len, out);
        if (rc)
            return rc;
        if (may_fall_back && s->codec.f16_saturates(out, (size_t)h->seq_len * hidden) > 0) {
            *saturates = true;
            return LQ_OK;
        }
        j->saturated_n += wire_payload_encode(&s->codec, form, out, h->seq_len, hidden, to);
    }
    return LQ_OK;
}

/* x: the decoded rows; out: room for one layer. */
static enum lq_err answer_binary(struct work *w, struct job *j, const float *x, float *out, uint64_t start_us)
{
    const struct shard *s = j->shard;
    const struct wire_head *h = &j->head;
    enum wire_format form = j->form.answer;
    bool may_fall_back = form == WIRE_F16 && j->form.accepts_f32 &&
                         wire_answer_bytes(WIRE_F32, h->layers_n, h->seq_len, s->arch.hidden_n) <= s->answer_max;
    enum lq_err rc;
    uint8_t *answer = NULL;
    bool saturates;
    do {
        uint64_t bytes = wire_answer_bytes(form, h->layers_n, h->seq_len, s->arch.hidden_n);
        size_t payload_n = (size_t)wire_row_bytes(form, s->arch.hidden_n) * h->seq_len;
        free(answer);
        j->saturated_n = 0;
        if (!(answer = malloc(bytes)))
            return lq_fail(&j->fault, LQ_NOMEM, "out of memory for an answer of %llu bytes",
                           (unsigned long long)bytes);
        rc = fill_answer(w, j, form, may_fall_back, x, out, answer, payload_n, &saturates);
        if (rc) {
            free(answer);
            return rc;
        }
        if (!saturates) {
            float latency_ms = (float)(clock_us() - start_us) / 1000.0f;
            wire_answer_head_encode(h->layers_n, wire_head_layer(h, 0), h->seq_len, latency_ms, answer);
            return give(j, answer, bytes, wire_content_type(form));
        }
        /* A pure function: what was computed before the clipping layer is computed again. */
        form = WIRE_F32;
        may_fall_back = false;
        j->fell_back = true;
    } while (true);
}

static enum lq_err run_binary(struct work *w, struct job *j)
{
    const struct shard *s = j->shard;
    const struct wire_head *h = &j->head;
    uint64_t start_us = clock_us();
    size_t values_n = j->values_n;
    enum lq_err rc;
    float *x = malloc(values_n * sizeof *x), *out = NULL;
    if (!x) {
        rc = lq_fail(&j->fault, LQ_NOMEM, "out of memory for %zu values", values_n);
        goto out;
    }
    rc = wire_payload_decode(&s->codec, j->form.body, j->body_p + h->payload_at, h->seq_len, s->arch.hidden_n, x,
                             "residual", &j->fault);
    for (uint32_t i = 0; i < h->layers_n && !rc; i++)
        rc = check_layer(s, wire_head_layer(h, i), &j->fault);
    if (!rc)
        rc = check_answer_size(s, wire_answer_bytes(j->form.answer, h->layers_n, h->seq_len, s->arch.hidden_n),
                               &j->fault);
    if (rc)
        goto out;
    if (!(out = malloc(values_n * sizeof *out))) {
        rc = lq_fail(&j->fault, LQ_NOMEM, "out of memory for %zu values", values_n);
        goto out;
    }
    j->rows_n = (uint64_t)h->seq_len * h->layers_n;
    rc = answer_binary(w, j, x, out, start_us);
out:
    free(x);
    free(out);
    return rc;
}

static double latency_ms_since(uint64_t start_us)
{
    return (double)(clock_us() - start_us) / 1000.0;
}

static enum lq_err json_output(struct work *w, struct job *j, const struct wire_json_request *r, uint64_t start_us)
{
    const struct shard *s = j->shard;
    size_t values_n = r->residual_n;
    enum lq_err rc = check_answer_size(s, (uint64_t)r->layers_n * values_n * JSON_BYTES_PER_VALUE, &j->fault);
    if (rc)
        return rc;
    float *out = malloc((size_t)r->layers_n * values_n * sizeof *out);
    if (!out)
        return lq_fail(&j->fault, LQ_NOMEM, "out of memory for %u layers of %zu values", r->layers_n, values_n);
    for (uint32_t i = 0; i < r->layers_n && !rc; i++) {
        uint32_t twin = 0;
        while (r->layers[twin] != r->layers[i])
            twin++;
        float *to = out + (size_t)i * values_n;
        if (twin < i)
            memcpy(to, out + (size_t)twin * values_n, values_n * sizeof *to);
        else
            rc = forward(w, j, r->layers[i], r->residual, r->seq_len, to);
    }
    if (!rc) {
        size_t n;
        char *text = wire_json_output_encode(r->layers, r->layers_n, r->seq_len, s->arch.hidden_n, out,
                                             latency_ms_since(start_us), &n);
        rc = give(j, text, n, "application/json");
    }
    free(out);
    return rc;
}

static int by_strength(const void *a, const void *b, void *scores)
{
    const float *s = scores;
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    float x = fabsf(s[i]), y = fabsf(s[k]);
    return x != y ? (x < y) - (x > y) : (i > k) - (i < k); /* ties by id */
}

/* The n strongest of the ffn_n scores. */
static enum lq_err strongest(const float *scores, uint32_t *order, uint32_t ffn_n, struct wire_features *f,
                             uint32_t n)
{
    for (uint32_t i = 0; i < ffn_n; i++)
        order[i] = i;
    qsort_r(order, ffn_n, sizeof *order, by_strength, (void *)(uintptr_t)scores);
    f->ids = malloc(n * sizeof *f->ids + 1);
    f->scores = malloc(n * sizeof *f->scores + 1);
    if (!f->ids || !f->scores)
        return LQ_NOMEM;
    f->n = n;
    for (uint32_t i = 0; i < n; i++) {
        f->ids[i] = order[i];
        f->scores[i] = scores[order[i]];
    }
    return LQ_OK;
}

static enum lq_err json_features(struct work *w, struct job *j, const struct wire_json_request *r, uint64_t start_us)
{
    const struct shard *s = j->shard;
    uint32_t ffn_n = s->arch.ffn_n, n = r->top_k < ffn_n ? r->top_k : ffn_n;
    enum lq_err rc = check_answer_size(s, (uint64_t)r->layers_n * n * JSON_BYTES_PER_FEATURE, &j->fault);
    if (rc)
        return rc;
    struct wire_features *f = calloc(r->layers_n, sizeof *f);
    float *scores = malloc(ffn_n * sizeof *scores);
    uint32_t *order = malloc(ffn_n * sizeof *order);
    if (!f || !scores || !order) {
        rc = lq_fail(&j->fault, LQ_NOMEM, "out of memory for the features of %u layers", r->layers_n);
        goto out;
    }
    for (uint32_t i = 0; i < r->layers_n; i++) {
        ffn_gate_scores(s->ffn, w->compute, r->layers[i], r->residual, scores);
        size_t bad = s->codec.finite(scores, ffn_n);
        if (bad < ffn_n) {
            rc = lq_fail(&j->fault, LQ_NOT_FINITE, "gate score is not finite at layer %u, feature %zu", r->layers[i],
                         bad);
            goto out;
        }
        if ((rc = strongest(scores, order, ffn_n, &f[i], n))) {
            rc = lq_fail(&j->fault, rc, "out of memory for %u features", n);
            goto out;
        }
    }
    size_t bytes = 0;
    char *text = wire_json_features_encode(r->layers, r->layers_n, f, latency_ms_since(start_us), &bytes);
    rc = give(j, text, bytes, "application/json");
out:
    for (uint32_t i = 0; f && i < r->layers_n; i++) {
        free(f[i].ids);
        free(f[i].scores);
    }
    free(f);
    free(scores);
    free(order);
    return rc;
}

static enum lq_err run_json(struct work *w, struct job *j)
{
    const struct shard *s = j->shard;
    uint64_t start_us = clock_us();
    struct wire_json_request r;
    enum lq_err rc = wire_json_request_decode((const char *)j->body_p, j->body_n, &r, &j->fault);
    if (rc)
        return rc;
    rc = wire_json_residual_check(&r, s->arch.hidden_n, &j->fault);
    for (uint32_t i = 0; i < r.layers_n && !rc; i++)
        rc = check_layer(s, r.layers[i], &j->fault);
    if (!rc) {
        j->rows_n = (uint64_t)r.seq_len * r.layers_n;
        rc = r.full_output ? json_output(w, j, &r, start_us) : json_features(w, j, &r, start_us);
    }
    wire_json_request_release(&r);
    return rc;
}

void work_run(struct offload_task *t, void *arg)
{
    struct job *j = (struct job *)t; /* its first member */
    struct work *w = arg;
    uint64_t start_us = clock_us();
    if (atomic_load(&j->gone))
        (void)lq_fail(&j->fault, LQ_CANCELLED, "the client left before its turn");
    else if (start_us >= j->deadline_us)
        (void)lq_fail(&j->fault, LQ_DEADLINE, "the deadline passed while the request waited");
    else if (!(j->answer = evbuffer_new()))
        (void)lq_fail(&j->fault, LQ_NOMEM, "out of memory");
    else
        j->fault.code = j->form.json ? run_json(w, j) : run_binary(w, j);
    metric_observe_us(j->shard->m.compute_seconds, clock_us() - start_us);
}

enum lq_err work_init(struct work *w, const struct shard *s, size_t threads_n, struct lq_fault *fault)
{
    size_t wide = s->arch.ffn_n > s->arch.hidden_n ? s->arch.ffn_n : s->arch.hidden_n;
    enum lq_err rc = compute_new(threads_n, wide, &w->compute, fault);
    if (rc)
        return rc;
    w->scratch = malloc(ffn_scratch_floats(s->ffn, FFN_CHUNK_ROWS) * sizeof(float));
    if (!w->scratch)
        return lq_fail(fault, LQ_NOMEM, "out of memory for the scratch of %d rows", FFN_CHUNK_ROWS);
    return LQ_OK;
}

void work_release(struct work *w)
{
    compute_free(w->compute);
    free(w->scratch);
    *w = (struct work){0};
}
