/* run_report: what a run tells when it ends, and the dump of its logits. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/run.h"
#include "proto/bytes.h"

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_ms(const struct run *r)
{
    if (r->steps_n == 0)
        return 0.0;
    uint64_t *sorted = malloc(r->steps_n * sizeof *sorted);
    if (!sorted)
        return 0.0;
    memcpy(sorted, r->step_us, r->steps_n * sizeof *sorted);
    qsort(sorted, r->steps_n, sizeof *sorted, by_time);
    double ms = (double)sorted[r->steps_n / 2] / 1000.0;
    free(sorted);
    return ms;
}

static double per_second(size_t n, uint64_t us)
{
    return us ? (double)n * 1e6 / (double)us : 0.0;
}

static uint64_t decode_us(const struct run *r)
{
    uint64_t us = 0;
    for (size_t i = 0; i < r->steps_n; i++)
        us += r->step_us[i];
    return us;
}

void report_print(const struct run *r)
{
    fprintf(stderr, "prompt: %zu tokens, %.1f tok/s   made: %zu tokens, %.1f tok/s, %.2f ms/token   %s\n",
            r->prompt_n, per_second(r->prompt_n, r->prefill_us), r->made_n, per_second(r->steps_n, decode_us(r)),
            median_ms(r), compute_describe(r->compute));
    if (!r->remote)
        return;
    struct lq_ffn_stats s;
    lq_ffn_stats(r->remote, &s);
    fprintf(stderr,
            "ffn: %s   %llu calls, %.1f KB up, %.1f KB down   up f32/f16/i8: %llu/%llu/%llu   down: %llu/%llu/%llu\n",
            lq_ffn_url(r->remote), (unsigned long long)s.calls, (double)s.bytes_up / 1e3, (double)s.bytes_down / 1e3,
            (unsigned long long)s.f32_up_calls, (unsigned long long)s.f16_up_calls, (unsigned long long)s.i8_up_calls,
            (unsigned long long)s.f32_down_calls, (unsigned long long)s.f16_down_calls,
            (unsigned long long)s.i8_down_calls);
    if (s.range_fallbacks || s.saturated_values || s.retries)
        fprintf(stderr,
                "ffn: %llu calls in f32 since a value left f16's range, %llu values clipped by the server, %llu "
                "retries\n",
                (unsigned long long)s.range_fallbacks, (unsigned long long)s.saturated_values,
                (unsigned long long)s.retries);
}

static json_t *id_list(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

bool report_write(const struct run *r, const char *path)
{
    struct lq_ffn_stats s = {0};
    if (r->remote)
        lq_ffn_stats(r->remote, &s);
    json_t *o = json_pack(
        "{ss,ss,so,so,sI,sf,sf,sf,sI,sI,sI,s{sI,sI,sI},s{sI,sI,sI},sI,sI,sI,sf}", "model", r->arch.name, "ffn",
        r->remote ? lq_ffn_url(r->remote) : "local", "prompt_ids", id_list(r->prompt, r->prompt_n), "generated",
        id_list(r->made, r->made_n), "tokens_fed", (json_int_t)(r->prompt_n + r->steps_n), "prefill_tok_per_s",
        per_second(r->prompt_n, r->prefill_us), "decode_tok_per_s", per_second(r->steps_n, decode_us(r)),
        "decode_ms_per_token_p50", median_ms(r), "calls", (json_int_t)s.calls, "bytes_up", (json_int_t)s.bytes_up,
        "bytes_down", (json_int_t)s.bytes_down, "up_calls", "f32", (json_int_t)s.f32_up_calls, "f16",
        (json_int_t)s.f16_up_calls, "i8", (json_int_t)s.i8_up_calls, "down_calls", "f32",
        (json_int_t)s.f32_down_calls, "f16", (json_int_t)s.f16_down_calls, "i8", (json_int_t)s.i8_down_calls,
        "range_fallbacks", (json_int_t)s.range_fallbacks, "saturated_values", (json_int_t)s.saturated_values,
        "retries", (json_int_t)s.retries, "server_ms", s.server_ms);
    bool ok = o && json_dump_file(o, path, JSON_INDENT(1)) == 0;
    if (!ok)
        fprintf(stderr, "larql run: cannot write %s: %s\n", path, strerror(errno));
    json_decref(o);
    return ok;
}

/* ---- logits ------------------------------------------------------------------------------------- */

static bool write_head(struct run *r)
{
    uint8_t head[16] = {'L', 'Q', 'L', 'G'};
    le32_put(head + 4, 1);
    le32_put(head + 8, r->arch.vocab_n);
    le32_put(head + 12, r->logits_n);
    return fwrite(head, 1, sizeof head, r->logits_file) == sizeof head;
}

bool logits_open(struct run *r, const char *path)
{
    r->logits_file = fopen(path, "wb");
    if (r->logits_file && write_head(r))
        return true;
    fprintf(stderr, "larql run: cannot write %s: %s\n", path, strerror(errno));
    return false;
}

void logits_add(void *run, uint32_t pos, const float *logits)
{
    (void)pos; /* they come in order */
    struct run *r = run;
    r->logits_failed |= fwrite(logits, sizeof *logits, r->arch.vocab_n, r->logits_file) != r->arch.vocab_n;
    r->logits_n++;
}

bool logits_close(struct run *r)
{
    bool ok = !r->logits_failed && fseek(r->logits_file, 0, SEEK_SET) == 0 && write_head(r);
    ok &= fclose(r->logits_file) == 0;
    r->logits_file = NULL;
    if (!ok)
        fprintf(stderr, "larql run: cannot write %s: %s\n", r->o->logits_path, strerror(errno));
    return ok;
}
