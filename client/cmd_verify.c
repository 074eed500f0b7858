/* larql verify: is a vindex directory whole, and can it be used? */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/cmd.h"
#include "common/opt.h"
#include "model/vindex_verify.h"

static void hashed(void *arg, const char *file, uint64_t bytes)
{
    double *mb = arg;
    *mb += (double)bytes / 1e6;
    fprintf(stderr, "\r\033[K%.0f MB hashed, %s", *mb, file);
}

int cmd_verify(int argc, char **argv)
{
    const struct opt_program program = {
        .name = "larql verify",
        .synopsis = "DIR",
        .about = "Check a vindex directory: the SHA-256 of each file that index.json has one for, every row of the\n"
                 "manifests against its file, and that all weights it holds can be used.\n"
                 "Exit codes: 0 it is whole, 1 it is not (file, field and value are named), 2 wrong use.",
        .args_min = 1,
        .args_max = 1,
    };
    char **args;
    int args_n;
    enum opt_result parsed = opt_parse(&program, argc, argv, &args, &args_n);
    if (parsed != OPT_RUN)
        return parsed == OPT_EXIT_OK ? EXIT_SUCCESS : CMD_EXIT_USAGE;
    struct vindex_verify_report r;
    struct lq_fault fault = {.text = ""};
    bool show = isatty(STDERR_FILENO);
    double mb = 0;
    enum lq_err rc = vindex_verify(args[0], show ? hashed : NULL, &mb, &r, &fault);
    if (show)
        fputs("\r\033[K", stderr);
    if (rc) {
        fprintf(stderr, "larql verify: %s\n", fault.text);
        return CMD_EXIT_FAILED;
    }
    printf("%s: whole; FFN of %u of %u layers, %s; %zu files hashed (%.1f MB), %zu without a checksum\n", args[0],
           r.ffn_layers_n, r.layers_n, r.client ? "attention and embeddings" : "no attention", r.hashed_n,
           (double)r.bytes / 1e6, r.unhashed_n);
    if (*r.warning)
        printf("warning: %s\n", r.warning);
    return EXIT_SUCCESS;
}
