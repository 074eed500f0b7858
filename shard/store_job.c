/* store_job: the steps of one fetch, in the order in which they happen.
 *
 *   enter -> find -> [head] -> plan -> fetch what is missing -> verify -> finish
 *            ^------ the origin has changed, or a layer's bytes on disk have ------'
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "model/arch.h"
#include "model/ffn.h"
#include "model/identity.h"
#include "shard/store_impl.h"

enum {
    HEAD_STEP_BYTES = 1 << 20,
    GAP_BYTES = 16 << 10, /* a gap up to this costs less than another request */
    SAY_EVERY_US = 250000,
    LOG_EVERY_US = 3000000,
    ROUNDS_MAX = 3,
};

/* ---- the origin ---------------------------------------------------------------------------- */

/* A file of which bytes are held must be the same still. Without ETag and Last-Modified
 * nobody can tell, so that nothing is kept. */
static enum lq_err ask_origin(struct store_job *j, struct lq_fault *fault)
{
    const struct fetch_opts o = {.url = j->o.url,
                                 .bearer = j->o.bearer,
                                 .ca_file = j->o.ca_file,
                                 .cert_file = j->o.cert_file,
                                 .key_file = j->o.key_file,
                                 .stop = j->stop};
    if (j->fetch)
        return LQ_OK;
    enum lq_err rc = fetch_new(&o, &j->fetch, fault);
    if (rc || !j->path)
        return rc;
    if (!*j->held.etag && !*j->held.modified) {
        log_warn("store_begins_anew path=%s why=%s", log_q(j->path),
                 log_q("its origin named no ETag or Last-Modified to compare"));
        return store_file_forget(j, fault);
    }
    struct fetch_origin was = {.bytes = j->held.bytes};
    memcpy(was.etag, j->held.etag, sizeof was.etag);
    memcpy(was.modified, j->held.modified, sizeof was.modified);
    fetch_expect(j->fetch, &was);
    return LQ_OK;
}

struct buffer {
    uint8_t *p;
    size_t n, room_n;
};

static enum lq_err keep(void *arg, uint64_t at, const void *p, size_t n, struct lq_fault *fault)
{
    struct buffer *b = arg;
    if (at != b->n || n > b->room_n - b->n)
        return lq_fail(fault, LQ_INTERNAL, "bytes out of order");
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return LQ_OK;
}

/* A quarter more of the file's beginning (1 MiB at least) each time, until the head is whole in it. */
static enum lq_err fetch_head(struct store_job *j, struct buffer *b, uint64_t *head_n, struct lq_fault *fault)
{
    for (*head_n = 0; *head_n == 0;) {
        size_t want_n = b->n + (b->n / 4 > HEAD_STEP_BYTES ? b->n / 4 : HEAD_STEP_BYTES);
        if (want_n > GGUF_HEAD_BYTES_MAX)
            want_n = GGUF_HEAD_BYTES_MAX;
        uint8_t *grown = b->n < want_n ? realloc(b->p, want_n) : NULL;
        if (!grown)
            return b->n < want_n ? lq_fail(fault, LQ_NOMEM, "out of memory for the head of a model")
                                 : lq_fail(fault, LQ_BAD_MODEL, "%s: its head is over the limit of %d bytes",
                                           fetch_shown(j->fetch), GGUF_HEAD_BYTES_MAX);
        b->p = grown;
        b->room_n = want_n;
        enum lq_err rc = fetch_range(j->fetch, b->n, want_n, keep, b, fault);
        if (!rc)
            rc = gguf_head_bytes(fetch_shown(j->fetch), b->p, b->n, head_n, fault);
        if (rc)
            return rc;
        uint64_t bytes = fetch_origin(j->fetch)->bytes;
        if (*head_n > bytes || (*head_n == 0 && b->n == bytes))
            return lq_fail(fault, LQ_BAD_MODEL, "%s: the file of %" PRIu64 " bytes ends inside its head",
                           fetch_shown(j->fetch), bytes);
        if (*head_n > b->n)
            *head_n = 0; /* padding before the data that has not come */
    }
    return LQ_OK;
}

static enum lq_err begin_file(struct store_job *j, struct lq_fault *fault)
{
    struct buffer b = {0};
    uint64_t head_n;
    enum lq_err rc = fetch_head(j, &b, &head_n, fault);
    if (!rc)
        rc = store_file_room(j, head_n, fault);
    if (!rc) /* what came behind the head is kept too */
        rc = store_file_create(j, b.p, b.n, fault);
    free(b.p);
    return rc;
}

/* ---- what is needed ------------------------------------------------------------------------ */

/* The layer count, without arch_read(): that needs tensors which may be holes still. */
static enum lq_err check_layers(struct store_job *j, const struct gguf *g, struct lq_fault *fault)
{
    struct gguf_string family;
    char key[128];
    uint32_t layers_n;
    enum lq_err rc = gguf_get_string(g, "general.architecture", &family, fault);
    if (rc)
        return rc;
    snprintf(key, sizeof key, "%.*s.block_count", family.n > 64 ? 64 : (int)family.n, family.p);
    if ((rc = gguf_get_u32(g, key, &layers_n, fault)))
        return rc;
    if (layers_n == 0 || layers_n > ARCH_LAYERS_MAX)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: key '%s' is %" PRIu32, gguf_path(g), key, layers_n);
    j->layer_last = j->o.layer_last == STORE_TO_LAST_LAYER ? layers_n - 1 : j->o.layer_last;
    if (j->layer_last >= layers_n || j->o.layer_first > j->layer_last)
        return lq_fail(fault, LQ_BAD_LAYER, "layers %" PRIu32 "-%" PRIu32 ", but the model has layers 0-%" PRIu32,
                       j->o.layer_first, j->layer_last, layers_n - 1);
    return LQ_OK;
}

static enum lq_err want_tensor(const struct gguf *g, const char *name, struct ranges *want, struct lq_fault *fault)
{
    const struct gguf_tensor *t = gguf_tensor(g, name);
    if (!t || t->bytes == 0)
        return lq_fail(fault, LQ_BAD_MODEL, "%s: tensor '%s' is %s", gguf_path(g), name,
                       t ? "of a type that is not read" : "missing");
    return ranges_add(want, t->at, t->at + t->bytes) ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory");
}

/* All that gguf_open(), arch_read() and ffn_new() look at. */
static enum lq_err plan(struct store_job *j, const struct gguf *g, struct ranges *missing, struct lq_fault *fault)
{
    struct ranges want = {0};
    char name[FFN_NAME_BYTES];
    enum lq_err rc = ranges_add(&want, 0, gguf_head_n(g)) ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory");
    if (!rc && gguf_tensor(g, "rope_freqs.weight"))
        rc = want_tensor(g, "rope_freqs.weight", &want, fault);
    for (uint32_t l = j->o.layer_first; l <= j->layer_last && !rc; l++)
        for (size_t i = 0; i < FFN_TENSORS_N && !rc; i++)
            rc = want_tensor(g, ffn_tensor_name(l, i, name), &want, fault);
    if (!rc && !ranges_missing(&want, &j->held.ranges, missing))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory");
    ranges_release(&want);
    return rc;
}

static enum lq_err check_model(const struct store_job *j, const struct gguf *g, struct lq_fault *fault)
{
    struct hash256 is;
    char a[HASH256_TEXT_BYTES], b[HASH256_TEXT_BYTES];
    if (!j->o.model)
        return LQ_OK;
    enum lq_err rc = identity_model(g, &is, fault);
    if (rc || hash256_equal(&is, j->o.model))
        return rc;
    return lq_fail(fault, LQ_BAD_MODEL, "%s: model hash %s, expected %s: another model",
                   j->held.url ? j->held.url : j->path, hash256_text(&is, a), hash256_text(j->o.model, b));
}

/* ---- fetching ------------------------------------------------------------------------------ */

static void say(struct store_job *j)
{
    uint64_t now = clock_us(), us = now - j->start_us;
    struct store_progress p = {j->bytes, j->bytes_total, us ? (uint64_t)((double)j->bytes * 1e6 / (double)us) : 0};
    bool end = j->bytes == j->bytes_total;
    if (end || now - j->said_us >= SAY_EVERY_US) {
        j->said_us = now;
        j->say(j->say_arg, &p);
    }
    if (end || now - j->logged_us >= LOG_EVERY_US) {
        j->logged_us = now;
        log_info("store_fetch bytes=%" PRIu64 " of=%" PRIu64 " percent=%.1f mb_per_s=%.1f", p.bytes, p.bytes_total,
                 100.0 * (double)p.bytes / (double)p.bytes_total, (double)p.bytes_per_s / 1e6);
    }
}

static enum lq_err take(void *arg, uint64_t at, const void *p, size_t n, struct lq_fault *fault)
{
    struct store_job *j = arg;
    enum lq_err rc = store_file_put(j, at, p, n, fault);
    if (rc)
        return rc;
    j->bytes += n;
    say(j);
    return LQ_OK;
}

static enum lq_err fetch_missing(struct store_job *j, struct ranges *missing, struct lq_fault *fault)
{
    enum lq_err rc = store_file_open(j, fault);
    ranges_close_gaps(missing, GAP_BYTES);
    j->bytes = 0;
    j->bytes_total = ranges_bytes(missing);
    j->start_us = j->said_us = j->logged_us = clock_us();
    if (!rc)
        rc = store_file_room(j, j->bytes_total, fault);
    if (!rc)
        log_info("store_fetch_begin url=%s path=%s layers=%" PRIu32 "-%" PRIu32 " bytes=%" PRIu64
                 " file_bytes=%" PRIu64 " ranges=%zu",
                 log_q(fetch_shown(j->fetch)), log_q(j->path), j->o.layer_first, j->layer_last, j->bytes_total,
                 j->held.bytes, missing->n);
    for (size_t i = 0; i < missing->n && !rc; i++)
        rc = fetch_range(j->fetch, missing->at[i].from, missing->at[i].end, take, j, fault);
    struct lq_fault second;
    enum lq_err listed = j->fd >= 0 ? store_file_list(j, rc ? &second : fault) : LQ_OK; /* what has come is kept */
    return rc ? rc : listed;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Layer l is not what it must be: its bytes count as not there. */
static enum lq_err drop_layer(struct store_job *j, const struct gguf *g, uint32_t l, struct lq_fault *fault)
{
    char name[FFN_NAME_BYTES];
    for (size_t i = 0; i < FFN_TENSORS_N; i++) {
        const struct gguf_tensor *t = gguf_tensor(g, ffn_tensor_name(l, i, name));
        if (!ranges_remove(&j->held.ranges, t->at, t->at + t->bytes))
            return lq_fail(fault, LQ_NOMEM, "out of memory");
    }
    held_forget_layer(&j->held, l);
    return store_file_list(j, fault);
}

/* *again: bytes on disk were not those that came once; they are to be fetched anew. */
static enum lq_err verify_layer(struct store_job *j, const struct gguf *g, uint32_t l, const struct hash256 *is,
                                bool *again, struct lq_fault *fault)
{
    const struct hash256 *want = j->o.layers ? &j->o.layers[l - j->o.layer_first] : NULL,
                         *was = held_layer(&j->held, l);
    char a[HASH256_TEXT_BYTES], b[HASH256_TEXT_BYTES];
    if (was && !hash256_equal(is, was)) {
        log_warn("store_layer_damaged path=%s layer=%" PRIu32 " hash=%s recorded=%s", log_q(j->path), l,
                 hash256_text(is, a), hash256_text(was, b));
        *again = true;
        return drop_layer(j, g, l, fault);
    }
    if (want && !hash256_equal(is, want)) {
        enum lq_err rc = drop_layer(j, g, l, fault);
        return rc ? rc
                  : lq_fail(fault, LQ_BAD_MODEL, "%s: layer %" PRIu32 " has hash %s, expected %s",
                            j->held.url ? j->held.url : j->path, l, hash256_text(is, a), hash256_text(want, b));
    }
    return held_set_layer(&j->held, l, is) ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory");
}

static enum lq_err verify(struct store_job *j, bool *again, struct lq_fault *fault)
{
    struct gguf *g;
    struct identity id = {0};
    enum lq_err rc = gguf_open(j->path, &g, fault);
    if (rc)
        return rc;
    rc = identity_read(g, j->o.layer_first, j->layer_last, NULL, j->stop, &id, fault);
    for (uint32_t l = j->o.layer_first; l <= j->layer_last && !rc; l++)
        rc = verify_layer(j, g, l, &id.layers[l - j->o.layer_first], again, fault);
    if (!rc && !*again)
        rc = store_file_list(j, fault);
    identity_release(&id);
    gguf_free(g);
    return rc;
}

/* What is needed, as far as it is not there. *again: from `find` on. */
static enum lq_err round_of(struct store_job *j, bool *again, struct lq_fault *fault)
{
    struct gguf *g = NULL;
    struct ranges missing = {0};
    enum lq_err rc = j->path ? LQ_OK : ask_origin(j, fault);
    if (!rc && !j->path)
        rc = begin_file(j, fault);
    if (!rc)
        rc = gguf_open(j->path, &g, fault);
    if (!rc)
        rc = check_layers(j, g, fault);
    if (!rc)
        rc = check_model(j, g, fault);
    if (!rc)
        rc = plan(j, g, &missing, fault);
    gguf_free(g);
    if (!rc && missing.n > 0) {
        rc = ask_origin(j, fault);
        *again = !rc && !j->path; /* what was there had to go */
        if (!rc && !*again)
            rc = fetch_missing(j, &missing, fault);
    }
    ranges_release(&missing);
    if (!rc && !*again)
        rc = verify(j, again, fault);
    return rc || *again ? rc : store_file_finish(j, fault);
}

/* The origin's file is another one now: nothing of the old one is of use. */
static enum lq_err begin_anew(struct store_job *j, struct lq_fault *fault)
{
    log_warn("store_begins_anew path=%s why=%s", log_q(j->final), log_q(fault->text));
    fetch_free(j->fetch);
    j->fetch = NULL;
    return store_file_forget(j, fault);
}

enum lq_err store_job_run(struct store_job *j, struct store_result *out, struct lq_fault *fault)
{
    j->lock_fd = j->fd = -1;
    bool again = true;
    uint64_t bytes = 0;
    enum lq_err rc = store_file_enter(j, fault);
    if (!rc)
        rc = store_file_find(j, fault);
    for (int i = 0; !rc && again; i++) {
        again = false;
        rc = round_of(j, &again, fault);
        bool changed = rc && j->fetch && fetch_changed(j->fetch);
        if ((again || changed) && i + 1 == ROUNDS_MAX) {
            rc = rc ? rc : lq_fail(fault, LQ_BAD_MODEL, "%s: its bytes do not stay what they were", j->final);
        } else if (changed) {
            bytes += fetch_bytes(j->fetch);
            rc = begin_anew(j, fault);
            again = !rc;
        }
    }
    if (!rc) {
        snprintf(out->path, sizeof out->path, "%s", j->final);
        out->bytes_fetched = bytes + (j->fetch ? fetch_bytes(j->fetch) : 0);
        out->layer_last = j->layer_last;
        log_info("store_ready path=%s layers=%" PRIu32 "-%" PRIu32 " fetched_bytes=%" PRIu64 " held_bytes=%" PRIu64
                 " file_bytes=%" PRIu64,
                 log_q(out->path), j->o.layer_first, j->layer_last, out->bytes_fetched, ranges_bytes(&j->held.ranges),
                 j->held.bytes);
    }
    fetch_free(j->fetch);
    store_file_leave(j);
    return rc;
}
