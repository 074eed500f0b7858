/* fetch: ranges of one file of an HTTP origin, by libcurl, into a sink.
 * Nothing that the origin says is trusted: a range is answered by a 206 whose
 * Content-Range is the one asked for and whose body has exactly those bytes. A 200 (the
 * whole file) is refused: an origin without ranges cannot give a part of a file. The
 * file's size and validators (ETag, Last-Modified) must stay what they were first.
 * Redirects: five, http and https only, and never from https to http; the key goes to
 * no other host. Lost connections, short bodies, 408, 429 and 5xx are tried again from
 * the byte where they ended, with growing pauses.
 * Thread: one at a time; it blocks. */
#ifndef LQ_SHARD_FETCH_H
#define LQ_SHARD_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

enum { FETCH_WORD_BYTES = 256 };

struct fetch_origin { /* what a file was when bytes of it came; bytes 0: not known yet */
    uint64_t bytes;
    char etag[FETCH_WORD_BYTES], modified[FETCH_WORD_BYTES]; /* "": the origin tells none */
};

struct fetch_opts {
    const char *url;          /* http:// or https://, without user and password */
    const char *bearer;       /* Authorization: Bearer; NULL: none */
    const char *ca_file;      /* PEM; NULL: the system's */
    const char *cert_file, *key_file; /* PEM, shown to an origin that asks; NULL: none */
    const _Atomic bool *stop; /* set by another thread: LQ_CANCELLED within a second */
};

struct fetch;

/* The process calls it once before it has threads. */
enum lq_err fetch_global_init(struct lq_fault *fault) LQ_MUST_CHECK;

/* Strings are borrowed until fetch_free(). LQ_USAGE: the URL. Connects to nothing yet. */
enum lq_err fetch_new(const struct fetch_opts *o, struct fetch **out, struct lq_fault *fault) LQ_MUST_CHECK;
void fetch_free(struct fetch *f);
/* The URL without its query, for people. */
const char *fetch_shown(const struct fetch *f);

/* Takes n bytes of the file at `at`; an error ends the fetch with it. */
typedef enum lq_err (*fetch_sink)(void *arg, uint64_t at, const void *p, size_t n, struct lq_fault *fault);

/* The bytes [from, end) to the sink, in order; an end beyond the file is the file's.
 * LQ_SHARD_DOWN: no answer, after all tries. LQ_BAD_ANSWER: what came is refused.
 * LQ_CANCELLED. What the sink took before an error stays good. */
enum lq_err fetch_range(struct fetch *f, uint64_t from, uint64_t end, fetch_sink sink, void *arg,
                        struct lq_fault *fault) LQ_MUST_CHECK;

/* The file as it was at the first answer; or what it must be from the first one on. */
const struct fetch_origin *fetch_origin(const struct fetch *f);
void fetch_expect(struct fetch *f, const struct fetch_origin *o);
/* An LQ_BAD_ANSWER was that: the file is another one now. */
bool fetch_changed(const struct fetch *f);
uint64_t fetch_bytes(const struct fetch *f); /* of bodies taken so far */

#endif
