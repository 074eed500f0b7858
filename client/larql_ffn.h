/* larql_ffn: run a model's feed-forward layers on a larql grid, from C.
 *
 *     struct lq_ffn *f;
 *     char why[LQ_WHY_BYTES];
 *     if (lq_ffn_connect("http://127.0.0.1:9090", NULL, &f, why) != LQ_FFN_OK) ...
 *     lq_ffn_forward(f, layer, x, rows_n, out, why);   // x, out: rows_n * hidden
 *     lq_ffn_close(f);
 *
 * x is the input of the FFN (after its norm), out the raw output (before any post
 * norm and before the residual add). A failed call fills `why` with layer, URL
 * and reason, and leaves out untouched: nothing is ever made up.
 * Thread: one lq_ffn per thread. Link: -llarql_ffn (pkg-config larql_ffn). */
#ifndef LARQL_FFN_H
#define LARQL_FFN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LQ_FFN_VERSION_MAJOR 0
#define LQ_FFN_VERSION_MINOR 1
#define LQ_FFN_VERSION_PATCH 0

enum { LQ_WHY_BYTES = 512 };

enum lq_ffn_rc {
    LQ_FFN_OK = 0,
    LQ_FFN_USAGE,       /* bad argument, bad URL, bad environment value */
    LQ_FFN_UNREACHABLE, /* no connection, connection lost, deadline */
    LQ_FFN_REFUSED,     /* the server answered with an error status */
    LQ_FFN_BAD_ANSWER,  /* an answer that does not fit the question */
    LQ_FFN_NOT_FINITE,  /* x holds NaN or Inf: nothing was sent */
    LQ_FFN_NOMEM
};

enum lq_ffn_wire { LQ_FFN_WIRE_F32, LQ_FFN_WIRE_F16, LQ_FFN_WIRE_I8 };

struct lq_ffn_opts {
    enum lq_ffn_wire wire; /* wanted both ways; what the server lists decides (docs/protocol.md, 3) */
    uint64_t deadline_ms;  /* one call; 30000 */
    uint64_t connect_ms;   /* 1000 */
    uint64_t busy_poll_us; /* 0; poll so long for an answer before sleeping: saves a wake-up a call, costs the core */
    /* The key that the server wants, itself or by the path of a file whose first it is (which
     * wins); both NULL: none. Never in `why`, never in a log. */
    const char *api_key_file, *api_key;
    /* https://: PEM files. Whom to trust (NULL: the system's), and what is shown to a server that
     * asks for a client's certificate (both or none). Read once, by lq_ffn_connect(). */
    const char *tls_ca, *tls_cert, *tls_key;
    /* Which model of a grid that has several (X-Larql-Model); NULL: its only one. */
    const char *model_id;
};

/* Defaults: f16, or f32 with LARQL_F16_WIRE=0, or i8 with LARQL_I8_WIRE=1; api_key is
 * LARQL_API_KEY's, where that is set. */
void lq_ffn_opts_init(struct lq_ffn_opts *o);

struct lq_ffn;

/* Reads /v1/stats: hidden size, layers, wire formats. o NULL: the defaults. */
enum lq_ffn_rc lq_ffn_connect(const char *url, const struct lq_ffn_opts *o, struct lq_ffn **out, char *why);
void lq_ffn_close(struct lq_ffn *f);

uint32_t lq_ffn_hidden(const struct lq_ffn *f);
uint32_t lq_ffn_layers(const struct lq_ffn *f);
const char *lq_ffn_url(const struct lq_ffn *f);
const char *lq_ffn_model(const struct lq_ffn *f);

/* The format of the calls from now on, as lq_ffn_opts.wire: for programs that choose it layer
 * by layer (`larql run --wire-policy`). LQ_FFN_USAGE: no such format. */
enum lq_ffn_rc lq_ffn_set_wire(struct lq_ffn *f, enum lq_ffn_wire wire);

/* A call whose connection is lost, or that is told 503 with Retry-After, is sent again, with
 * pauses, for up to 10 s and never past its deadline: a router may be restarted meanwhile.
 * out[rows_n * hidden] = FFN of `layer` on x[rows_n * hidden]. */
enum lq_ffn_rc lq_ffn_forward(struct lq_ffn *f, uint32_t layer, const float *x, uint32_t rows_n, float *out,
                              char *why);
/* One shared x through several layers: out[layers_n * rows_n * hidden], in the order asked. */
enum lq_ffn_rc lq_ffn_forward_batch(struct lq_ffn *f, const uint32_t *layers, uint32_t layers_n, const float *x,
                                    uint32_t rows_n, float *out, char *why);

struct lq_ffn_stats {
    uint64_t calls, bytes_up, bytes_down; /* bodies, not headers */
    uint64_t f32_up_calls, f16_up_calls, i8_up_calls;
    uint64_t f32_down_calls, f16_down_calls, i8_down_calls;
    uint64_t range_fallbacks;  /* calls sent in f32 since |x| > 65504 */
    uint64_t saturated_values; /* values that the server says it clipped (X-Larql-Saturated) */
    uint64_t retries;
    double server_ms; /* sum of the answers' latency_ms */
};
void lq_ffn_stats(const struct lq_ffn *f, struct lq_ffn_stats *out);

const char *lq_ffn_version(void);

#ifdef __cplusplus
}
#endif
#endif
