/* store_impl: what one fetch consists of, shared by store.c (its thread), store_job.c
 * (its steps) and store_file.c (names, lock, list, disk). Private to shard/store*.c. */
#ifndef LQ_SHARD_STORE_IMPL_H
#define LQ_SHARD_STORE_IMPL_H

#include "model/gguf.h"
#include "model/held.h"
#include "shard/fetch.h"
#include "shard/store.h"

struct store_job {
    struct store_opts o;
    const _Atomic bool *stop;
    void (*say)(void *arg, const struct store_progress *p); /* at most every 250 ms */
    void *say_arg;
    /* the file */
    char final[PATH_MAX], part[PATH_MAX], lock[PATH_MAX];
    const char *path; /* final or part: the one that is there */
    int lock_fd, fd;  /* -1: none */
    struct held held;
    uint64_t unlisted_n, listed_us; /* bytes written since the list was, and when it was */
    /* the origin */
    struct fetch *fetch; /* NULL: not asked yet */
    uint32_t layer_last;
    uint64_t start_us, said_us, logged_us, bytes, bytes_total;
};

/* Blocks until the fetch has ended. */
enum lq_err store_job_run(struct store_job *j, struct store_result *out, struct lq_fault *fault) LQ_MUST_CHECK;

/* store_file.c. LQ_IO unless said otherwise. */
/* Folder, names, lock (waits; LQ_CANCELLED). */
enum lq_err store_file_enter(struct store_job *j, struct lq_fault *fault) LQ_MUST_CHECK;
void store_file_leave(struct store_job *j);
/* The file and its list, if both are there: j->path and j->held; else nothing is kept of them. */
enum lq_err store_file_find(struct store_job *j, struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err store_file_forget(struct store_job *j, struct lq_fault *fault) LQ_MUST_CHECK;
/* A new .part of the origin's size that holds its head. */
enum lq_err store_file_create(struct store_job *j, const void *head, size_t head_n,
                              struct lq_fault *fault) LQ_MUST_CHECK;
enum lq_err store_file_open(struct store_job *j, struct lq_fault *fault) LQ_MUST_CHECK;
/* Bytes at their place; the list follows now and then. */
enum lq_err store_file_put(struct store_job *j, uint64_t at, const void *p, size_t n,
                           struct lq_fault *fault) LQ_MUST_CHECK;
/* The bytes, then the list, to the disk. */
enum lq_err store_file_list(struct store_job *j, struct lq_fault *fault) LQ_MUST_CHECK;
/* Has the folder's disk room for n bytes more? Names both when it has not. */
enum lq_err store_file_room(const struct store_job *j, uint64_t n, struct lq_fault *fault) LQ_MUST_CHECK;
/* .part becomes the file. */
enum lq_err store_file_finish(struct store_job *j, struct lq_fault *fault) LQ_MUST_CHECK;

/* NAME-HASH of a URL, at most STORE_NAME_BYTES with its end. */
enum { STORE_NAME_BYTES = 128 };
enum lq_err store_file_name(const char *url, char out[STORE_NAME_BYTES], struct lq_fault *fault) LQ_MUST_CHECK;

#endif
