/* model_file: GET /v1/model/file: the model file's bytes, so that a spare shard can fetch
 * the layers that it is to serve from a replica (shard/store.h).
 * One range a request (RFC 9110, 14); of a partial file (model/held.h) only what it holds.
 * The body leaves in pieces of the map, by reference; the next piece is read ahead, so that
 * the loop seldom waits for a disk. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log.h"
#include "model/held.h"
#include "shard/shard.h"

enum { DOWNLOADS_MAX = 4, PIECE_BYTES = 256 << 10, AHEAD_BYTES = 1 << 20, ETAG_BYTES = 128 };

struct download {
    struct shard *shard;
    struct http_req *req;
    const uint8_t *map;
    uint64_t at, end;
};

static void download_free(struct download *d)
{
    d->shard->downloads_n--;
    free(d);
}

static void on_gone(struct http_req *r, void *arg)
{
    (void)r;
    download_free(arg);
}

static void read_ahead(const struct download *d)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)d->map + d->at) & ~(page - 1);
    uint64_t left = d->end - d->at, n = left < AHEAD_BYTES ? left : AHEAD_BYTES;
    (void)madvise((void *)from, (size_t)n, MADV_WILLNEED); /* advice only */
}

/* Pieces until the connection has enough, or all is out. */
static void pump(struct download *d)
{
    struct http_req *r = d->req;
    struct evbuffer *piece = evbuffer_new();
    bool room = piece != NULL;
    while (room && d->at < d->end) {
        uint64_t left = d->end - d->at;
        size_t n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        read_ahead(d);
        if (evbuffer_add_reference(piece, d->map + d->at, n, NULL, NULL) != 0)
            break;
        d->at += n;
        room = http_req_reply_data(r, piece);
    }
    bool whole = d->at == d->end, stuck = !piece || (room && !whole);
    if (piece)
        evbuffer_free(piece);
    if (!whole && !stuck)
        return; /* on_room goes on */
    download_free(d);
    if (whole)
        http_req_reply_end(r);
    else
        http_req_abort(r); /* out of memory: a cut body never looks complete */
}

static void on_room(struct http_req *r, void *arg)
{
    (void)r;
    pump(arg);
}

/* ---- which bytes ---------------------------------------------------------------------------- */

static bool number(const char **p, uint64_t *out)
{
    const char *start = *p;
    uint64_t v = 0;
    for (; **p >= '0' && **p <= '9'; ++*p)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**p - '0'), &v))
            v = UINT64_MAX; /* past any file */
    *out = v;
    return *p > start;
}

/* "bytes=A-B", "A-", "-N" of a file of n bytes: [from, end). */
static enum lq_err read_range(const char *p, uint64_t n, uint64_t *from, uint64_t *end, struct lq_fault *fault)
{
    uint64_t first = 0, last = 0;
    const char *text = p;
    if (strncasecmp(p, "bytes=", 6) != 0)
        return lq_fail(fault, LQ_BAD_RANGE, "Range: %.100s: only bytes=", text);
    p += 6;
    bool has_first = number(&p, &first), dash = *p == '-';
    p += dash;
    bool has_last = dash && number(&p, &last);
    if (!dash || *p || (!has_first && !has_last))
        return lq_fail(fault, LQ_BAD_RANGE, "Range: %.100s: one range of bytes a request", text);
    if (!has_first) { /* the last N */
        first = last < n ? n - last : 0; /* N = 0: past the end */
        last = n - 1;
    } else if (!has_last || last > n - 1) {
        last = n - 1;
    }
    if (first >= n || last < first)
        return lq_fail(fault, LQ_BAD_RANGE, "Range: %.100s: the file has %" PRIu64 " bytes", text, n);
    *from = first;
    *end = last + 1;
    return LQ_OK;
}

/* Size, time of change and the model hash: another file has another one. */
static void etag_of(const struct shard *s, char out[ETAG_BYTES])
{
    char text[HASH256_TEXT_BYTES];
    snprintf(out, ETAG_BYTES, "\"%" PRIx64 "-%" PRIx64 "-%.16s\"", gguf_file_bytes(s->gguf),
             (uint64_t)gguf_mtime_ns(s->gguf), hash256_text(&s->identity.model, text));
}

/* *ranged false: the whole file, with 200. */
static enum lq_err choose(const struct shard *s, const struct http_req *r, const char *etag, bool *ranged,
                          uint64_t *from, uint64_t *end, struct lq_fault *fault)
{
    const struct http_headers *h = http_req_headers(r);
    const char *range = http_headers_get(h, "Range"), *only_if = http_headers_get(h, "If-Range");
    const struct held *held = gguf_held(s->gguf);
    struct range hole;
    *from = 0;
    *end = gguf_file_bytes(s->gguf);
    *ranged = range && (!only_if || strcmp(only_if, etag) == 0);
    enum lq_err rc = *ranged ? read_range(range, *end, from, end, fault) : LQ_OK;
    if (!rc && held && ranges_hole(&held->ranges, *from, *end, &hole))
        return lq_fail(fault, LQ_BAD_RANGE,
                       "this shard holds a part of the file (layers %u-%u); bytes %" PRIu64 "-%" PRIu64
                       " of those asked for are not in it",
                       s->layer_first, s->layer_last, hole.from, hole.end - 1);
    return rc;
}

static bool add_headers(struct http_headers *h, const char *etag, bool ranged, uint64_t from, uint64_t end,
                        uint64_t n)
{
    char text[96];
    snprintf(text, sizeof text, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, from, end - 1, n);
    return http_headers_add(h, "Content-Type", "application/octet-stream") &&
           http_headers_add(h, "Accept-Ranges", "bytes") && http_headers_add(h, "ETag", etag) &&
           (!ranged || http_headers_add(h, "Content-Range", text));
}

void model_file_start(void *shard, struct http_req *r)
{
    struct shard *s = shard;
    struct lq_fault fault;
    char etag[ETAG_BYTES];
    bool ranged = false;
    uint64_t from = 0, end = 0;
    size_t n;
    enum lq_err rc;
    if (!s->serve_model)
        rc = lq_fail(&fault, LQ_NO_PATH, "this shard does not serve its model file (--serve-model)");
    else if (gguf_parts_n(s->gguf) != 1)
        rc = lq_fail(&fault, LQ_NO_PATH, "a model in several files is not served as one");
    else if (s->draining)
        rc = lq_fail(&fault, LQ_NOT_READY, "draining");
    else if (s->downloads_n >= DOWNLOADS_MAX)
        rc = lq_fail(&fault, LQ_QUEUE_FULL, "%d downloads of the model file are under way", DOWNLOADS_MAX);
    else {
        etag_of(s, etag);
        rc = choose(s, r, etag, &ranged, &from, &end, &fault);
    }
    if (rc) {
        http_req_reply_fault(r, &fault, NULL);
        return;
    }
    struct http_headers *h = http_headers_new();
    struct download *d = malloc(sizeof *d);
    const uint8_t *map = gguf_map(s->gguf, &n);
    if (!h || !d || !add_headers(h, etag, ranged, from, end, n)) {
        free(d);
        http_headers_free(h);
        http_front_nomem(r);
        return;
    }
    *d = (struct download){s, r, map, from, end};
    s->downloads_n++;
    http_req_on_gone(r, on_gone, d);
    http_req_on_room(r, on_room, d);
    http_req_reply_start(r, ranged ? 206 : 200, h, end - from);
    http_headers_free(h);
    if (strcmp(http_req_method(r), "HEAD") == 0)
        d->at = d->end;
    pump(d);
}
