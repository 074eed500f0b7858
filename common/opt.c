/* opt: see opt.h. */
#include "common/opt.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

enum { OPTS_MAX = 64, KEY_FIRST = 256 /* above every short letter */ };
enum { KEY_HELP = 1000, KEY_VERSION, KEY_MAN };

static void print_column(const struct opt *o)
{
    char left[80];
    int n = snprintf(left, sizeof left, "  %s%c%s--%s%s%s", o->letter ? "-" : "  ", o->letter ? o->letter : ' ',
                     o->letter ? ", " : " ", o->name, o->value_name ? " " : "", o->value_name ? o->value_name : "");
    printf("%-34s%s%s", left, n >= 33 ? "\n                                  " : "", o->help);
    if (o->env)
        printf(" [%s]", o->env);
    putchar('\n');
}

static void print_help(const struct opt_program *p)
{
    printf("Usage: %s %s\n\n%s\n\nOptions:\n", p->name, p->synopsis, p->about);
    for (int i = 0; i < p->opts_n; i++)
        print_column(&p->opts[i]);
    print_column(&(struct opt){.name = "help", .letter = 'h', .help = "print this and exit"});
    print_column(&(struct opt){.name = "version", .letter = 'V', .help = "print the version and exit"});
    if (p->examples)
        printf("\nExamples:\n%s\n", p->examples);
}

/* roff has two characters that would be read as commands or breaks. */
static void print_roff(const char *s)
{
    bool at_start = true;
    for (; *s; s++) {
        if (at_start && (*s == '.' || *s == '\''))
            fputs("\\&", stdout);
        if (*s == '-')
            putchar('\\');
        fputs(*s == '\\' ? "\\e" : (char[]){*s, 0}, stdout);
        at_start = *s == '\n';
    }
}

static void print_man(const struct opt_program *p)
{
    char page[64];
    snprintf(page, sizeof page, "%s", p->name);
    for (char *c = page; *c; c++) /* a sub-command's page is larql-run(1) */
        if (*c == ' ')
            *c = '-';
    printf(".TH %s 1 \"\" \"larql-grid %s\"\n.SH NAME\n", page, LQ_VERSION);
    print_roff(page);
    const char *dot = strchr(p->about, '.');
    printf(" \\- %.*s\n.SH SYNOPSIS\n.B %s\n", dot ? (int)(dot - p->about) : (int)strlen(p->about), p->about,
           p->name);
    print_roff(p->synopsis);
    printf("\n.SH DESCRIPTION\n");
    print_roff(p->about);
    printf("\n.SH OPTIONS\n");
    for (int i = 0; i < p->opts_n; i++) {
        const struct opt *o = &p->opts[i];
        printf(".TP\n");
        if (o->letter)
            printf("\\fB\\-%c\\fR, ", o->letter);
        printf("\\fB\\-\\-");
        print_roff(o->name);
        printf("\\fR%s%s\n", o->value_name ? " " : "", o->value_name ? o->value_name : "");
        print_roff(o->help);
        if (o->env)
            printf("\nEnvironment: %s.", o->env);
        putchar('\n');
    }
    if (p->examples) {
        printf(".SH EXAMPLES\n.nf\n");
        print_roff(p->examples);
        printf("\n.fi\n");
    }
    printf(".SH EXIT STATUS\n0 success, 1 failure at run time, 2 wrong use; each program's help names more.\n");
    printf(".SH SEE ALSO\nlarql(1), larql\\-router(1), larql\\-shard(1), docs/protocol.md\n");
}

static bool is_word(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(s, *words) == 0)
            return true;
    return false;
}

/* Takes one value; says what is wrong with it to stderr. */
static bool take(const struct opt_program *p, const struct opt *o, const char *from, const char *value)
{
    static const char *const yes[] = {"1", "true", "yes", "on", NULL};
    static const char *const no[] = {"0", "false", "no", "off", "", NULL};
    char *end;
    errno = 0;
    switch (o->kind) {
    case OPT_FLAG: /* only from the environment does a flag have a text */
        if (is_word(value, yes) || is_word(value, no)) {
            *(bool *)o->to = is_word(value, yes);
            return true;
        }
        fprintf(stderr, "%s: %s=%s: use 1 or 0\n", p->name, from, value);
        return false;
    case OPT_INT: {
        long long v = strtoll(value, &end, 10);
        if (!*value || *end || errno || (double)v < o->min || (double)v > o->max) {
            fprintf(stderr, "%s: %s %s: need a whole number from %.0f to %.0f\n", p->name, from, log_q(value), o->min,
                    o->max);
            return false;
        }
        *(int64_t *)o->to = v;
        return true;
    }
    case OPT_REAL: {
        double v = strtod(value, &end);
        if (!*value || *end || errno || !isfinite(v) || v < o->min || v > o->max) {
            fprintf(stderr, "%s: %s %s: need a number from %g to %g\n", p->name, from, log_q(value), o->min, o->max);
            return false;
        }
        *(double *)o->to = v;
        return true;
    }
    case OPT_TEXT:
        *(const char **)o->to = value;
        return true;
    }
    return false;
}

enum opt_result opt_parse(const struct opt_program *p, int argc, char **argv, char ***args, int *args_n)
{
    struct option longs[OPTS_MAX + 4] = {0};
    char shorts[2 * OPTS_MAX + 8] = ":hV"; /* ':' first: we word the errors */
    size_t s = strlen(shorts);
    int n = 0;
    for (int i = 0; i < p->opts_n && i < OPTS_MAX; i++, n++) {
        const struct opt *o = &p->opts[i];
        int has = o->kind == OPT_FLAG ? no_argument : required_argument;
        longs[n] = (struct option){o->name, has, NULL, KEY_FIRST + i};
        if (o->letter) {
            shorts[s++] = o->letter;
            if (has == required_argument)
                shorts[s++] = ':';
        }
        const char *env = o->env ? getenv(o->env) : NULL;
        if (env && !take(p, o, o->env, env))
            return OPT_EXIT_USAGE;
    }
    longs[n++] = (struct option){"help", no_argument, NULL, KEY_HELP};
    longs[n++] = (struct option){"version", no_argument, NULL, KEY_VERSION};
    longs[n++] = (struct option){"help-man", no_argument, NULL, KEY_MAN};

    opterr = 0;
    optind = 0; /* GNU: also resets its inner state, so that sub-commands may parse again */
    for (int key; (key = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (key == KEY_HELP || key == 'h') {
            print_help(p);
            return OPT_EXIT_OK;
        }
        if (key == KEY_VERSION || key == 'V') {
            printf("%s %s\n", p->name, LQ_VERSION);
            return OPT_EXIT_OK;
        }
        if (key == KEY_MAN) {
            print_man(p);
            return OPT_EXIT_OK;
        }
        if (key == '?' || key == ':') {
            fprintf(stderr, "%s: %s %s\nTry '%s --help'.\n", p->name,
                    key == ':' ? "a value is missing after" : "unknown option", log_q(argv[optind - 1]), p->name);
            return OPT_EXIT_USAGE;
        }
        const struct opt *o = NULL;
        for (int i = 0; i < p->opts_n; i++)
            if (key == KEY_FIRST + i || (p->opts[i].letter && key == p->opts[i].letter))
                o = &p->opts[i];
        char from[96];
        snprintf(from, sizeof from, "--%s", o->name);
        if (!take(p, o, from, o->kind == OPT_FLAG ? "1" : optarg))
            return OPT_EXIT_USAGE;
    }
    *args = argv + optind;
    *args_n = argc - optind;
    if (*args_n < p->args_min || *args_n > p->args_max) {
        fprintf(stderr, "%s: %s\nUsage: %s %s\nTry '%s --help'.\n", p->name,
                *args_n < p->args_min ? "an argument is missing" : "too many arguments", p->name, p->synopsis,
                p->name);
        return OPT_EXIT_USAGE;
    }
    return OPT_RUN;
}
