/* The ordered list of headers. */
#include <stdio.h>
#include <string.h>

#include "common/http_parse.h"
#include "tests/unit/support.h"

static const struct {
    const char *name, *value;
    bool ok;
} adds[] = {
    {"A", "b", true},
    {"A", "", true},
    {"X-Larql-Deadline-Ms", "30000", true},
    {"!#$%&'*+-.^_`|~09", "tab\tand \xc3\xa4", true},
    {"", "b", false},
    {"A ", "b", false},
    {"A:", "b", false},
    {"A\r", "b", false},
    {"\xc3\xa4", "b", false},
    {"A", "b\r\nC: d", false},
    {"A", "b\n", false},
    {"A", "\x01", false},
    {"A", "\x7f", false},
};

START_TEST(only_what_cannot_break_the_framing_is_added)
{
    struct http_headers *h = http_headers_new();
    ck_assert_int_eq(http_headers_add(h, adds[_i].name, adds[_i].value), adds[_i].ok);
    ck_assert_uint_eq(http_headers_n(h), adds[_i].ok);
    if (adds[_i].ok)
        ck_assert_str_eq(http_headers_get(h, adds[_i].name), adds[_i].value);
    http_headers_free(h);
}
END_TEST

START_TEST(names_compare_without_case_and_order_is_kept)
{
    struct http_headers *h = http_headers_new();
    const char *name, *value;
    ck_assert_ptr_null(http_headers_get(h, "accept"));
    ck_assert(http_headers_add(h, "Accept", "one"));
    ck_assert(http_headers_add(h, "Other", "x"));
    ck_assert(http_headers_add(h, "ACCEPT", "two"));
    ck_assert_str_eq(http_headers_get(h, "accept"), "one");
    ck_assert_uint_eq(http_headers_n(h), 3);
    http_headers_at(h, 2, &name, &value);
    ck_assert_str_eq(name, "ACCEPT");
    ck_assert_str_eq(value, "two");
    http_headers_free(h);
    http_headers_free(NULL);
}
END_TEST

START_TEST(many_and_long_lines_are_kept)
{
    enum { N = HTTP_HEADERS_MAX, LONG_N = 3000 };
    struct http_headers *h = http_headers_new();
    char text[LONG_N + 1], name[8];
    memset(text, 'v', LONG_N);
    text[LONG_N] = '\0';
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "N%d", i);
        ck_assert(http_headers_add(h, name, text + (i % 3 == 1 ? 0 : LONG_N - i)));
    }
    ck_assert(!http_headers_add(h, "More", ""));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "n%d", i);
        ck_assert_str_eq(http_headers_get(h, name), text + (i % 3 == 1 ? 0 : LONG_N - i));
        ck_assert_uint_eq(http_headers_count(h, name), 1);
    }
    http_headers_free(h);
}
END_TEST

START_TEST(a_head_is_written_in_order)
{
    const char *const begin[] = {"GET ", "/", " HTTP/1.1\r\n", NULL}, *const end[] = {"E: f\r\n", "\r\n", NULL},
                      *const none[] = {NULL};
    struct http_headers *h = http_headers_new();
    struct evbuffer *out = evbuffer_new();
    ck_assert(http_headers_add(h, "A", "b"));
    ck_assert(http_headers_add_u64(h, "Zero", 0));
    ck_assert(http_headers_add_u64(h, "Most", UINT64_MAX));
    ck_assert(http_head_write(begin, h, end, out));
    ck_assert(http_head_write(none, NULL, end, out));
    const char *want = "GET / HTTP/1.1\r\nA: b\r\nZero: 0\r\nMost: 18446744073709551615\r\nE: f\r\n\r\n"
                       "E: f\r\n\r\n";
    ck_assert_uint_eq(evbuffer_get_length(out), strlen(want));
    ck_assert_int_eq(memcmp(evbuffer_pullup(out, -1), want, strlen(want)), 0);
    evbuffer_free(out);
    http_headers_free(h);
}
END_TEST

static const struct {
    size_t buf_n;
    const char *want;
} joins[] = {
    {64, "one, two, three"},
    {16, "one, two, three"},
    {15, "one, two"},
    {9, "one, two"},
    {8, "one"},
    {4, "one"},
    {3, NULL},
    {0, NULL},
};

START_TEST(a_list_is_cut_at_a_whole_line)
{
    struct http_headers *h = http_headers_new();
    char buf[64];
    ck_assert(http_headers_add(h, "A", "one"));
    ck_assert(http_headers_add(h, "B", "no"));
    ck_assert(http_headers_add(h, "a", "two"));
    ck_assert(http_headers_add(h, "A", "three"));
    memset(buf, '#', sizeof buf);
    const char *got = http_headers_join(h, "A", buf, joins[_i].buf_n);
    if (joins[_i].want)
        ck_assert_str_eq(got, joins[_i].want);
    else
        ck_assert_ptr_null(got);
    for (size_t i = joins[_i].buf_n; i < sizeof buf; i++)
        ck_assert_int_eq(buf[i], '#');
    ck_assert_ptr_null(http_headers_join(h, "C", buf, sizeof buf));
    http_headers_free(h);
}
END_TEST

START_TEST(the_list_is_bounded)
{
    struct http_headers *h = http_headers_new();
    for (int i = 0; i < HTTP_HEADERS_MAX; i++)
        ck_assert(http_headers_add(h, "A", "b"));
    ck_assert(!http_headers_add(h, "A", "b"));
    ck_assert_int_eq(http_headers_add_n(h, "A", 1, "b", 1), LQ_BIG_HEADERS);
    ck_assert_uint_eq(http_headers_n(h), HTTP_HEADERS_MAX);
    http_headers_free(h);
}
END_TEST

START_TEST(strings_need_no_end)
{
    struct http_headers *h = http_headers_new();
    ck_assert_int_eq(http_headers_add_n(h, "NameX", 4, "valueY", 5), LQ_OK);
    ck_assert_str_eq(http_headers_get(h, "name"), "value");
    ck_assert_int_eq(http_headers_add_n(h, "A\0", 2, "b", 1), LQ_BAD_FRAMING);
    ck_assert_int_eq(http_headers_add_n(h, "A", 1, "\0", 1), LQ_BAD_FRAMING);
    http_headers_free(h);
}
END_TEST

#define N(a) ((int)(sizeof(a) / sizeof *(a)))

int main(void)
{
    Suite *s = suite_create("http_headers");
    TCase *t = tcase_create("headers");
    tcase_add_loop_test(t, only_what_cannot_break_the_framing_is_added, 0, N(adds));
    tcase_add_test(t, names_compare_without_case_and_order_is_kept);
    tcase_add_test(t, many_and_long_lines_are_kept);
    tcase_add_test(t, a_head_is_written_in_order);
    tcase_add_loop_test(t, a_list_is_cut_at_a_whole_line, 0, N(joins));
    tcase_add_test(t, the_list_is_bounded);
    tcase_add_test(t, strings_need_no_end);
    suite_add_tcase(s, t);
    return run_suite(s);
}
