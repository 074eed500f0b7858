/* cert_maker: certificates for the tests of TLS, made when they run. */
#ifndef LQ_TESTS_UNIT_COMMON_CERT_MAKER_H
#define LQ_TESTS_UNIT_COMMON_CERT_MAKER_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Also before main(), where Check's own asserts do not work. */
#define CERT_MUST(x)                                                                                                 \
    do {                                                                                                             \
        if (!(x)) {                                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                                  \
            abort();                                                                                                 \
        }                                                                                                            \
    } while (0)

struct cert {
    X509 *x;
    EVP_PKEY *key;
    char cert_path[128], key_path[128];
};

static char cert_dir[64];

static inline const char *cert_folder(void)
{
    if (!cert_dir[0]) {
        snprintf(cert_dir, sizeof cert_dir, P_tmpdir "/lq-certs-XXXXXX");
        CERT_MUST(mkdtemp(cert_dir));
    }
    return cert_dir;
}

static inline void cert_extend(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    CERT_MUST(e);
    CERT_MUST(X509_add_ext(x, e, -1) == 1);
    X509_EXTENSION_free(e);
}

/* ca NULL: an authority of its own. names: a subjectAltName. from, to: seconds from now. */
static inline void cert_make(struct cert *c, const char *name, const struct cert *ca, const char *names, long from,
                             long to)
{
    static long serial = 1;
    c->key = EVP_EC_gen("P-256");
    c->x = X509_new();
    CERT_MUST(c->key && c->x);
    CERT_MUST(X509_set_version(c->x, 2) == 1);
    ASN1_INTEGER_set(X509_get_serialNumber(c->x), serial++);
    X509_gmtime_adj(X509_getm_notBefore(c->x), from);
    X509_gmtime_adj(X509_getm_notAfter(c->x), to);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(c->x), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1,
                               0);
    X509 *issuer = ca ? ca->x : c->x;
    CERT_MUST(X509_set_issuer_name(c->x, X509_get_subject_name(issuer)) == 1);
    CERT_MUST(X509_set_pubkey(c->x, c->key) == 1);
    cert_extend(c->x, issuer, NID_basic_constraints, ca ? "CA:FALSE" : "critical,CA:TRUE");
    if (names)
        cert_extend(c->x, issuer, NID_subject_alt_name, names);
    CERT_MUST(X509_sign(c->x, ca ? ca->key : c->key, EVP_sha256()) > 0);

    snprintf(c->cert_path, sizeof c->cert_path, "%s/%s.pem", cert_folder(), name);
    snprintf(c->key_path, sizeof c->key_path, "%s/%s.key", cert_folder(), name);
    FILE *f = fopen(c->cert_path, "w");
    CERT_MUST(PEM_write_X509(f, c->x) == 1);
    fclose(f);
    f = fopen(c->key_path, "w");
    CERT_MUST(PEM_write_PrivateKey(f, c->key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(f);
    CERT_MUST(chmod(c->key_path, 0600) == 0);
}

static inline void cert_release(struct cert *c)
{
    X509_free(c->x);
    EVP_PKEY_free(c->key);
    unlink(c->cert_path);
    unlink(c->key_path);
    if (rmdir(cert_dir) == 0) /* the last one's */
        cert_dir[0] = '\0';
    *c = (struct cert){0};
}

#endif
