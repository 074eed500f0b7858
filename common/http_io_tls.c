/* http_io_tls: what http_io does otherwise under TLS: libevent's OpenSSL bufferevent reads
 * too, and what it has decrypted is moved on by reference. An end without close_notify is
 * IO_BROKEN: a body without a length must not look complete. */
#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>

#include "common/http_io.h"
#include "common/tls.h"

/* Moves up to room bytes to io->in. True: something came. */
static bool take(struct http_io *io, size_t room)
{
    return room > 0 && evbuffer_remove_buffer(bufferevent_get_input(io->bev), io->in, room) > 0;
}

static void on_tls_read(struct bufferevent *bev, void *arg)
{
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    size_t have = evbuffer_get_length(io->in);
    guard_enter(guard);
    if (io->broken) {
        io_end(io, IO_BROKEN, ENOMEM);
    } else if (!io->ended) {
        bool came = take(io, have < HTTP_HIGH_WATER_BYTES ? HTTP_HIGH_WATER_BYTES - have : 0);
        if (evbuffer_get_length(bufferevent_get_input(bev)) > 0) {
            io->paused = true; /* memory is bounded, whatever the peer sends */
            (void)bufferevent_disable(bev, EV_READ);
        }
        if (came)
            io->ops->on_bytes(io);
    }
    guard_leave(guard);
}

/* io->reader: from the loop, what io_read_on() and io_break() ask for. */
static void on_tls_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_io *io = arg;
    on_tls_read(io->bev, io);
}

void io_tls_read_on(struct http_io *io)
{
    (void)bufferevent_enable(io->bev, EV_READ);
    event_active(io->reader, EV_READ, 0); /* for what is decrypted already */
}

static void on_end(struct http_io *io, short what, int error)
{
    SSL *ssl = bufferevent_openssl_get_ssl(io->bev);
    unsigned long reason = bufferevent_get_openssl_error(io->bev);
    bool closed = (what & BEV_EVENT_EOF) && io->connected;
    io->spoke_http = ERR_GET_LIB(reason) == ERR_LIB_SSL && ERR_GET_REASON(reason) == SSL_R_HTTP_REQUEST;
    if (!closed && (reason || io->connected || SSL_get_verify_result(ssl) != X509_V_OK || error == 0))
        tls_why(ssl, reason, error == EAGAIN ? 0 : error, io->why, sizeof io->why);
    if (io->connected && !io->ended && take(io, SIZE_MAX)) /* all that came before the end */
        io->ops->on_bytes(io);
    if (io->bev) /* a second time: what was left to write is lost */
        io_end(io, closed && !io->ended ? IO_CLOSED : IO_BROKEN, error);
    if (io->bev && closed && io_output_n(io) > 0)
        (void)bufferevent_enable(io->bev, EV_WRITE); /* who reads on after a close_notify gets the rest */
}

static void on_tls_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_io *io = arg;
    struct http_guard *guard = io->guard;
    int error = EVUTIL_SOCKET_ERROR();
    guard_enter(guard);
    if (what & BEV_EVENT_CONNECTED) {
        io->connected = true;
        (void)bufferevent_enable(bev, EV_READ);
        io->ops->on_connected(io);
    } else if (what & BEV_EVENT_TIMEOUT) {
        io_end(io, IO_STALLED, ETIMEDOUT);
    } else {
        on_end(io, what, error);
    }
    guard_leave(guard);
}

bool io_tls_open(struct http_io *io, int fd, SSL *ssl)
{
    io->bev = bufferevent_openssl_socket_new(
        io->base, fd, ssl, SSL_is_server(ssl) ? BUFFEREVENT_SSL_ACCEPTING : BUFFEREVENT_SSL_CONNECTING,
        BEV_OPT_CLOSE_ON_FREE);
    if (!io->bev) {
        SSL_free(ssl);
        return false;
    }
    bufferevent_setcb(io->bev, on_tls_read, io_on_write, on_tls_event, io);
    io->reader = event_new(io->base, -1, 0, on_tls_again, io);
    return io->reader;
}

void io_tls_shut(struct http_io *io)
{
    SSL *ssl = bufferevent_openssl_get_ssl(io->bev);
    if (io->connected && SSL_is_init_finished(ssl))
        (void)SSL_shutdown(ssl); /* what does not fit the socket now is lost, and the peer will call it an error */
    ERR_clear_error();
}
