/* file: see file.h. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum lq_err failed(struct lq_fault *fault, const char *doing, const char *path)
{
    int saved = errno;
    (void)lq_fail(fault, LQ_IO, "cannot %s %s: %s", doing, path, strerror(saved));
    errno = saved;
    return LQ_IO;
}

static enum lq_err read_all(int fd, const char *path, char *p, size_t n, struct lq_fault *fault)
{
    for (size_t have = 0; have < n;) {
        ssize_t got = read(fd, p + have, n - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(fault, "read", path);
        if (got == 0)
            return lq_fail(fault, LQ_IO, "%s: the file became shorter while it was read", path);
        have += (size_t)got;
    }
    return LQ_OK;
}

enum lq_err file_read(const char *path, size_t max, char **out, size_t *n, struct lq_fault *fault)
{
    struct stat st;
    char *p = NULL;
    enum lq_err rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = failed(fault, "read", path);
    } else if (!S_ISREG(st.st_mode) || (uintmax_t)st.st_size > max) {
        rc = lq_fail(fault, LQ_IO, "%s: no regular file of up to %zu bytes", path, max);
        errno = EINVAL;
    } else if (!(p = malloc((size_t)st.st_size + 1))) {
        rc = lq_fail(fault, LQ_NOMEM, "%s: out of memory", path);
    } else {
        rc = read_all(fd, path, p, (size_t)st.st_size, fault);
    }
    if (fd >= 0) {
        int saved = errno;
        close(fd);
        errno = saved;
    }
    if (rc) {
        free(p);
        return rc;
    }
    p[st.st_size] = '\0';
    *out = p;
    *n = (size_t)st.st_size;
    return LQ_OK;
}

enum lq_err file_write_at(int fd, const char *path, const void *p, size_t n, unsigned long long at,
                          struct lq_fault *fault)
{
    for (size_t done = 0; done < n;) {
        ssize_t wrote = pwrite(fd, (const char *)p + done, n - done, (off_t)(at + done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return failed(fault, "write", path);
        done += (size_t)wrote;
    }
    return LQ_OK;
}

enum lq_err file_sync_folder(const char *path, struct lq_fault *fault)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) : 0;
    if (snprintf(folder, sizeof folder, "%.*s", n, path) >= (int)sizeof folder)
        return lq_fail(fault, LQ_IO, "%s: the path is too long", path);
    int fd = open(!slash ? "." : n == 0 ? "/" : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum lq_err rc = LQ_OK;
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) /* EINVAL: a file system without it */
        rc = failed(fault, "sync the folder of", path);
    if (fd >= 0)
        close(fd);
    return rc;
}

enum lq_err file_replace(const char *path, const void *p, size_t n, bool durable, struct lq_fault *fault)
{
    char tmp[PATH_MAX];
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return lq_fail(fault, LQ_IO, "%s is no regular file: it is not replaced", path);
    if (snprintf(tmp, sizeof tmp, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof tmp)
        return lq_fail(fault, LQ_IO, "%s: the path is too long", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return failed(fault, "create", tmp);
    enum lq_err rc = file_write_at(fd, tmp, p, n, 0, fault);
    if (!rc && durable && fsync(fd) != 0)
        rc = failed(fault, "sync", tmp);
    if (close(fd) != 0 && !rc)
        rc = failed(fault, "write", tmp);
    if (!rc && rename(tmp, path) != 0)
        rc = failed(fault, "rename into", path);
    if (rc) {
        int saved = errno;
        (void)unlink(tmp);
        errno = saved;
        return rc;
    }
    return durable ? file_sync_folder(path, fault) : LQ_OK;
}

enum lq_err file_output(const char *path, const void *p, size_t n, struct lq_fault *fault)
{
    struct stat st;
    if (lstat(path, &st) != 0 || S_ISREG(st.st_mode))
        return file_replace(path, p, n, false, fault);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return failed(fault, "open", path);
    const char *at = p;
    while (n > 0) {
        ssize_t k = write(fd, at, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break;
        at += k;
        n -= (size_t)k;
    }
    enum lq_err rc = n > 0 ? failed(fault, "write", path) : LQ_OK;
    if (close(fd) != 0 && !rc)
        rc = failed(fault, "write", path);
    return rc;
}
