/* bench_json: the result for programs. The schema is docs/bench.schema.json: a member that is there
 * stays as it is while `version` is 1. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "client/bench.h"

enum { VERSION = 1 };

/* JSON has no NaN: null. */
static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *integer(uint64_t v)
{
    return json_integer((json_int_t)v);
}

/* Names come from files and URLs: not all are UTF-8. */
static json_t *text(const char *s)
{
    json_t *o = s ? json_string(s) : NULL;
    return o ? o : json_string("?");
}

/* FNV-1a over the tokens that were given: are two results about the same input? */
static json_t *input_of(const struct bench *b)
{
    uint64_t h = 0xcbf29ce484222325u;
    char hex[20];
    for (size_t i = 0; i < b->passages_n; i++)
        for (size_t k = 0; k < b->passages[i].ids_n; k++)
            for (unsigned shift = 0; shift < 32; shift += 8)
                h = (h ^ (b->passages[i].ids[k] >> shift & 0xff)) * 0x100000001b3u;
    snprintf(hex, sizeof hex, "%016" PRIx64, h);
    json_t *o = json_pack("{ss,so,ss,so}", "kind", b->o->text_path ? "text" : "prompt", "steps", integer(b->steps_n),
                          "tokens_fnv1a64", hex, "windows", integer(b->passages_n));
    return o;
}

static json_t *ids_of(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, integer(ids[i]));
    return list;
}

/* Worker 0's. */
static json_t *steps_of(const struct bench *b, const struct bench_column *c)
{
    json_t *ms = json_array(), *kl = json_array(), *top1 = json_array();
    for (size_t i = 0; i < b->steps_n; i++) {
        json_array_append_new(ms, real(c->ms[i]));
        json_array_append_new(kl, real(c->kl[i]));
        json_array_append_new(top1, json_boolean(c->top1[i]));
    }
    return json_pack("{so,so,so}", "ms", ms, "kl", kl, "top1", top1);
}

static json_t *trip_of(const struct bench_trip *t)
{
    return json_pack("{so,so,so,so}", "zeroed", real(t->nonzero_n ? (double)t->zeroed_n / (double)t->nonzero_n : 0),
                     "clipped", integer(t->saturated_n), "error_mean",
                     real(t->rows_n ? t->error_sum / (double)t->rows_n : 0), "error_max", real(t->error_max));
}

static json_t *column_of(const struct bench *b, const struct bench_column *c, bool times)
{
    struct bench_summary s;
    if (!bench_summarize(b, c, &s))
        return NULL;
    json_t *parts = c->divergence < 0 ? json_null() : json_integer(c->divergence);
    json_t *o = json_pack("{ss,s{so,so},s{so,so,so},s{so,so},s{so,so},so,so}", "wire", c->name, "bytes_per_token",
                          "up", real(1e3 * s.kb_up), "down", real(1e3 * s.kb_down), "agreement", "top1", real(s.top1),
                          "top5", real(s.top5), "topk", real(s.topk), "kl", "mean", real(s.kl_mean), "max",
                          real(s.kl_max), "free_run", "tokens", integer(c->free_n), "first_divergence", parts,
                          "range_fallbacks", integer(c->range_fallbacks), "clipped_by_server", integer(c->saturated));
    if (!o || !times)
        return o;
    json_object_set_new(o, "retries", integer(c->retries));
    json_object_set_new(o, "tok_per_s", real(s.tok_per_s));
    json_object_set_new(o, "ms_per_token",
                        json_pack("{so,so,so,so}", "mean", real(s.ms_mean), "p50", real(s.ms_p50), "p95",
                                  real(s.ms_p95), "p99", real(s.ms_p99)));
    if (!c->policy)
        json_object_set_new(o, "codec_us_per_token",
                            json_pack("{so,so}", "encode", real(s.encode_us), "decode", real(s.decode_us)));
    json_object_set_new(o, "steps", steps_of(b, c));
    return o;
}

static json_t *layer_of(const struct bench *b, uint32_t i)
{
    const struct bench_layer *l = &b->layers[i];
    json_t *formats = json_object();
    for (size_t k = 0; k < b->columns_n; k++) {
        enum wire_format f = b->columns[k].format;
        if (!b->columns[k].policy)
            json_object_set_new(
                formats, b->columns[k].name,
                json_pack("{so,so}", "request", trip_of(&l->trip[0][f]), "answer", trip_of(&l->trip[1][f])));
    }
    return json_pack("{so,s{so,so},so,ss}", "layer", integer(i), "max_abs", "request", real((double)l->max_abs[0]),
                     "answer", real((double)l->max_abs[1]), "formats", formats, "advice", wire_name(b->advice[i]));
}

static json_t *failures_of(const struct bench *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < b->columns_n; i++) {
        const struct bench_column *c = &b->columns[i];
        if (c->mismatch)
            json_array_append_new(list, json_pack("{ss,so,so,so,so}", "wire", c->name, "steps",
                                                  integer(c->mismatches_n), "first_step", integer(c->mismatch->step),
                                                  "want", ids_of(c->mismatch->want, b->top_n), "got",
                                                  ids_of(c->mismatch->got, b->top_n)));
    }
    return list;
}

json_t *bench_json(const struct bench *b, bool times)
{
    json_t *formats = json_array(), *layers = json_array();
    for (size_t i = 0; i < b->columns_n; i++)
        json_array_append_new(formats, column_of(b, &b->columns[i], times));
    for (uint32_t i = 0; i < b->arch.layers_n && times; i++)
        json_array_append_new(layers, layer_of(b, i));
    json_t *o =
        json_pack("{ss,sI,s{so,so,so,so},so,s{so,sb},so,ss}", "schema", "larql-bench", "version", (json_int_t)VERSION,
                  "model", "name", text(b->arch.name), "layers", integer(b->arch.layers_n), "hidden_size",
                  integer(b->arch.hidden_n), "vocab_size", integer(b->arch.vocab_n), "input", input_of(b), "topk",
                  "k", integer(b->top_n), "ordered", b->o->ordered, "formats", formats, "safe_format", b->safe->name);
    if (!o || !times) {
        json_decref(layers);
        return o;
    }
    json_object_set_new(o, "layers", layers);
    json_object_set_new(o, "larql", json_string(LQ_VERSION));
    json_object_set_new(o, "grid", text(lq_ffn_url(b->workers[0].lanes[0].ffn)));
    json_object_set_new(o, "concurrent", integer(b->workers_n));
    json_object_set_new(o, "topk_failures", failures_of(b));
    return o;
}
