/* tls: see tls.h. */
#include "common/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "common/log.h"

enum { PIN_BYTES = 32, PROTOCOLS_BYTES_MAX = 64, EXPIRES_SOON_DAYS = 14 };

struct tls {
    enum tls_side side;
    char *cert_path, *key_path, *ca_path;
    bool pinned;
    unsigned char pin[PIN_BYTES];
    unsigned char protocols[PROTOCOLS_BYTES_MAX]; /* as ALPN has them: length, name, ... */
    unsigned protocols_n;
    pthread_mutex_t mu; /* guards ctx alone; each SSL keeps the one that it was made from */
    SSL_CTX *ctx;
};

/* ---- words ----------------------------------------------------------------------------- */

/* The reason of the last failure on this thread; clears the queue. */
static const char *reason(void)
{
    unsigned long e = ERR_peek_last_error();
    const char *why = ERR_SYSTEM_ERROR(e) ? strerror(ERR_GET_REASON(e)) : ERR_reason_error_string(e);
    ERR_clear_error();
    return why ? why : "not readable";
}

/* The first error tells of a missing file, the last of what was looked for in vain. */
static enum lq_err bad_file(struct lq_fault *fault, const char *what, const char *path)
{
    int error = errno;
    struct stat st;
    if (stat(path, &st) == 0)
        return lq_fail(fault, LQ_USAGE, "cannot use %s %s: %s", what, path, reason());
    error = errno ? errno : error;
    ERR_clear_error();
    return lq_fail(fault, LQ_USAGE, "cannot read %s %s: %s", what, path, strerror(error));
}

static const char *const no_pin = "its certificate is not the pinned one";

void tls_why(const SSL *ssl, unsigned long error, int errno_, char *text, size_t n)
{
    long verdict = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    const char *why = error ? ERR_reason_error_string(error) : NULL;
    int code = ERR_GET_REASON(error);
    if (verdict == X509_V_ERR_APPLICATION_VERIFICATION)
        snprintf(text, n, "TLS: %s", no_pin);
    else if (verdict != X509_V_OK && !SSL_is_init_finished(ssl))
        snprintf(text, n, "TLS: its certificate is refused: %s", X509_verify_cert_error_string(verdict));
    else if (code == SSL_R_UNEXPECTED_EOF_WHILE_READING || (!error && !errno_))
        snprintf(text, n, "TLS: closed without saying so");
    else if (error && ERR_GET_LIB(error) == ERR_LIB_SSL && code == SSL_R_WRONG_VERSION_NUMBER)
        snprintf(text, n, "TLS: the other side does not speak it (a plain port?)");
    else if (why)
        snprintf(text, n, "TLS: %s", why);
    else
        snprintf(text, n, "%s", strerror(errno_));
}

/* ---- what is checked ----------------------------------------------------------------------- */

/* The chain is not looked at: who pins knows the one certificate that may come. */
static int on_verify_pin(X509_STORE_CTX *store, void *arg)
{
    const struct tls *t = arg;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    const X509 *leaf = X509_STORE_CTX_get0_cert(store);
    bool same = leaf && X509_digest(leaf, EVP_sha256(), digest, &n) == 1 && n == PIN_BYTES &&
                CRYPTO_memcmp(digest, t->pin, PIN_BYTES) == 0;
    X509_STORE_CTX_set_error(store, same ? X509_V_OK : X509_V_ERR_APPLICATION_VERIFICATION);
    return same;
}

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in, unsigned in_n,
                   void *arg)
{
    (void)ssl;
    const struct tls *t = arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_n, t->protocols, t->protocols_n, in, in_n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* A key that asks for a passphrase must not wait for a terminal. */
static int on_passphrase(char *to, int n, int writing, void *arg)
{
    (void)to, (void)n, (void)writing, (void)arg;
    return -1;
}

static void warn_of_dates(const X509 *cert, const char *path)
{
    time_t now = time(NULL), soon = now + EXPIRES_SOON_DAYS * 86400;
    struct tm tm;
    char end[32] = "?";
    if (ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) == 1)
        strftime(end, sizeof end, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (X509_cmp_time(X509_get0_notAfter(cert), &now) < 0)
        log_warn("certificate_expired file=%s not_after=%s", log_q(path), end);
    else if (X509_cmp_time(X509_get0_notAfter(cert), &soon) < 0)
        log_warn("certificate_expires_soon file=%s not_after=%s", log_q(path), end);
    if (X509_cmp_time(X509_get0_notBefore(cert), &now) > 0)
        log_warn("certificate_not_valid_yet file=%s", log_q(path));
}

static void warn_of_mode(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && (st.st_mode & S_IROTH))
        log_warn("file_is_world_readable file=%s mode=%03o", log_q(path), (unsigned)st.st_mode & 0777);
}

/* ---- contexts ------------------------------------------------------------------------------- */

static enum lq_err load_own(const struct tls *t, SSL_CTX *ctx, struct lq_fault *fault)
{
    if (!t->cert_path)
        return LQ_OK;
    errno = 0;
    if (SSL_CTX_use_certificate_chain_file(ctx, t->cert_path) != 1)
        return bad_file(fault, "certificate", t->cert_path);
    if (SSL_CTX_use_PrivateKey_file(ctx, t->key_path, SSL_FILETYPE_PEM) != 1) {
        /* With a certificate there, a key of another one fails here already. */
        if (ERR_GET_LIB(ERR_peek_last_error()) == ERR_LIB_X509) {
            ERR_clear_error();
            return lq_fail(fault, LQ_USAGE, "the key %s is not of the certificate %s", t->key_path, t->cert_path);
        }
        return bad_file(fault, "key", t->key_path);
    }
    if (SSL_CTX_check_private_key(ctx) != 1)
        return lq_fail(fault, LQ_USAGE, "the key %s does not fit the certificate %s: %s", t->key_path, t->cert_path,
                       reason());
    warn_of_dates(SSL_CTX_get0_certificate(ctx), t->cert_path);
    warn_of_mode(t->key_path);
    return LQ_OK;
}

static enum lq_err load_trusted(struct tls *t, SSL_CTX *ctx, struct lq_fault *fault)
{
    if (t->side == TLS_SERVER && !t->ca_path)
        return LQ_OK;
    if (t->side == TLS_SERVER)
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    else
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    if (t->pinned) {
        SSL_CTX_set_cert_verify_callback(ctx, on_verify_pin, t);
        return LQ_OK;
    }
    errno = 0;
    if (!t->ca_path)
        return SSL_CTX_set_default_verify_paths(ctx) == 1
                   ? LQ_OK
                   : lq_fail(fault, LQ_USAGE, "cannot use the system's trusted certificates: %s", reason());
    if (SSL_CTX_load_verify_locations(ctx, t->ca_path, NULL) != 1)
        return bad_file(fault, "CA file", t->ca_path);
    if (t->side == TLS_SERVER) { /* the names that a client may choose its certificate by */
        STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(t->ca_path);
        if (!names)
            return bad_file(fault, "CA file", t->ca_path);
        SSL_CTX_set_client_CA_list(ctx, names);
    }
    return LQ_OK;
}

static enum lq_err context_new(struct tls *t, SSL_CTX **out, struct lq_fault *fault)
{
    static const unsigned char session_id[] = "larql-grid";
    SSL_CTX *ctx = SSL_CTX_new(t->side == TLS_SERVER ? TLS_server_method() : TLS_client_method());
    if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1 ||
        SSL_CTX_set_session_id_context(ctx, session_id, sizeof session_id - 1) != 1) {
        SSL_CTX_free(ctx);
        return lq_fail(fault, LQ_NOMEM, "cannot set up TLS: %s", reason());
    }
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS); /* 34 KB of each idle connection */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); /* tickets need no memory of ours */
    SSL_CTX_set_default_passwd_cb(ctx, on_passphrase);
    if (t->side == TLS_SERVER)
        SSL_CTX_set_alpn_select_cb(ctx, on_alpn, t);
    enum lq_err rc = LQ_OK;
    if (t->side == TLS_CLIENT && SSL_CTX_set_alpn_protos(ctx, t->protocols, t->protocols_n) != 0)
        rc = lq_fail(fault, LQ_NOMEM, "cannot set up TLS: %s", reason());
    if (!rc)
        rc = load_own(t, ctx, fault);
    if (!rc)
        rc = load_trusted(t, ctx, fault);
    if (rc)
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------- */

static enum lq_err read_pin(const char *pin, unsigned char out[PIN_BYTES], struct lq_fault *fault)
{
    static const char hex[] = "0123456789abcdef0123456789ABCDEF";
    size_t n = 0;
    bool ok = strncasecmp(pin, "sha256:", 7) == 0;
    for (const char *s = pin + 7; ok && *s; s++) {
        if (*s == ':' && n > 0 && n % 2 == 0 && s[1])
            continue;
        const char *digit = strchr(hex, *s);
        ok = digit && n < 2 * PIN_BYTES;
        if (ok) {
            unsigned v = (unsigned)(digit - hex) % 16;
            out[n / 2] = (unsigned char)(n % 2 ? out[n / 2] << 4 | v : v);
            n++;
        }
    }
    if (ok && n == 2 * PIN_BYTES)
        return LQ_OK;
    return lq_fail(fault, LQ_USAGE, "cannot read the pin '%.100s': expected sha256: and 64 hex digits", pin);
}

static enum lq_err read_protocols(struct tls *t, const char *const *names, struct lq_fault *fault)
{
    static const char *const http[] = {"http/1.1", NULL};
    for (names = names ? names : http; *names; names++) {
        size_t n = strlen(*names);
        if (n == 0 || n > 255 || t->protocols_n + n + 1 > PROTOCOLS_BYTES_MAX)
            return lq_fail(fault, LQ_USAGE, "too many or too long ALPN protocols at '%.40s'", *names);
        t->protocols[t->protocols_n++] = (unsigned char)n;
        memcpy(t->protocols + t->protocols_n, *names, n);
        t->protocols_n += (unsigned)n;
    }
    return LQ_OK;
}

static bool copy_text(char **to, const char *from)
{
    return !from || (*to = strdup(from));
}

enum lq_err tls_new(const struct tls_opts *o, struct tls **out, struct lq_fault *fault)
{
    struct tls *t = calloc(1, sizeof *t);
    if (!t)
        return lq_fail(fault, LQ_NOMEM, "out of memory for TLS");
    pthread_mutex_init(&t->mu, NULL);
    t->side = o->side;
    t->pinned = o->pin != NULL;
    enum lq_err rc = LQ_OK;
    if (!copy_text(&t->cert_path, o->cert_path) || !copy_text(&t->key_path, o->key_path) ||
        !copy_text(&t->ca_path, o->ca_path))
        rc = lq_fail(fault, LQ_NOMEM, "out of memory for TLS");
    else if (!o->cert_path != !o->key_path)
        rc = lq_fail(fault, LQ_USAGE, "a certificate and its key are given together: the %s is missing",
                     o->cert_path ? "key" : "certificate");
    else if (o->side == TLS_SERVER && !o->cert_path)
        rc = lq_fail(fault, LQ_USAGE, "a TLS server needs a certificate and its key");
    if (!rc && t->pinned)
        rc = read_pin(o->pin, t->pin, fault);
    if (!rc)
        rc = read_protocols(t, o->protocols, fault);
    if (!rc)
        rc = context_new(t, &t->ctx, fault);
    if (rc)
        tls_free(t);
    else
        *out = t;
    return rc;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_CTX_free(t->ctx);
    pthread_mutex_destroy(&t->mu);
    free(t->cert_path);
    free(t->key_path);
    free(t->ca_path);
    free(t);
}

enum lq_err tls_reload(struct tls *t, struct lq_fault *fault)
{
    SSL_CTX *fresh = NULL;
    enum lq_err rc = context_new(t, &fresh, fault);
    if (rc)
        return rc;
    pthread_mutex_lock(&t->mu);
    SSL_CTX *old = t->ctx;
    t->ctx = fresh;
    pthread_mutex_unlock(&t->mu);
    SSL_CTX_free(old);
    return LQ_OK;
}

static SSL *ssl_new(struct tls *t)
{
    pthread_mutex_lock(&t->mu);
    SSL *ssl = SSL_new(t->ctx);
    pthread_mutex_unlock(&t->mu);
    if (!ssl)
        ERR_clear_error();
    return ssl;
}

SSL *tls_accept(struct tls *t)
{
    SSL *ssl = ssl_new(t);
    if (ssl)
        SSL_set_accept_state(ssl);
    return ssl;
}

SSL *tls_connect(struct tls *t, const char *host)
{
    SSL *ssl = ssl_new(t);
    if (!ssl)
        return NULL;
    unsigned char address[16];
    bool literal = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    SSL_set_connect_state(ssl);
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    bool ok = literal ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1
                      : SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
    if (ok)
        return ssl;
    ERR_clear_error();
    SSL_free(ssl);
    return NULL;
}

enum lq_err tls_pin_of(const char *cert_path, char pin[TLS_PIN_CHARS + 1], struct lq_fault *fault)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    errno = 0;
    BIO *file = BIO_new_file(cert_path, "r");
    X509 *cert = file ? PEM_read_bio_X509(file, NULL, on_passphrase, NULL) : NULL;
    bool ok = cert && X509_digest(cert, EVP_sha256(), digest, &n) == 1;
    enum lq_err rc = ok ? LQ_OK : bad_file(fault, "certificate", cert_path);
    if (ok) {
        memcpy(pin, "sha256:", 8);
        for (unsigned i = 0; i < PIN_BYTES; i++)
            snprintf(pin + 7 + 2 * i, 3, "%02x", digest[i]);
    }
    X509_free(cert);
    BIO_free(file);
    return rc;
}
