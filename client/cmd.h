/* cmd: the sub-commands of `larql`, one file each: cmd_NAME.c. argv[0] is the name. */
#ifndef LQ_CLIENT_CMD_H
#define LQ_CLIENT_CMD_H

enum { CMD_EXIT_FAILED = 1, CMD_EXIT_USAGE = 2, CMD_EXIT_GRID = 3, CMD_EXIT_MODEL = 4, CMD_EXIT_INTERRUPTED = 130 };

int cmd_run(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_extract(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_grid(int argc, char **argv);

#endif
