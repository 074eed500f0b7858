/* grid_link: see grid_link.h. */
#include "client/grid_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/keys.h"
#include "common/loop.h"
#include "common/tls.h"

enum { ANSWER_MS = 10000 };

struct grid_link {
    struct loop *loop;
    struct tls *tls;
    struct keys *keys;
    struct grpc_channel *channel;
    /* the open question; fn NULL: none */
    enum grid_question question;
    grid_on_answer fn;
    void *arg;
    struct event *failed_ev; /* it could not even be asked: said a turn later */
    struct grid_answer failed;
};

static void answered(struct grid_link *l, const struct grid_answer *a)
{
    grid_on_answer fn = l->fn;
    l->fn = NULL;
    fn(l->arg, a);
}

static void on_failed(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct grid_link *l = arg;
    answered(l, &l->failed);
}

static bool starts_with(const char **text, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncasecmp(*text, prefix, n) != 0)
        return false;
    *text += n;
    return true;
}

static enum lq_err open_channel(struct grid_link *l, const struct grid_link_opts *o, struct lq_fault *fault)
{
    static const char *const h2[] = {"h2", NULL};
    const char *address = o->router;
    bool https = starts_with(&address, "https://");
    bool plain = !https && (starts_with(&address, "http://") || starts_with(&address, "grpc://"));
    struct grpc_channel_opts c;
    char host[512];
    int n = snprintf(host, sizeof host, "%s", address);
    if (n < 0 || (size_t)n >= sizeof host)
        return lq_fail(fault, LQ_USAGE, "--router: over %zu characters", sizeof host - 1);
    if (n > 0 && host[n - 1] == '/')
        host[n - 1] = '\0';
    grpc_channel_opts_init(&c);
    c.message_max = GRID_STATUS_BYTES_MAX;
    if (https || (!plain && (o->tls_ca || o->pin))) {
        const struct tls_opts t = {.side = TLS_CLIENT,
                                   .cert_path = o->tls_cert,
                                   .key_path = o->tls_key,
                                   .ca_path = o->tls_ca,
                                   .pin = o->pin,
                                   .protocols = h2};
        enum lq_err rc = tls_new(&t, &l->tls, fault);
        if (rc)
            return rc;
        c.tls = l->tls;
    }
    enum lq_err rc = grpc_channel_new(loop_base(l->loop), host, &c, &l->channel, fault);
    if (rc == LQ_USAGE) {
        struct lq_fault why = *fault;
        return lq_fail(fault, rc, "--router %s: %s", o->router, why.text);
    }
    return rc;
}

enum lq_err grid_link_new(const struct grid_link_opts *o, struct grid_link **out, struct lq_fault *fault)
{
    struct grid_link *l = calloc(1, sizeof *l);
    const char *key = getenv("LARQL_GRID_KEY");
    enum lq_err rc = LQ_OK;
    *out = l;
    if (!l || !(l->loop = loop_new()) || !(l->failed_ev = evtimer_new(loop_base(l->loop), on_failed, l)))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    if (!o->tls_cert != !o->tls_key)
        rc = lq_fail(fault, LQ_USAGE, "--tls-cert and --tls-key are given together");
    if (!rc && (o->grid_key_file || (key && *key)))
        rc = keys_new(o->grid_key_file, key, "LARQL_GRID_KEY", &l->keys, fault);
    return rc ? rc : open_channel(l, o, fault);
}

void grid_link_free(struct grid_link *l)
{
    if (!l)
        return;
    if (l->channel) {
        l->fn = NULL; /* the open call hears of its end, and has nobody to tell */
        grpc_channel_free(l->channel);
    }
    if (l->failed_ev)
        event_free(l->failed_ev);
    tls_free(l->tls);
    keys_free(l->keys);
    if (l->loop)
        loop_free(l->loop);
    free(l);
}

struct event_base *grid_link_base(struct grid_link *l)
{
    return loop_base(l->loop);
}

static void on_done(const struct grpc_end *end, const uint8_t *p, size_t n, void *arg)
{
    struct grid_link *l = arg;
    struct grid_answer a = {0};
    struct lq_fault fault;
    if (!l->fn)
        return;
    if (end->code == GRPC_OK) {
        a.msg = grid_msg_parse(l->question == GRID_ASK_STATUS ? &larql__grid__v1__status_response__descriptor
                                                              : &larql__grid__v1__admin_ack__descriptor,
                               p, n, &fault);
        if (!a.msg) {
            a.exit_code = GRID_EXIT_UNREACHABLE;
            snprintf(a.text, sizeof a.text, "router %s answered what is no answer: %s",
                     grpc_channel_address(l->channel), fault.text);
        }
    } else if (end->lost || end->code == GRPC_UNAVAILABLE || end->code == GRPC_DEADLINE_EXCEEDED) {
        a.exit_code = GRID_EXIT_UNREACHABLE;
        snprintf(a.text, sizeof a.text, "router %s: %s", grpc_channel_address(l->channel), end->text);
    } else {
        a.exit_code = GRID_EXIT_REFUSED;
        snprintf(a.text, sizeof a.text, "%s", *end->text ? end->text : grpc_code_word(end->code));
    }
    answered(l, &a);
}

void grid_link_ask(struct grid_link *l, enum grid_question q, const ProtobufCMessage *in, grid_on_answer fn,
                   void *arg)
{
    static const char *const paths[] = {GRID_STATUS_PATH, GRID_DRAIN_PATH, GRID_ASSIGN_PATH};
    char bearer[KEY_BEARER_CHARS + 1] = "";
    size_t n;
    struct lq_fault fault;
    uint8_t *bytes = grid_msg_pack(in, &n);
    l->question = q;
    l->fn = fn;
    l->arg = arg;
    if (l->keys)
        keys_bearer(l->keys, bearer);
    const struct grpc_metadata key = {"authorization", bearer};
    const struct grpc_call_opts o = {
        .path = paths[q], .metadata = &key, .metadata_n = *bearer != '\0', .deadline_ms = ANSWER_MS};
    enum lq_err rc = bytes ? grpc_unary(l->channel, &o, bytes, n, on_done, l, NULL, &fault)
                           : lq_fail(&fault, LQ_NOMEM, "out of memory");
    explicit_bzero(bearer, sizeof bearer);
    free(bytes);
    if (!rc)
        return;
    l->failed = (struct grid_answer){.exit_code = GRID_EXIT_UNREACHABLE};
    snprintf(l->failed.text, sizeof l->failed.text, "%s", fault.text);
    event_active(l->failed_ev, EV_TIMEOUT, 0);
}

struct waiting {
    struct grid_answer *out;
    bool done;
};

static void on_waited(void *arg, const struct grid_answer *a)
{
    struct waiting *w = arg;
    *w->out = *a;
    w->done = true;
}

void grid_link_wait(struct grid_link *l, enum grid_question q, const ProtobufCMessage *in, struct grid_answer *out)
{
    struct waiting w = {.out = out};
    grid_link_ask(l, q, in, on_waited, &w);
    while (!w.done)
        event_base_loop(grid_link_base(l), EVLOOP_ONCE);
}
