/* wire_json_merge: the parts of a fan-out into one answer, and error texts. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire_json.h"
#include "proto/wire_json_text.h"

/* The fields of one entry, kept as they are printed: "output" or "features" and "scores". */
static const char *const entry_fields[] = {"output", "features", "scores", "seq_len"};

/* Entry i of a part: an element of "results", or the part itself in the single form. */
static const json_t *entry_at(const json_t *root, const struct wire_json_part *p, size_t i)
{
    const json_t *results = json_object_get(root, "results");
    if (results)
        return json_array_size(results) == p->layers_n ? json_array_get(results, i) : NULL;
    return p->layers_n == 1 ? root : NULL;
}

static enum lq_err part_check(const json_t *root, const struct wire_json_part *p, struct lq_fault *fault)
{
    for (size_t i = 0; i < p->layers_n; i++) {
        const json_t *e = entry_at(root, p, i), *layer = json_object_get(e, "layer");
        bool whole = json_is_array(json_object_get(e, "output")) ||
                     (json_is_array(json_object_get(e, "features")) && json_is_array(json_object_get(e, "scores")));
        if (!json_is_integer(layer) || json_integer_value(layer) != p->layers[i] || !whole)
            return lq_fail(fault, LQ_BAD_ANSWER, "shard %s: its answer lacks layer %" PRIu32, p->url, p->layers[i]);
    }
    if (!json_is_number(json_object_get(root, "latency_ms")))
        return lq_fail(fault, LQ_BAD_ANSWER, "shard %s: its answer lacks latency_ms", p->url);
    return LQ_OK;
}

/* Which part and entry hold a layer; the caller made sure that one does. */
static const json_t *find_entry(json_t *const *roots, const struct wire_json_part *parts, size_t parts_n,
                                uint32_t layer)
{
    for (size_t k = 0; k < parts_n; k++)
        for (size_t i = 0; i < parts[k].layers_n; i++)
            if (parts[k].layers[i] == layer)
                return entry_at(roots[k], &parts[k], i);
    return NULL;
}

/* Numbers keep the shard's value: integers as such, reals with 9 digits (they were f32). */
static void put_numbers(struct json_text *t, const json_t *list)
{
    size_t i;
    json_t *v;
    json_text_put(t, "[");
    json_array_foreach(list, i, v)
    {
        json_text_put(t, i ? "," : "");
        if (json_is_integer(v))
            json_text_printf(t, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        else
            json_text_printf(t, "%.9g", json_number_value(v));
    }
    json_text_put(t, "]");
}

static void put_entry(struct json_text *t, const json_t *e, uint32_t layer)
{
    json_text_printf(t, "{\"layer\":%" PRIu32, layer);
    for (size_t i = 0; i < sizeof entry_fields / sizeof *entry_fields; i++) {
        const json_t *v = json_object_get(e, entry_fields[i]);
        if (!v)
            continue;
        json_text_printf(t, ",\"%s\":", entry_fields[i]);
        if (json_is_array(v))
            put_numbers(t, v);
        else
            json_text_printf(t, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    }
    json_text_put(t, "}");
}

static char *print_merged(json_t *const *roots, const uint32_t *layers, uint32_t layers_n,
                          const struct wire_json_part *parts, size_t parts_n, size_t *n)
{
    struct json_text t = {0};
    double slowest = 0;
    json_text_put(&t, "{\"results\":[");
    for (uint32_t i = 0; i < layers_n; i++) {
        json_text_put(&t, i ? "," : "");
        put_entry(&t, find_entry(roots, parts, parts_n, layers[i]), layers[i]);
    }
    json_text_put(&t, "]");
    const json_t *seq = NULL;
    for (size_t k = 0; k < parts_n; k++) {
        slowest = fmax(slowest, json_number_value(json_object_get(roots[k], "latency_ms")));
        seq = seq ? seq : json_object_get(roots[k], "seq_len");
    }
    if (seq)
        json_text_printf(&t, ",\"seq_len\":%" JSON_INTEGER_FORMAT, json_integer_value(seq));
    json_text_printf(&t, ",\"latency_ms\":%.1f}", slowest);
    return json_text_take(&t, n);
}

enum lq_err wire_json_merge(const uint32_t *layers, uint32_t layers_n, const struct wire_json_part *parts,
                            size_t parts_n, char **out, size_t *n, struct lq_fault *fault)
{
    json_t **roots = calloc(parts_n, sizeof *roots);
    enum lq_err rc = roots ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory for a merge");
    for (size_t k = 0; k < parts_n && !rc; k++) {
        json_error_t err;
        roots[k] = json_loadb(parts[k].body, parts[k].body_n, JSON_REJECT_DUPLICATES, &err);
        rc = json_is_object(roots[k])
                 ? part_check(roots[k], &parts[k], fault)
                 : lq_fail(fault, LQ_BAD_ANSWER, "shard %s: its answer is no JSON object", parts[k].url);
    }
    for (uint32_t i = 0; i < layers_n && !rc; i++)
        if (!find_entry(roots, parts, parts_n, layers[i]))
            rc = lq_fail(fault, LQ_BAD_ANSWER, "no shard was asked for layer %" PRIu32, layers[i]);
    if (!rc && !(*out = print_merged(roots, layers, layers_n, parts, parts_n, n)))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for a merged answer");
    for (size_t k = 0; roots && k < parts_n; k++)
        json_decref(roots[k]);
    free(roots);
    return rc;
}

char *wire_json_error(const char *text, const char *request_id, size_t *n)
{
    struct json_text t = {0};
    json_text_put(&t, "{\"error\":");
    json_text_string(&t, text);
    if (request_id) {
        json_text_put(&t, ",\"request_id\":");
        json_text_string(&t, request_id);
    }
    json_text_put(&t, "}");
    return json_text_take(&t, n);
}

void wire_json_error_text(const char *body, size_t n, char *buf, size_t buf_n)
{
    json_t *root = json_loadb(body, n, 0, NULL);
    const char *text = json_string_value(json_object_get(root, "error"));
    if (text)
        snprintf(buf, buf_n, "%s", text);
    else
        snprintf(buf, buf_n, "%.*s", (int)(n < 200 ? n : 200), body);
    json_decref(root);
}
