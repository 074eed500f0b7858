/* hash_cache: see hash_cache.h. */
#include "model/hash_cache.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/file.h"
#include "common/log.h"
#include "model/gguf_impl.h"
#include "model/identity.h"

enum { CACHE_BYTES_MAX = 64 << 20, DUMP = JSON_COMPACT | JSON_SORT_KEYS };
#define CACHE_SUFFIX ".larql-hashes"

struct hash_cache {
    const struct gguf *g;
    json_t *tensors;       /* name -> hex */
    char beside[PATH_MAX]; /* the two places; "": none */
    char home[PATH_MAX];
};

static json_t *files_of(const struct gguf *g)
{
    json_t *files = json_array();
    for (size_t i = 0; i < g->parts_n; i++)
        json_array_append_new(files, json_pack("{sI,sI}", "bytes", (json_int_t)g->parts[i].n, "mtime_ns",
                                               (json_int_t)g->parts[i].mtime_ns));
    return files;
}

/* The check's value over v without it. */
static bool check_of(json_t *v, char text[HASH256_TEXT_BYTES])
{
    struct hash256 h;
    (void)json_object_del(v, "check");
    char *dump = json_dumps(v, DUMP);
    bool ok = dump && identity_hash(dump, strlen(dump), &h, NULL) == LQ_OK;
    free(dump);
    if (ok)
        hash256_text(&h, text);
    return ok;
}

/* The file's tensors, a new reference; NULL: absent, or not to be trusted, which is logged. */
static json_t *read_tensors(const struct gguf *g, const char *path)
{
    char *text, want[HASH256_TEXT_BYTES], is[HASH256_TEXT_BYTES];
    size_t n;
    struct lq_fault fault;
    if (!*path)
        return NULL;
    if (file_read(path, CACHE_BYTES_MAX, &text, &n, &fault)) {
        if (errno != ENOENT)
            log_warn("hash_cache_unread why=%s", log_q(fault.text));
        return NULL;
    }
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL), *files = files_of(g);
    json_t *tensors = json_object_get(v, "tensors");
    free(text);
    snprintf(want, sizeof want, "%s", json_string_value(json_object_get(v, "check")) ?: "");
    const char *why = NULL;
    if (!json_is_object(tensors) || json_integer_value(json_object_get(v, "version")) != 1 || !check_of(v, is) ||
        strcmp(is, want) != 0)
        why = "damaged";
    else if (!json_equal(json_object_get(v, "files"), files))
        why = "the model has changed";
    if (why)
        log_info("hash_cache_stale path=%s why=%s", log_q(path), log_q(why));
    else
        json_incref(tensors);
    json_decref(files);
    json_decref(v);
    return why ? NULL : tensors;
}

/* FOLDER/larql-grid/hashes/HASH-OF-PATH; false: no such folder can be named. */
static bool home_path(const struct gguf *g, char path[PATH_MAX])
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char text[HASH256_TEXT_BYTES], *real = realpath(gguf_path(g), NULL);
    struct hash256 h;
    bool ok = real && identity_hash(real, strlen(real), &h, NULL) == LQ_OK;
    free(real);
    if (!ok || (!(xdg && *xdg == '/') && !(home && *home == '/')))
        return false;
    hash256_text(&h, text);
    return snprintf(path, PATH_MAX, "%s%s/larql-grid/hashes/%.32s", xdg && *xdg == '/' ? xdg : home,
                    xdg && *xdg == '/' ? "" : "/.cache", text) < PATH_MAX;
}

struct hash_cache *hash_cache_open(const struct gguf *g)
{
    if (!g->parts[0].mapped)
        return NULL;
    struct hash_cache *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->g = g;
    if (!held_side_path(gguf_path(g), CACHE_SUFFIX, c->beside, sizeof c->beside))
        c->beside[0] = '\0';
    if (!home_path(g, c->home))
        c->home[0] = '\0';
    if (!(c->tensors = read_tensors(g, c->beside)) && !(c->tensors = read_tensors(g, c->home)))
        c->tensors = json_object();
    if (!c->tensors) {
        free(c);
        return NULL;
    }
    return c;
}

void hash_cache_free(struct hash_cache *c)
{
    if (!c)
        return;
    json_decref(c->tensors);
    free(c);
}

bool hash_cache_find(const struct hash_cache *c, const char *tensor, struct hash256 *out)
{
    return hash256_read(json_string_value(json_object_get(c->tensors, tensor)), out);
}

void hash_cache_put(struct hash_cache *c, const char *tensor, const struct hash256 *h)
{
    char text[HASH256_TEXT_BYTES];
    /* Out of memory loses an entry, which is computed again next time. */
    (void)json_object_set_new_nocheck(c->tensors, tensor, json_string(hash256_text(h, text)));
}

/* Are the files on disk still those that g mapped? */
static bool unchanged(const struct gguf *g)
{
    for (size_t i = 0; i < g->parts_n; i++) {
        struct stat st;
        const struct gguf_part *p = &g->parts[i];
        if (stat(p->name, &st) != 0 || (uint64_t)st.st_size != p->n ||
            st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec != p->mtime_ns)
            return false;
    }
    return true;
}

static bool make_folders(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *p = folder + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return false;
    }
    return true;
}

void hash_cache_save(struct hash_cache *c)
{
    char check[HASH256_TEXT_BYTES], *text = NULL;
    struct lq_fault fault = {.text = "out of memory"};
    if (!unchanged(c->g)) {
        log_warn("hash_cache_unwritten model=%s why=%s", log_q(gguf_path(c->g)),
                 log_q("the file has changed since it was opened"));
        return;
    }
    json_t *beside = read_tensors(c->g, c->beside);
    (void)json_object_update_missing(c->tensors, beside);
    json_decref(beside);
    json_t *v = json_pack("{si,so,sO}", "version", 1, "files", files_of(c->g), "tensors", c->tensors);
    if (v && check_of(v, check) && json_object_set_new(v, "check", json_string(check)) == 0)
        text = json_dumps(v, DUMP);
    json_decref(v);
    bool written = text && *c->beside && file_replace(c->beside, text, strlen(text), false, &fault) == LQ_OK;
    if (!written && text && *c->home && make_folders(c->home))
        written = file_replace(c->home, text, strlen(text), false, &fault) == LQ_OK;
    if (!written)
        log_warn("hash_cache_unwritten model=%s why=%s", log_q(gguf_path(c->g)), log_q(fault.text));
    free(text);
}
