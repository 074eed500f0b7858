/* vindex_out: a file of a directory while it is written. See vindex_write_impl.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "model/vindex_write_impl.h"

enum { BUF_BYTES = 1 << 20, PRINT_BYTES = 1024 };

static bool part_path(const struct vindex_out *o, char part[VINDEX_PATH_BYTES])
{
    return snprintf(part, VINDEX_PATH_BYTES, "%s.part", o->path) < VINDEX_PATH_BYTES;
}

static enum lq_err failed(struct lq_fault *fault, const char *what, const char *path)
{
    return lq_fail(fault, LQ_IO, "cannot %s %.300s: %s", what, path, strerror(errno));
}

void vindex_out_begin(struct vindex_out *o, const char *dir, const char *name, struct lq_fault *fault)
{
    char part[VINDEX_PATH_BYTES];
    *o = (struct vindex_out){.fd = -1, .fault = fault, .buf = malloc(BUF_BYTES), .sum = EVP_MD_CTX_new()};
    o->rc = vindex_path(dir, name, o->path, fault);
    if (!o->rc && (!o->buf || !o->sum || EVP_DigestInit_ex(o->sum, EVP_sha256(), NULL) != 1))
        o->rc = lq_fail(fault, LQ_NOMEM, "out of memory for %s", name);
    if (!o->rc && !part_path(o, part))
        o->rc = lq_fail(fault, LQ_IO, "%.200s: the path is too long", o->path);
    if (!o->rc && (o->fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0)
        o->rc = failed(fault, "write", part);
}

static void flush(struct vindex_out *o)
{
    if (o->rc || o->n == 0)
        return;
    if (EVP_DigestUpdate(o->sum, o->buf, o->n) != 1)
        o->rc = lq_fail(o->fault, LQ_INTERNAL, "OpenSSL computes no SHA-256");
    else
        o->rc = file_write_at(o->fd, o->path, o->buf, o->n, o->bytes, o->fault);
    o->bytes += o->n;
    o->n = 0;
}

void vindex_out_put(struct vindex_out *o, const void *p, size_t n)
{
    const uint8_t *from = p;
    while (n > 0 && !o->rc) {
        size_t some = BUF_BYTES - o->n < n ? BUF_BYTES - o->n : n;
        memcpy(o->buf + o->n, from, some);
        o->n += some;
        from += some;
        n -= some;
        if (o->n == BUF_BYTES)
            flush(o);
    }
}

void vindex_out_print(struct vindex_out *o, const char *fmt, ...)
{
    char text[PRINT_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0 || n >= PRINT_BYTES)
        o->rc = o->rc ? o->rc : lq_fail(o->fault, LQ_INTERNAL, "%s: a line of %d bytes", o->path, n);
    else
        vindex_out_put(o, text, (size_t)n);
}

/* Bytes of the character at p; 0: none (RFC 3629). */
static size_t utf8(const unsigned char *p, size_t n)
{
    size_t len = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xf0 && p[1] < 0x90);
    bool outside = (*p == 0xed && p[1] > 0x9f) || (*p == 0xf4 && p[1] > 0x8f);
    return overlong || outside ? 0 : len;
}

void vindex_out_text(struct vindex_out *o, const char *p, size_t n)
{
    vindex_out_put(o, "\"", 1);
    for (size_t i = 0, len; i < n && !o->rc; i += len) {
        unsigned char c = (unsigned char)p[i];
        len = utf8((const unsigned char *)p + i, n - i);
        if (len == 0 || c == 0)
            o->rc = lq_fail(o->fault, LQ_UNSUPPORTED, "%s: a text whose byte %zu is %s cannot be written as JSON",
                            o->path, i, c ? "no UTF-8" : "NUL");
        else if (c == '"' || c == '\\')
            vindex_out_print(o, "\\%c", c);
        else if (c < 0x20)
            vindex_out_print(o, "\\u%04x", c);
        else
            vindex_out_put(o, p + i, len);
    }
    vindex_out_put(o, "\"", 1);
}

enum lq_err vindex_out_end(struct vindex_out *o, struct hash256 *hash)
{
    char part[VINDEX_PATH_BYTES];
    bool named = part_path(o, part);
    flush(o);
    if (!o->rc && EVP_DigestFinal_ex(o->sum, hash->b, NULL) != 1)
        o->rc = lq_fail(o->fault, LQ_INTERNAL, "OpenSSL computes no SHA-256");
    if (!o->rc && fsync(o->fd) != 0)
        o->rc = failed(o->fault, "write", part);
    if (o->fd >= 0 && close(o->fd) != 0 && !o->rc)
        o->rc = failed(o->fault, "write", part);
    if (!o->rc && rename(part, o->path) != 0)
        o->rc = failed(o->fault, "rename", part);
    if (o->rc && named && o->fd >= 0)
        (void)unlink(part);
    EVP_MD_CTX_free(o->sum);
    free(o->buf);
    return o->rc;
}

enum lq_err vindex_file_hash(const char *path, struct hash256 *hash, uint64_t *bytes, struct lq_fault *fault)
{
    struct stat st;
    uint8_t *buf = malloc(BUF_BYTES);
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum lq_err rc = LQ_OK;
    ssize_t n = 0;
    *bytes = 0;
    if (!buf || !sum || EVP_DigestInit_ex(sum, EVP_sha256(), NULL) != 1)
        rc = lq_fail(fault, LQ_NOMEM, "out of memory to read %s", path);
    else if (fd < 0 || fstat(fd, &st) != 0)
        rc = failed(fault, "read", path);
    else if (!S_ISREG(st.st_mode))
        rc = lq_fail(fault, LQ_IO, "%s: no regular file", path);
    while (!rc && (n = read(fd, buf, BUF_BYTES)) > 0) {
        *bytes += (uint64_t)n;
        if (EVP_DigestUpdate(sum, buf, (size_t)n) != 1)
            rc = lq_fail(fault, LQ_INTERNAL, "OpenSSL computes no SHA-256");
    }
    if (!rc && n < 0)
        rc = failed(fault, "read", path);
    if (!rc && EVP_DigestFinal_ex(sum, hash->b, NULL) != 1)
        rc = lq_fail(fault, LQ_INTERNAL, "OpenSSL computes no SHA-256");
    if (fd >= 0)
        close(fd);
    EVP_MD_CTX_free(sum);
    free(buf);
    return rc;
}
