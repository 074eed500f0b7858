/* work_json: the JSON form of a job on the compute thread: parse (checks 8, 10 to 13) ->
 * layers (14, 15) -> size (16) -> output | features. A form for people and scripts: it
 * allocates as it goes and is never batched. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proto/wire_json.h"
#include "shard/work.h"

enum { JSON_BYTES_PER_VALUE = 16, JSON_BYTES_PER_FEATURE = 24 };

/* out = FFN of one layer on seq_len rows, all finite. */
static enum lq_err forward(struct work *w, struct job *j, uint32_t layer, const float *x, uint32_t seq_len,
                           float *out)
{
    const struct shard *s = j->shard;
    uint32_t hidden = s->arch.hidden_n;
    uint64_t begin_us = clock_us();
    /* In chunks, so that a job nobody waits for ends soon. */
    for (uint32_t row = 0; row < seq_len; row += FFN_CHUNK_ROWS) {
        if (atomic_load_explicit(&j->gone, memory_order_relaxed))
            return lq_fail(&j->fault, LQ_CANCELLED, "the client left");
        uint32_t rows_n = seq_len - row < FFN_CHUNK_ROWS ? seq_len - row : FFN_CHUNK_ROWS;
        ffn_forward(s->ffn, w->compute, layer, x + (size_t)row * hidden, rows_n, w->scratch,
                    out + (size_t)row * hidden);
    }
    layer_stats_note(s->layer_stats, layer, clock_us() - begin_us);
    size_t n = (size_t)seq_len * hidden, bad = s->codec.finite(out, n);
    if (bad < n)
        return lq_fail(&j->fault, LQ_NOT_FINITE, "FFN output is not finite at layer %u, row %zu, index %zu", layer,
                       bad / hidden, bad % hidden);
    return LQ_OK;
}

/* Takes a malloc'd text as the answer. */
static enum lq_err give(struct job *j, char *text, size_t n)
{
    j->answer = (uint8_t *)text;
    j->answer_n = n;
    j->content_type = "application/json";
    return text ? LQ_OK : lq_fail(&j->fault, LQ_NOMEM, "out of memory for an answer");
}

static double latency_ms_since(uint64_t start_us)
{
    return (double)(clock_us() - start_us) / 1000.0;
}

static enum lq_err json_output(struct work *w, struct job *j, const struct wire_json_request *r, uint64_t start_us)
{
    const struct shard *s = j->shard;
    size_t values_n = r->residual_n;
    enum lq_err rc = work_check_answer_size(s, (uint64_t)r->layers_n * values_n * JSON_BYTES_PER_VALUE, &j->fault);
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
        uint64_t encode_begin_us = clock_us();
        char *text = wire_json_output_encode(r->layers, r->layers_n, r->seq_len, s->arch.hidden_n, out,
                                             latency_ms_since(start_us), &n);
        work_timing(j, start_us, clock_us() - encode_begin_us);
        rc = give(j, text, n);
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
    enum lq_err rc = work_check_answer_size(s, (uint64_t)r->layers_n * n * JSON_BYTES_PER_FEATURE, &j->fault);
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
    uint64_t encode_begin_us = clock_us();
    char *text = wire_json_features_encode(r->layers, r->layers_n, f, latency_ms_since(start_us), &bytes);
    work_timing(j, start_us, clock_us() - encode_begin_us);
    rc = give(j, text, bytes);
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

enum lq_err work_json(struct work *w, struct job *j)
{
    const struct shard *s = j->shard;
    uint64_t start_us = clock_us();
    struct wire_json_request r;
    enum lq_err rc = wire_json_request_decode((const char *)j->body_p, j->body_n, &r, &j->fault);
    if (rc)
        return rc;
    j->json_layer = r.layers[0];
    j->json_layers_n = r.layers_n;
    j->json_rows_n = r.seq_len;
    rc = wire_json_residual_check(&r, s->arch.hidden_n, &j->fault);
    for (uint32_t i = 0; i < r.layers_n && !rc; i++)
        rc = work_check_layer(s, r.layers[i], &j->fault);
    if (!rc) {
        j->rows_n = (uint64_t)r.seq_len * r.layers_n;
        rc = r.full_output ? json_output(w, j, &r, start_us) : json_features(w, j, &r, start_us);
    }
    wire_json_request_release(&r);
    return rc;
}
