/* vindex_verify: see vindex_verify.h. */
#include "model/vindex_verify.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/file.h"
#include "model/ffn.h"
#include "model/vindex_write_impl.h"

struct verify {
    const char *dir;
    struct vindex_index x;
    json_t *sums; /* file -> hex; NULL: none */
    struct vindex_verify_report *report;
    struct lq_fault *fault;
};

static enum lq_err read_index(struct verify *v)
{
    char path[VINDEX_PATH_BYTES], *text = NULL;
    size_t n;
    enum lq_err rc = vindex_path(v->dir, "index.json", path, v->fault);
    if (!rc)
        rc = file_read(path, VINDEX_JSON_BYTES_MAX, &text, &n, v->fault);
    if (!rc)
        rc = vindex_index_read(path, text, n, &v->x, v->fault);
    if (!rc) { /* vindex_index_read() took it, so it is JSON */
        json_t *root = json_loadb(text, n, 0, NULL);
        v->sums = json_incref(json_object_get(root, "checksums"));
        json_decref(root);
    }
    free(text);
    if (!rc && v->sums && !json_is_null(v->sums) && !json_is_object(v->sums))
        rc = lq_fail(v->fault, LQ_BAD_MODEL, "%s: field 'checksums' is no object", path);
    return rc;
}

static enum lq_err check_sums(struct verify *v, void (*progress)(void *arg, const char *file, uint64_t bytes),
                              void *arg)
{
    const char *file;
    json_t *o;
    json_object_foreach(v->sums, file, o)
    {
        char path[VINDEX_PATH_BYTES], text[HASH256_TEXT_BYTES];
        struct hash256 want, is;
        uint64_t bytes;
        if (strchr(file, '/') || file[0] == '.' || !hash256_read(json_string_value(o), &want))
            return lq_fail(v->fault, LQ_BAD_MODEL, "%s/index.json: checksums['%.80s'] is no SHA-256 of a plain name",
                           v->dir, file);
        enum lq_err rc = vindex_path(v->dir, file, path, v->fault);
        if (!rc)
            rc = vindex_file_hash(path, &is, &bytes, v->fault);
        if (rc)
            return rc;
        if (!hash256_equal(&want, &is))
            return lq_fail(v->fault, LQ_BAD_MODEL, "%s: its SHA-256 is %s, index.json's checksums say %s", path,
                           hash256_text(&is, text), json_string_value(o));
        v->report->hashed_n++;
        v->report->bytes += bytes;
        if (progress)
            progress(arg, file, bytes);
    }
    return LQ_OK;
}

static bool is_cache(const char *name) /* model/hash_cache.h */
{
    static const char end[] = ".larql-hashes";
    size_t n = strlen(name);
    return n > sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0;
}

/* Files that no checksum vouches for. */
static enum lq_err count_unhashed(struct verify *v)
{
    DIR *d = opendir(v->dir);
    if (!d)
        return lq_fail(v->fault, LQ_IO, "cannot read %s: %s", v->dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d));)
        v->report->unhashed_n += e->d_name[0] != '.' && strcmp(e->d_name, "index.json") != 0 &&
                                 !is_cache(e->d_name) && !json_object_get(v->sums, e->d_name);
    closedir(d);
    return LQ_OK;
}

/* Heads of all tensors first, so that what is there decides what is bound. */
static enum lq_err check_model(struct verify *v)
{
    const struct model_want heads = {.every_file = true};
    struct vindex_verify_report *r = v->report;
    struct gguf *g;
    struct arch a;
    enum lq_err rc = model_open(v->dir, &heads, &g, v->fault);
    if (rc)
        return rc;
    rc = arch_read(g, &a, v->fault);
    r->layers_n = v->x.layers_n;
    r->client = gguf_tensor(g, "blk.0.attn_q.weight") != NULL;
    bool *has_ffn = calloc(v->x.layers_n, sizeof *has_ffn);
    if (!rc && !has_ffn)
        rc = lq_fail(v->fault, LQ_NOMEM, "out of memory");
    for (uint32_t l = 0; l < v->x.layers_n && !rc; l++) {
        char name[FFN_NAME_BYTES];
        size_t here_n = 0;
        for (size_t i = 0; i < FFN_TENSORS_N; i++) {
            const struct gguf_tensor *t = gguf_tensor(g, ffn_tensor_name(l, i, name));
            here_n += t && t->bytes > 0;
        }
        if (here_n != 0 && here_n != FFN_TENSORS_N)
            rc = lq_fail(v->fault, LQ_BAD_MODEL, "%s: layer %u has %zu of its FFN's %d matrices", v->dir, l, here_n,
                         FFN_TENSORS_N);
        has_ffn[l] = here_n > 0;
        r->ffn_layers_n += here_n > 0;
    }
    r->ffn = r->ffn_layers_n > 0;
    gguf_free(g);
    for (uint32_t l = 0; l < v->x.layers_n && !rc; l++) { /* one at a time: copies of all would need memory for all */
        const struct model_want one = {.ffn = true, .ffn_first = l, .ffn_last = l};
        struct ffn *f;
        if (!has_ffn[l])
            continue;
        rc = model_open(v->dir, &one, &g, v->fault);
        if (!rc) {
            rc = arch_read(g, &a, v->fault);
            if (!rc && !(rc = ffn_new(g, &a, l, l, &f, v->fault)))
                ffn_free(f);
            gguf_free(g);
        }
    }
    free(has_ffn);
    return rc;
}

static enum lq_err check_client(struct verify *v)
{
    const struct model_want want = {.client = true};
    struct gguf *g;
    struct arch a;
    if (!v->report->client)
        return LQ_OK;
    enum lq_err rc = model_open(v->dir, &want, &g, v->fault);
    if (rc)
        return rc;
    rc = arch_read(g, &a, v->fault);
    if (!rc && !gguf_has(g, "tokenizer.ggml.tokens"))
        rc = lq_fail(v->fault, LQ_BAD_MODEL, "%s/tokenizer.json is not there", v->dir);
    for (uint32_t l = 0; l < v->x.layers_n && !rc; l++) {
        static const char *const parts[] = {"attn_q", "attn_k", "attn_v", "attn_output", "attn_norm", "ffn_norm"};
        for (size_t i = 0; i < sizeof parts / sizeof *parts && !rc; i++) {
            char name[FFN_NAME_BYTES];
            snprintf(name, sizeof name, "blk.%u.%s.weight", l, parts[i]);
            const struct gguf_tensor *t = gguf_tensor(g, name);
            if (!t || t->hole)
                rc = lq_fail(v->fault, LQ_BAD_MODEL, "%s: tensor '%s' is in no manifest", v->dir, name);
        }
    }
    gguf_free(g);
    return rc;
}

static void warn(struct verify *v)
{
    const struct vindex_index *x = &v->x;
    uint64_t q_n = (uint64_t)x->heads_n * x->head_dim;
    if (x->q4k && (x->hidden_n % VINDEX_PAD || x->ffn_n % VINDEX_PAD || q_n % VINDEX_PAD))
        snprintf(v->report->warning, sizeof v->report->warning,
                 "LARQL misreads it: rows of %u, %u or %llu values are filled up to a multiple of 256, which its "
                 "decoders do not expect",
                 x->hidden_n, x->ffn_n, (unsigned long long)q_n);
}

enum lq_err vindex_verify(const char *dir, void (*progress)(void *arg, const char *file, uint64_t bytes), void *arg,
                          struct vindex_verify_report *out, struct lq_fault *fault)
{
    struct verify v = {.dir = dir, .report = out, .fault = fault};
    *out = (struct vindex_verify_report){.hashed_n = 0};
    enum lq_err rc = read_index(&v);
    if (!rc)
        rc = check_sums(&v, progress, arg);
    if (!rc)
        rc = count_unhashed(&v);
    if (!rc)
        rc = check_model(&v);
    if (!rc)
        rc = check_client(&v);
    if (!rc && !out->ffn && !out->client)
        rc = lq_fail(fault, LQ_BAD_MODEL, "%s holds neither an FFN nor attention: no weights are in its manifests",
                     dir);
    if (!rc)
        warn(&v);
    vindex_index_release(&v.x);
    json_decref(v.sums);
    return rc;
}
