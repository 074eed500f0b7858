/* wire_json: JSON requests: decode, check, and encode for a fan-out. */
#include "proto/wire_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"
#include "proto/wire_json_text.h"

/* ---- decode ---------------------------------------------------------------- */

enum { LONG_DIGITS = 18 /* an integer up to here fits json_int_t */ };

/* jansson refuses integers beyond 64 bits, which are legal numbers of a residual. So
 * where it does, each longer literal outside strings gets ".0" and is read as a
 * real; as `layer` it is then refused like any fraction. malloc'd. */
static char *widen_integers(const char *text, size_t n, size_t *out_n)
{
    char *out = malloc(n + 2 * (n / LONG_DIGITS) + 3);
    size_t o = 0;
    bool quoted = false;
    for (size_t i = 0; out && i < n;) {
        char c = text[i];
        if (quoted || !(c == '-' || (c >= '0' && c <= '9'))) {
            if (quoted && c == '\\' && i + 1 < n)
                out[o++] = text[i++];
            else if (c == '"')
                quoted = !quoted;
            out[o++] = text[i++];
            continue;
        }
        size_t digits = 0;
        bool integer = true;
        for (; i < n && strchr("+-.0123456789eE", text[i]) && text[i]; i++) {
            digits += text[i] >= '0' && text[i] <= '9';
            integer &= text[i] == '-' || (text[i] >= '0' && text[i] <= '9');
            out[o++] = text[i];
        }
        if (integer && digits > LONG_DIGITS) {
            out[o++] = '.';
            out[o++] = '0';
        }
    }
    *out_n = o;
    return out;
}

static json_t *load(const char *text, size_t n, struct lq_fault *fault)
{
    json_error_t err;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    if (!root && json_error_code(&err) == json_error_numeric_overflow) {
        size_t wide_n;
        char *wide = widen_integers(text, n, &wide_n);
        root = wide ? json_loadb(wide, wide_n, JSON_REJECT_DUPLICATES, &err) : NULL;
        free(wide);
        if (!wide)
            (void)lq_fail(fault, LQ_NOMEM, "out of memory for a JSON body of %zu bytes", n);
        else if (!root)
            (void)lq_fail(fault, LQ_BAD_JSON, "invalid JSON: %s at line %d, column %d", err.text, err.line,
                          err.column);
    } else if (!root) {
        (void)(json_error_code(&err) == json_error_out_of_memory
                   ? lq_fail(fault, LQ_NOMEM, "out of memory for a JSON body of %zu bytes", n)
                   : lq_fail_at(fault, LQ_BAD_JSON, err.position >= 0 ? (size_t)err.position : LQ_NO_BYTE,
                                "invalid JSON: %s at line %d, column %d", err.text, err.line, err.column));
    }
    return root;
}

/* A whole number of 32 bits; *out is left alone when the field is absent. */
static enum lq_err take_u32(const json_t *v, const char *what, uint32_t *out, struct lq_fault *fault)
{
    if (!v)
        return LQ_OK;
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < 0 || i > UINT32_MAX)
        return lq_fail(fault, LQ_BAD_JSON, "'%s' must be a whole number from 0 to %" PRIu32, what, UINT32_MAX);
    *out = (uint32_t)i;
    return LQ_OK;
}

static enum lq_err take_layers(const json_t *root, struct wire_json_request *r, struct lq_fault *fault)
{
    const json_t *list = json_object_get(root, "layers"), *one = json_object_get(root, "layer");
    char what[32];
    if (!list && !one)
        return lq_fail(fault, LQ_BAD_BODY, "must provide 'layer' or 'layers'");
    if (list && !json_is_array(list))
        return lq_fail(fault, LQ_BAD_JSON, "'layers' must be a list of layer numbers");
    size_t n = list ? json_array_size(list) : 1;
    if (n == 0)
        return lq_fail(fault, LQ_BAD_BODY, "empty layer list");
    if (n > WIRE_LAYERS_MAX)
        return lq_fail(fault, LQ_BAD_BODY, "batch of %zu layers is over the limit of %d", n, WIRE_LAYERS_MAX);
    r->layers_n = (uint32_t)n;
    r->batch = list != NULL;
    if (!(r->layers = malloc(n * sizeof *r->layers)))
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu layers", n);
    for (size_t i = 0; i < n; i++) {
        snprintf(what, sizeof what, list ? "layers[%zu]" : "layer", i);
        enum lq_err rc = take_u32(list ? json_array_get(list, i) : one, what, &r->layers[i], fault);
        if (rc)
            return rc;
    }
    return LQ_OK;
}

static enum lq_err take_residual(const json_t *root, struct wire_json_request *r, struct lq_fault *fault)
{
    const json_t *list = json_object_get(root, "residual");
    if (!json_is_array(list))
        return lq_fail(fault, LQ_BAD_JSON,
                       list ? "'residual' must be a list of numbers" : "missing field 'residual'");
    r->residual_n = json_array_size(list);
    if (!(r->residual = malloc(r->residual_n * sizeof *r->residual + 1)))
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu values", r->residual_n);
    for (size_t i = 0; i < r->residual_n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_number(v))
            return lq_fail(fault, LQ_BAD_JSON, "residual[%zu] is not a number", i);
        r->residual[i] = (float)json_number_value(v); /* beyond f32: Inf, refused by check 13 */
    }
    return LQ_OK;
}

static enum lq_err take_rest(const json_t *root, struct wire_json_request *r, struct lq_fault *fault)
{
    const json_t *full = json_object_get(root, "full_output"), *id = json_object_get(root, "model_id");
    if (full && !json_is_boolean(full))
        return lq_fail(fault, LQ_BAD_JSON, "'full_output' must be true or false");
    r->full_output = json_is_true(full);
    if (id && !json_is_string(id))
        return lq_fail(fault, LQ_BAD_JSON, "'model_id' must be a string");
    if (id && !(r->model_id = strdup(json_string_value(id))))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    enum lq_err rc = take_u32(json_object_get(root, "seq_len"), "seq_len", &r->seq_len, fault);
    return rc ? rc : take_u32(json_object_get(root, "top_k"), "top_k", &r->top_k, fault);
}

enum lq_err wire_json_request_decode(const char *text, size_t n, struct wire_json_request *r, struct lq_fault *fault)
{
    struct lq_fault unused;
    if (!fault)
        fault = &unused; /* load() leaves its code there */
    *r = (struct wire_json_request){.seq_len = 1, .top_k = WIRE_TOP_K_DEFAULT};
    json_t *root = load(text, n, fault);
    if (!root)
        return fault->code;
    enum lq_err rc = json_is_object(root)
                         ? LQ_OK
                         : lq_fail(fault, LQ_BAD_JSON, "invalid JSON: expected an object at line 1, column 1");
    if (!rc)
        rc = take_rest(root, r, fault);
    if (!rc)
        rc = take_layers(root, r, fault);
    if (!rc)
        rc = take_residual(root, r, fault);
    json_decref(root);
    if (rc)
        wire_json_request_release(r);
    return rc;
}

void wire_json_request_release(struct wire_json_request *r)
{
    free(r->layers);
    free(r->residual);
    free(r->model_id);
    *r = (struct wire_json_request){0};
}

enum lq_err wire_json_residual_check(const struct wire_json_request *r, uint32_t hidden, struct lq_fault *fault)
{
    uint32_t rows = r->full_output ? r->seq_len : 1;
    if (r->seq_len == 0)
        return lq_fail(fault, LQ_BAD_BODY, "seq_len must be >= 1");
    if (!r->full_output && r->seq_len != 1)
        return lq_fail(fault, LQ_BAD_BODY,
                       "features need exactly one row, seq_len is %" PRIu32 "; set full_output for more", r->seq_len);
    uint64_t expected = (uint64_t)rows * hidden;
    if (r->residual_n != expected)
        return lq_fail(fault, LQ_BAD_BODY,
                       "residual has %zu elements, expected %" PRIu64 " (seq_len=%" PRIu32 " * hidden_size=%" PRIu32
                       ")",
                       r->residual_n, expected, rows, hidden);
    for (size_t i = 0; i < r->residual_n; i++)
        if (!isfinite(r->residual[i]))
            return lq_fail(fault, LQ_BAD_BODY, "residual is not finite at row %zu, index %zu", i / hidden,
                           i % hidden);
    return LQ_OK;
}

/* ---- encode ------------------------------------------------------------------ */

static void put_u32s(struct json_text *t, const uint32_t *x, size_t n)
{
    json_text_put(t, "[");
    for (size_t i = 0; i < n; i++)
        json_text_printf(t, i ? ",%" PRIu32 : "%" PRIu32, x[i]);
    json_text_put(t, "]");
}

char *wire_json_request_encode(const struct wire_json_request *r, const uint32_t *layers, uint32_t layers_n,
                               size_t *n)
{
    struct json_text t = {0};
    json_text_put(&t, "{\"layers\":");
    put_u32s(&t, layers, layers_n);
    json_text_printf(&t, ",\"seq_len\":%" PRIu32 ",\"full_output\":%s,\"top_k\":%" PRIu32, r->seq_len,
                     r->full_output ? "true" : "false", r->top_k);
    if (r->model_id) {
        json_text_put(&t, ",\"model_id\":");
        json_text_string(&t, r->model_id);
    }
    json_text_put(&t, ",\"residual\":");
    json_text_floats(&t, r->residual, r->residual_n);
    json_text_put(&t, "}");
    return json_text_take(&t, n);
}

char *wire_json_output_encode(const uint32_t *layers, uint32_t layers_n, uint32_t seq_len, uint32_t hidden,
                              const float *x, double latency_ms, size_t *n)
{
    struct json_text t = {0};
    size_t values_n = (size_t)seq_len * hidden;
    json_text_put(&t, layers_n == 1 ? "{" : "{\"results\":[");
    for (uint32_t i = 0; i < layers_n; i++) {
        json_text_printf(&t, "%s\"layer\":%" PRIu32 ",\"output\":", layers_n == 1 ? "" : i ? ",{" : "{", layers[i]);
        json_text_floats(&t, x + i * values_n, values_n);
        json_text_printf(&t, ",\"seq_len\":%" PRIu32 "%s", seq_len, layers_n == 1 ? "" : "}");
    }
    if (layers_n != 1)
        json_text_printf(&t, "],\"seq_len\":%" PRIu32, seq_len);
    json_text_printf(&t, ",\"latency_ms\":%.1f}", latency_ms);
    return json_text_take(&t, n);
}

char *wire_json_features_encode(const uint32_t *layers, uint32_t layers_n, const struct wire_features *f,
                                double latency_ms, size_t *n)
{
    struct json_text t = {0};
    json_text_put(&t, layers_n == 1 ? "{" : "{\"results\":[");
    for (uint32_t i = 0; i < layers_n; i++) {
        json_text_printf(&t, "%s\"layer\":%" PRIu32 ",\"features\":", layers_n == 1 ? "" : i ? ",{" : "{", layers[i]);
        put_u32s(&t, f[i].ids, f[i].n);
        json_text_put(&t, ",\"scores\":[");
        for (uint32_t k = 0; k < f[i].n; k++)
            json_text_printf(&t, k ? ",%.2f" : "%.2f", (double)f[i].scores[k]);
        json_text_put(&t, layers_n == 1 ? "]" : "]}");
    }
    json_text_printf(&t, "%s,\"latency_ms\":%.1f}", layers_n == 1 ? "" : "]", latency_ms);
    return json_text_take(&t, n);
}
