/* store_file: see store_impl.h. The order of syncs makes a crash safe: bytes, then the list
 * that names them, then (once) the file's own name. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "model/identity.h"
#include "shard/store_impl.h"

enum { LIST_EVERY_BYTES = 64 << 20, LIST_EVERY_US = 5000000, ROOM_SPARE_BYTES = 1 << 20, LOCK_POLL_MS = 50 };

static enum lq_err failed(struct lq_fault *fault, const char *doing, const char *path)
{
    return lq_fail(fault, LQ_IO, "cannot %s %s: %s", doing, path, strerror(errno));
}

/* ---- names --------------------------------------------------------------------------------- */

enum lq_err store_file_name(const char *url, char out[STORE_NAME_BYTES], struct lq_fault *fault)
{
    static const char gguf[] = ".gguf";
    enum { STEM_MAX = 80 };
    char text[HASH256_TEXT_BYTES];
    struct hash256 h;
    size_t n = strcspn(url, "#"), path_n = strcspn(url, "?#"), from = path_n;
    while (from > 0 && url[from - 1] != '/')
        from--;
    enum lq_err rc = identity_hash(url, n, &h, fault);
    if (rc)
        return rc;
    size_t stem_n = path_n - from;
    if (stem_n >= sizeof gguf - 1 && strncasecmp(url + path_n - (sizeof gguf - 1), gguf, sizeof gguf - 1) == 0)
        stem_n -= sizeof gguf - 1;
    stem_n = stem_n < STEM_MAX ? stem_n : STEM_MAX;
    char *p = out;
    for (size_t i = from; i < from + stem_n; i++) {
        char c = url[i];
        bool harmless = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                        c == '_' || (c == '.' && p > out); /* no name begins with a dot */
        *p++ = harmless ? c : '_';
    }
    snprintf(p, STORE_NAME_BYTES - (size_t)(p - out), "%s%.16s", p > out ? "-" : "model-", hash256_text(&h, text));
    return LQ_OK;
}

static bool join(char out[PATH_MAX], const char *dir, const char *name, const char *end)
{
    return snprintf(out, PATH_MAX, "%s/%s%s", dir, name, end) < PATH_MAX;
}

static enum lq_err wait_for_lock(struct store_job *j, struct lq_fault *fault)
{
    bool said = false;
    j->lock_fd = open(j->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (j->lock_fd < 0)
        return failed(fault, "open", j->lock);
    while (flock(j->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        struct timespec t = {.tv_nsec = LOCK_POLL_MS * 1000000L};
        if (errno != EWOULDBLOCK && errno != EINTR)
            return failed(fault, "lock", j->lock);
        if (!said)
            log_info("store_waits lock=%s why=%s", log_q(j->lock), log_q("another process fetches this file"));
        said = true;
        (void)nanosleep(&t, NULL); /* shorter is fine */
        if (atomic_load(j->stop))
            return lq_fail(fault, LQ_CANCELLED, "stopped while another process fetched");
    }
    return LQ_OK;
}

enum lq_err store_file_enter(struct store_job *j, struct lq_fault *fault)
{
    char name[STORE_NAME_BYTES];
    enum lq_err rc = store_file_name(j->o.url, name, fault);
    if (rc)
        return rc;
    if (!join(j->final, j->o.dir, name, ".gguf") || !join(j->part, j->o.dir, name, ".gguf.part") ||
        !join(j->lock, j->o.dir, name, ".lock"))
        return lq_fail(fault, LQ_IO, "%s: the path is too long", j->o.dir);
    if (mkdir(j->o.dir, 0777) != 0 && errno != EEXIST)
        return failed(fault, "make the folder", j->o.dir);
    return wait_for_lock(j, fault);
}

void store_file_leave(struct store_job *j)
{
    if (j->fd >= 0)
        close(j->fd);
    if (j->lock_fd >= 0)
        close(j->lock_fd);
    j->fd = j->lock_fd = -1;
    held_release(&j->held);
}

/* ---- what is there ------------------------------------------------------------------------- */

static bool is_of_size(const char *path, uint64_t bytes)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
}

enum lq_err store_file_find(struct store_job *j, struct lq_fault *fault)
{
    bool there;
    enum lq_err rc = held_read(j->final, &j->held, &there, fault);
    if (rc == LQ_BAD_MODEL) {
        log_warn("store_begins_anew why=%s", log_q(fault->text));
        return store_file_forget(j, fault);
    }
    if (rc)
        return rc;
    j->path = !there                                ? NULL
              : is_of_size(j->final, j->held.bytes) ? j->final
              : is_of_size(j->part, j->held.bytes)  ? j->part
                                                    : NULL;
    return j->path ? LQ_OK : store_file_forget(j, fault);
}

static enum lq_err gone(const char *path, struct lq_fault *fault)
{
    return unlink(path) == 0 || errno == ENOENT ? LQ_OK : failed(fault, "remove", path);
}

/* The list goes last: without it a file counts as whole. */
enum lq_err store_file_forget(struct store_job *j, struct lq_fault *fault)
{
    char list[PATH_MAX], hashes[PATH_MAX];
    held_release(&j->held);
    j->path = NULL;
    if (j->fd >= 0)
        close(j->fd);
    j->fd = -1;
    if (!held_side_path(j->final, ".held", list, sizeof list) ||
        !held_side_path(j->final, ".larql-hashes", hashes, sizeof hashes))
        return lq_fail(fault, LQ_IO, "%s: the path is too long", j->final);
    const char *const paths[] = {j->final, j->part, hashes, list};
    enum lq_err rc = LQ_OK;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && !rc; i++) {
        if (paths[i] == list)
            rc = file_sync_folder(j->final, fault);
        if (!rc)
            rc = gone(paths[i], fault);
    }
    return rc;
}

enum lq_err store_file_room(const struct store_job *j, uint64_t n, struct lq_fault *fault)
{
    struct statvfs v;
    if (statvfs(j->o.dir, &v) != 0)
        return failed(fault, "ask for the room in", j->o.dir);
    uint64_t room;
    if (__builtin_mul_overflow((uint64_t)v.f_bavail, (uint64_t)v.f_frsize, &room) || room >= n + ROOM_SPARE_BYTES)
        return LQ_OK;
    return lq_fail(fault, LQ_IO, "%s: %" PRIu64 " bytes are needed, %" PRIu64 " are free", j->o.dir,
                   n + ROOM_SPARE_BYTES, room);
}

/* ---- bytes --------------------------------------------------------------------------------- */

enum lq_err store_file_open(struct store_job *j, struct lq_fault *fault)
{
    if (j->fd < 0)
        j->fd = open(j->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return j->fd >= 0 ? LQ_OK : failed(fault, "open", j->path);
}

enum lq_err store_file_create(struct store_job *j, const void *head, size_t head_n, struct lq_fault *fault)
{
    const struct fetch_origin *o = fetch_origin(j->fetch);
    j->fd = open(j->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (j->fd < 0)
        return failed(fault, "create", j->part);
    j->path = j->part;
    if (ftruncate(j->fd, (off_t)o->bytes) != 0)
        return failed(fault, "make a sparse file of", j->part);
    j->held.bytes = o->bytes;
    memcpy(j->held.etag, o->etag, sizeof o->etag);
    memcpy(j->held.modified, o->modified, sizeof o->modified);
    if (!(j->held.url = strdup(fetch_shown(j->fetch))))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    enum lq_err rc = store_file_put(j, 0, head, head_n, fault);
    return rc ? rc : store_file_list(j, fault);
}

enum lq_err store_file_put(struct store_job *j, uint64_t at, const void *p, size_t n, struct lq_fault *fault)
{
    enum lq_err rc = file_write_at(j->fd, j->path, p, n, at, fault);
    if (rc && errno == ENOSPC) {
        enum lq_err room = store_file_room(j, j->bytes_total - j->bytes, fault); /* names both where it can */
        return room ? room : rc;
    }
    if (rc)
        return rc;
    if (!ranges_add(&j->held.ranges, at, at + n))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    j->unlisted_n += n;
    bool due = j->unlisted_n >= LIST_EVERY_BYTES || clock_us() - j->listed_us >= LIST_EVERY_US;
    return due ? store_file_list(j, fault) : LQ_OK;
}

enum lq_err store_file_list(struct store_job *j, struct lq_fault *fault)
{
    if (j->fd >= 0 && fdatasync(j->fd) != 0)
        return failed(fault, "sync", j->path);
    j->unlisted_n = 0;
    j->listed_us = clock_us();
    return held_write(j->final, &j->held, fault);
}

enum lq_err store_file_finish(struct store_job *j, struct lq_fault *fault)
{
    if (j->path == j->part && rename(j->part, j->final) != 0)
        return failed(fault, "rename into", j->final);
    j->path = j->final;
    return file_sync_folder(j->final, fault);
}
