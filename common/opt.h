/* opt: a program's options as one table, from which parsing (getopt_long),
 * --help, environment names, range checks and the man page come.
 * Each program adds --help and --version; a wrong word gives exit code 2. */
#ifndef LQ_COMMON_OPT_H
#define LQ_COMMON_OPT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/err.h"

enum opt_kind { OPT_FLAG, OPT_INT, OPT_REAL, OPT_TEXT };

struct opt {
    const char *name; /* long name; one spelling in flags, logs, metrics */
    char letter;      /* short form, 0: none */
    enum opt_kind kind;
    const char *value_name; /* in --help: "PORT"; NULL for flags */
    const char *env;        /* environment variable read when the flag is absent, or NULL */
    const char *help;       /* one line; names the default where there is one */
    double min, max;        /* OPT_INT, OPT_REAL */
    void *to;               /* bool*, int64_t*, double*, const char**; holds the default before */
};

struct opt_program {
    const char *name;     /* "larql-shard" */
    const char *synopsis; /* "MODEL --layers A-B [options]" */
    const char *about;    /* a few sentences, wrapped by hand */
    const char *examples; /* shown last; may be NULL */
    const struct opt *opts;
    int opts_n;
    int args_min, args_max; /* positional arguments */
};

enum opt_result { OPT_RUN, OPT_EXIT_OK, OPT_EXIT_USAGE };

/* Parses argv; *args points at the first of *args_n positional arguments (argv is
 * permuted). Prints help or version to stdout, a usage error to stderr with the
 * option, the value and what is allowed. */
enum opt_result opt_parse(const struct opt_program *p, int argc, char **argv, char ***args, int *args_n);

/* Hidden option --help-man: the table as roff, for docs/man. */

#endif
