/* The server's listener: addresses and paths, limits, descriptors that run out. */
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/unit/common/http_site.h"

/* ---- the listener ------------------------------------------------------------------------------------ */

START_TEST(connections_over_the_limit_wait)
{
    struct http_server_opts o;
    struct site w;
    struct raw r[3];
    struct answer a;
    http_server_opts_init(&o);
    o.connections_max = 2;
    site_open(&w, &o);
    for (int i = 0; i < 3; i++)
        raw_open_tcp(&r[i], w.server);
    RUN_UNTIL(w.base, http_server_connections_n(w.server) == 2);
    raw_text(&r[2], GET("/hello"));
    kit_turns(w.base, 10);
    ck_assert_uint_eq(http_server_connections_n(w.server), 2);
    ck_assert_int_eq(w.requests_n, 0);
    raw_close(&r[0]);
    raw_answer(&r[2], &a);
    ck_assert_uint_eq(http_server_connections_n(w.server), 2);
    answer_release(&a);
    raw_close(&r[1]);
    raw_close(&r[2]);
    site_close(&w);
}
END_TEST

START_TEST(running_out_of_descriptors_passes)
{
    struct site w;
    struct raw r;
    struct answer a;
    int hog[256], hogs_n = 0;
    struct lq_fault fault;
    struct rlimit lim;
    site_open(&w, NULL);
    ck_assert_int_eq(log_level_set("error", &fault), LQ_OK);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &lim), 0);
    lim.rlim_cur = 64;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
    raw_open_tcp(&r, w.server);
    while (hogs_n < 256 && (hog[hogs_n] = dup(0)) >= 0)
        hogs_n++;
    raw_text(&r, GET("/hello"));
    kit_turns(w.base, 5);
    ck_assert_uint_eq(http_server_connections_n(w.server), 0);
    while (hogs_n > 0)
        close(hog[--hogs_n]);
    RUN_UNTIL(w.base, raw_take(&r, &a, false) || r.eof || r.reset); /* after the pause */
    if (r.eof || r.reset) { /* valgrind accepts first and looks at the limit then */
        raw_close(&r);
        raw_open_tcp(&r, w.server);
        raw_text(&r, GET("/hello"));
        raw_answer(&r, &a);
    }
    ck_assert_int_eq(a.status, 200);
    answer_release(&a);
    raw_close(&r);
    site_close(&w);
}
END_TEST

static const struct {
    const char *host, *begin;
} hosts[] = {{"127.0.0.1", "http://127.0.0.1:"}, {"localhost", "http://"}, {"::1", "http://[::1]:"}};

START_TEST(the_url_names_the_real_port)
{
    struct http_server_opts o;
    struct http_server *s = NULL;
    struct lq_fault fault;
    struct event_base *base = kit_base();
    http_server_opts_init(&o);
    o.host = hosts[_i].host;
    enum lq_err rc = http_server_new(base, &o, on_request, NULL, &s, &fault);
    if (rc && _i == 2) { /* a machine without IPv6: said, not hidden */
        fprintf(stderr, "skipped: %s\n", fault.text);
        event_base_free(base);
        return;
    }
    ck_assert_int_eq(rc, LQ_OK);
    const char *url = http_server_url(s);
    ck_assert_msg(strncmp(url, hosts[_i].begin, strlen(hosts[_i].begin)) == 0, "%s", url);
    ck_assert_int_gt(atoi(strrchr(url, ':') + 1), 0);
    http_server_free(s);
    event_base_free(base);
}
END_TEST

START_TEST(a_taken_port_is_named)
{
    struct http_server_opts o;
    struct http_server *s;
    struct site w;
    struct lq_fault fault;
    char want[100];
    site_open(&w, NULL);
    http_server_opts_init(&o);
    o.port = atoi(strrchr(http_server_url(w.server), ':') + 1);
    ck_assert_int_eq(http_server_new(w.base, &o, on_request, &w, &s, &fault), LQ_IO);
    snprintf(want, sizeof want, "cannot listen on 127.0.0.1 port %d: Address already in use", o.port);
    ck_assert_str_eq(fault.text, want);
    ck_assert_int_eq(http_server_new(w.base, &o, on_request, &w, &s, NULL), LQ_IO);
    o.host = "no.such.host.invalid";
    ck_assert_int_eq(http_server_new(w.base, &o, on_request, &w, &s, &fault), LQ_IO);
    site_close(&w);
}
END_TEST

START_TEST(unix_paths)
{
    struct http_server_opts o;
    struct http_server *s, *t;
    struct event_base *base = kit_base();
    struct lq_fault fault;
    struct stat st;
    char dir[] = P_tmpdir "/lq-http-XXXXXX", path[64], longest[200];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/sock", dir);
    http_server_opts_init(&o);
    o.unix_path = path;
    s = kit_server(base, &o, on_request, NULL);
    ck_assert_str_eq(http_server_url(s) + 5, path);
    ck_assert_int_eq(http_server_new(base, &o, on_request, NULL, &t, &fault), LQ_IO); /* somebody lives there */
    ck_assert_ptr_nonnull(strstr(fault.text, "Address already in use"));
    http_server_free(s);
    ck_assert_int_ne(stat(path, &st), 0);

    int fd = socket(AF_UNIX, SOCK_STREAM, 0); /* one that died */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, path, strlen(path));
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    s = kit_server(base, &o, on_request, NULL);
    http_server_free(s);

    FILE *f = fopen(path, "w"); /* a file of somebody's */
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_assert_int_eq(http_server_new(base, &o, on_request, NULL, &s, &fault), LQ_IO);
    ck_assert_int_eq(stat(path, &st), 0);
    unlink(path);

    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    o.unix_path = longest;
    ck_assert_int_eq(http_server_new(base, &o, on_request, NULL, &s, &fault), LQ_USAGE);
    rmdir(dir);
    event_base_free(base);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http_listen");
    TCase *t;

    t = add_case(s, "listener");
    tcase_add_test(t, connections_over_the_limit_wait);
    tcase_add_test(t, running_out_of_descriptors_passes);
    tcase_add_loop_test(t, the_url_names_the_real_port, 0, N(hosts));
    tcase_add_test(t, a_taken_port_is_named);
    tcase_add_test(t, unix_paths);
    return run_suite(s);
}
