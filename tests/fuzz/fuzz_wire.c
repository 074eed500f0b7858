/* fuzz_wire: everything that reads bytes of the wire. The first byte chooses the reader.
 * Property: what was decoded encodes to the same bytes again, where the format says so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cpu.h"
#include "proto/negotiate.h"
#include "proto/wire_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HIDDEN = 6, VALUES_MAX = 1 << 16 };

static struct codec_ops codec;

static void require(int ok)
{
    if (!ok)
        abort();
}

static void read_request(const uint8_t *p, size_t n, enum wire_format f)
{
    struct wire_head h;
    struct lq_fault fault;
    size_t values_n, more_n;
    for (size_t have = 0; have < n && have < 64; have++) /* a head that comes in pieces */
        if (wire_head_decode(p, have, n, &h, &more_n, &fault) != LQ_OK)
            break;
    if (wire_head_decode(p, n, n, &h, NULL, &fault) != LQ_OK ||
        wire_payload_check(f, h.seq_len, HIDDEN, n - h.payload_at, &values_n, &fault) != LQ_OK ||
        values_n > VALUES_MAX)
        return;
    require(h.layers_n >= 1 && h.payload_at <= n);
    float *x = malloc(values_n * sizeof *x + 1), *y = malloc(values_n * sizeof *y + 1);
    uint8_t *again = malloc(n - h.payload_at + 1);
    if (wire_payload_decode(&codec, f, p + h.payload_at, h.seq_len, HIDDEN, x, "residual", &fault) == LQ_OK) {
        require(codec.finite(x, values_n) == values_n);
        wire_payload_encode(&codec, f, x, h.seq_len, HIDDEN, again);
        if (f == WIRE_I8) { /* a second round changes nothing more */
            require(wire_payload_decode(&codec, f, again, h.seq_len, HIDDEN, y, "residual", &fault) == LQ_OK);
        } else {
            require(memcmp(again, p + h.payload_at, n - h.payload_at) == 0);
        }
    }
    free(x);
    free(y);
    free(again);
}

static void read_answer(const uint8_t *p, size_t n, enum wire_format f)
{
    static const uint32_t layers[3] = {1, 2, 3};
    float out[3 * 2 * HIDDEN], ms;
    for (uint32_t k = 1; k <= 3; k++)
        for (uint32_t seq = 1; seq <= 2; seq++)
            if (wire_answer_decode(&codec, f, p, n, layers, k, seq, HIDDEN, out, &ms, NULL) == LQ_OK)
                require(codec.finite(out, (size_t)k * seq * HIDDEN) == (size_t)k * seq * HIDDEN);
}

static void read_json(const char *p, size_t n)
{
    struct wire_json_request r;
    struct lq_fault fault;
    size_t bytes;
    if (wire_json_request_decode(p, n, &r, &fault) == LQ_OK) {
        require(r.layers_n >= 1 && r.layers_n <= WIRE_LAYERS_MAX);
        if (wire_json_residual_check(&r, HIDDEN, &fault) == LQ_OK) {
            char *again = wire_json_request_encode(&r, r.layers, r.layers_n, &bytes);
            struct wire_json_request same;
            require(again && wire_json_request_decode(again, bytes, &same, &fault) == LQ_OK);
            require(same.residual_n == r.residual_n && same.layers_n == r.layers_n);
            for (size_t i = 0; i < r.residual_n; i++)
                require(same.residual[i] == r.residual[i]);
            wire_json_request_release(&same);
            free(again);
        }
        wire_json_request_release(&r);
    }
    const uint32_t layer = 3;
    const struct wire_json_part part = {p, n, &layer, 1, "http://x"};
    char *merged, text[64];
    if (wire_json_merge(&layer, 1, &part, 1, &merged, &bytes, &fault) == LQ_OK)
        free(merged);
    wire_json_error_text(p, n, text, sizeof text);
}

static void read_headers(const char *p, size_t n)
{
    char *type = strndup(p, n), *accept = strchr(type, '\n');
    const struct wire_switches all = {.f16_on = true, .i8_on = true};
    struct negotiated out;
    enum wire_format f;
    if (accept)
        *accept++ = '\0';
    if (negotiate(type, accept, &all, &out, NULL) == LQ_OK)
        require(out.answer < WIRE_FORMATS_N && out.body < WIRE_FORMATS_N);
    (void)!negotiate_answer(type, &f, NULL);
    free(type);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!codec.name)
        codec_init(&codec, cpu_detect());
    if (size == 0)
        return 0;
    unsigned what = data[0] % 8;
    uint8_t *p = malloc(size); /* exact size: a read past the end is seen */
    memcpy(p, data + 1, size - 1);
    if (what < 3)
        read_request(p, size - 1, (enum wire_format)what);
    else if (what < 6)
        read_answer(p, size - 1, (enum wire_format)(what - 3));
    else if (what == 6)
        read_json((const char *)p, size - 1);
    else
        read_headers((const char *)p, size - 1);
    free(p);
    return 0;
}
