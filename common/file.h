/* file: small files whole: read with a limit, replaced in one step. */
#ifndef LQ_COMMON_FILE_H
#define LQ_COMMON_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/err.h"

/* The bytes of a regular file, malloc'd, terminated by a NUL beyond them. LQ_IO: absent (errno
 * ENOENT), unreadable, or over max bytes. */
enum lq_err file_read(const char *path, size_t max, char **out, size_t *n, struct lq_fault *fault) LQ_MUST_CHECK;

/* Writes PATH.PID.tmp and renames it over path: others see the old bytes or the new ones.
 * durable: what the call returned LQ_OK for is there after a power cut. LQ_IO leaves path, as
 * it does what is neither a regular file nor a link: /dev/null stays a device. */
enum lq_err file_replace(const char *path, const void *p, size_t n, bool durable,
                         struct lq_fault *fault) LQ_MUST_CHECK;

/* fsync of the folder that path is in, so that renames in it last. */
enum lq_err file_sync_folder(const char *path, struct lq_fault *fault) LQ_MUST_CHECK;

/* All of p at `at`; LQ_IO with errno's text. */
enum lq_err file_write_at(int fd, const char *path, const void *p, size_t n, unsigned long long at,
                          struct lq_fault *fault) LQ_MUST_CHECK;

/* What a person named for the output: replaced whole where it is a regular file or absent,
 * else (a device, a pipe, a link such as /dev/stdout) written to. LQ_IO. */
enum lq_err file_output(const char *path, const void *p, size_t n, struct lq_fault *fault) LQ_MUST_CHECK;

#endif
