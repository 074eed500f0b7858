/* vindex: a directory as a struct gguf: keys from index.json and the tokenizer's files,
 * tensors from the manifests. See vindex.h.
 *
 *   index.json -> keys; manifests -> tensors, each with its file and place -> one map a file,
 *   of the span that is wanted -> data pointers; norms and Q6_K become copies -> look-ups
 */
#include "model/vindex.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "model/gguf_impl.h"
#include "model/kern.h"
#include "model/vindex_open.h"

const struct model_want model_want_all = {.ffn = true, .ffn_first = 0, .ffn_last = UINT32_MAX, .client = true};

enum { PARTS_MAX = VINDEX_FILES_MAX + 4 };

struct place {                /* of a tensor, beside it in g->tensors */
    struct vindex_file *file; /* NULL: a hole */
    enum quant_type type;     /* as stored */
};

struct build {
    const char *dir;
    const struct model_want *want;
    struct vindex_index x;
    struct gguf *g;
    struct vindex *v;
    struct vindex_keys keys;
    struct place *places;
    size_t tensors_cap;
    struct lq_fault *fault;
};

enum lq_err vindex_path(const char *dir, const char *file, char path[VINDEX_PATH_BYTES], struct lq_fault *fault)
{
    if (snprintf(path, VINDEX_PATH_BYTES, "%s/%s", dir, file) >= VINDEX_PATH_BYTES)
        return lq_fail(fault, LQ_BAD_MODEL, "%.200s: the path is too long", dir);
    return LQ_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A file that the model is made of, for messages and model/hash_cache. */
static enum lq_err add_part(struct build *b, const char *path, const struct stat *st)
{
    struct gguf *g = b->g;
    char *name = strdup(path);
    if (!name)
        return lq_fail(b->fault, LQ_NOMEM, "out of memory");
    g->names[g->parts_n] = name;
    g->parts[g->parts_n++] = (struct gguf_part){name, NULL, (size_t)st->st_size, true,
                                                st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec};
    return LQ_OK;
}

/* A small file of the directory, malloc'd; *text NULL (and LQ_OK) where it is absent and not needed. */
static enum lq_err read_json(struct build *b, const char *name, bool needed, char path[VINDEX_PATH_BYTES],
                             char **text, size_t *n)
{
    struct stat st;
    *text = NULL;
    enum lq_err rc = vindex_path(b->dir, name, path, b->fault);
    if (rc)
        return rc;
    if (stat(path, &st) != 0 && errno == ENOENT && !needed)
        return LQ_OK;
    rc = file_read(path, VINDEX_JSON_BYTES_MAX, text, n, b->fault);
    return rc ? rc : add_part(b, path, &st);
}

/* The file, opened at its first use; NULL: failed, *rc says why. */
static struct vindex_file *file_of(struct build *b, const char *name, enum lq_err *rc)
{
    char path[VINDEX_PATH_BYTES];
    struct stat st;
    struct vindex *v = b->v;
    for (size_t i = 0; i < v->files_n; i++)
        if (strcmp(v->files[i].name, name) == 0)
            return &v->files[i];
    *rc = vindex_path(b->dir, name, path, b->fault);
    if (!*rc && v->files_n == VINDEX_FILES_MAX)
        *rc = lq_fail(b->fault, LQ_BAD_MODEL, "%s: more than %d files of weights", b->dir, VINDEX_FILES_MAX);
    if (*rc)
        return NULL;
    struct vindex_file *f = &v->files[v->files_n++];
    *f = (struct vindex_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    snprintf(f->name, sizeof f->name, "%s", name);
    if (f->fd < 0 && errno == ENOENT)
        return f;
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        *rc = lq_fail(b->fault, LQ_IO, "cannot open %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        *rc = lq_fail(b->fault, LQ_BAD_MODEL, "%s: no regular file", path);
    else
        *rc = add_part(b, path, &st);
    if (*rc)
        return NULL;
    f->there = true;
    f->bytes = (uint64_t)st.st_size;
    return f;
}

/* The span that is wanted, of each file. */
static enum lq_err map_files(struct build *b)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < b->v->files_n; i++) {
        struct vindex_file *f = &b->v->files[i];
        if (f->from == f->end)
            continue;
        uint64_t from = f->from / page * page;
        void *p = mmap(NULL, (size_t)(f->end - from), PROT_READ, MAP_PRIVATE, f->fd, (off_t)from);
        if (p == MAP_FAILED)
            return lq_fail(b->fault, LQ_IO, "cannot map %s/%s: %s", b->dir, f->name, strerror(errno));
        f->map = p;
        f->map_from = from;
        f->map_n = (size_t)(f->end - from);
    }
    return LQ_OK;
}

static void close_files(struct vindex *v)
{
    for (size_t i = 0; i < v->files_n; i++) {
        if (v->files[i].fd >= 0)
            close(v->files[i].fd);
        v->files[i].fd = -1;
    }
}

void vindex_free(struct vindex *v)
{
    if (!v)
        return;
    close_files(v);
    for (size_t i = 0; i < v->files_n; i++)
        if (v->files[i].map)
            munmap(v->files[i].map, v->files[i].map_n);
    for (size_t i = 0; i < v->blocks_n; i++)
        free(v->blocks[i]);
    free(v->blocks);
    free(v);
}

/* ---- keys ------------------------------------------------------------------------------------- */

static void set_keys(struct build *b)
{
    const struct vindex_index *x = &b->x;
    struct vindex_keys *k = &b->keys;
    const char *a = x->arch;
    vindex_key_text(k, "general.architecture", a, strlen(a));
    vindex_key_text(k, "general.name", x->name, strlen(x->name));
    vindex_key_u32(k, a, "block_count", x->layers_n);
    vindex_key_u32(k, a, "embedding_length", x->hidden_n);
    vindex_key_u32(k, a, "feed_forward_length", x->ffn_n);
    vindex_key_u32(k, a, "attention.head_count", x->heads_n);
    vindex_key_u32(k, a, "attention.head_count_kv", x->kv_heads_n);
    vindex_key_u32(k, a, "attention.key_length", x->head_dim);
    vindex_key_f32(k, a, "attention.layer_norm_rms_epsilon", x->rms_eps);
    vindex_key_f32(k, a, "rope.freq_base", x->rope_base);
    if (x->context_n)
        vindex_key_u32(k, a, "context_length", x->context_n);
    if (x->rope_base_local > 0)
        vindex_key_f32(k, a, "rope.local.freq_base", x->rope_base_local);
    if (x->rope_factor > 0)
        vindex_key_f32(k, a, "rope.scaling.factor", x->rope_factor);
    if (x->rotary_share > 0)
        vindex_key_u32(k, a, "rope.dimension_count", (uint32_t)(x->rotary_share * x->head_dim));
    if (x->window)
        vindex_key_u32(k, a, "attention.sliding_window", x->window);
    if (x->query_scalar > 0)
        vindex_key_f32(k, a, "attention.scale", 1.0f / sqrtf((float)x->query_scalar)); /* as arch.c does */
    if (x->softcap > 0)
        vindex_key_f32(k, a, "final_logit_softcapping", x->softcap);
}

/* ---- tensors ------------------------------------------------------------------------------------ */

static bool ffn_wanted(const struct build *b, uint32_t layer)
{
    return b->want->ffn && layer >= b->want->ffn_first && layer <= b->want->ffn_last;
}

static bool room_for_one(struct build *b)
{
    struct gguf *g = b->g;
    if (g->tensors_n < b->tensors_cap)
        return true;
    size_t cap = b->tensors_cap ? 2 * b->tensors_cap : 256;
    struct gguf_tensor *tensors = realloc(g->tensors, cap * sizeof *tensors);
    g->tensors = tensors ? tensors : g->tensors;
    struct place *places = tensors ? realloc(b->places, cap * sizeof *places) : NULL;
    b->places = places ? places : b->places;
    b->tensors_cap = places ? cap : b->tensors_cap;
    return places != NULL;
}

/* The row's range against its file, and the file's span that is wanted. */
static enum lq_err place_row(struct build *b, const char *manifest, const struct vindex_row *row, bool wanted,
                             struct vindex_file **out)
{
    enum lq_err rc = LQ_OK;
    struct vindex_file *f = file_of(b, row->file, &rc);
    if (rc)
        return rc;
    uint64_t end = row->offset + row->length; /* does not overflow: vindex_manifest.c */
    if (f->there && end > f->bytes)
        return lq_fail(b->fault, LQ_BAD_MODEL,
                       "%s/%s: '%s': offset %" PRIu64 " + %" PRIu64 " bytes is past the end of %s (%" PRIu64 ")",
                       b->dir, manifest, row->key, row->offset, row->length, row->file, f->bytes);
    if (!f->there && (wanted || b->want->every_file))
        return lq_fail(b->fault, LQ_BAD_MODEL, "%s/%s: '%s' is in %s, which is not there", b->dir, manifest, row->key,
                       row->file);
    if (!wanted)
        return LQ_OK;
    f->from = f->from == f->end || row->offset < f->from ? row->offset : f->from;
    f->end = end > f->end ? end : f->end;
    *out = f;
    return LQ_OK;
}

/* A tensor of cols_n x rows_n (1: a vector) values; stored as the row says, which has length 0
 * where the directory lacks it. Not wanted: a hole. */
static enum lq_err add_tensor(struct build *b, const char *name, uint64_t cols_n, uint64_t rows_n, uint32_t dims_n,
                              const char *manifest, const struct vindex_row *row, bool wanted)
{
    struct vindex_file *file = NULL;
    uint64_t stored_n = dims_n == 1 ? row->dims[0] : row->dims[1], pad = quant_info[row->type].block_n;
    if (row->length && (dims_n != row->dims_n || (dims_n == 2 && row->dims[0] != rows_n) ||
                        stored_n != (cols_n + pad - 1) / pad * pad))
        return lq_fail(b->fault, LQ_BAD_MODEL,
                       "%s/%s: '%s': shape is [%" PRIu64 ", %" PRIu64 "], expected [%" PRIu64 ", %" PRIu64
                       "], columns filled up to a multiple of %" PRIu64,
                       b->dir, manifest, row->key, row->dims[0], row->dims[1], rows_n, cols_n, pad);
    enum lq_err rc = row->length ? place_row(b, manifest, row, wanted, &file) : LQ_OK;
    if (rc)
        return rc;
    if (!room_for_one(b))
        return lq_fail(b->fault, LQ_NOMEM, "%s: out of memory for %zu tensors", b->dir, b->g->tensors_n);
    b->places[b->g->tensors_n] = (struct place){file, row->type};
    struct gguf_tensor *t = &b->g->tensors[b->g->tensors_n++];
    *t = (struct gguf_tensor){.type = quant_info[row->type].ggml_type,
                              .dims_n = dims_n,
                              .dims = {cols_n, rows_n, 1, 1},
                              .bytes = row->length,
                              .at = row->offset,
                              .pad_n = row->length ? (uint32_t)(stored_n - cols_n) : 0,
                              .hole = !file};
    snprintf(t->name, sizeof t->name, "%s", name);
    return LQ_OK;
}

/* A manifest of blocks: of each layer `each` tensors in a fixed order. */
static enum lq_err add_blocks(struct build *b, bool ffn)
{
    static const struct {
        const char *file, *manifest;
    } names[2][2] = {{{"attn_weights_kquant.bin", "attn_weights_kquant_manifest.json"},
                      {"attn_weights_q4k.bin", "attn_weights_q4k_manifest.json"}},
                     {{"interleaved_kquant.bin", "interleaved_kquant_manifest.json"},
                      {"interleaved_q4k.bin", "interleaved_q4k_manifest.json"}}};
    const struct vindex_index *x = &b->x;
    const uint64_t q_n = (uint64_t)x->heads_n * x->head_dim, kv_n = (uint64_t)x->kv_heads_n * x->head_dim;
    const struct {
        const char *name;
        uint64_t rows_n, cols_n;
    } parts[2][VINDEX_ATTN_ROWS] = {{{"attn_q", q_n, x->hidden_n},
                                     {"attn_k", kv_n, x->hidden_n},
                                     {"attn_v", kv_n, x->hidden_n},
                                     {"attn_output", x->hidden_n, q_n}},
                                    {{"ffn_gate", x->ffn_n, x->hidden_n},
                                     {"ffn_up", x->ffn_n, x->hidden_n},
                                     {"ffn_down", x->hidden_n, x->ffn_n}}};
    const size_t each = ffn ? VINDEX_FFN_ROWS : VINDEX_ATTN_ROWS;
    char path[VINDEX_PATH_BYTES], *text = NULL;
    struct vindex_rows rows = {0};
    size_t n = 0, which = 0;
    enum lq_err rc = LQ_OK;
    for (; which < 2 && !text && !rc; which++)
        rc = read_json(b, names[ffn][which].manifest, false, path, &text, &n);
    if (rc || !text)
        return rc; /* absent: who needs them says so */
    const char *manifest = names[ffn][which - 1].manifest;
    rc = vindex_blocks_read(path, names[ffn][which - 1].file, text, n, &rows, b->fault);
    free(text);
    if (!rc && rows.n != each * x->layers_n)
        rc = lq_fail(b->fault, LQ_BAD_MODEL, "%s has %zu rows, expected %zu for each of %" PRIu32 " layers", path,
                     rows.n, each, x->layers_n);
    for (size_t i = 0; i < rows.n && !rc; i++) {
        uint32_t layer = (uint32_t)(i / each);
        char name[GGUF_NAME_BYTES_MAX];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, parts[ffn][i % each].name);
        rc = add_tensor(b, name, parts[ffn][i % each].cols_n, parts[ffn][i % each].rows_n, 2, manifest, &rows.p[i],
                        ffn ? ffn_wanted(b, layer) : b->want->client);
    }
    vindex_rows_release(&rows);
    return rc;
}

/* The dense gates: of a directory without blocks, unless the manifest names them. */
static enum lq_err add_gates(struct build *b, const bool *has_gate)
{
    const struct vindex_index *x = &b->x;
    enum lq_err rc = LQ_OK;
    for (uint32_t layer = 0; layer < x->layers_n && !rc; layer++) {
        char name[GGUF_NAME_BYTES_MAX];
        struct vindex_row row = {.file = "gate_vectors.bin",
                                 .type = x->dtype,
                                 .dims_n = 2,
                                 .dims = {x->ffn_n, x->hidden_n},
                                 .offset = x->gates[layer].offset,
                                 .length = x->gates[layer].length};
        if (has_gate[layer])
            continue;
        snprintf(row.key, sizeof row.key, "layers[%" PRIu32 "]", layer);
        snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate.weight", layer);
        rc = add_tensor(b, name, x->hidden_n, x->ffn_n, 2, "index.json", &row, ffn_wanted(b, layer));
    }
    return rc;
}

/* weight_manifest.json: all of a dense directory; of one with blocks the vectors and the head. */
static enum lq_err add_weights(struct build *b)
{
    static const char manifest[] = "weight_manifest.json";
    const struct vindex_index *x = &b->x;
    char path[VINDEX_PATH_BYTES], *text;
    struct vindex_rows rows = {0};
    size_t n;
    enum lq_err rc = read_json(b, manifest, false, path, &text, &n);
    if (!rc && text)
        rc = vindex_weights_read(path, text, n, &rows, b->fault);
    free(text);
    bool *has_gate = calloc(x->layers_n, sizeof *has_gate);
    if (!rc && !has_gate)
        rc = lq_fail(b->fault, LQ_NOMEM, "out of memory");
    for (size_t i = 0; i < rows.n && !rc; i++) {
        const struct vindex_row *row = &rows.p[i];
        char name[GGUF_NAME_BYTES_MAX];
        uint32_t layer;
        if (!vindex_gguf_name(x, row->key, name, &layer))
            continue;
        bool head = strcmp(name, "output.weight") == 0, ffn = strstr(name, ".ffn_") && row->dims_n == 2;
        if (row->dims_n == 2 && x->q4k && !head)
            continue;
        if (ffn && strstr(name, ".ffn_gate."))
            has_gate[layer] = true;
        /* The shape of a block's row holds its padding; other shapes are held against the model when they are bound.
         */
        uint64_t cols_n = row->dims_n == 1 ? row->dims[0] : head ? x->hidden_n : row->dims[1];
        rc = add_tensor(b, name, cols_n, row->dims_n == 1 ? 1 : row->dims[0], row->dims_n, manifest, row,
                        ffn ? ffn_wanted(b, layer) : b->want->client || strcmp(name, "rope_freqs.weight") == 0);
    }
    vindex_rows_release(&rows);
    if (!rc && !x->q4k)
        rc = add_gates(b, has_gate);
    free(has_gate);
    return rc;
}

/* embeddings.bin: f32 or f16, by its size. A shard needs its shape only. */
static enum lq_err add_embeddings(struct build *b)
{
    const struct vindex_index *x = &b->x;
    uint64_t values = (uint64_t)x->vocab_n * x->hidden_n;
    struct vindex_row row = {.key = "embeddings",
                             .file = "embeddings.bin",
                             .type = x->dtype,
                             .dims_n = 2,
                             .dims = {x->vocab_n, x->hidden_n}};
    enum lq_err rc = LQ_OK;
    struct vindex_file *f = file_of(b, row.file, &rc);
    if (rc)
        return rc;
    if (f->there ? f->bytes != 4 * values && f->bytes != 2 * values : b->want->client)
        return lq_fail(b->fault, LQ_BAD_MODEL,
                       "%s/embeddings.bin has %" PRIu64 " bytes%s, but vocab_size %" PRIu32 " x hidden_size %" PRIu32
                       " values have 4 or 2 bytes each",
                       b->dir, f->bytes, f->there ? "" : " (it is not there)", x->vocab_n, x->hidden_n);
    if (f->there) {
        row.length = f->bytes;
        row.type = f->bytes == 4 * values ? QUANT_F32 : QUANT_F16;
    }
    return add_tensor(b, "token_embd.weight", x->hidden_n, x->vocab_n, 2, "index.json", &row, b->want->client);
}

/* ---- data ------------------------------------------------------------------------------------------ */

static bool is_norm(const char *name)
{
    static const char end[] = "norm.weight";
    size_t n = strlen(name);
    return n >= sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0;
}

/* A copy in the form that GGUF has. */
static enum lq_err convert(struct build *b, struct gguf_tensor *t, enum quant_type stored)
{
    bool norm = b->x.gemma_norms && is_norm(t->name) && t->dims_n == 1;
    if (!norm && stored != QUANT_Q6_K)
        return LQ_OK;
    size_t bytes = norm ? (size_t)t->dims[0] * sizeof(float) : (size_t)t->bytes;
    uint8_t *copy = vindex_alloc(b->v, bytes);
    if (!copy)
        return lq_fail(b->fault, LQ_NOMEM, "%s: out of memory for a copy of '%s', %zu bytes", b->dir, t->name, bytes);
    if (norm) {
        float *w = (float *)(void *)copy;
        kern_ref.dequant[stored](t->data, (size_t)t->dims[0], w);
        for (uint64_t i = 0; i < t->dims[0]; i++)
            w[i] += 1.0f;
        t->type = quant_info[QUANT_F32].ggml_type;
    } else {
        vindex_q6k_to_ggml(t->data, bytes / quant_info[QUANT_Q6_K].block_bytes, copy);
        gguf_tensor_dontneed(t);
    }
    t->data = copy;
    t->bytes = bytes;
    return LQ_OK;
}

static enum lq_err set_data(struct build *b)
{
    enum lq_err rc = map_files(b);
    close_files(b->v);
    for (size_t i = 0; i < b->g->tensors_n && !rc; i++) {
        struct gguf_tensor *t = &b->g->tensors[i];
        const struct place *p = &b->places[i];
        if (!p->file)
            continue;
        t->data = p->file->map + (t->at - p->file->map_from);
        rc = convert(b, t, p->type);
    }
    return rc;
}

/* ---- all of it ------------------------------------------------------------------------------------- */

static enum lq_err read_all(struct build *b)
{
    char path[VINDEX_PATH_BYTES], *text;
    size_t n;
    enum lq_err rc = read_json(b, "index.json", true, path, &text, &n);
    if (!rc)
        rc = vindex_index_read(path, text, n, &b->x, b->fault);
    free(text);
    if (rc)
        return rc;
    b->g->has_model_hash = b->x.has_model_hash;
    b->g->model_hash = b->x.model_hash;
    set_keys(b);
    rc = add_embeddings(b);
    if (!rc && b->x.q4k)
        rc = add_blocks(b, true);
    if (!rc && b->x.q4k)
        rc = add_blocks(b, false);
    if (!rc)
        rc = add_weights(b);
    if (!rc)
        rc = set_data(b);
    if (!rc && b->want->client)
        rc = vindex_tokenizer_read(b->dir, &b->x, &b->keys, b->fault);
    if (!rc && b->keys.failed)
        rc = lq_fail(b->fault, LQ_NOMEM, "%s: out of memory for its keys", b->dir);
    return rc ? rc : gguf_index(b->g, b->fault);
}

static enum lq_err vindex_open(const char *dir, const struct model_want *want, struct gguf **out,
                               struct lq_fault *fault)
{
    struct build b = {.dir = dir, .want = want, .g = gguf_new(PARTS_MAX), .fault = fault};
    if (!b.g || !(b.g->vindex = b.v = calloc(1, sizeof *b.v))) {
        gguf_free(b.g);
        return lq_fail(fault, LQ_NOMEM, "out of memory for %s", dir);
    }
    b.g->parts_n = 0; /* each is added when it is opened */
    b.keys = (struct vindex_keys){.g = b.g, .v = b.v};
    enum lq_err rc = read_all(&b);
    vindex_index_release(&b.x);
    free(b.places);
    if (rc)
        gguf_free(b.g);
    else
        *out = b.g;
    return rc;
}

enum lq_err model_open(const char *path, const struct model_want *want, struct gguf **out, struct lq_fault *fault)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return vindex_open(path, want, out, fault);
    return gguf_open(path, out, fault);
}
