/* grpc_tls: what gRPC needs of OpenSSL: bufferevents of a given context, ALPN, the text of
 * a failure. Certificates and who is trusted are the context's matter. */
#include <arpa/inet.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "common/grpc_impl.h"

static const unsigned char alpn_h2[] = {2, 'h', '2'};

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in, unsigned in_n,
                   void *arg)
{
    (void)ssl, (void)arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_n, alpn_h2, sizeof alpn_h2, in, in_n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

void grpc_tls_choose_h2(struct ssl_ctx_st *ctx)
{
    SSL_CTX_set_alpn_select_cb(ctx, on_alpn, NULL);
}

/* Deferred callbacks: OpenSSL's bufferevents would call back from inside a write. */
static struct bufferevent *wrap(struct event_base *base, SSL *ssl, int fd, enum bufferevent_ssl_state state)
{
    struct bufferevent *bev =
        bufferevent_openssl_socket_new(base, fd, ssl, state, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); /* gRPC says itself what is whole */
    else
        SSL_free(ssl);
    return bev;
}

struct bufferevent *grpc_tls_accept(struct event_base *base, struct ssl_ctx_st *ctx, int fd)
{
    SSL *ssl = SSL_new(ctx);
    return ssl ? wrap(base, ssl, fd, BUFFEREVENT_SSL_ACCEPTING) : NULL;
}

struct bufferevent *grpc_tls_connect(struct event_base *base, struct ssl_ctx_st *ctx, const char *name)
{
    unsigned char address[sizeof(struct in6_addr)];
    bool is_address = inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
    SSL *ssl = SSL_new(ctx);
    if (!ssl)
        return NULL;
    bool ok = SSL_set_alpn_protos(ssl, alpn_h2, sizeof alpn_h2) == 0;
    if (name[0] && is_address)
        ok = ok && X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    else if (name[0])
        ok = ok && SSL_set_tlsext_host_name(ssl, name) == 1 && SSL_set1_host(ssl, name) == 1;
    if (!ok) {
        SSL_free(ssl);
        return NULL;
    }
    return wrap(base, ssl, -1, BUFFEREVENT_SSL_CONNECTING);
}

bool grpc_tls_is_h2(struct bufferevent *bev)
{
    const unsigned char *p = NULL;
    unsigned n = 0;
    SSL_get0_alpn_selected(bufferevent_openssl_get_ssl(bev), &p, &n);
    return n == 2 && memcmp(p, "h2", 2) == 0;
}

const char *grpc_tls_error(struct bufferevent *bev, char *buf, size_t buf_n)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    long verified = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    unsigned long e = bufferevent_get_openssl_error(bev);
    const char *why = e ? ERR_reason_error_string(e) : NULL;
    if (verified != X509_V_OK && ssl && SSL_get_verify_mode(ssl) != SSL_VERIFY_NONE)
        snprintf(buf, buf_n, "TLS: %s", X509_verify_cert_error_string(verified));
    else
        snprintf(buf, buf_n, "TLS: %s", why ? why : "the handshake failed");
    return buf;
}

void grpc_tls_goodbye(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl && SSL_is_init_finished(ssl)) {
        (void)SSL_shutdown(ssl);
        ERR_clear_error();
    }
}

void grpc_tls_ctx_ref(struct ssl_ctx_st *ctx)
{
    (void)SSL_CTX_up_ref(ctx);
}

void grpc_tls_ctx_unref(struct ssl_ctx_st *ctx)
{
    SSL_CTX_free(ctx);
}
