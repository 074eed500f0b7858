/* err: the one table of errors of the grid.
 * Why  : router, shard, client and tools map a failure to the same HTTP status
 *        and the same word, so that they cannot disagree (docs/protocol.md, 4).
 * Use  : every fallible function returns enum lq_err, LQ_OK = 0, and fills an
 *        optional caller-owned struct lq_fault with one sentence for people. */
#ifndef LQ_PROTO_ERR_H
#define LQ_PROTO_ERR_H

#include <stddef.h>

#define LQ_MUST_CHECK __attribute__((warn_unused_result))
#define LQ_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* X(name, HTTP status, word in logs and metrics) */
#define LQ_ERR_MAP(X)                                                                                                \
    X(OK, 200, "ok")                                                                                                 \
    X(BAD_FRAMING, 400, "bad_framing")                                                                               \
    X(SLOW_REQUEST, 408, "slow_request")                                                                             \
    X(BIG_HEADERS, 431, "big_headers")                                                                               \
    X(NO_PATH, 404, "no_path")                                                                                       \
    X(BAD_METHOD, 405, "bad_method")                                                                                 \
    X(NO_KEY, 401, "no_key")                                                                                         \
    X(WRONG_KEY, 401, "wrong_key")                                                                                   \
    X(FORBIDDEN, 403, "forbidden")                                                                                   \
    X(TOO_MANY, 429, "too_many")                                                                                     \
    X(NOT_READY, 503, "not_ready")                                                                                   \
    X(BAD_EXPECT, 417, "bad_expect")                                                                                 \
    X(BAD_RANGE, 416, "bad_range")                                                                                   \
    X(BIG_BODY, 413, "big_body")                                                                                     \
    X(BAD_MEDIA, 415, "bad_media")                                                                                   \
    X(BAD_JSON, 400, "bad_json")                                                                                     \
    X(BAD_BODY, 400, "bad_body")                                                                                     \
    X(BAD_LAYER, 400, "bad_layer")                                                                                   \
    X(NO_MODEL, 400, "no_model")                                                                                     \
    X(BIG_ANSWER, 413, "big_answer")                                                                                 \
    X(QUEUE_FULL, 503, "queue_full")                                                                                 \
    X(NOT_FINITE, 500, "not_finite")                                                                                 \
    X(NOMEM, 503, "nomem")                                                                                           \
    X(BAD_ANSWER, 502, "bad_answer")                                                                                 \
    X(SHARD_DOWN, 502, "shard_down")                                                                                 \
    X(DEADLINE, 504, "deadline")                                                                                     \
    X(CANCELLED, 499, "cancelled")                                                                                   \
    X(BAD_MODEL, 500, "bad_model")                                                                                   \
    X(UNSUPPORTED, 500, "unsupported")                                                                               \
    X(IO, 500, "io")                                                                                                 \
    X(USAGE, 500, "usage")                                                                                           \
    X(INTERNAL, 500, "internal")

#define X(name, http, word) LQ_##name,
enum lq_err { LQ_ERR_MAP(X) LQ_ERRS_N };
#undef X

#define LQ_NO_BYTE ((size_t)-1)

struct lq_fault {
    enum lq_err code;
    size_t at_byte; /* offset in the body or file; LQ_NO_BYTE: none */
    char text[512]; /* one sentence, always terminated; long ones are cut */
};

/* The HTTP status (499 never leaves the process) and the word of a code. */
int lq_err_status(enum lq_err code);
const char *lq_err_word(enum lq_err code);
/* The first code of that HTTP status; LQ_BAD_ANSWER (502) for one the table lacks:
 * how an error of a peer is passed on. */
enum lq_err lq_err_of_status(int status);

/* Fills *f (NULL is fine) and returns code, so that `return lq_fail(...)` reads
 * as what it does. */
enum lq_err lq_fail(struct lq_fault *f, enum lq_err code, const char *fmt, ...) LQ_PRINTF(3, 4);
enum lq_err lq_fail_at(struct lq_fault *f, enum lq_err code, size_t at_byte, const char *fmt, ...) LQ_PRINTF(4, 5);

#endif
