/* bench_plot: one SVG of its own (no script, no font file, no link) in three panels:
 *
 *   latency: share of tokens done within so many ms | bytes per token, up and down
 *   agreement by step: KL from f32, and where the first choice differs
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/bench.h"
#include "client/quantile.h"
#include "common/file.h"

enum { WIDTH = 960, HEIGHT = 700, BINS_MAX = 800, CURVE_POINTS = 200 };

#define KL_FLOOR 1e-9

struct panel {
    double x, y, w, h; /* of the plotted area, in pixels */
};

static const struct panel latency_panel = {70, 110, 510, 230}, bytes_panel = {670, 110, 260, 230},
                          kl_panel = {70, 430, 860, 200};

/* Told apart by people who see fewer colours too (Okabe and Ito's set), f32 grey. */
static const char *colour(size_t column)
{
    static const char *const colours[] = {"#555555", "#0072b2", "#d55e00", "#009e73",
                                          "#cc79a7", "#e69f00", "#56b4e9"};
    return colours[column % (sizeof colours / sizeof *colours)];
}

/* Names come from files and URLs. */
static void put_text(FILE *f, const char *s)
{
    for (; *s; s++)
        if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '<')
            fputs("&lt;", f);
        else
            fputc(*s < ' ' || *s > '~' ? '?' : *s, f);
}

static void text_at(FILE *f, double x, double y, const char *anchor, const char *style, const char *s)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, style);
    put_text(f, s);
    fputs("</text>\n", f);
}

static void line_at(FILE *f, double x1, double y1, double x2, double y2, const char *style)
{
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

static void frame(FILE *f, const struct panel *p, const char *title, const char *below)
{
    text_at(f, p->x, p->y - 14, "start", "font-size=\"15\" font-weight=\"bold\"", title);
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#999999\"/>\n",
            p->x, p->y, p->w, p->h);
    text_at(f, p->x + p->w / 2, p->y + p->h + 38, "middle", "font-size=\"13\"", below);
}

static void y_tick(FILE *f, const struct panel *p, double y, const char *label)
{
    line_at(f, p->x, y, p->x + p->w, y, "stroke=\"#e3e3e3\"");
    text_at(f, p->x - 6, y + 4, "end", "", label);
}

static void x_tick(FILE *f, const struct panel *p, double x, const char *label)
{
    line_at(f, x, p->y + p->h, x, p->y + p->h + 4, "stroke=\"#999999\"");
    text_at(f, x, p->y + p->h + 18, "middle", "", label);
}

/* The next of 1, 2, 5, 10, ... from v up. */
static double nice(double v)
{
    double tens = pow(10, floor(log10(v))), digit = v / tens;
    return tens * (digit <= 1 + 1e-9 ? 1 : digit <= 2 + 1e-9 ? 2 : digit <= 5 + 1e-9 ? 5 : 10);
}

/* ---- latency --------------------------------------------------------------------------------- */

static bool draw_latency(const struct bench *b, FILE *f)
{
    const struct panel *p = &latency_panel;
    size_t n = b->workers_n * b->steps_n;
    double least = DBL_MAX, most = 0, *sorted = malloc(n * sizeof *sorted);
    char label[32];
    if (!sorted)
        return false;
    for (size_t i = 0; i < b->columns_n; i++)
        for (size_t k = 0; k < n; k++) {
            least = b->columns[i].ms[k] < least ? b->columns[i].ms[k] : least;
            most = b->columns[i].ms[k] > most ? b->columns[i].ms[k] : most;
        }
    least = least < 1e-3 ? 0.95e-3 : least * 0.95;
    most = most < 2 * least ? 2 * least : most * 1.05;
    double scale = p->w / log(most / least);
    frame(f, p, "Latency: tokens done within so many ms", "ms per token (logarithmic)");
    for (int percent = 0; percent <= 100; percent += 25) {
        snprintf(label, sizeof label, "%d %%", percent);
        y_tick(f, p, p->y + p->h * (1 - percent / 100.0), label);
    }
    double last_x = -100;
    double step = nice((most - least) / 7); /* close together: even steps; else 1, 2, 5, 10, ... */
    bool even = most < 6 * least;
    for (double v = even ? ceil(least / step) * step : nice(least); v <= most; v = even ? v + step : nice(v * 1.01)) {
        double x = p->x + scale * log(v / least);
        snprintf(label, sizeof label, "%g", v);
        if (x - last_x >= 40)
            x_tick(f, p, x, label), last_x = x;
    }
    for (size_t i = 0; i < b->columns_n; i++) {
        memcpy(sorted, b->columns[i].ms, n * sizeof *sorted);
        (void)quantile(sorted, n, 0);
        size_t points = n < CURVE_POINTS ? n : CURVE_POINTS;
        double x = p->x + scale * log((sorted[0] > least ? sorted[0] : least) / least), y = p->y + p->h;
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%.1f,%.1f ", colour(i), x, y);
        for (size_t k = 1; k <= points; k++) {
            double ms = sorted[k * n / points - 1];
            x = p->x + scale * log((ms > least ? ms : least) / least);
            fprintf(f, "%.1f,%.1f ", x, y); /* a step: right, then up */
            y = p->y + p->h * (1 - (double)k / (double)points);
            fprintf(f, "%.1f,%.1f ", x, y);
        }
        fputs("\"/>\n", f);
    }
    free(sorted);
    return true;
}

/* ---- bytes ------------------------------------------------------------------------------------- */

static void draw_bytes(const struct bench *b, FILE *f)
{
    const struct panel *p = &bytes_panel;
    double per = 1e3 * (double)(b->workers_n * b->steps_n), most = 0, kb;
    double slot = p->w / (double)b->columns_n, wide = slot * 0.36;
    char label[32];
    for (size_t i = 0; i < b->columns_n; i++) {
        const struct bench_column *c = &b->columns[i];
        kb = (double)(c->bytes_up > c->bytes_down ? c->bytes_up : c->bytes_down) / per;
        most = kb > most ? kb : most;
    }
    double top = nice(most > 0 ? most * 1.05 : 1);
    frame(f, p, "KB per token", "up: full colour, down: pale");
    for (int i = 0; i <= 4; i++) {
        snprintf(label, sizeof label, "%g", top * i / 4);
        y_tick(f, p, p->y + p->h * (1 - i / 4.0), label);
    }
    for (size_t i = 0; i < b->columns_n; i++) {
        const struct bench_column *c = &b->columns[i];
        const uint64_t ways[] = {c->bytes_up, c->bytes_down};
        for (size_t way = 0; way < 2; way++) {
            kb = (double)ways[way] / per;
            double h = p->h * kb / top, x = p->x + slot * ((double)i + 0.12 + 0.4 * (double)way);
            fprintf(f,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" fill-opacity=\"%s\"/>\n",
                    x, p->y + p->h - h, wide, h, colour(i), way == 0 ? "1" : "0.5");
            snprintf(label, sizeof label, kb < 99.95 && b->columns_n <= 3 ? "%.1f" : "%.0f", kb);
            text_at(f, x + wide / 2, p->y + p->h - h - 4, "middle", "font-size=\"11\"", label);
        }
        x_tick(f, p, p->x + slot * ((double)i + 0.5), c->name);
    }
}

/* ---- agreement ----------------------------------------------------------------------------------- */

static double kl_y(double kl, double most)
{
    double v = kl > KL_FLOOR ? kl : KL_FLOOR, share = log10(v / KL_FLOOR) / log10(most / KL_FLOOR);
    return kl_panel.y + kl_panel.h * (1 - (share < 1 ? share : 1));
}

static void draw_points(const struct bench *b, size_t column, size_t bins, double most, FILE *f)
{
    const struct bench_column *c = &b->columns[column];
    for (size_t i = 0; i < bins; i++) {
        size_t first = i * b->steps_n / bins, end = (i + 1) * b->steps_n / bins;
        double worst = 0;
        bool missed = false;
        for (size_t k = first; k < end; k++) {
            worst = c->kl[k] <= worst ? worst : c->kl[k]; /* NaN is the worst */
            missed |= !c->top1[k];
        }
        double x = kl_panel.x + kl_panel.w * ((double)i + 0.5) / (double)bins,
               y = kl_y(isnan(worst) ? most : worst, most);
        if (missed)
            fprintf(f, "<path d=\"M%.1f %.1fl8 8m0 -8l-8 8\" stroke=\"%s\" stroke-width=\"2\"/>\n", x - 4, y - 4,
                    colour(column));
        else
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\"/>\n", x, y, bins < 100 ? "3" : "1.8",
                    colour(column));
    }
}

static void draw_agreement(const struct bench *b, FILE *f)
{
    const struct panel *p = &kl_panel;
    size_t bins = b->steps_n < BINS_MAX ? b->steps_n : BINS_MAX;
    double most = 1e-1;
    char label[96];
    for (size_t i = 1; i < b->columns_n; i++)
        for (size_t k = 0; k < b->steps_n; k++)
            while (b->columns[i].kl[k] > most && most < 1e6)
                most *= 10;
    snprintf(label, sizeof label, bins < b->steps_n ? "step (%zu, the worst of each %.1f)" : "step", b->steps_n,
             (double)b->steps_n / (double)bins);
    frame(f, p, "Agreement by step: KL from f32 in nats (logarithmic); a cross: another first choice", label);
    for (double v = KL_FLOOR; v <= most * 1.01; v *= 100) {
        snprintf(label, sizeof label, "%.0e", v);
        y_tick(f, p, kl_y(v, most), label);
    }
    double y = kl_y(BENCH_KL_MAX, most), step = nice((double)b->steps_n / 10.0 > 1 ? (double)b->steps_n / 10.0 : 1);
    line_at(f, p->x, y, p->x + p->w, y, "stroke=\"#999999\" stroke-dasharray=\"6 4\"");
    snprintf(label, sizeof label, "dashed: bar of the mean, %g", BENCH_KL_MAX);
    text_at(f, p->x + p->w, p->y + p->h + 38, "end", "fill=\"#666666\"", label);
    for (double at = 0; at < (double)b->steps_n; at += step) {
        snprintf(label, sizeof label, "%.0f", at);
        x_tick(f, p, p->x + p->w * (at + 0.5) / (double)b->steps_n, label);
    }
    for (size_t i = 1; i < b->columns_n; i++)
        draw_points(b, i, bins, most, f);
}

static void draw_head(const struct bench *b, FILE *f)
{
    char title[256];
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" "
            "height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    snprintf(title, sizeof title, "larql bench: %.100s, %zu steps, %zu at once", b->arch.name, b->steps_n,
             b->workers_n);
    text_at(f, 24, 34, "start", "font-size=\"18\" font-weight=\"bold\"", title);
    for (size_t i = 0; i < b->columns_n; i++) {
        double x = 24 + 90 * (double)i;
        fprintf(f, "<rect x=\"%.1f\" y=\"50\" width=\"22\" height=\"12\" fill=\"%s\"/>\n", x, colour(i));
        text_at(f, x + 28, 61, "start", "font-size=\"14\"", b->columns[i].name);
    }
}

enum lq_err bench_plot(const struct bench *b, const char *path, struct lq_fault *fault)
{
    char *svg = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&svg, &n);
    bool ok = f != NULL;
    if (ok) {
        draw_head(b, f);
        ok = draw_latency(b, f);
        draw_bytes(b, f);
        draw_agreement(b, f);
        fputs("</svg>\n", f);
        ok &= ferror(f) == 0;
        ok &= fclose(f) == 0;
    }
    enum lq_err rc =
        ok ? file_output(path, svg, n, fault) : lq_fail(fault, LQ_NOMEM, "out of memory for %s", path);
    free(svg);
    return rc;
}
