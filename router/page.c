/* page: GET /, the grid at a glance: router/page.html, served from the binary as it is.
 * It holds nothing of this grid; what it shows it asks of /v1/topology, with the key that
 * its reader types (docs/threat-model.md).
 * .incbin: one line that gcc and clang, x86-64 and aarch64 take alike, no generated source and no
 * tool; the Makefile names the file as a dependency. */
#include <assert.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "router/router.h"

__asm__(".pushsection .rodata\n"
        ".hidden router_page_html, router_page_html_end\n"
        ".globl router_page_html, router_page_html_end\n"
        "router_page_html:\n"
        ".incbin \"router/page.html\"\n"
        "router_page_html_end:\n"
        ".byte 0\n"
        ".popsection\n");
extern const char router_page_html[], router_page_html_end[];

/* Nothing may come from elsewhere, and no script or style may run but the page's own two, by
 * their hashes: markup that got into it after all would be dead. */
static char policy[512];
static pthread_once_t policy_once = PTHREAD_ONCE_INIT;

/* CSP's name of what stands between those tags: the base64 of its SHA-256. */
static void hash_of(const char *open, const char *close, char out[45])
{
    const char *from = strstr(router_page_html, open), *to = from ? strstr(from, close) : NULL;
    uint8_t sum[SHA256_DIGEST_LENGTH];
    assert(from && to);
    from += strlen(open);
    SHA256((const uint8_t *)from, (size_t)(to - from), sum);
    EVP_EncodeBlock((uint8_t *)out, sum, sizeof sum);
}

static void make_policy(void)
{
    char style[45], script[45];
    hash_of("<style>", "</style>", style);
    hash_of("<script>", "</script>", script);
    snprintf(policy, sizeof policy,
             "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             style, script);
}

void page_answer(void *router, struct http_req *r)
{
    (void)router;
    pthread_once(&policy_once, make_policy);
    struct evbuffer *body = evbuffer_new();
    struct http_headers *h = http_headers_new();
    if (body && h && http_headers_add(h, "Content-Type", "text/html; charset=utf-8") &&
        http_headers_add(h, "Content-Security-Policy", policy) && http_headers_add(h, "Cache-Control", "no-store") &&
        http_headers_add(h, "X-Content-Type-Options", "nosniff") &&
        http_headers_add(h, "Referrer-Policy", "no-referrer") &&
        evbuffer_add_reference(body, router_page_html, (size_t)(router_page_html_end - router_page_html), NULL,
                               NULL) == 0)
        http_req_reply(r, 200, h, body);
    else
        http_front_nomem(r);
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
}
