/* peer_stats: see peer_stats.h. */
#include "common/peer_stats.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN_MAX = 1 << 20, LAYERS_MAX = 1 << 16, FEATURES_MAX = 1 << 28 };

static void copy_text(char *to, size_t n, const json_t *stats, const char *key)
{
    const char *s = json_string_value(json_object_get(stats, key));
    snprintf(to, n, "%s", s ? s : "");
    size_t end = strlen(to);
    if (!s || !s[end]) /* whole */
        return;
    while (end > 0 && ((unsigned char)to[end - 1] & 0xc0) == 0x80)
        end--;
    to[end > 0 ? end - 1 : 0] = '\0'; /* cut before a character, of which a part may have been there */
}

static uint32_t small_number(const json_t *stats, const char *key, uint32_t max)
{
    json_int_t v = json_integer_value(json_object_get(stats, key));
    return v > 0 && v <= max ? (uint32_t)v : 0;
}

/* Both absent is fine; one alone, or wrong, is not: a peer whose weights cannot be told apart
 * must not pass for one that tells nothing. */
static enum lq_err read_hashes(const json_t *stats, struct peer_stats *out, struct lq_fault *fault)
{
    const json_t *identity = json_object_get(stats, "identity"), *list = json_object_get(stats, "layer_hashes");
    size_t layers_n = (size_t)out->layer_last - out->layer_first + 1;
    if (identity && !(out->has_identity = hash256_read(json_string_value(identity), &out->identity)))
        return lq_fail(fault, LQ_BAD_ANSWER, "its /v1/stats: identity is no text of 64 hex digits");
    if (!identity != !list)
        return lq_fail(fault, LQ_BAD_ANSWER, "its /v1/stats: identity and layer_hashes come together, and %s is missing",
                       list ? "identity" : "layer_hashes");
    if (!list)
        return LQ_OK;
    if (out->layer_last < out->layer_first || json_array_size(list) != layers_n)
        return lq_fail(fault, LQ_BAD_ANSWER, "its /v1/stats: %zu layer_hashes for layers %u-%u",
                       json_array_size(list), out->layer_first, out->layer_last);
    out->layer_hashes = malloc(layers_n * sizeof *out->layer_hashes);
    if (!out->layer_hashes)
        return lq_fail(fault, LQ_NOMEM, "out of memory for %zu hashes", layers_n);
    for (size_t i = 0; i < layers_n; i++)
        if (!hash256_read(json_string_value(json_array_get(list, i)), &out->layer_hashes[i]))
            return lq_fail(fault, LQ_BAD_ANSWER, "its /v1/stats: layer_hashes[%zu] is no text of 64 hex digits", i);
    return LQ_OK;
}

enum lq_err peer_stats_read(const char *text, size_t n, struct peer_stats *out, struct lq_fault *fault)
{
    json_t *stats = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    *out = (struct peer_stats){.hidden = small_number(stats, "hidden_size", HIDDEN_MAX)};
    if (out->hidden == 0) {
        json_decref(stats);
        return lq_fail(fault, LQ_BAD_ANSWER, "its /v1/stats names no hidden_size from 1 to %d", HIDDEN_MAX);
    }
    out->layers = small_number(stats, "layers", LAYERS_MAX);
    out->features = small_number(stats, "features_per_layer", FEATURES_MAX);
    out->layer_first = small_number(stats, "layer_start", LAYERS_MAX);
    out->layer_last = small_number(stats, "layer_end", LAYERS_MAX);
    copy_text(out->model, sizeof out->model, stats, "model");
    copy_text(out->family, sizeof out->family, stats, "family");
    copy_text(out->dtype, sizeof out->dtype, stats, "dtype");
    const json_t *list = json_object_get(stats, "wire");
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++) {
        size_t i;
        json_t *word;
        out->wire[f] = f == WIRE_F32;
        json_array_foreach(list, i, word) if (json_is_string(word) &&
                                              strcmp(json_string_value(word), wire_name(f)) == 0) out->wire[f] = true;
    }
    enum lq_err rc = read_hashes(stats, out, fault);
    json_decref(stats);
    if (rc)
        peer_stats_release(out);
    return rc;
}

void peer_stats_release(struct peer_stats *s)
{
    free(s->layer_hashes);
    *s = (struct peer_stats){0};
}
