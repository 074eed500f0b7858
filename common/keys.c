/* keys: see keys.h. */
#include "common/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"

enum { DIGEST_BYTES = 32, FILE_BYTES_MAX = 1 << 20 };

struct key_set { /* never changed once it is in use */
    char first[KEY_CHARS_MAX + 1];
    size_t n;
    uint8_t digest[][DIGEST_BYTES];
};

struct keys {
    char *path; /* NULL: from a text */
    EVP_MD *sha256;
    pthread_rwlock_t lock; /* guards the pointer: held while a set is looked at */
    struct key_set *set;
};

/* ---- one key -------------------------------------------------------------------------- */

static bool digest_of(const struct keys *k, const char *key, size_t n, uint8_t out[DIGEST_BYTES])
{
    unsigned out_n = 0;
    return EVP_Digest(key, n, out, &out_n, k->sha256, NULL) == 1 && out_n == DIGEST_BYTES;
}

/* NULL: a key. Never names what it saw. */
static const char *complaint(const char *s, size_t n)
{
    static const char ok[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=";
    for (size_t i = 0; i < n; i++)
        if (!s[i] || !strchr(ok, s[i]))
            return "a key has only A-Z a-z 0-9 - . _ ~ + / =";
    return n < KEY_CHARS_MIN   ? "a key has 16 characters at least"
           : n > KEY_CHARS_MAX ? "a key has 256 characters at most"
                               : NULL;
}

static void trim(const char **s, size_t *n)
{
    while (*n > 0 && strchr(" \t\r", **s) && **s)
        ++*s, --*n;
    while (*n > 0 && strchr(" \t\r", (*s)[*n - 1]) && (*s)[*n - 1])
        --*n;
}

/* ---- sets ------------------------------------------------------------------------------ */

static void set_free(struct key_set *set)
{
    if (set)
        OPENSSL_cleanse(set, sizeof *set + set->n * DIGEST_BYTES);
    free(set);
}

static size_t lines_n(const char *text, size_t n)
{
    size_t lines = 1;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    return lines < KEYS_MAX ? lines : KEYS_MAX;
}

/* from: the file or variable, for the messages. */
static enum lq_err set_read(const struct keys *k, const char *from, const char *text, size_t n, struct key_set **out,
                            struct lq_fault *fault)
{
    size_t room = lines_n(text, n), line_no = 0;
    struct key_set *set = calloc(1, sizeof *set + room * DIGEST_BYTES);
    if (!set)
        return lq_fail(fault, LQ_NOMEM, "out of memory for keys");
    enum lq_err rc = LQ_OK;
    for (const char *end = text + n; text < end && !rc;) {
        const char *line = text, *newline = memchr(text, '\n', (size_t)(end - text));
        size_t line_n = (size_t)((newline ? newline : end) - line);
        const char *comment = memchr(line, '#', line_n);
        text = newline ? newline + 1 : end;
        line_no++;
        if (comment)
            line_n = (size_t)(comment - line);
        trim(&line, &line_n);
        if (line_n == 0)
            continue;
        const char *bad = set->n == room ? "more than 1024 keys" : complaint(line, line_n);
        if (bad) {
            rc = lq_fail(fault, LQ_USAGE, "keys of %s, line %zu: %s", from, line_no, bad);
        } else if (!digest_of(k, line, line_n, set->digest[set->n])) {
            rc = lq_fail(fault, LQ_NOMEM, "out of memory for keys");
        } else {
            if (set->n++ == 0)
                memcpy(set->first, line, line_n);
        }
    }
    if (!rc && set->n == 0)
        rc = lq_fail(fault, LQ_USAGE, "%s holds no key", from);
    if (rc)
        set_free(set);
    else
        *out = set;
    return rc;
}

/* The whole file, and one byte more when it is too long; < 0: errno says why. */
static ssize_t read_all(int fd, char *to, size_t room)
{
    size_t n = 0;
    while (n < room) {
        ssize_t got = read(fd, to + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static enum lq_err set_load(const struct keys *k, struct key_set **out, struct lq_fault *fault)
{
    struct stat st;
    enum lq_err rc;
    char *text = malloc(FILE_BYTES_MAX + 1);
    int fd = open(k->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold the loop */
    ssize_t n = -1;
    if (!text) {
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for keys");
    } else if (fd < 0 || fstat(fd, &st) != 0 || (n = read_all(fd, text, FILE_BYTES_MAX + 1)) < 0) {
        rc = lq_fail(fault, LQ_USAGE, "cannot read keys of %s: %s", k->path, strerror(errno));
    } else if (n > FILE_BYTES_MAX) {
        rc = lq_fail(fault, LQ_USAGE, "keys of %s: over 1 MiB, not a key file", k->path);
    } else {
        if (S_ISREG(st.st_mode) && (st.st_mode & S_IROTH))
            log_warn("file_is_world_readable file=%s mode=%03o", log_q(k->path), (unsigned)st.st_mode & 0777);
        rc = set_read(k, k->path, text, (size_t)n, out, fault);
    }
    if (text && n > 0)
        OPENSSL_cleanse(text, (size_t)n);
    free(text);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------- */

enum lq_err keys_new(const char *path, const char *text, const char *from, struct keys **out, struct lq_fault *fault)
{
    struct keys *k = calloc(1, sizeof *k);
    if (!k)
        return lq_fail(fault, LQ_NOMEM, "out of memory for keys");
    enum lq_err rc;
    pthread_rwlock_init(&k->lock, NULL);
    if (!(k->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL)) || (path && !(k->path = strdup(path))))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for keys");
    else
        rc = path ? set_load(k, &k->set, fault) : set_read(k, from, text, strlen(text), &k->set, fault);
    if (rc)
        keys_free(k);
    else
        *out = k;
    return rc;
}

void keys_free(struct keys *k)
{
    if (!k)
        return;
    set_free(k->set);
    EVP_MD_free(k->sha256);
    pthread_rwlock_destroy(&k->lock);
    free(k->path);
    free(k);
}

enum lq_err keys_reload(struct keys *k, struct lq_fault *fault)
{
    struct key_set *fresh = NULL;
    enum lq_err rc = k->path ? set_load(k, &fresh, fault) : LQ_OK;
    if (rc || !fresh)
        return rc;
    pthread_rwlock_wrlock(&k->lock);
    struct key_set *old = k->set;
    k->set = fresh;
    pthread_rwlock_unlock(&k->lock);
    set_free(old);
    return LQ_OK;
}

/* ---- use -------------------------------------------------------------------------------- */

bool keys_have(const struct keys *k, const char *key, size_t n)
{
    uint8_t digest[DIGEST_BYTES];
    unsigned same = 0;
    if (!k || !digest_of(k, key, n, digest))
        return false;
    struct keys *unlocked = (struct keys *)(uintptr_t)k; /* the lock is no part of what k holds */
    pthread_rwlock_rdlock(&unlocked->lock);
    for (size_t i = 0; i < k->set->n; i++) /* all of them, always */
        same |= CRYPTO_memcmp(digest, k->set->digest[i], DIGEST_BYTES) == 0;
    pthread_rwlock_unlock(&unlocked->lock);
    return same;
}

void keys_bearer(const struct keys *k, char text[KEY_BEARER_CHARS + 1])
{
    struct keys *unlocked = (struct keys *)(uintptr_t)k;
    pthread_rwlock_rdlock(&unlocked->lock);
    snprintf(text, KEY_BEARER_CHARS + 1, "Bearer %s", k->set->first);
    pthread_rwlock_unlock(&unlocked->lock);
}
