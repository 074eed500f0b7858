/* bench_layers: each layer's rows of the f32 run through each format and back, in this process:
 * what the format itself does, without what a run adds up over layers. */
#include <math.h>
#include <time.h>

#include "client/bench.h"

static double clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static struct bench_column *column_of(struct bench *b, enum wire_format f)
{
    for (size_t i = 0; i < b->columns_n; i++)
        if (b->columns[i].format == f)
            return &b->columns[i];
    return NULL;
}

static void add_row(struct bench_trip *t, const float *row, const float *got, size_t n, float median)
{
    struct fidelity_row r;
    fidelity_row(row, got, n, median, &r);
    t->rows_n++;
    t->nonzero_n += r.nonzero_n;
    t->zeroed_n += r.zeroed_n;
    t->error_sum += r.error;
    t->error_max = r.error > t->error_max ? r.error : t->error_max;
}

/* All layers' rows of one direction, encoded and decoded. Only what a client does is timed: it
 * encodes requests (0) and decodes answers (1). */
static enum lq_err travel(struct bench_worker *w, struct bench_column *c, size_t way, bool timed)
{
    struct bench *b = w->b;
    uint32_t layers = b->arch.layers_n, hidden = b->arch.hidden_n;
    size_t row_bytes = (size_t)wire_row_bytes(c->format, hidden);
    double start_ns = clock_ns();
    for (uint32_t i = 0; i < layers; i++)
        b->layers[i].trip[way][c->format].saturated_n += wire_payload_encode(
            &b->codec, c->format, w->rows[way] + (size_t)i * hidden, 1, hidden, w->encoded + i * row_bytes);
    double encoded_ns = clock_ns();
    enum lq_err rc = LQ_OK;
    for (uint32_t i = 0; i < layers && !rc; i++)
        rc = wire_payload_decode(&b->codec, c->format, w->encoded + i * row_bytes, 1, hidden,
                                 w->decoded + (size_t)i * hidden, "row", &w->fault);
    double decoded_ns = clock_ns();
    if (timed && way == 0)
        c->encode_us += (encoded_ns - start_ns) / 1000.0;
    if (timed && way == 1)
        c->decode_us += (decoded_ns - encoded_ns) / 1000.0;
    for (uint32_t i = 0; i < layers && !rc; i++)
        add_row(&b->layers[i].trip[way][c->format], w->rows[way] + (size_t)i * hidden,
                w->decoded + (size_t)i * hidden, hidden, w->medians[i]);
    return rc;
}

enum lq_err bench_measure_layers(struct bench_worker *w, bool timed)
{
    struct bench *b = w->b;
    size_t hidden = b->arch.hidden_n;
    enum lq_err rc = LQ_OK;
    for (size_t way = 0; way < 2; way++) {
        for (uint32_t i = 0; i < b->arch.layers_n; i++) {
            const float *row = w->rows[way] + i * hidden;
            float *most = &b->layers[i].max_abs[way];
            for (size_t k = 0; k < hidden; k++)
                *most = fabsf(row[k]) > *most ? fabsf(row[k]) : *most;
            w->medians[i] = fidelity_median(row, hidden, w->scratch);
        }
        for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N && !rc; f++) {
            struct bench_column *c = column_of(b, f);
            if (c)
                rc = travel(w, c, way, timed);
        }
    }
    return rc;
}
