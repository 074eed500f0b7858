/* larql: finds the sub-command. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "generate text, with the FFN on a grid or in this process", cmd_run},
    {"bench", "measure the wire formats on a grid: speed, bytes, agreement", cmd_bench},
    {"info", "print a model's shape as JSON", cmd_info},
    {"extract", "write a model as a vindex directory, as LARQL has them", cmd_extract},
    {"verify", "check a vindex directory: sizes, hashes, manifests", cmd_verify},
    {"grid", "see and steer a grid: status, gaps, drain, assign, top", cmd_grid},
};
enum { COMMANDS_N = sizeof commands / sizeof *commands };

static void usage(FILE *to)
{
    fprintf(to, "Usage: larql COMMAND [options]\n\nCommands:\n");
    for (size_t i = 0; i < COMMANDS_N; i++)
        fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].about);
    fprintf(to, "\n'larql COMMAND --help' tells more; 'larql --version' the version.\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < COMMANDS_N; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("larql %s\n", LQ_VERSION);
        return EXIT_SUCCESS;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        usage(stdout);
        return EXIT_SUCCESS;
    }
    if (*name)
        fprintf(stderr, "larql: no such command: %s\n", name);
    usage(stderr);
    return CMD_EXIT_USAGE;
}
