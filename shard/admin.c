/* admin: what the shard tells about itself (docs/protocol.md, 5). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "shard/job.h"

static void answer_health(void *arg, struct http_req *r)
{
    struct shard *s = arg;
    if (s->draining)
        http_front_json_new(r, 503, json_pack("{ss}", "status", "draining"));
    else
        http_front_json_new(r, 200,
                            json_pack("{ss,sI,sI}", "status", "ok", "uptime_seconds",
                                      (json_int_t)((clock_us() - s->start_us) / 1000000), "requests_served",
                                      (json_int_t)s->m.books.served_n));
}

static json_t *wire_list(const struct wire_switches *w)
{
    json_t *list = json_array();
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++)
        if (f == WIRE_F32 || (f == WIRE_F16 && w->f16_on) || (f == WIRE_I8 && w->i8_on))
            json_array_append_new(list, json_string(wire_name(f)));
    return list;
}

static json_t *hash_json(const struct hash256 *h)
{
    char text[HASH256_TEXT_BYTES];
    return json_string(hash256_text(h, text));
}

static json_t *layer_hashes(const struct identity *id)
{
    json_t *list = json_array();
    for (uint32_t l = id->layer_first; l <= id->layer_last; l++)
        json_array_append_new(list, hash_json(&id->layers[l - id->layer_first]));
    return list;
}

static void answer_stats(void *arg, struct http_req *r)
{
    struct shard *s = arg;
    const struct arch *a = &s->arch;
    http_front_json_new(r, 200,
                        json_pack("{ss,ss,ss,si,si,si,si,si,ss,so,ss,si,so,so,s{sb,sI}}", "model", s->model_id,
                                  "family", a->family, "mode", "ffn-service", "layers", (int)a->layers_n,
                                  "hidden_size", (int)a->hidden_n, "features_per_layer", (int)a->ffn_n, "layer_start",
                                  (int)s->layer_first, "layer_end", (int)s->layer_last, "dtype", ffn_dtype(s->ffn),
                                  "wire", wire_list(&s->wire), "kernels", s->kernels, "batch_rows_max",
                                  (int)s->batch_rows_max, "identity", hash_json(&s->identity.model), "layer_hashes",
                                  layer_hashes(&s->identity), "loaded", "ffn_service", 1, "ffn_bytes",
                                  (json_int_t)ffn_bytes(s->ffn)));
}

static void answer_models(void *arg, struct http_req *r)
{
    struct shard *s = arg;
    http_front_json_new(r, 200,
                        json_pack("{ss,s[{ss,ss,sI,ss}]}", "object", "list", "data", "id", s->model_id, "object",
                                  "model", "created",
                                  (json_int_t)(time(NULL) - (time_t)((clock_us() - s->start_us) / 1000000)),
                                  "owned_by", "larql-grid"));
}

static void answer_metrics(void *arg, struct http_req *r)
{
    struct shard *s = arg;
    uint64_t bytes;
    struct shard_load load;
    load_read(&s->load, clock_us(), &load);
    metric_set(s->m.in_flight, (double)load.in_flight);
    metric_set(s->m.per_second, (double)load.requests_per_s);
    metric_set(s->m.cpu, (double)load.cpu_pct);
    metric_set(s->m.resident, (double)load.ram_used_bytes);
    metric_set(s->m.queue_jobs, (double)offload_waiting_n(s->queue, &bytes));
    metric_set(s->m.busy, offload_is_busy(s->queue));
    metric_set(s->m.queue_bytes, (double)bytes);
    metric_set(s->m.connections, (double)http_server_connections_n(s->server));
    http_front_metrics(r, s->metrics);
}

void admin_on_request(struct http_req *r, void *shard)
{
    static const struct http_page pages[] = {
        {"/v1/walk-ffn", "POST", flow_start, ACCESS_CLIENT}, {"/v1/health", "GET", answer_health, ACCESS_ANY},
        {"/v1/stats", "GET", answer_stats, ACCESS_CLIENT},   {"/v1/models", "GET", answer_models, ACCESS_CLIENT},
        {"/metrics", "GET", answer_metrics, ACCESS_READER},  {"/v1/model/file", "GET", model_file_start, ACCESS_GRID},
    };
    struct shard *s = shard;
    http_front_dispatch(pages, sizeof pages / sizeof *pages, &s->trust.access, s, r);
}

bool admin_metrics_init(struct shard *s)
{
    struct metrics *m = s->metrics = metrics_new();
    if (!m)
        return false;
    bool ok = http_front_series(m, "larql_shard", &s->m.books) &&
              access_metrics(&s->trust.access, m, "larql_shard_auth_failures_total");
    static const char *const requests_n[BATCH_CLASSES_N] = {"1", "2", "3-4", "5-8", "9-16"};
    for (size_t i = 0; i < BATCH_CLASSES_N; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "requests=\"%s\"", requests_n[i]);
        s->m.batches[i] = metrics_counter(m, "larql_shard_batches_total",
                                          "binary batches computed, by how many requests were in one", labels);
        ok &= s->m.batches[i] != NULL;
    }
    const struct {
        struct metric **to;
        struct metric *(*make)(struct metrics *, const char *, const char *, const char *);
        const char *name, *help;
    } rest[] = {
        {&s->m.compute_seconds, metrics_histogram, "larql_shard_compute_seconds",
         "computing one batch of requests, decode and encode included"},
        {&s->m.batch_rows, metrics_counter, "larql_shard_batch_rows_total", "rows in those batches"},
        {&s->m.inline_jobs, metrics_counter, "larql_shard_inline_total",
         "small requests that the loop computed itself, since nothing else waited"},
        {&s->m.rows, metrics_counter, "larql_shard_rows_total", "rows times layers computed"},
        {&s->m.saturated, metrics_counter, "larql_shard_saturated_values_total", "values clipped to f16's range"},
        {&s->m.f32_fallbacks, metrics_counter, "larql_shard_f32_fallbacks_total",
         "answers sent in f32 since f16 would have clipped them"},
        {&s->m.not_finite, metrics_counter, "larql_shard_not_finite_total", "answers refused for NaN or Inf"},
        {&s->m.deadline, metrics_counter, "larql_shard_deadline_total", "requests that ran out of time"},
        {&s->m.busy, metrics_gauge, "larql_shard_busy", "1 while the compute thread computes"},
        {&s->m.queue_jobs, metrics_gauge, "larql_shard_queue_jobs", "requests that wait for the compute thread"},
        {&s->m.queue_bytes, metrics_gauge, "larql_shard_queue_bytes", "their body bytes"},
        {&s->m.connections, metrics_gauge, "larql_shard_connections", "open client connections"},
        {&s->m.in_flight, metrics_gauge, "larql_shard_in_flight", "walk-ffn requests begun and not answered"},
        {&s->m.per_second, metrics_gauge, "larql_shard_requests_per_second", "mean over about the last 10 seconds"},
        {&s->m.cpu, metrics_gauge, "larql_shard_cpu_percent", "of one CPU, all threads together"},
        {&s->m.resident, metrics_gauge, "larql_shard_resident_bytes", "memory, mapped pages of the model included"},
    };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        *rest[i].to = rest[i].make(m, rest[i].name, rest[i].help, "");
        ok &= *rest[i].to != NULL;
    }
    return ok;
}
