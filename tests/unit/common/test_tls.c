/* TLS between our client and our server: who is believed, what is refused and in which
 * words, how ends are told apart, and that bodies stream as they do without. */
#include <errno.h>

#include "common/keys.h"
#include "common/trust.h"
#include "tests/unit/common/cert_maker.h"
#include "tests/unit/common/http_peer.h"
#include "tests/unit/common/http_site.h"

enum { DAY = 86400 };

/* One authority, what it certified, and another that nobody knows. */
struct papers {
    struct cert ca, server, elsewhere, old, client, stranger_ca, stranger;
};

static void papers_make(struct papers *p)
{
    cert_make(&p->ca, "ca", NULL, NULL, -DAY, 30 * DAY);
    cert_make(&p->server, "server", &p->ca, "DNS:localhost,IP:127.0.0.1", -DAY, 30 * DAY);
    cert_make(&p->elsewhere, "elsewhere", &p->ca, "DNS:elsewhere.example,IP:192.0.2.1", -DAY, 30 * DAY);
    cert_make(&p->old, "old", &p->ca, "DNS:localhost,IP:127.0.0.1", -2 * DAY, -DAY);
    cert_make(&p->client, "client", &p->ca, NULL, -DAY, 30 * DAY);
    cert_make(&p->stranger_ca, "stranger-ca", NULL, NULL, -DAY, 30 * DAY);
    cert_make(&p->stranger, "stranger", &p->stranger_ca, "DNS:localhost,IP:127.0.0.1", -DAY, 30 * DAY);
}

static void papers_release(struct papers *p)
{
    struct cert *all[] = {&p->ca, &p->server, &p->elsewhere, &p->old, &p->client, &p->stranger_ca, &p->stranger};
    for (int i = 0; i < N(all); i++)
        cert_release(all[i]);
}

static struct tls *make_tls(const struct tls_opts *o)
{
    struct tls *t = NULL;
    struct lq_fault fault = {0};
    ck_assert_int_eq(log_level_set("error", &fault), LQ_OK);
    ck_assert_msg(tls_new(o, &t, &fault) == LQ_OK, "%s", fault.text);
    return t;
}

static struct tls *server_tls(const struct cert *c, const char *client_ca)
{
    return make_tls(&(struct tls_opts){
        .side = TLS_SERVER, .cert_path = c->cert_path, .key_path = c->key_path, .ca_path = client_ca});
}

static struct tls *client_tls(const char *ca, const struct cert *own, const char *pin)
{
    return make_tls(&(struct tls_opts){.side = TLS_CLIENT,
                                       .ca_path = ca,
                                       .cert_path = own ? own->cert_path : NULL,
                                       .key_path = own ? own->key_path : NULL,
                                       .pin = pin});
}

static void site_open_tls(struct site *w, struct tls *listen, uint32_t header_ms)
{
    struct http_server_opts o;
    http_server_opts_init(&o);
    o.tls = listen;
    o.header_timeout_ms = header_ms;
    site_open(w, &o);
}

static struct http_pool *pool_to(struct site *w, const char *url, struct tls *dial, const struct keys *keys)
{
    struct http_pool_opts o;
    http_pool_opts_init(&o);
    o.tls = dial;
    o.keys = keys;
    o.connect_timeout_ms = scaled(5000);
    return kit_pool(w->base, url, &o);
}

static void call(struct job *j, struct site *w, struct http_pool *p, const char *path)
{
    job_init(j);
    job_start(j, p, &(struct http_call_opts){.method = "GET", .path = path});
    RUN_UNTIL(w->base, j->ends_n);
}

/* ---- files ---- */

START_TEST(files_are_taken_or_refused_in_words)
{
    struct papers p;
    struct tls *t = NULL;
    struct lq_fault fault;
    char garbage[128], locked[128];
    papers_make(&p);
    snprintf(garbage, sizeof garbage, "%s/garbage", cert_folder());
    FILE *f = fopen(garbage, "w");
    fputs("no PEM\n", f);
    fclose(f);
    snprintf(locked, sizeof locked, "%s/locked", cert_folder());
    f = fopen(locked, "w");
    ck_assert_int_eq(
        PEM_write_PrivateKey(f, p.server.key, EVP_aes_128_cbc(), (const unsigned char *)"word", 4, NULL, NULL), 1);
    fclose(f);
    const char *cert = p.server.cert_path, *key = p.server.key_path;
    const struct {
        struct tls_opts o;
        const char *file, *part;
    } bad[] = {
        {{.side = TLS_SERVER}, "", "needs a certificate"},
        {{.side = TLS_SERVER, .cert_path = cert}, "", "the key is missing"},
        {{.side = TLS_CLIENT, .key_path = key}, "", "the certificate is missing"},
        {{.side = TLS_SERVER, .cert_path = "/nowhere.pem", .key_path = key}, "/nowhere.pem", "No such file"},
        {{.side = TLS_SERVER, .cert_path = cert, .key_path = "/nowhere.key"}, "/nowhere.key", "No such file"},
        {{.side = TLS_SERVER, .cert_path = garbage, .key_path = key}, garbage, "no start line"},
        {{.side = TLS_SERVER, .cert_path = cert, .key_path = garbage}, garbage, "cannot use key"},
        {{.side = TLS_SERVER, .cert_path = cert, .key_path = locked}, locked, "cannot use key"},
        {{.side = TLS_SERVER, .cert_path = cert, .key_path = p.client.key_path},
         p.client.key_path,
         "is not of the certificate"},
        {{.side = TLS_CLIENT, .ca_path = "/nowhere.ca"}, "/nowhere.ca", "No such file"},
        {{.side = TLS_CLIENT, .ca_path = garbage}, garbage, "cannot use CA file"},
        {{.side = TLS_SERVER, .cert_path = cert, .key_path = key, .ca_path = garbage}, garbage, "cannot use CA file"},
        {{.side = TLS_CLIENT, .pin = "sha256:00"}, "", "64 hex digits"},
        {{.side = TLS_CLIENT, .pin = "md5:00"}, "", "64 hex digits"},
    };
    for (int i = 0; i < N(bad); i++) {
        ck_assert_int_eq(tls_new(&bad[i].o, &t, &fault), LQ_USAGE);
        ck_assert_msg(strstr(fault.text, bad[i].file) && strstr(fault.text, bad[i].part), "%d: %s", i, fault.text);
        ck_assert_uint_eq(ERR_peek_error(), 0); /* nothing left for the next that looks */
    }
    unlink(garbage);
    unlink(locked);
    papers_release(&p);
}
END_TEST

/* ---- whom a client believes ---- */

enum { BY_CA, BY_OTHER_CA, BY_SYSTEM, BY_PIN, BY_OTHER_PIN };
static const struct {
    const char *server, *host;
    int believes;
    const char *part; /* NULL: answered */
} beliefs[] = {
    {"server", "127.0.0.1", BY_CA, NULL},
    {"server", "localhost", BY_CA, NULL},
    {"server", "127.0.0.1", BY_OTHER_CA, "unable to get local issuer"},
    {"server", "127.0.0.1", BY_SYSTEM, "unable to get local issuer"},
    {"elsewhere", "localhost", BY_CA, "hostname mismatch"},
    {"elsewhere", "127.0.0.1", BY_CA, "IP address mismatch"},
    {"old", "localhost", BY_CA, "expired"},
    {"stranger", "localhost", BY_CA, "unable to get local issuer"},
    {"stranger", "localhost", BY_OTHER_CA, NULL},
    {"stranger", "127.0.0.1", BY_PIN, NULL},
    {"old", "localhost", BY_PIN, NULL}, /* the pin is all that counts */
    {"server", "localhost", BY_OTHER_PIN, "not the pinned one"},
};

START_TEST(clients_believe_whom_they_should)
{
    struct papers p;
    struct site w;
    struct job j;
    char url[128], pin[TLS_PIN_CHARS + 1];
    papers_make(&p);
    const struct cert *all[] = {&p.server, &p.elsewhere, &p.old, &p.stranger}, *c = NULL;
    for (int i = 0; i < N(all); i++)
        if (strncmp(strrchr(all[i]->cert_path, '/') + 1, beliefs[_i].server, strlen(beliefs[_i].server)) == 0)
            c = all[i];
    ck_assert_ptr_nonnull(c);
    int by = beliefs[_i].believes;
    ck_assert_int_eq(tls_pin_of(by == BY_OTHER_PIN ? p.old.cert_path : c->cert_path, pin, NULL), LQ_OK);
    struct tls *listen = server_tls(c, NULL),
               *dial = client_tls(by == BY_CA         ? p.ca.cert_path
                                  : by == BY_OTHER_CA ? p.stranger_ca.cert_path
                                                      : NULL,
                                  NULL, by == BY_PIN || by == BY_OTHER_PIN ? pin : NULL);
    site_open_tls(&w, listen, 10000);
    const char *port = strrchr(http_server_url(w.server), ':');
    ck_assert_int_eq(strncmp(http_server_url(w.server), "https://", 8), 0);
    snprintf(url, sizeof url, "https://%s%s", beliefs[_i].host, port);
    struct http_pool *pool = pool_to(&w, url, dial, NULL);
    for (int i = 0; i < 2; i++) {
        call(&j, &w, pool, "/hello");
        if (beliefs[_i].part) {
            ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
            ck_assert_msg(strstr(j.fault.text, beliefs[_i].part) != NULL, "%s", j.fault.text);
            ck_assert_int_eq(w.requests_n, 0);
        } else {
            ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
            ck_assert_str_eq(job_text(&j), "hello");
            ck_assert_uint_eq(http_server_connections_n(w.server), 1); /* kept */
        }
        job_release(&j);
    }
    http_pool_free(pool);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    site_close(&w);
    tls_free(listen);
    tls_free(dial);
    papers_release(&p);
}
END_TEST

/* ---- whom a server believes ---- */

START_TEST(client_certificates_are_required)
{
    struct papers p;
    struct site w;
    struct job j;
    papers_make(&p);
    struct tls *listen = server_tls(&p.server, p.ca.cert_path);
    const struct cert *shown[] = {NULL, &p.stranger, &p.client};
    struct tls *dial = client_tls(p.ca.cert_path, shown[_i], NULL);
    site_open_tls(&w, listen, 10000);
    struct http_pool *pool = pool_to(&w, http_server_url(w.server), dial, NULL);
    call(&j, &w, pool, "/hello");
    ck_assert_int_eq(j.rc, _i == 2 ? LQ_OK : LQ_SHARD_DOWN);
    ck_assert_int_eq(w.requests_n, _i == 2);
    if (_i == 0)
        ck_assert_msg(strstr(j.fault.text, "certificate required") != NULL, "%s", j.fault.text);
    if (_i == 1)
        ck_assert_msg(strstr(j.fault.text, "unknown ca") != NULL, "%s", j.fault.text);
    job_release(&j);
    http_pool_free(pool);
    site_close(&w);
    tls_free(listen);
    tls_free(dial);
    papers_release(&p);
}
END_TEST

/* ---- the wrong language ---- */

static struct papers the_papers;
static struct tls *the_listen, *the_dial;

static void setup(void)
{
    papers_make(&the_papers);
    the_listen = server_tls(&the_papers.server, NULL);
    the_dial = client_tls(the_papers.ca.cert_path, NULL, NULL);
}

static void teardown(void)
{
    tls_free(the_listen);
    tls_free(the_dial);
    papers_release(&the_papers);
}

START_TEST(plain_words_to_a_tls_port_are_answered)
{
    struct site w;
    struct raw r;
    struct answer a;
    site_open_tls(&w, the_listen, 10000);
    raw_open_tcp(&r, w.server);
    ask(&r, &a, _i ? POST("/echo", "3") "abc" : GET("/hello"));
    ck_assert_int_eq(a.status, 400);
    ck_assert_str_eq(answer_text(&a), "{\"error\":\"this port speaks TLS: use https://\"}");
    RUN_UNTIL(w.base, r.eof || r.reset);
    answer_release(&a);
    raw_close(&r);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    site_close(&w);
}
END_TEST

START_TEST(a_tls_client_at_a_plain_port_ends_at_once)
{
    struct site w;
    struct job j;
    char url[128];
    site_open(&w, NULL);
    snprintf(url, sizeof url, "https%s", http_server_url(w.server) + 4);
    struct http_pool *pool = pool_to(&w, url, the_dial, NULL);
    call(&j, &w, pool, "/hello");
    ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    ck_assert_msg(strstr(j.fault.text, "a plain port?") != NULL, "%s", j.fault.text);
    job_release(&j);
    http_pool_free(pool);
    site_close(&w);
}
END_TEST

START_TEST(a_plain_client_at_a_tls_port_is_told)
{
    struct site w;
    struct job j;
    char url[128];
    site_open_tls(&w, the_listen, 10000);
    snprintf(url, sizeof url, "http%s", http_server_url(w.server) + 5);
    struct http_pool *pool = kit_pool(w.base, url, NULL);
    call(&j, &w, pool, "/hello");
    ck_assert_int_eq(j.rc, LQ_OK);
    ck_assert_int_eq(j.status, 400);
    job_release(&j);
    http_pool_free(pool);
    site_close(&w);
}
END_TEST

START_TEST(nobody_there_is_said_as_without_tls)
{
    struct event_base *base = kit_base();
    struct site w = {.base = base};
    struct job j;
    struct peer peer;
    char url[80];
    peer_open(&peer, base);
    peer_close(&peer); /* its port is free again */
    snprintf(url, sizeof url, "https%s", peer.url + 4);
    struct http_pool *pool = pool_to(&w, url, the_dial, NULL);
    call(&j, &w, pool, "/hello");
    ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    ck_assert_str_eq(j.fault.text, "connection refused");
    job_release(&j);
    http_pool_free(pool);
    event_base_free(base);
}
END_TEST

/* ---- handshakes that do not end ---- */

START_TEST(half_a_handshake_is_closed)
{
    static const char hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    struct site w;
    struct raw r;
    site_open_tls(&w, the_listen, scaled(100));
    raw_open_tcp(&r, w.server);
    if (_i) /* the beginning of one; else not a byte */
        raw_send(&r, hello, sizeof hello - 1);
    RUN_UNTIL(w.base, r.eof || r.reset);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 0);
    raw_close(&r);
    site_close(&w);
}
END_TEST

START_TEST(a_server_that_keeps_silent_is_given_up)
{
    struct event_base *base = kit_base();
    struct http_pool_opts o;
    struct peer peer;
    struct job j;
    char url[80];
    peer_open(&peer, base);
    snprintf(url, sizeof url, "https%s", peer.url + 4);
    http_pool_opts_init(&o);
    o.tls = the_dial;
    o.connect_timeout_ms = scaled(50);
    struct http_pool *pool = kit_pool(base, url, &o);
    job_init(&j);
    job_start(&j, pool, &(struct http_call_opts){.method = "GET", .path = "/hello"});
    RUN_UNTIL(base, j.ends_n);
    ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    ck_assert_ptr_nonnull(strstr(j.fault.text, "no connection within"));
    job_release(&j);
    http_pool_free(pool);
    peer_close(&peer);
    event_base_free(base);
}
END_TEST

/* ---- ends ---- */

/* A body without a length ends with its connection: only a close_notify makes it whole. */
START_TEST(a_body_until_close_needs_a_close_notify)
{
    bool notify = _i;
    struct event_base *base = kit_base();
    struct site w = {.base = base};
    struct peer peer;
    struct raw r;
    struct job j;
    char url[80];
    peer_open(&peer, base);
    snprintf(url, sizeof url, "https%s", peer.url + 4);
    struct http_pool *pool = pool_to(&w, url, the_dial, NULL);
    job_init(&j);
    job_start(&j, pool, &(struct http_call_opts){.method = "GET", .path = "/"});
    RUN_UNTIL(base, peer.conns_n == 1);
    int fd = dup(bufferevent_getfd(peer.conn[0].bev));
    raw_close(&peer.conn[0]);
    raw_take_bev(&r, base,
                 bufferevent_openssl_socket_new(base, fd, tls_accept(the_listen), BUFFEREVENT_SSL_ACCEPTING,
                                                BEV_OPT_CLOSE_ON_FREE));
    RUN_UNTIL(base, raw_n(&r) > 0);
    raw_text(&r, "HTTP/1.0 200 OK\r\n\r\nsome bytes");
    RUN_UNTIL(base, evbuffer_get_length(bufferevent_get_output(r.bev)) == 0);
    if (notify)
        ck_assert_int_eq(SSL_shutdown(bufferevent_openssl_get_ssl(r.bev)), 0);
    raw_close(&r);
    RUN_UNTIL(base, j.ends_n);
    ck_assert_int_eq(j.rc, notify ? LQ_OK : LQ_SHARD_DOWN);
    if (notify)
        ck_assert_str_eq(job_text(&j), "some bytes");
    job_release(&j);
    http_pool_free(pool);
    peer_close(&peer);
    event_base_free(base);
}
END_TEST

/* ---- bodies ---- */

START_TEST(large_bodies_pass_whole_and_memory_is_bounded)
{
    enum { BODY = 5 << 20 };
    struct site w;
    struct job j;
    struct evbuffer *body = evbuffer_new();
    unsigned char *bytes = malloc(BODY);
    for (size_t i = 0; i < BODY; i++)
        bytes[i] = (unsigned char)(i * 2654435761u >> 24);
    evbuffer_add(body, bytes, BODY);
    site_open_tls(&w, the_listen, 10000);
    struct http_pool *pool = pool_to(&w, http_server_url(w.server), the_dial, NULL);
    for (int i = 0; i < 2; i++) {
        job_init(&j);
        job_start_cb(&j, pool, &(struct http_call_opts){.method = "POST", .path = "/stream", .body = body},
                     &job_streams);
        RUN_UNTIL(w.base, j.ends_n);
        ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
        ck_assert_uint_eq(evbuffer_get_length(j.got), BODY);
        ck_assert_mem_eq(evbuffer_pullup(j.got, -1), bytes, BODY);
        ck_assert_uint_le(w.in_max, HTTP_HIGH_WATER_BYTES);
        ck_assert_uint_le(j.data_max, HTTP_HIGH_WATER_BYTES);
        job_release(&j);
    }
    http_pool_free(pool);
    free(bytes);
    evbuffer_free(body);
    site_close(&w);
}
END_TEST

START_TEST(a_taker_that_pauses_gets_it_all)
{
    struct site w;
    struct job j;
    site_open_tls(&w, the_listen, 10000);
    w.answer_n = 8 << 20;
    struct http_pool *pool = pool_to(&w, http_server_url(w.server), the_dial, NULL);
    job_init(&j);
    j.take_n = 0;
    job_start_cb(&j, pool, &(struct http_call_opts){.method = "GET", .path = "/big"}, &job_streams);
    RUN_UNTIL(w.base, j.data_max == HTTP_HIGH_WATER_BYTES);
    kit_turns(w.base, 200);
    ck_assert_uint_eq(evbuffer_get_length(j.call->in), HTTP_HIGH_WATER_BYTES);
    ck_assert_uint_le(evbuffer_get_length(j.call->wire->io.in), HTTP_HIGH_WATER_BYTES);
    while (j.call) {
        j.take_n = 100000;
        http_call_resume(j.call);
        kit_turns(w.base, 3);
    }
    ck_assert_int_eq(j.rc, LQ_OK);
    ck_assert_uint_eq(evbuffer_get_length(j.got), w.answer_n);
    job_release(&j);
    http_pool_free(pool);
    site_close(&w);
}
END_TEST

/* ---- new files ---- */

START_TEST(new_files_count_for_new_connections)
{
    struct papers p;
    struct site w;
    struct job j;
    struct lq_fault fault;
    papers_make(&p);
    struct tls *listen = server_tls(&p.server, NULL), *dial = client_tls(p.ca.cert_path, NULL, NULL);
    site_open_tls(&w, listen, 10000);
    struct http_pool *kept = pool_to(&w, http_server_url(w.server), dial, NULL);
    call(&j, &w, kept, "/hello");
    ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
    job_release(&j);

    ck_assert_int_eq(rename(p.stranger.cert_path, p.server.cert_path), 0);
    ck_assert_int_eq(tls_reload(listen, &fault), LQ_USAGE); /* its key is of the old one */
    ck_assert_ptr_nonnull(strstr(fault.text, "is not of the certificate"));
    struct http_pool *fresh = pool_to(&w, http_server_url(w.server), dial, NULL);
    call(&j, &w, fresh, "/hello");
    ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text); /* the old ones still */
    job_release(&j);
    http_pool_free(fresh);

    ck_assert_int_eq(rename(p.stranger.key_path, p.server.key_path), 0);
    ck_assert_msg(tls_reload(listen, &fault) == LQ_OK, "%s", fault.text);
    fresh = pool_to(&w, http_server_url(w.server), dial, NULL);
    call(&j, &w, fresh, "/hello");
    ck_assert_int_eq(j.rc, LQ_SHARD_DOWN);
    job_release(&j);
    call(&j, &w, kept, "/hello"); /* an open connection stays */
    ck_assert_msg(j.rc == LQ_OK, "%s", j.fault.text);
    job_release(&j);
    http_pool_free(fresh);
    http_pool_free(kept);
    site_close(&w);
    tls_free(listen);
    tls_free(dial);
    papers_release(&p);
}
END_TEST

static struct trust *trust_of(const struct papers *p)
{
    struct trust *t = calloc(1, sizeof *t);
    struct lq_fault fault = {0};
    const struct trust_opts o = {
        .tls_cert = p->server.cert_path, .tls_key = p->server.key_path, .tls_ca = p->ca.cert_path};
    ck_assert_msg(trust_init(t, &o, false, &fault) == LQ_OK, "%s", fault.text);
    return t;
}

START_TEST(further_contexts_are_read_again_with_the_rest)
{
    static const char *const h2[] = {"h2", NULL};
    struct papers p;
    struct site w;
    struct job j;
    struct tls *listen_h2 = NULL, *dial_h2 = NULL, *pinned = NULL;
    char pin[TLS_PIN_CHARS + 1];
    papers_make(&p);
    struct trust *t = trust_of(&p);
    ck_assert_int_eq(tls_pin_of(p.server.cert_path, pin, NULL), LQ_OK);
    ck_assert_int_eq(trust_tls(t, TLS_SERVER, h2, NULL, &listen_h2, NULL), LQ_OK);
    ck_assert_int_eq(trust_tls(t, TLS_CLIENT, h2, NULL, &dial_h2, NULL), LQ_OK);
    ck_assert_int_eq(trust_tls(t, TLS_CLIENT, h2, pin, &pinned, NULL), LQ_OK);
    site_open_tls(&w, listen_h2, 10000);
    const struct {
        struct tls *dial;
        bool before, after; /* the server's certificate becomes another of the same CA */
    } cases[] = {
        {dial_h2, true, true}, {pinned, true, false}, {t->dial, false, false}}; /* the last speaks http/1.1 alone */
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < N(cases); i++) {
            struct http_pool *pool = pool_to(&w, http_server_url(w.server), cases[i].dial, NULL);
            call(&j, &w, pool, "/hello");
            ck_assert_msg((j.rc == LQ_OK) == (again ? cases[i].after : cases[i].before), "%d %d: %s", again, i,
                          j.fault.text);
            job_release(&j);
            http_pool_free(pool);
        }
        struct cert fresh;
        cert_make(&fresh, "server", &p.ca, "IP:127.0.0.1", -DAY, 30 * DAY); /* over the old files */
        X509_free(fresh.x);
        EVP_PKEY_free(fresh.key);
        trust_reload(t);
    }
    site_close(&w);
    trust_release(t);
    free(t);
    papers_release(&p);
}
END_TEST

/* ---- keys in calls ---- */

START_TEST(calls_carry_the_key)
{
    struct event_base *base = kit_base();
    struct site w = {.base = base};
    struct peer peer;
    struct job j;
    struct keys *keys = NULL;
    char seen[512] = "";
    ck_assert_int_eq(keys_new(NULL, "kkkkkkkkkkkkkkkkkkkk", "test", &keys, NULL), LQ_OK);
    peer_open(&peer, base);
    struct http_pool *pool = pool_to(&w, peer.url, NULL, keys);
    job_init(&j);
    job_start(&j, pool, &(struct http_call_opts){.method = "GET", .path = "/"});
    RUN_UNTIL(base, peer_has_head(&peer, 0));
    evbuffer_copyout(bufferevent_get_input(peer.conn[0].bev), seen, sizeof seen - 1);
    ck_assert_ptr_nonnull(strstr(seen, "\r\nAuthorization: Bearer kkkkkkkkkkkkkkkkkkkk\r\n"));
    http_pool_free(pool);
    job_release(&j);
    keys_free(keys);
    peer_close(&peer);
    event_base_free(base);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tls");
    TCase *t = add_case(s, "belief");
    tcase_add_test(t, files_are_taken_or_refused_in_words);
    tcase_add_loop_test(t, clients_believe_whom_they_should, 0, N(beliefs));
    tcase_add_loop_test(t, client_certificates_are_required, 0, 3);
    tcase_add_test(t, new_files_count_for_new_connections);
    tcase_add_test(t, further_contexts_are_read_again_with_the_rest);
    tcase_add_test(t, calls_carry_the_key);

    t = add_case(s, "wire");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, plain_words_to_a_tls_port_are_answered, 0, 2);
    tcase_add_test(t, a_tls_client_at_a_plain_port_ends_at_once);
    tcase_add_test(t, a_plain_client_at_a_tls_port_is_told);
    tcase_add_test(t, nobody_there_is_said_as_without_tls);
    tcase_add_loop_test(t, half_a_handshake_is_closed, 0, 2);
    tcase_add_test(t, a_server_that_keeps_silent_is_given_up);
    tcase_add_loop_test(t, a_body_until_close_needs_a_close_notify, 0, 2);
    tcase_add_test(t, large_bodies_pass_whole_and_memory_is_bounded);
    tcase_add_test(t, a_taker_that_pauses_gets_it_all);
    return run_suite(s);
}
