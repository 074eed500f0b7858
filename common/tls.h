/* tls: what new TLS connections of one side are made from: certificates, whom to
 * trust, protocols. TLS 1.2 and 1.3, forward-secret AEAD ciphers, no renegotiation.
 * Owner : who made it; must outlive every SSL made from it.
 * Thread: tls_accept(), tls_connect() and tls_reload() from any.
 * Errors: LQ_USAGE names the file and OpenSSL's reason; never key material. */
#ifndef LQ_COMMON_TLS_H
#define LQ_COMMON_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>

#include "proto/err.h"

struct tls;

enum tls_side { TLS_SERVER, TLS_CLIENT };

struct tls_opts {
    enum tls_side side;
    /* PEM: the chain, leaf first, and its key. A server's own; a client's where the
     * server asks for one (both NULL: none). */
    const char *cert_path, *key_path;
    /* PEM, whom to trust. Client: instead of the system's store. Server: client
     * certificates are required, of these. */
    const char *ca_path;
    /* Client: "sha256:" and 64 hex digits (colons between bytes are fine) of the DER of
     * the server's certificate; in the stead of any check of chain and name. */
    const char *pin;
    /* ALPN, most wanted first, NULL-terminated; NULL: {"http/1.1", NULL}. A server refuses a
     * client that offers only others; who offers none is taken. */
    const char *const *protocols;
};

/* Copies what it needs of o. Warns in the log of a certificate that has expired, or soon
 * will, and of a key file that others can read. */
enum lq_err tls_new(const struct tls_opts *o, struct tls **out, struct lq_fault *fault) LQ_MUST_CHECK;
void tls_free(struct tls *t);

/* Reads the files again, for connections from now on. On failure the old ones stay. */
enum lq_err tls_reload(struct tls *t, struct lq_fault *fault) LQ_MUST_CHECK;

/* One connection's end, for bufferevent_openssl_socket_new(); the caller's. NULL: out of
 * memory. host: the name or address that the certificate must be for, and SNI. */
SSL *tls_accept(struct tls *t);
SSL *tls_connect(struct tls *t, const char *host);

/* Why ssl's connection failed, for people: the verification's verdict, OpenSSL's reason
 * (error: what bufferevent_get_openssl_error() gave, 0: none), errno_, or an end without
 * close_notify. Always terminated. */
void tls_why(const SSL *ssl, unsigned long error, int errno_, char *text, size_t n);

/* "sha256:HEX" of a PEM file's first certificate, as `pin` wants it. */
enum { TLS_PIN_CHARS = 7 + 64 };
enum lq_err tls_pin_of(const char *cert_path, char pin[TLS_PIN_CHARS + 1], struct lq_fault *fault) LQ_MUST_CHECK;

#endif
