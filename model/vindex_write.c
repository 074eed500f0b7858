/* vindex_write: what goes into which file, the folder, index.json. See vindex_write.h.
 *
 *   plan: files, each with its tensors and their places -> DIR.tmp -> weights, one file after
 *   another, each noted in progress.json -> manifests, tokenizer -> index.json -> DIR
 */
#include "model/vindex_write.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "model/identity.h"
#include "model/vindex_write_impl.h"
#include "proto/cpu.h"

const char *const vindex_level_name[3] = {"ffn", "client", "all"};
const char *const vindex_dtype_name[3] = {"f16", "f32", "q4k"};

enum { FILES_MAX = 8, JSON_FILES_MAX = 8, PROGRESS_BYTES_MAX = 1 << 20, NAME_BYTES = 48 };
static const char progress_name[] = "progress.json";

/* In the order in which they are written; the manifest that says what is where. */
enum file { GATES, UPS, DOWNS, INTERLEAVED, ATTENTION, ATTENTION_Q4K, NORMS, HEAD, EMBEDDINGS, FILES_N };
static const struct {
    const char *name, *blocks_manifest; /* NULL: weight_manifest.json, or none */
    bool in_weights;
} kinds[FILES_N] = {
    [GATES] = {"gate_vectors.bin", NULL, false},
    [UPS] = {"up_weights.bin", NULL, true},
    [DOWNS] = {"down_weights.bin", NULL, true},
    [INTERLEAVED] = {"interleaved_q4k.bin", "interleaved_q4k_manifest.json", false},
    [ATTENTION] = {"attn_weights.bin", NULL, true},
    [ATTENTION_Q4K] = {"attn_weights_q4k.bin", "attn_weights_q4k_manifest.json", false},
    [NORMS] = {"norms.bin", NULL, true},
    [HEAD] = {NULL, NULL, true}, /* lm_head.bin, or lm_head_q4.bin */
    [EMBEDDINGS] = {"embeddings.bin", NULL, false},
};

struct out_file {
    struct vindex_tensor *list;
    size_t n, cap;
    uint64_t bytes;
};

struct summed { /* a file that is whole */
    char name[NAME_BYTES];
    struct hash256 hash;
};

struct job {
    const struct gguf *g;
    const struct arch *a;
    const struct vindex_write_opts *o;
    struct vindex_write_report *report;
    struct lq_fault *fault;
    bool gemma, ffn, client, q4k;
    enum quant_type dense;
    char tmp[VINDEX_PATH_BYTES];
    struct hash256 model;
    struct out_file files[FILES_N];
    struct summed sums[FILES_N + JSON_FILES_MAX];
    size_t sums_n;
    uint64_t total, done;
    struct kern_ops kern;
    float *row;
};

static const char *name_of(const struct job *j, enum file f)
{
    return f == HEAD ? (j->q4k ? "lm_head_q4.bin" : "lm_head.bin") : kinds[f].name;
}

/* ---- the plan ----------------------------------------------------------------------------------- */

static enum lq_err plan_tensor(struct job *j, enum file f, const char *name, enum quant_type to, bool needed)
{
    struct out_file *file = &j->files[f];
    const struct gguf_tensor *t = gguf_tensor(j->g, name);
    int from = t ? quant_of_ggml(t->type) : -1;
    if (!t && !needed)
        return LQ_OK;
    if (!t || from < 0 || !t->data || t->dims_n > 2)
        return lq_fail(j->fault, t && from < 0 ? LQ_UNSUPPORTED : LQ_BAD_MODEL, "%s: tensor '%s' %s", gguf_path(j->g),
                       name,
                       !t         ? "is missing"
                       : from < 0 ? "has a type that is not read"
                       : !t->data ? "is not in this partial file"
                                  : "is no matrix");
    if (file->n == file->cap) {
        size_t cap = file->cap ? 2 * file->cap : 64;
        struct vindex_tensor *grown = realloc(file->list, cap * sizeof *grown);
        if (!grown)
            return lq_fail(j->fault, LQ_NOMEM, "out of memory for %zu tensors", cap);
        file->list = grown;
        file->cap = cap;
    }
    struct vindex_tensor *v = &file->list[file->n++];
    *v = (struct vindex_tensor){.t = t, .from = (enum quant_type)from, .to = to, .offset = file->bytes};
    v->length = quant_row_bytes(to, (size_t)t->dims[0]) * t->dims[1];
    v->minus_one = j->gemma && t->dims_n == 1 && strstr(name, "norm.weight");
    if (j->a->rope == ARCH_ROPE_PAIRS && (strstr(name, ".attn_q.") || strstr(name, ".attn_k.")))
        v->head_dim = j->a->head_dim;
    if (!vindex_key_of(j->gemma, name, v->key))
        snprintf(v->key, sizeof v->key, "%s", name); /* embeddings: in no manifest */
    file->bytes += v->length;
    return LQ_OK;
}

/* The block format that a matrix gets: its own where LARQL reads that. */
static enum quant_type blocks_for(const struct job *j, const char *name, bool q6k_may_be, enum quant_type otherwise)
{
    const struct gguf_tensor *t = gguf_tensor(j->g, name);
    int from = t ? quant_of_ggml(t->type) : -1;
    return from == QUANT_Q4_K || (from == QUANT_Q6_K && q6k_may_be) ? (enum quant_type)from : otherwise;
}

static enum lq_err plan_ffn(struct job *j, uint32_t layer)
{
    static const struct {
        const char *name;
        enum file dense;
    } parts[] = {{"ffn_gate", GATES}, {"ffn_up", UPS}, {"ffn_down", DOWNS}};
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < 3 && !rc; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, parts[i].name);
        bool down = parts[i].dense == DOWNS;
        rc = plan_tensor(j, j->q4k ? INTERLEAVED : parts[i].dense, name,
                         j->q4k ? blocks_for(j, name, down, down ? QUANT_Q6_K : QUANT_Q4_K) : j->dense, true);
    }
    return rc;
}

static enum lq_err plan_attention(struct job *j, uint32_t layer)
{
    static const char *const mats[] = {"attn_q", "attn_k", "attn_v", "attn_output"};
    static const char *const vectors[] = {
        "attn_norm.weight",   "post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight",
        "attn_q_norm.weight", "attn_k_norm.weight",         "attn_q.bias",     "attn_k.bias",
        "attn_v.bias"};
    char name[64];
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < 4 && !rc; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", layer, mats[i]);
        rc = plan_tensor(j, j->q4k ? ATTENTION_Q4K : ATTENTION, name,
                         j->q4k ? blocks_for(j, name, true, i == 2 ? QUANT_Q6_K : QUANT_Q4_K) : j->dense, true);
    }
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors && !rc; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", layer, vectors[i]);
        rc = plan_tensor(j, NORMS, name, QUANT_F32, false); /* the decoder says which a family needs */
    }
    return rc;
}

static enum lq_err plan(struct job *j)
{
    enum lq_err rc = LQ_OK;
    for (uint32_t l = j->o->layer_first; l <= j->o->layer_last && j->ffn && !rc; l++)
        rc = plan_ffn(j, l);
    for (uint32_t l = 0; l < j->a->layers_n && j->client && !rc; l++)
        rc = plan_attention(j, l);
    if (!rc && j->client)
        rc = plan_tensor(j, NORMS, "output_norm.weight", QUANT_F32, true);
    if (!rc && j->client)
        rc = plan_tensor(j, NORMS, "rope_freqs.weight", QUANT_F32, false);
    if (!rc && j->client) /* LARQL takes lm_head.bin for f32 */
        rc = plan_tensor(j, HEAD, "output.weight", j->q4k ? QUANT_Q4_K : QUANT_F32, false);
    if (!rc)
        rc = plan_tensor(j, EMBEDDINGS, "token_embd.weight", j->dense, true);
    size_t row_max = j->a->hidden_n;
    for (int f = 0; f < FILES_N; f++) {
        j->total += j->files[f].bytes;
        for (size_t i = 0; i < j->files[f].n; i++)
            row_max = j->files[f].list[i].t->dims[0] > row_max ? (size_t)j->files[f].list[i].t->dims[0] : row_max;
    }
    if (!rc && !(j->row = malloc(row_max * sizeof *j->row)))
        rc = lq_fail(j->fault, LQ_NOMEM, "out of memory for rows of %zu values", row_max);
    return rc;
}

/* LARQL decodes a padded matrix as if it were not. */
static enum lq_err check_rows(const struct job *j)
{
    const struct {
        const char *what;
        uint64_t n;
    } sides[] = {{"hidden size", j->a->hidden_n},
                 {"intermediate size", j->a->ffn_n},
                 {"attention's width", (uint64_t)j->a->heads_n * j->a->head_dim}};
    for (size_t i = 0; i < 3 && j->q4k; i++)
        if (sides[i].n % VINDEX_PAD)
            return lq_fail(j->fault, LQ_UNSUPPORTED,
                           "%s: its %s %" PRIu64
                           " is no multiple of 256, and LARQL misreads q4k rows that are filled up: "
                           "use --dtype f16",
                           gguf_path(j->g), sides[i].what, sides[i].n);
    return LQ_OK;
}

/* ---- the folder ----------------------------------------------------------------------------------- */

/* What must be the same for a folder to be gone on with. */
static json_t *progress_of(const struct job *j)
{
    char text[HASH256_TEXT_BYTES];
    return json_pack("{si,ss,sI,sI,ss,ss,sI,sI}", "version", 1, "model_hash", hash256_text(&j->model, text),
                     "source_bytes", (json_int_t)gguf_file_bytes(j->g), "source_mtime_ns",
                     (json_int_t)gguf_mtime_ns(j->g), "level", vindex_level_name[j->o->level], "dtype",
                     vindex_dtype_name[j->o->dtype], "layer_first", (json_int_t)j->o->layer_first, "layer_last",
                     (json_int_t)j->o->layer_last);
}

static enum lq_err save_progress(const struct job *j)
{
    char path[VINDEX_PATH_BYTES], text[HASH256_TEXT_BYTES];
    json_t *v = progress_of(j), *files = json_object();
    for (size_t i = 0; i < j->sums_n; i++)
        json_object_set_new(files, j->sums[i].name, json_string(hash256_text(&j->sums[i].hash, text)));
    char *dump = v && json_object_set_new(v, "files", files) == 0 ? json_dumps(v, JSON_INDENT(1)) : NULL;
    json_decref(v);
    enum lq_err rc =
        dump ? vindex_path(j->tmp, progress_name, path, j->fault) : lq_fail(j->fault, LQ_NOMEM, "out of memory");
    if (!rc)
        rc = file_replace(path, dump, strlen(dump), true, j->fault);
    free(dump);
    return rc;
}

/* The hashes that an earlier run noted, *old; NULL: a new folder. */
static enum lq_err open_folder(struct job *j, json_t **old)
{
    char path[VINDEX_PATH_BYTES], *text = NULL;
    struct stat st;
    size_t n;
    *old = NULL;
    if (snprintf(j->tmp, sizeof j->tmp, "%s.tmp", j->o->dir) >= VINDEX_PATH_BYTES - NAME_BYTES - 8)
        return lq_fail(j->fault, LQ_USAGE, "%.200s: the path is too long", j->o->dir);
    if (lstat(j->o->dir, &st) == 0)
        return lq_fail(j->fault, LQ_USAGE, "%s is there already", j->o->dir);
    if (mkdir(j->tmp, 0777) == 0)
        return save_progress(j);
    if (errno != EEXIST)
        return lq_fail(j->fault, LQ_IO, "cannot make %s: %s", j->tmp, strerror(errno));
    enum lq_err rc = vindex_path(j->tmp, progress_name, path, j->fault);
    if (!rc && file_read(path, PROGRESS_BYTES_MAX, &text, &n, j->fault))
        return lq_fail(j->fault, LQ_USAGE,
                       "%s is there and was not made by larql extract: remove it, or choose another -o", j->tmp);
    json_t *v = rc ? NULL : json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL), *mine = progress_of(j);
    json_t *files = json_incref(json_object_get(v, "files"));
    (void)json_object_del(v, "files");
    if (!rc && (!json_is_object(files) || !json_equal(v, mine)))
        rc = lq_fail(j->fault, LQ_USAGE,
                     "%s is of another model or of other options: remove it, or choose another -o", j->tmp);
    free(text);
    json_decref(v);
    json_decref(mine);
    if (rc)
        json_decref(files);
    else
        *old = files;
    return rc;
}

static void note(struct job *j, const char *name, const struct hash256 *hash)
{
    struct summed *s = &j->sums[j->sums_n++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->hash = *hash;
}

/* ---- weights ------------------------------------------------------------------------------------------ */

static enum lq_err write_file(struct job *j, enum file f)
{
    struct vindex_out o;
    struct hash256 hash;
    vindex_out_begin(&o, j->tmp, name_of(j, f), j->fault);
    for (size_t i = 0; i < j->files[f].n && !o.rc; i++) {
        const struct vindex_tensor *t = &j->files[f].list[i];
        if (j->o->stop && atomic_load_explicit(j->o->stop, memory_order_relaxed))
            o.rc = lq_fail(j->fault, LQ_CANCELLED, "stopped; the same command goes on with %s", j->tmp);
        if (o.rc || vindex_tensor_put(&o, t, &j->kern, j->row, j->report))
            break;
        bool other = t->from != t->to && t->to >= QUANT_Q4_K;
        if (other && j->report->requantised_n++ == 0)
            snprintf(j->report->requantised, sizeof j->report->requantised, "%.80s, %s to %s", t->t->name,
                     quant_info[t->from].name, quant_info[t->to].name);
        if (j->o->progress)
            j->o->progress(j->o->arg, name_of(j, f), j->done + t->offset + t->length, j->total);
        gguf_tensor_dontneed(t->t);
    }
    enum lq_err rc = vindex_out_end(&o, &hash);
    if (!rc)
        note(j, name_of(j, f), &hash);
    return rc ? rc : save_progress(j);
}

/* The file of an earlier run, if it is what that run wrote. */
static bool is_whole(struct job *j, enum file f, const json_t *old)
{
    char path[VINDEX_PATH_BYTES];
    struct hash256 want, is;
    struct lq_fault unused;
    uint64_t bytes;
    if (!hash256_read(json_string_value(json_object_get(old, name_of(j, f))), &want) ||
        vindex_path(j->tmp, name_of(j, f), path, &unused) || vindex_file_hash(path, &is, &bytes, &unused))
        return false;
    if (bytes != j->files[f].bytes || !hash256_equal(&want, &is))
        return false;
    note(j, name_of(j, f), &is);
    j->report->kept_n++;
    return true;
}

static enum lq_err write_weights(struct job *j, const json_t *old)
{
    enum lq_err rc = LQ_OK;
    for (enum file f = 0; f < FILES_N && !rc; f++) {
        if (j->files[f].n == 0)
            continue;
        if (!is_whole(j, f, old))
            rc = write_file(j, f);
        j->done += j->files[f].bytes;
        j->report->files_n++;
    }
    return rc;
}

/* ---- JSON ------------------------------------------------------------------------------------------------ */

static enum lq_err write_json(struct job *j, const char *name, json_t *v, bool summed)
{
    struct vindex_out o;
    struct hash256 hash;
    char *dump = v ? json_dumps(v, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(v);
    if (!dump)
        return lq_fail(j->fault, LQ_NOMEM, "out of memory for %s", name);
    vindex_out_begin(&o, j->tmp, name, j->fault);
    vindex_out_put(&o, dump, strlen(dump));
    free(dump);
    enum lq_err rc = vindex_out_end(&o, &hash);
    if (!rc && summed)
        note(j, name, &hash);
    j->report->files_n++;
    return rc;
}

static json_t *shape_of(const struct vindex_tensor *t)
{
    if (t->t->dims_n == 1)
        return json_pack("[I]", (json_int_t)t->t->dims[0]);
    return json_pack("[I,I]", (json_int_t)t->t->dims[1], (json_int_t)t->t->dims[0]);
}

static json_t *weights_manifest(const struct job *j)
{
    json_t *list = json_array();
    for (enum file f = 0; f < FILES_N; f++)
        for (size_t i = 0; i < j->files[f].n && kinds[f].in_weights; i++) {
            const struct vindex_tensor *t = &j->files[f].list[i];
            const char *kind = t->t->dims_n == 1 ? "vector" : t->to == QUANT_Q4_K ? "tensor_q4k" : "tensor";
            json_array_append_new(list, json_pack("{ss,ss,so,sI,sI,ss}", "key", t->key, "kind", kind, "shape",
                                                  shape_of(t), "offset", (json_int_t)t->offset, "length",
                                                  (json_int_t)t->length, "file", name_of(j, f)));
        }
    return list;
}

/* Found by position, so that layers which are not here have rows too, of no bytes. */
static json_t *blocks_manifest(const struct job *j, enum file f)
{
    static const struct {
        const char *key[VINDEX_ATTN_ROWS];
    } keys[2] = {{{"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", NULL}},
                 {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}}};
    size_t each = f == INTERLEAVED ? VINDEX_FFN_ROWS : VINDEX_ATTN_ROWS;
    uint32_t first = f == INTERLEAVED ? j->o->layer_first : 0;
    json_t *list = json_array();
    for (size_t i = 0; i < each * j->a->layers_n; i++) {
        uint32_t layer = (uint32_t)(i / each);
        size_t at = (size_t)(layer - first) * each + i % each;
        bool here = layer >= first && at < j->files[f].n;
        const struct vindex_tensor *t = &j->files[f].list[here ? at : i % each];
        char key[VINDEX_KEY_BYTES];
        snprintf(key, sizeof key, "layers.%" PRIu32 ".%s.weight", layer, keys[f != INTERLEAVED].key[i % each]);
        json_array_append_new(list, json_pack("{ss,so,ss,sI,sI}", "key", key, "shape", shape_of(t), "format",
                                              quant_info[t->to].name, "offset", (json_int_t)(here ? t->offset : 0),
                                              "length", (json_int_t)(here ? t->length : 0)));
    }
    return list;
}

/* layers[]: where each gate is; in blocks as if f16 gates were stored, which LARQL wants to see. */
static json_t *layers_list(const struct job *j)
{
    json_t *list = json_array();
    uint64_t length = (uint64_t)j->a->ffn_n * j->a->hidden_n * quant_info[j->dense].block_bytes;
    for (uint32_t l = 0; l < j->a->layers_n; l++) {
        bool here = l >= j->o->layer_first && l <= j->o->layer_last && j->ffn;
        uint64_t at = here ? length * (l - j->o->layer_first) : 0;
        json_array_append_new(list, json_pack("{sI,sI,sI,sI}", "layer", (json_int_t)l, "num_features",
                                              (json_int_t)j->a->ffn_n, "offset", (json_int_t)at, "length",
                                              (json_int_t)(here ? length : 0)));
    }
    return list;
}

static json_t *config_of(const struct job *j)
{
    const struct arch *a = j->a;
    json_t *c =
        json_pack("{ss,sI,sI,sI,sf,sf}", "model_type", j->gemma ? "gemma3_text" : a->family, "head_dim",
                  (json_int_t)a->head_dim, "num_q_heads", (json_int_t)a->heads_n, "num_kv_heads",
                  (json_int_t)a->kv_heads_n, "rope_base", (double)a->rope_base, "norm_eps", (double)a->rms_eps);
    if (a->window)
        json_object_set_new(c, "sliding_window", json_integer(a->window));
    if (a->rope_dims != a->head_dim)
        json_object_set_new(c, "partial_rotary_factor", json_real((double)a->rope_dims / a->head_dim));
    if (a->final_softcap > 0)
        json_object_set_new(c, "final_logit_softcapping", json_real((double)a->final_softcap));
    if (j->gemma) {
        bool wide = a->attn_scale != 1.0f / sqrtf((float)a->head_dim); /* the 27B's */
        json_object_set_new(c, "sliding_window_pattern", json_integer(a->window_pattern));
        json_object_set_new(c, "rope_local_base", json_real((double)a->rope_base_local));
        json_object_set_new(c, "query_pre_attn_scalar",
                            json_real(wide ? (double)a->hidden_n / a->heads_n : (double)a->head_dim));
    }
    return c;
}

static json_t *own_of(const struct job *j)
{
    char text[HASH256_TEXT_BYTES], key[64];
    float factor;
    json_t *own = json_pack("{ss,ss,sI}", "version", LQ_VERSION, "model_hash", hash256_text(&j->model, text),
                            "context_length", (json_int_t)j->a->context_n);
    static const char *const names[] = {"rope.scaling.factor", "rope.scale_linear"};
    for (size_t i = 0; i < 2 && j->a->rope_scale != 1.0f && !json_object_get(own, "rope_scaling_factor"); i++) {
        snprintf(key, sizeof key, "%s.%s", j->a->family, names[i]);
        if (gguf_get_f32(j->g, key, &factor, NULL) == LQ_OK)
            json_object_set_new(own, "rope_scaling_factor", json_real((double)factor));
    }
    return own;
}

static enum lq_err write_index(struct job *j)
{
    const struct arch *a = j->a;
    const char *level = j->ffn && j->client ? "all" : j->client ? "attention" : j->q4k ? "browse" : "inference";
    char text[HASH256_TEXT_BYTES];
    json_t *sums = json_object();
    for (size_t i = 0; i < j->sums_n; i++)
        json_object_set_new(sums, j->sums[i].name, json_string(hash256_text(&j->sums[i].hash, text)));
    json_t *v =
        json_pack("{si,ss,ss,sI,sI,sI,sI,sf,si,ss,ss,ss,sb,so,so,so,so}", "version", 2, "model", a->name, "family",
                  a->family, "num_layers", (json_int_t)a->layers_n, "hidden_size", (json_int_t)a->hidden_n,
                  "intermediate_size", (json_int_t)a->ffn_n, "vocab_size", (json_int_t)a->vocab_n, "embed_scale",
                  (double)a->embed_scale, "down_top_k", 10, "dtype", j->dense == QUANT_F32 ? "f32" : "f16", "quant",
                  j->q4k ? "q4k" : "none", "extract_level", level, "has_model_weights", true, "model_config",
                  config_of(j), "larql_grid", own_of(j), "checksums", sums, "layers", layers_list(j));
    return write_json(j, "index.json", v, false);
}

static enum lq_err write_rest(struct job *j)
{
    static const char *const tokenizer[] = {"tokenizer.json", "tokenizer_config.json"};
    struct hash256 hashes[2];
    enum lq_err rc = vindex_write_tokenizer(j->g, j->tmp, hashes, j->fault);
    for (size_t i = 0; i < 2 && !rc; i++) {
        note(j, tokenizer[i], &hashes[i]);
        j->report->files_n++;
    }
    for (enum file f = 0; f < FILES_N && !rc; f++)
        if (kinds[f].blocks_manifest && j->files[f].n)
            rc = write_json(j, kinds[f].blocks_manifest, blocks_manifest(j, f), true);
    if (!rc)
        rc = write_json(j, "weight_manifest.json", weights_manifest(j), true);
    return rc ? rc : write_index(j);
}

/* DIR.tmp becomes DIR. */
static enum lq_err finish(struct job *j)
{
    char path[VINDEX_PATH_BYTES];
    enum lq_err rc = vindex_path(j->tmp, progress_name, path, j->fault);
    if (!rc && unlink(path) != 0 && errno != ENOENT)
        rc = lq_fail(j->fault, LQ_IO, "cannot remove %s: %s", path, strerror(errno));
    if (!rc)
        rc = file_sync_folder(path, j->fault);
    if (!rc && rename(j->tmp, j->o->dir) != 0)
        rc = lq_fail(j->fault, LQ_IO, "cannot rename %s: %s", j->tmp, strerror(errno));
    return rc ? rc : file_sync_folder(j->o->dir, j->fault);
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

enum lq_err vindex_write(const struct gguf *g, const struct arch *a, const struct vindex_write_opts *o,
                         struct vindex_write_report *report, struct lq_fault *fault)
{
    struct job *j = calloc(1, sizeof *j);
    json_t *old = NULL;
    unsigned cpu;
    *report = (struct vindex_write_report){.files_n = 0};
    if (!j)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    *j = (struct job){.g = g, .a = a, .o = o, .report = report, .fault = fault};
    j->gemma = strcmp(a->family, "gemma3") == 0;
    j->ffn = o->level != VINDEX_CLIENT;
    j->client = o->level != VINDEX_FFN;
    j->q4k = o->dtype == VINDEX_Q4K;
    j->dense = o->dtype == VINDEX_F32 ? QUANT_F32 : QUANT_F16;
    enum lq_err rc = cpu_allowed(&cpu, fault);
    if (!rc)
        rc = check_rows(j);
    if (!rc)
        rc = identity_model(g, &j->model, fault);
    if (!rc) {
        kern_init(&j->kern, cpu);
        rc = plan(j);
    }
    if (!rc)
        rc = open_folder(j, &old);
    if (!rc)
        rc = write_weights(j, old);
    if (!rc)
        rc = write_rest(j);
    if (!rc)
        rc = finish(j);
    report->bytes = j->total;
    json_decref(old);
    for (int f = 0; f < FILES_N; f++)
        free(j->files[f].list);
    free(j->row);
    free(j);
    return rc;
}
