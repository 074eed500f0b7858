/* report: the rows of a bench program, as a table for people or, with --json, as one
 * array on stdout for bench/run.py: {"bench","case","value","bar","better","unit","ok",
 * "note"}. A program makes one report and returns report_end() from main. */
#ifndef LQ_BENCH_SUPPORT_REPORT_H
#define LQ_BENCH_SUPPORT_REPORT_H

#include <math.h>

enum report_better { REPORT_LOWER, REPORT_HIGHER };
#define REPORT_NO_BAR NAN

/* argv: nothing, or --json; else the program ends with status 2. */
void report_begin(const char *bench, int argc, char **argv);

/* One row; bar REPORT_NO_BAR where there is none to reach. note: printf style, "" for none;
 * none of the texts may hold a quote, a backslash or a control character. */
void report_row(const char *what, double value, double bar, enum report_better better, const char *unit,
                const char *note, ...) __attribute__((format(printf, 6, 7)));

/* Says that the program could not measure: what is to be read on stderr, and fails. */
void report_fail(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* 0, or 1 after report_fail(). A missed bar is a result, not a failure. */
int report_end(void);

#endif
