/* wire_policy: see wire_policy.h. */
#include "client/wire_policy.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"

enum { VERSION = 1, FILE_BYTES_MAX = 1 << 20 };

enum wire_format wire_policy_format(const char *name, size_t n)
{
    enum wire_format f = WIRE_F32;
    while (f < WIRE_FORMATS_N && (strlen(wire_name(f)) != n || memcmp(wire_name(f), name, n) != 0))
        f++;
    return f;
}

static enum lq_err read_formats(const char *name, const json_t *list, enum wire_format *to, struct lq_fault *fault)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *s = json_string_value(item);
        to[i] = s ? wire_policy_format(s, json_string_length(item)) : WIRE_FORMATS_N;
        if (to[i] == WIRE_FORMATS_N)
            return lq_fail(fault, LQ_USAGE, "%s: layer %zu has no wire format that this program knows", name, i);
    }
    return LQ_OK;
}

enum lq_err wire_policy_parse(const char *name, const char *text, size_t n, uint32_t layers_n, uint32_t hidden,
                              enum wire_format **out, struct lq_fault *fault)
{
    json_error_t error;
    json_int_t version, size;
    const char *model;
    json_t *layers, *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    enum wire_format *formats = NULL;
    enum lq_err rc = LQ_OK;
    /* Strict: a misspelt member would be a policy that is not followed. */
    if (!o || json_unpack_ex(o, &error, JSON_STRICT, "{sI,ss,sI,so}", "larql_wire_policy", &version, "model", &model,
                             "hidden_size", &size, "layers", &layers) != 0)
        rc = lq_fail(fault, LQ_USAGE, "%s is no wire policy: %s", name, error.text);
    else if (version != VERSION)
        rc = lq_fail(fault, LQ_USAGE, "%s: a wire policy of version %lld; this program reads %d", name,
                     (long long)version, VERSION);
    else if (!json_is_array(layers) || json_array_size(layers) != layers_n || size != (json_int_t)hidden)
        rc = lq_fail(fault, LQ_USAGE, "%s is for %zu layers of hidden size %lld, the model has %u of %u", name,
                     json_array_size(layers), (long long)size, layers_n, hidden);
    else if (!(formats = calloc(layers_n, sizeof *formats)))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory");
    else
        rc = read_formats(name, layers, formats, fault);
    json_decref(o);
    if (rc)
        free(formats);
    else
        *out = formats;
    return rc;
}

enum lq_err wire_policy_read(const char *path, uint32_t layers_n, uint32_t hidden, enum wire_format **out,
                             struct lq_fault *fault)
{
    char *text;
    size_t n;
    enum lq_err rc = file_read(path, FILE_BYTES_MAX, &text, &n, fault);
    if (rc)
        return rc;
    rc = wire_policy_parse(path, text, n, layers_n, hidden, out, fault);
    free(text);
    return rc;
}

enum lq_err wire_policy_write(const char *path, const char *model, uint32_t hidden, const enum wire_format *formats,
                              uint32_t layers_n, struct lq_fault *fault)
{
    json_t *layers = json_array();
    for (uint32_t i = 0; i < layers_n; i++)
        json_array_append_new(layers, json_string(wire_name(formats[i])));
    json_t *name = json_string(model); /* from a file: not always UTF-8 */
    json_t *o = json_pack("{sI,so,sI,so}", "larql_wire_policy", (json_int_t)VERSION, "model",
                          name ? name : json_string("?"), "hidden_size", (json_int_t)hidden, "layers", layers);
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    enum lq_err rc = text ? file_output(path, text, strlen(text), fault)
                          : lq_fail(fault, LQ_NOMEM, "out of memory for a wire policy");
    free(text);
    json_decref(o);
    return rc;
}
