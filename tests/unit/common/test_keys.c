/* Keys and who may do what: files, comparison, the table of rights, guesses, addresses. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/trust.h"
#include "tests/unit/support.h"

#define N(a) ((int)(sizeof(a) / sizeof *(a)))
#define KEY_A "aaaaaaaaaaaaaaaaaaaa-A"
#define KEY_B "bbbbbbbbbbbbbbbbbbbb+/=~._B"
#define KEY_G "gggggggggggggggggggg"

static char path[64];

static void put(const char *text, size_t n)
{
    if (!path[0]) {
        snprintf(path, sizeof path, P_tmpdir "/lq-keys-XXXXXX");
        close(mkstemp(path));
    }
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    fclose(f);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

static bool has(const struct keys *k, const char *key)
{
    return keys_have(k, key, strlen(key));
}

/* ---- files ---- */

START_TEST(a_file_is_read_and_read_again)
{
    static const char text[] = "# ours\n\n" KEY_A "\n  " KEY_B "\t# of bob\r\n";
    struct keys *k = NULL;
    struct lq_fault fault = {0};
    char bearer[KEY_BEARER_CHARS + 1];
    put(text, sizeof text - 1);
    ck_assert_msg(keys_new(path, NULL, NULL, &k, &fault) == LQ_OK, "%s", fault.text);
    ck_assert(has(k, KEY_A) && has(k, KEY_B));
    ck_assert(!has(k, "") && !has(k, KEY_A "x") && !has(k, "aaaaaaaaaaaaaaaaaaaa-") && !has(NULL, KEY_A));
    ck_assert(!keys_have(k, KEY_A "\0", sizeof KEY_A)); /* a NUL behind it makes it another one */
    keys_bearer(k, bearer);
    ck_assert_str_eq(bearer, "Bearer " KEY_A);

    put("short\n", 6);
    ck_assert_int_eq(keys_reload(k, &fault), LQ_USAGE);
    ck_assert(has(k, KEY_A));
    put(KEY_G, strlen(KEY_G)); /* no newline at the end */
    ck_assert_int_eq(keys_reload(k, &fault), LQ_OK);
    ck_assert(has(k, KEY_G) && !has(k, KEY_A));
    keys_free(k);
    unlink(path);
}
END_TEST

#define X16 "xxxxxxxxxxxxxxxx"
#define X256 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16 X16
static const struct {
    const char *text, *part; /* part NULL: fine */
} files[] = {
    {X16, NULL},
    {X256, NULL},
    {X256 "x", "line 1: a key has 256 characters at most"},
    {"\n\nxxxxxxxxxxxxxxx", "line 3: a key has 16 characters at least"},
    {"", "holds no key"},
    {"# " X16 "\n \n", "holds no key"},
    {X16 " " X16, "line 1: a key has only"},
    {X16 "\n\"" X16 "\"", "line 2: a key has only"},
    {X16 "\xc3\xa9", "a key has only"},
};

START_TEST(files_are_taken_or_refused_by_line)
{
    struct keys *k = NULL;
    struct lq_fault fault = {0};
    put(files[_i].text, strlen(files[_i].text));
    enum lq_err rc = keys_new(path, NULL, NULL, &k, &fault);
    ck_assert_int_eq(rc, files[_i].part ? LQ_USAGE : LQ_OK);
    if (files[_i].part)
        ck_assert_msg(strstr(fault.text, files[_i].part) && strstr(fault.text, path), "%s", fault.text);
    ck_assert_ptr_null(strstr(fault.text, "xxxx")); /* no key in an error */
    keys_free(k);
    unlink(path);
}
END_TEST

START_TEST(what_is_no_key_file)
{
    struct keys *k = NULL;
    struct lq_fault fault;
    ck_assert_int_eq(keys_new("/nowhere/keys", NULL, NULL, &k, &fault), LQ_USAGE);
    ck_assert_ptr_nonnull(strstr(fault.text, "/nowhere/keys: No such file"));
    ck_assert_int_eq(keys_new("/", NULL, NULL, &k, &fault), LQ_USAGE);
    ck_assert_int_eq(keys_new("/dev/zero", NULL, NULL, &k, &fault), LQ_USAGE);
    ck_assert_ptr_nonnull(strstr(fault.text, "over 1 MiB"));
    put("a\0b", 3);
    ck_assert_int_eq(keys_new(path, NULL, NULL, &k, &fault), LQ_USAGE);
    char *many = malloc(17 * (KEYS_MAX + 1));
    for (size_t i = 0; i <= KEYS_MAX; i++)
        memcpy(many + 17 * i, X16 "\n", 17);
    put(many, 17 * (KEYS_MAX + 1));
    ck_assert_int_eq(keys_new(path, NULL, NULL, &k, &fault), LQ_USAGE);
    ck_assert_ptr_nonnull(strstr(fault.text, "more than 1024"));
    put(many, 17 * KEYS_MAX);
    ck_assert_int_eq(keys_new(path, NULL, NULL, &k, &fault), LQ_OK);
    keys_free(k);
    free(many);
    unlink(path);
    ck_assert_int_eq(keys_new(NULL, "short", "LARQL_GRID_KEY", &k, &fault), LQ_USAGE);
    ck_assert_ptr_nonnull(strstr(fault.text, "LARQL_GRID_KEY"));
    ck_assert_ptr_null(strstr(fault.text, "short"));
}
END_TEST

/* ---- rights ---- */

enum { NONE = 0, CLIENTS = 1, GRID = 2, SHARD = 4 };
static const struct {
    int set; /* what is configured, and where */
    enum access_who who;
    enum lq_err no_key, client_key, grid_key, wrong_key;
} rights[] = {
    {NONE, ACCESS_GRID, LQ_OK, LQ_OK, LQ_OK, LQ_OK},
    {NONE, ACCESS_CLIENT, LQ_OK, LQ_OK, LQ_OK, LQ_OK},
    {CLIENTS, ACCESS_ANY, LQ_OK, LQ_OK, LQ_OK, LQ_OK},
    {CLIENTS, ACCESS_CLIENT, LQ_NO_KEY, LQ_OK, LQ_WRONG_KEY, LQ_WRONG_KEY},
    {CLIENTS, ACCESS_READER, LQ_NO_KEY, LQ_OK, LQ_WRONG_KEY, LQ_WRONG_KEY},
    {CLIENTS, ACCESS_GRID, LQ_NO_KEY, LQ_OK, LQ_WRONG_KEY, LQ_WRONG_KEY},
    {GRID, ACCESS_ANY, LQ_OK, LQ_OK, LQ_OK, LQ_OK},
    {GRID, ACCESS_CLIENT, LQ_OK, LQ_OK, LQ_OK, LQ_OK},
    {GRID | SHARD, ACCESS_CLIENT, LQ_NO_KEY, LQ_WRONG_KEY, LQ_OK, LQ_WRONG_KEY},
    {GRID, ACCESS_READER, LQ_NO_KEY, LQ_WRONG_KEY, LQ_OK, LQ_WRONG_KEY},
    {GRID, ACCESS_GRID, LQ_NO_KEY, LQ_WRONG_KEY, LQ_OK, LQ_WRONG_KEY},
    {CLIENTS | GRID, ACCESS_ANY, LQ_OK, LQ_OK, LQ_OK, LQ_OK},
    {CLIENTS | GRID, ACCESS_CLIENT, LQ_NO_KEY, LQ_OK, LQ_OK, LQ_WRONG_KEY},
    {CLIENTS | GRID, ACCESS_READER, LQ_NO_KEY, LQ_OK, LQ_OK, LQ_WRONG_KEY},
    {CLIENTS | GRID, ACCESS_GRID, LQ_NO_KEY, LQ_FORBIDDEN, LQ_OK, LQ_WRONG_KEY},
};

static struct keys *one_key(const char *text)
{
    struct keys *k = NULL;
    ck_assert_int_eq(keys_new(NULL, text, "test", &k, NULL), LQ_OK);
    return k;
}

START_TEST(who_may_do_what)
{
    int set = rights[_i].set;
    enum access_who who = rights[_i].who;
    struct keys *client = set & CLIENTS ? one_key(KEY_A) : NULL, *grid = set & GRID ? one_key(KEY_G) : NULL;
    struct access *a = malloc(sizeof *a);
    struct lq_fault fault = {0};
    access_init(a, client, grid, set & SHARD);
    ck_assert_int_eq(access_check(a, who, NULL, "/p", &fault), rights[_i].no_key);
    ck_assert_int_eq(access_check(a, who, "Bearer " KEY_A, "/p", &fault), rights[_i].client_key);
    ck_assert_int_eq(access_check(a, who, "bearer   " KEY_G " ", "/p", &fault), rights[_i].grid_key);
    ck_assert_int_eq(access_check(a, who, "Bearer " KEY_B, "/p", &fault), rights[_i].wrong_key);
    ck_assert_ptr_null(strstr(fault.text, KEY_B));
    static const char *const no_keys[] = {"", "Bearer", "Bearer ", "Basic " KEY_A, KEY_A, "Bearer" KEY_A};
    for (int i = 0; i < N(no_keys); i++)
        ck_assert_int_eq(access_check(a, who, no_keys[i], "/p", &fault), rights[_i].no_key);
    access_release(a);
    free(a);
    keys_free(client);
    keys_free(grid);
}
END_TEST

static struct sockaddr_in6 six(const char *text)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    ck_assert_int_eq(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return a;
}

static enum lq_err guess(struct access *a, const char *address)
{
    struct lq_fault fault;
    struct sockaddr_in6 from = six(address);
    return access_failed(a, LQ_WRONG_KEY, (struct sockaddr *)&from, "/p", &fault);
}

START_TEST(guesses_are_limited_by_address)
{
    struct access *a = malloc(sizeof *a);
    struct metrics *m = metrics_new();
    struct lq_fault fault;
    ck_assert_int_eq(log_level_set("error", &fault), LQ_OK);
    access_init(a, NULL, NULL, false);
    ck_assert(access_metrics(a, m, "test_total"));
    for (int i = 0; i < ACCESS_GUESSES_MAX; i++)
        ck_assert_int_eq(guess(a, "2001:db8::1"), LQ_WRONG_KEY);
    ck_assert_int_eq(guess(a, "2001:db8::1"), LQ_TOO_MANY);
    ck_assert_int_eq(guess(a, "2001:db8::ffff:2"), LQ_TOO_MANY); /* of the same /64 */
    ck_assert_int_eq(guess(a, "2001:db8:0:1::1"), LQ_WRONG_KEY);
    ck_assert_int_eq(guess(a, "::ffff:192.0.2.1"), LQ_WRONG_KEY);
    ck_assert_int_eq(guess(a, "::ffff:192.0.2.2"), LQ_WRONG_KEY); /* IPv4 is no /64 */
    ck_assert_uint_eq(metric_count(a->wrong), ACCESS_GUESSES_MAX + 5);
    ck_assert_uint_eq(metric_count(a->limited), 2);
    /* Only guesses are: a missing key tells nothing. */
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(access_failed(a, LQ_NO_KEY, NULL, "/p", &fault), LQ_NO_KEY);
    /* The window passes. */
    for (size_t i = 0; i < ACCESS_PEERS_N; i++)
        if (a->peers[i].since_us)
            a->peers[i].since_us -= ACCESS_WINDOW_S * 1000000ull;
    ck_assert_int_eq(guess(a, "2001:db8::1"), LQ_WRONG_KEY);
    /* More addresses than places: the memory is fixed, the newest stays. */
    char text[64];
    for (int i = 0; i < 5 * ACCESS_PEERS_N; i++) {
        snprintf(text, sizeof text, "2001:db8:%x:%x::1", i >> 8, i & 255);
        ck_assert_int_eq(guess(a, text), LQ_WRONG_KEY);
    }
    access_release(a);
    metrics_free(m);
    free(a);
}
END_TEST

/* ---- addresses ---- */

static const struct {
    const char *host;
    bool insecure, key, loopback;
} hosts[] = {
    {"127.0.0.1", false, false, true}, {"127.8.8.8", false, false, true}, {"::1", false, false, true},
    {"localhost", false, false, true}, {"0.0.0.0", false, false, false},  {"::", false, false, false},
    {"10.1.2.3", false, false, false}, {"10.1.2.3", false, true, false},  {"0.0.0.0", true, false, true},
};

START_TEST(off_loopback_wants_key_and_tls)
{
    struct keys *grid = hosts[_i].key ? one_key(KEY_G) : NULL;
    struct trust *t = calloc(1, sizeof *t);
    struct lq_fault fault = {0};
    t->opts.insecure = hosts[_i].insecure;
    access_init(&t->access, NULL, grid, true);
    ck_assert_int_eq(trust_may_listen(t, hosts[_i].host, &fault), hosts[_i].loopback ? LQ_OK : LQ_USAGE);
    if (!hosts[_i].loopback) {
        ck_assert_ptr_nonnull(strstr(fault.text, "--tls-cert"));
        ck_assert(!strstr(fault.text, "--grid-key-file") == hosts[_i].key);
        ck_assert_ptr_nonnull(strstr(fault.text, "--insecure"));
    }
    access_release(&t->access);
    keys_free(grid);
    free(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("keys");
    TCase *t = tcase_create("keys");
    tcase_add_test(t, a_file_is_read_and_read_again);
    tcase_add_loop_test(t, files_are_taken_or_refused_by_line, 0, N(files));
    tcase_add_test(t, what_is_no_key_file);
    tcase_add_loop_test(t, who_may_do_what, 0, N(rights));
    tcase_add_test(t, guesses_are_limited_by_address);
    tcase_add_loop_test(t, off_loopback_wants_key_and_tls, 0, N(hosts));
    suite_add_tcase(s, t);
    return run_suite(s);
}
