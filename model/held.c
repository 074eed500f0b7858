/* held: see held.h. */
#include "model/held.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"

enum { LIST_BYTES_MAX = 16 << 20, LAYERS_MAX = 1 << 16 };
static const char suffix_list[] = ".held", suffix_part[] = ".part";

bool held_side_path(const char *model, const char *suffix, char *out, size_t n)
{
    size_t stem_n = strlen(model), part_n = sizeof suffix_part - 1;
    if (stem_n > part_n && strcmp(model + stem_n - part_n, suffix_part) == 0)
        stem_n -= part_n;
    return stem_n < INT_MAX && snprintf(out, n, "%.*s%s", (int)stem_n, model, suffix) < (int)n;
}

static bool read_ranges(const json_t *list, struct held *h)
{
    size_t i;
    json_t *pair;
    uint64_t last = 0;
    if (!json_is_array(list))
        return false;
    json_array_foreach(list, i, pair)
    {
        json_int_t from = json_integer_value(json_array_get(pair, 0)),
                   end = json_integer_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !json_is_integer(json_array_get(pair, 0)) || from < 0 || end <= from ||
            (uint64_t)end > h->bytes || (uint64_t)from < last ||
            !ranges_add(&h->ranges, (uint64_t)from, (uint64_t)end))
            return false;
        last = (uint64_t)end;
    }
    return true;
}

static bool read_layers(json_t *map, struct held *h)
{
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        char *end;
        struct hash256 hash;
        unsigned long layer = strtoul(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || layer >= LAYERS_MAX ||
            !hash256_read(json_string_value(value), &hash) || !held_set_layer(h, (uint32_t)layer, &hash))
            return false;
    }
    return true;
}

static bool read_word(const json_t *v, const char *key, char out[HELD_WORD_BYTES])
{
    const char *s = json_string_value(json_object_get(v, key));
    return snprintf(out, HELD_WORD_BYTES, "%s", s ? s : "") < HELD_WORD_BYTES;
}

static bool read_list(json_t *v, struct held *h)
{
    const char *url = json_string_value(json_object_get(v, "url"));
    json_int_t bytes = json_integer_value(json_object_get(v, "bytes"));
    if (json_integer_value(json_object_get(v, "version")) != 1 || bytes <= 0 || (url && !(h->url = strdup(url))))
        return false;
    h->bytes = (uint64_t)bytes;
    return read_ranges(json_object_get(v, "held"), h) && read_word(v, "etag", h->etag) &&
           read_word(v, "modified", h->modified) && read_layers(json_object_get(v, "layers"), h);
}

enum lq_err held_read(const char *model, struct held *out, bool *there, struct lq_fault *fault)
{
    char path[PATH_MAX], *text;
    size_t n;
    *out = (struct held){0};
    *there = false;
    if (!held_side_path(model, suffix_list, path, sizeof path))
        return LQ_OK; /* no file can have that name */
    enum lq_err rc = file_read(path, LIST_BYTES_MAX, &text, &n, fault);
    if (rc)
        return errno == ENOENT || errno == ENOTDIR ? LQ_OK : rc;
    *there = true;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (!v || !read_list(v, out)) {
        held_release(out);
        rc = lq_fail(fault, LQ_BAD_MODEL,
                     "%s: this list of what a partial model file holds is damaged; fetch the model again", path);
    }
    json_decref(v);
    return rc;
}

static json_t *list_of(const struct held *h)
{
    json_t *held = json_array(), *layers = json_object();
    for (size_t i = 0; i < h->ranges.n; i++)
        json_array_append_new(held,
                              json_pack("[II]", (json_int_t)h->ranges.at[i].from, (json_int_t)h->ranges.at[i].end));
    for (size_t i = 0; i < h->layers_n; i++) {
        char key[16], text[HASH256_TEXT_BYTES];
        snprintf(key, sizeof key, "%" PRIu32, h->layers[i].layer);
        json_object_set_new(layers, key, json_string(hash256_text(&h->layers[i].hash, text)));
    }
    return json_pack("{si,sI,so,ss*,ss*,ss*,so}", "version", 1, "bytes", (json_int_t)h->bytes, "held", held, "url",
                     h->url, "etag", *h->etag ? h->etag : NULL, "modified", *h->modified ? h->modified : NULL,
                     "layers", layers);
}

enum lq_err held_write(const char *model, const struct held *h, struct lq_fault *fault)
{
    char path[PATH_MAX];
    if (!held_side_path(model, suffix_list, path, sizeof path))
        return lq_fail(fault, LQ_IO, "%s: the path is too long", model);
    json_t *v = list_of(h);
    char *text = v ? json_dumps(v, JSON_INDENT(1)) : NULL;
    json_decref(v);
    if (!text)
        return lq_fail(fault, LQ_NOMEM, "%s: out of memory", path);
    enum lq_err rc = file_replace(path, text, strlen(text), true, fault);
    free(text);
    return rc;
}

void held_release(struct held *h)
{
    ranges_release(&h->ranges);
    free(h->url);
    free(h->layers);
    *h = (struct held){0};
}

const struct hash256 *held_layer(const struct held *h, uint32_t layer)
{
    for (size_t i = 0; i < h->layers_n; i++)
        if (h->layers[i].layer == layer)
            return &h->layers[i].hash;
    return NULL;
}

bool held_set_layer(struct held *h, uint32_t layer, const struct hash256 *hash)
{
    size_t i = 0;
    while (i < h->layers_n && h->layers[i].layer != layer)
        i++;
    if (i == h->layers_n) {
        struct held_layer *grown = realloc(h->layers, (i + 1) * sizeof *grown);
        if (!grown)
            return false;
        h->layers = grown;
        h->layers_n++;
    }
    h->layers[i] = (struct held_layer){layer, *hash};
    return true;
}

void held_forget_layer(struct held *h, uint32_t layer)
{
    for (size_t i = 0; i < h->layers_n; i++)
        if (h->layers[i].layer == layer)
            h->layers[i--] = h->layers[--h->layers_n];
}
