/* gRPC over TLS. */
#include "tests/unit/common/cert_maker.h"
#include "tests/unit/common/grpc_kit.h"

#include "common/tls.h"

static const char *const h2[] = {"h2", NULL}, *const http1[] = {"http/1.1", NULL};

struct secret {
    struct cert ca, server;
    struct tls *listen, *dial;
    struct grpc_site w;
};

static struct tls *make(const struct tls_opts *o)
{
    struct tls *t;
    struct lq_fault fault;
    ck_assert_msg(tls_new(o, &t, &fault) == LQ_OK, "%s", fault.text);
    return t;
}

/* names: of the server's certificate. trusts: the client has its authority. */
static void secret_open(struct secret *x, const char *names, bool trusts, const char *const *listen_protocols,
                        const char *const *dial_protocols)
{
    struct grpc_server_opts so;
    struct grpc_channel_opts co;
    grpc_server_opts_init(&so);
    grpc_channel_opts_init(&co);
    cert_make(&x->ca, "ca", NULL, NULL, -60, 86400 * 30);
    cert_make(&x->server, "server", &x->ca, names, -60, 86400 * 30);
    x->listen = make(&(struct tls_opts){.side = TLS_SERVER,
                                        .cert_path = x->server.cert_path,
                                        .key_path = x->server.key_path,
                                        .protocols = listen_protocols});
    x->dial = make(&(struct tls_opts){
        .side = TLS_CLIENT, .ca_path = trusts ? x->ca.cert_path : NULL, .protocols = dial_protocols});
    so.tls = listen_protocols ? x->listen : NULL;
    co.tls = dial_protocols ? x->dial : NULL;
    site_open(&x->w, &so, &co);
}

static void secret_close(struct secret *x)
{
    site_close(&x->w);
    tls_free(x->listen);
    tls_free(x->dial);
    cert_release(&x->server);
    cert_release(&x->ca);
}

static const size_t sizes[] = {0, 1, 16379, 70000, 4 * 1048576};

START_TEST(messages_arrive_whole)
{
    struct secret x;
    struct heard h = {0};
    size_t n = sizes[_i];
    uint8_t *p = malloc(n + 1);
    memset(p, 'x', n);
    secret_open(&x, "DNS:localhost,IP:127.0.0.1", true, h2, h2);
    struct grpc_stream *s = call(&x.w, "/t/Echo", 0, &h);
    for (size_t k = 1; k <= 3; k++) {
        (void)grpc_stream_send(s, p, n);
        RUN_UNTIL(x.w.base, h.messages_n == k || h.closed_n);
        ck_assert_msg(!h.closed_n, "%s", h.text);
        ck_assert_uint_eq(h.last_n, n);
    }
    grpc_stream_half_close(s);
    RUN_UNTIL(x.w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    ck_assert(x.w.peer_is_loopback);
    free(p);
    secret_close(&x);
}
END_TEST

START_TEST(many_messages_wait_for_room)
{
    struct secret x;
    struct heard h = {0};
    secret_open(&x, "DNS:localhost,IP:127.0.0.1", true, h2, h2);
    x.w.spew_n = 5000;
    (void)call(&x.w, "/t/Spew", 0, &h);
    RUN_UNTIL(x.w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_OK);
    ck_assert_uint_eq(h.messages_n, x.w.spew_n);
    secret_close(&x);
}
END_TEST

static const struct {
    const char *names;
    bool trusts;
    const char *const *listen, *const *dial; /* NULL: without TLS */
    const char *text;
} failures[] = {
    {"DNS:localhost,IP:127.0.0.1", false, h2, h2, "cert"},
    {"DNS:elsewhere", true, h2, h2, "mismatch"},
    {"IP:127.0.0.1", true, h2, http1, "HTTP/2"},
    {"IP:127.0.0.1", true, NULL, h2, ""},
    {"IP:127.0.0.1", true, h2, NULL, ""},
};

START_TEST(failures_are_unavailable_and_say_why)
{
    struct secret x;
    struct heard h = {0};
    secret_open(&x, failures[_i].names, failures[_i].trusts, failures[_i].listen, failures[_i].dial);
    unary(&x.w, "/t/Unary", "x", 1, 0, &h);
    RUN_UNTIL(x.w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
    ck_assert(h.lost);
    ck_assert_msg(_i == 2 || strstr(h.text, failures[_i].text), "%s", h.text);
    ck_assert_uint_eq(x.w.at_server.messages_n, 0);
    RUN_UNTIL(x.w.base, grpc_server_connections_n(x.w.server) == 0);
    secret_close(&x);
}
END_TEST

START_TEST(a_server_that_vanishes_is_lost)
{
    struct secret x;
    struct heard h = {0};
    secret_open(&x, "IP:127.0.0.1", true, h2, h2);
    (void)call(&x.w, "/t/Sink", 0, &h);
    RUN_UNTIL(x.w.base, x.w.at_server.stream);
    grpc_server_free(x.w.server);
    x.w.server = NULL;
    RUN_UNTIL(x.w.base, h.closed_n);
    ck_assert_int_eq(h.code, GRPC_UNAVAILABLE);
    ck_assert(h.lost);
    secret_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grpc_tls");
    TCase *t = tcase_create("grpc_tls");
    tcase_set_timeout(t, 20);
    tcase_add_loop_test(t, messages_arrive_whole, 0, sizeof sizes / sizeof *sizes);
    tcase_add_test(t, many_messages_wait_for_room);
    tcase_add_loop_test(t, failures_are_unavailable_and_say_why, 0, sizeof failures / sizeof *failures);
    tcase_add_test(t, a_server_that_vanishes_is_lost);
    suite_add_tcase(s, t);
    return run_suite(s);
}
