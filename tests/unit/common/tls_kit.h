/* tls_kit: the suites of http_kit over TLS. Included first by a file that then includes one. */
#ifndef LQ_TESTS_UNIT_COMMON_TLS_KIT_H
#define LQ_TESTS_UNIT_COMMON_TLS_KIT_H

#include "tests/unit/common/cert_maker.h"
#include "tests/unit/common/http_kit.h"

/* Before main(): each test's process begins with the contexts; the files are gone by then. */
__attribute__((constructor)) static void kit_make_tls(void)
{
    struct cert ca, server;
    cert_make(&ca, "ca", NULL, NULL, -60, 86400 * 30);
    cert_make(&server, "server", &ca, "DNS:localhost,IP:127.0.0.1", -60, 86400 * 30);
    const struct tls_opts listen = {.side = TLS_SERVER, .cert_path = server.cert_path, .key_path = server.key_path};
    const struct tls_opts dial = {.side = TLS_CLIENT, .ca_path = ca.cert_path};
    struct lq_fault fault;
    if (tls_new(&listen, &kit_listen_tls, &fault) != LQ_OK || tls_new(&dial, &kit_dial_tls, &fault) != LQ_OK)
        abort();
    cert_release(&server);
    cert_release(&ca);
}

#endif
