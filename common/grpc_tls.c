/* grpc_tls: gRPC's connections over common/tls.h. */
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <string.h>

#include "common/grpc_impl.h"
#include "common/tls.h"

/* Takes ssl. Deferred callbacks: OpenSSL's bufferevents would call back from inside a write. */
static struct bufferevent *wrap(struct event_base *base, SSL *ssl, int fd, enum bufferevent_ssl_state state)
{
    struct bufferevent *bev =
        ssl ? bufferevent_openssl_socket_new(base, fd, ssl, state, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS)
            : NULL;
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); /* gRPC says itself what is whole */
    else
        SSL_free(ssl);
    return bev;
}

struct bufferevent *grpc_tls_accept(struct event_base *base, struct tls *tls, int fd)
{
    return wrap(base, tls_accept(tls), fd, BUFFEREVENT_SSL_ACCEPTING);
}

struct bufferevent *grpc_tls_connect(struct event_base *base, struct tls *tls, const char *host, int fd)
{
    return wrap(base, tls_connect(tls, host), fd, BUFFEREVENT_SSL_CONNECTING);
}

bool grpc_tls_is_h2(struct bufferevent *bev)
{
    const unsigned char *p = NULL;
    unsigned n = 0;
    SSL_get0_alpn_selected(bufferevent_openssl_get_ssl(bev), &p, &n);
    return n == 2 && memcmp(p, "h2", 2) == 0;
}

void grpc_tls_why(struct bufferevent *bev, int error, char *buf, size_t buf_n)
{
    tls_why(bufferevent_openssl_get_ssl(bev), bufferevent_get_openssl_error(bev), error, buf, buf_n);
}

void grpc_tls_goodbye(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl && SSL_is_init_finished(ssl)) {
        (void)SSL_shutdown(ssl);
        ERR_clear_error();
    }
}
