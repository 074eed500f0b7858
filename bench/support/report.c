/* report: see report.h. */
#include "bench/support/report.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *bench;
    bool json, failed;
    int rows_n;
} report;

void report_begin(const char *bench, int argc, char **argv)
{
    report.bench = bench;
    report.json = argc == 2 && strcmp(argv[1], "--json") == 0;
    if (argc > 1 && !report.json) {
        fprintf(stderr, "usage: %s [--json]\n", argv[0]);
        exit(2);
    }
    if (report.json)
        putchar('[');
    fflush(stdout); /* else a child that the program forks has it too */
}

void report_row(const char *what, double value, double bar, enum report_better better, const char *unit,
                const char *note, ...)
{
    char text[200];
    va_list args;
    va_start(args, note);
    vsnprintf(text, sizeof text, note, args);
    va_end(args);
    bool ok = isnan(bar) || (better == REPORT_LOWER ? value <= bar : value >= bar);
    if (report.json) {
        printf("%s\n{\"bench\":\"%s\",\"case\":\"%s\",\"value\":%.6g,\"bar\":", report.rows_n ? "," : "",
               report.bench, what, value);
        printf(isnan(bar) ? "null" : "%g", bar);
        printf(",\"better\":\"%s\",\"unit\":\"%s\",\"ok\":%s,\"note\":\"%s\"}",
               better == REPORT_LOWER ? "lower" : "higher", unit, ok ? "true" : "false", text);
    } else {
        char limit[32] = "";
        if (!isnan(bar))
            snprintf(limit, sizeof limit, "%s %g", better == REPORT_LOWER ? "<=" : ">=", bar);
        printf("%-44s %10.4g %-6s %-8s %-6s %s\n", what, value, unit, limit,
               isnan(bar) ? ""
               : ok       ? "ok"
                          : "MISSED",
               text);
    }
    fflush(stdout);
    report.rows_n++;
}

void report_fail(const char *why, ...)
{
    va_list args;
    va_start(args, why);
    fprintf(stderr, "%s: ", report.bench);
    vfprintf(stderr, why, args);
    fputc('\n', stderr);
    va_end(args);
    report.failed = true;
}

int report_end(void)
{
    if (report.json)
        puts("\n]");
    return report.failed;
}
