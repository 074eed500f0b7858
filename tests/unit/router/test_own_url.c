/* Every spelling of "this machine" that connect() would take, and none of another one. */
#include "router/own_url.h"
#include "tests/unit/support.h"

static const struct {
    const char *url;
    bool own;
} cases[] = {
    {"http://127.0.0.1:8080", true},
    {"http://127.9.9.9", true},
    {"http://127.1:80/", true},
    {"http://0:8080", true},
    {"http://0.0.0.0:8080", true},
    {"http://0x7f000001:1", true},
    {"http://2130706433:1", true},
    {"https://[::1]:8080", true},
    {"https://[0:0:0:0:0:0:0:1]", true},
    {"http://[::]:1", true},
    {"http://[::ffff:127.0.0.1]:1", true},
    {"http://localhost:1", true},
    {"http://LocalHost", true},
    {"http://a.localhost:1", true},
    {"http://ip6-localhost:1", true},
    {"unix:/run/x.sock", true},
    {"127.0.0.1:8080", true},
    {"http://10.0.0.1:8080", false},
    {"http://128.0.0.1", false},
    {"http://[fe80::1]:1", false},
    {"http://[::ffff:10.0.0.1]:1", false},
    {"http://localhost.example.org:1", false},
    {"http://127.example.org:1", false},
    {"http://mylocalhost:1", false},
    {"", false},
    {"http://", false},
    {"http://[", false},
};

START_TEST(says_what_is_own)
{
    ck_assert_msg(own_url(cases[_i].url) == cases[_i].own, "%s", cases[_i].url);
}
END_TEST

START_TEST(a_long_name_is_not)
{
    char url[5000] = "http://";
    memset(url + 7, 'a', sizeof url - 8);
    ck_assert(!own_url(url));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("own_url");
    TCase *t = tcase_create("own_url");
    tcase_add_loop_test(t, says_what_is_own, 0, sizeof cases / sizeof *cases);
    tcase_add_test(t, a_long_name_is_not);
    suite_add_tcase(s, t);
    return run_suite(s);
}
