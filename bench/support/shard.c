/* shard: see shard.h. */
#include "bench/support/shard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 40 };

/* The build folder: two up from argv0. */
static int build_dir(const char *argv0, char *out, size_t n)
{
    const char *slash = strrchr(argv0, '/');
    return slash ? snprintf(out, n, "%.*s/..", (int)(slash - argv0), argv0) : snprintf(out, n, "build");
}

/* Runs head..., tail..., with stdout to *out_fd where wanted. */
static pid_t spawn(const char *const *head, const char *const *tail, int *out_fd)
{
    char *argv[ARGS_MAX + 1];
    size_t n = 0;
    for (; *head && n < ARGS_MAX; head++)
        argv[n++] = (char *)(size_t)*head;
    for (; *tail && n < ARGS_MAX; tail++)
        argv[n++] = (char *)(size_t)*tail;
    argv[n] = NULL;
    int fds[2] = {-1, -1};
    if (out_fd && pipe(fds) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (out_fd) {
            dup2(fds[1], STDOUT_FILENO);
            close(fds[0]);
            close(fds[1]);
        }
        execv(argv[0], argv);
        perror(argv[0]);
        _exit(127);
    }
    if (out_fd) {
        close(fds[1]);
        *out_fd = fds[0];
    }
    return pid;
}

bool bench_model(const char *argv0, const char *name, const char *const *args, char *path, size_t path_n)
{
    char dir[400], half[600];
    int n = build_dir(argv0, dir, sizeof dir);
    snprintf(dir + n, sizeof dir - (size_t)n, "/models");
    (void)mkdir(dir, 0777);
    snprintf(path, path_n, "%s/%s.gguf", dir, name);
    snprintf(half, sizeof half, "%s.half", path);
    if (access(path, R_OK) == 0)
        return true;
    const char *const head[] = {"/usr/bin/python3", "tests/tools/make_model.py", half, NULL};
    pid_t pid = spawn(head, args, NULL);
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0 || rename(half, path) != 0) {
        fprintf(stderr, "make_model.py could not write %s\n", path);
        return false;
    }
    return true;
}

bool bench_shard_start(struct bench_shard *s, const char *argv0, const char *model, const char *const *args)
{
    char program[500], line[300] = "";
    int n = build_dir(argv0, program, sizeof program), fd = -1;
    snprintf(program + n, sizeof program - (size_t)n, "/bin/larql-shard");
    const char *const head[] = {program, model, "--port", "0", "--log-level", "error", NULL};
    s->pid = spawn(head, args, &fd);
    FILE *f = s->pid > 0 ? fdopen(fd, "r") : NULL;
    bool ready = f && fgets(line, sizeof line, f) && sscanf(line, "ready url=%255s", s->url) == 1;
    if (f)
        fclose(f); /* it writes nothing more there */
    if (!ready) {
        fprintf(stderr, "%s is not ready\n", program);
        bench_shard_stop(s);
    }
    return ready;
}

void bench_shard_stop(struct bench_shard *s)
{
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGTERM);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}
