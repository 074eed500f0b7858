/* bench_baseline: see bench_baseline.h. */
#include "client/bench_baseline.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"

enum { FILE_BYTES_MAX = 64 << 20 };

/* Values were written with nine digits. */
#define ROUNDING 1e-7

enum lq_err baseline_ratios_parse(const char *text, struct baseline_ratios *to, struct lq_fault *fault)
{
    const struct {
        const char *name;
        double *to;
    } known[] = {{"bytes=", &to->bytes}, {"agreement=", &to->agreement}, {"kl=", &to->kl}, {"ms=", &to->ms}};
    for (const char *p = text;; p++) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strncmp(p, known[i].name, strlen(known[i].name)) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            return lq_fail(fault, LQ_USAGE, "ratios '%.60s': use bytes=, agreement=, kl= and ms=, commas between",
                           text);
        char *end;
        const char *digits = p + strlen(known[i].name);
        double v = strtod(digits, &end);
        if (end == digits || (*end && *end != ',') || !(v > 0) || !isfinite(v))
            return lq_fail(fault, LQ_USAGE, "ratios '%.60s': '%.20s' needs a number above 0", text, p);
        *known[i].to = v;
        p = end;
        if (!*p)
            return LQ_OK;
    }
}

enum lq_err baseline_read(const char *path, const char *ratios, struct baseline *out, struct lq_fault *fault)
{
    char *text;
    size_t n;
    json_error_t error;
    const char *schema = NULL;
    json_int_t version = 0;
    *out = (struct baseline){.ratios = {.bytes = 1, .agreement = 0.99, .kl = 2}};
    enum lq_err rc = ratios ? baseline_ratios_parse(ratios, &out->ratios, fault) : LQ_OK;
    if (!rc)
        rc = file_read(path, FILE_BYTES_MAX, &text, &n, fault);
    if (rc)
        return rc;
    out->then = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!out->then || json_unpack_ex(out->then, &error, 0, "{ss,sI}", "schema", &schema, "version", &version) != 0)
        return lq_fail(fault, LQ_USAGE, "%s is no result of larql bench: %s", path, error.text);
    if (strcmp(schema, "larql-bench") != 0 || version != 1)
        return lq_fail(fault, LQ_USAGE, "%s is no result of larql bench that this program reads (version 1)", path);
    return LQ_OK;
}

void baseline_release(struct baseline *b)
{
    json_decref(b->then);
    b->then = NULL;
}

static const json_t *format_named(const json_t *result, const char *name)
{
    const json_t *list = json_object_get(result, "formats");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *f = json_array_get(list, i);
        const char *s = json_string_value(json_object_get(f, "wire"));
        if (s && strcmp(s, name) == 0)
            return f;
    }
    return NULL;
}

struct comparison {
    const char *wire;
    const json_t *then, *now;
    FILE *to;
    size_t worse_n;
};

/* ratio below or above 1 of what `then` held; a figure that was one and is none now (null) is worse. */
static void figure(struct comparison *c, const char *group, const char *name, double ratio, bool more_is_better,
                   double floor)
{
    const json_t *then = json_object_get(json_object_get(c->then, group), name),
                 *now = json_object_get(json_object_get(c->now, group), name);
    if (!json_is_number(then) || !now)
        return;
    double was = json_number_value(then), is = json_is_number(now) ? json_number_value(now) : NAN;
    double bar = ratio * (was > floor ? was : floor), slack = ROUNDING * fabs(bar);
    if (more_is_better ? is >= bar - slack : is <= bar + slack)
        return;
    c->worse_n++;
    fprintf(c->to, "larql bench: baseline: %s %s.%s is %.6g, was %.6g: %s %.6g is allowed\n", c->wire, group, name,
            is, was, more_is_better ? "not below" : "at most", bar);
}

static bool same(const json_t *a, const json_t *b, const char *name)
{
    const json_t *x = json_object_get(a, name), *y = json_object_get(b, name);
    return x && y && json_equal(x, y);
}

enum lq_err baseline_compare(const struct baseline *b, const json_t *now, FILE *to, size_t *worse_n,
                             struct lq_fault *fault)
{
    const struct baseline_ratios *r = &b->ratios;
    const json_t *list = json_object_get(b->then, "formats");
    *worse_n = 0;
    if (!same(b->then, now, "model") || !same(b->then, now, "input"))
        return lq_fail(fault, LQ_USAGE,
                       "the baseline is of another model or other tokens: their results do not compare");
    if (json_array_size(list) == 0)
        return lq_fail(fault, LQ_USAGE, "the baseline holds no formats");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *then = json_array_get(list, i);
        const char *wire = json_string_value(json_object_get(then, "wire"));
        struct comparison c = {.wire = wire, .then = then, .to = to, .now = wire ? format_named(now, wire) : NULL};
        if (!c.now)
            return lq_fail(fault, LQ_USAGE, "the baseline holds %.40s, which was not run: name it in --wire",
                           wire ? wire : "a format without a name");
        figure(&c, "bytes_per_token", "up", r->bytes, false, 0);
        figure(&c, "bytes_per_token", "down", r->bytes, false, 0);
        figure(&c, "agreement", "top1", r->agreement, true, 0);
        if (same(b->then, now, "topk")) {
            figure(&c, "agreement", "top5", r->agreement, true, 0);
            figure(&c, "agreement", "topk", r->agreement, true, 0);
        }
        figure(&c, "kl", "mean", r->kl, false, BASELINE_KL_FLOOR);
        if (r->ms > 0)
            figure(&c, "ms_per_token", "p50", r->ms, false, 0);
        *worse_n += c.worse_n;
    }
    return LQ_OK;
}
