/* What people see: histograms by layer and format, the books of a request, log lines as
 * text and as JSON, what the door refuses. */
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/layer_books.h"
#include "common/log_json.h"
#include "common/metrics.h"
#include "tests/unit/common/http_site.h"

static char *page_of(const struct metrics *m)
{
    struct evbuffer *out = evbuffer_new();
    ck_assert(metrics_print(m, out));
    evbuffer_add(out, "", 1);
    char *text = strdup((const char *)evbuffer_pullup(out, -1));
    evbuffer_free(out);
    return text;
}

/* ---- layer books ---- */

START_TEST(layer_books_print_what_was_seen)
{
    struct metrics *m = metrics_new();
    struct layer_books *b = layer_books_new(m, "x_layer_seconds", "help");
    layer_books_observe(b, 7, WIRE_F16, 50);
    layer_books_observe(b, 7, WIRE_F16, 51);
    layer_books_observe(b, LAYER_BOOKS_BATCH, WIRE_FORMATS_N, 31000000);
    layer_books_observe(b, LAYER_BOOKS_MAX, WIRE_F32, 1);
    layer_books_observe(b, UINT32_MAX - 1, WIRE_F32, 1);
    char *text = page_of(m);
    const char *want[] = {"# TYPE x_layer_seconds histogram\n",
                          "x_layer_seconds_bucket{layer=\"7\",format=\"f16\",le=\"5e-05\"} 1\n",
                          "x_layer_seconds_bucket{layer=\"7\",format=\"f16\",le=\"0.0001\"} 2\n",
                          "x_layer_seconds_sum{layer=\"7\",format=\"f16\"} 0.000101\n",
                          "x_layer_seconds_bucket{layer=\"batch\",format=\"json\",le=\"30\"} 0\n",
                          "x_layer_seconds_bucket{layer=\"batch\",format=\"json\",le=\"+Inf\"} 1\n",
                          "x_layer_seconds_count{layer=\"other\",format=\"f32\"} 2\n"};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        ck_assert_msg(strstr(text, want[i]) != NULL, "no %s in\n%s", want[i], text);
    size_t counts_n = 0;
    for (const char *p = text; (p = strstr(p, "_count{")); p++)
        counts_n++;
    ck_assert_uint_eq(counts_n, 3);
    free(text);
    metrics_free(m);
}
END_TEST

enum { OBSERVERS_N = 4, OBSERVATIONS_N = 20000 };

static void *observe_many(void *books)
{
    for (uint32_t i = 0; i < OBSERVATIONS_N; i++)
        layer_books_observe(books, i % 16, i % 4, i);
    return NULL;
}

START_TEST(threads_lose_no_observation)
{
    struct metrics *m = metrics_new();
    struct layer_books *b = layer_books_new(m, "x", "help");
    pthread_t t[OBSERVERS_N];
    for (int i = 0; i < OBSERVERS_N; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, observe_many, b), 0);
    for (int i = 0; i < OBSERVERS_N; i++)
        pthread_join(t[i], NULL);
    char *text = page_of(m);
    uint64_t sum = 0;
    for (const char *p = text; (p = strstr(p, "x_count{")); p++)
        sum += strtoull(strchr(p, '}') + 1, NULL, 10);
    ck_assert_uint_eq(sum, OBSERVERS_N * OBSERVATIONS_N);
    free(text);
    metrics_free(m);
}
END_TEST

/* ---- log lines as JSON ---- */

static const struct {
    const char *text, *json; /* behind ts and level */
} lines[] = {
    {"x", "\"event\":\"x\""},
    {"", "\"event\":\"\""},
    {"e a=1 b=-2.50 c=0 d=0.5", "\"event\":\"e\",\"a\":1,\"b\":-2.50,\"c\":0,\"d\":0.5"},
    {"e a=01 b=1. c=.5 d=- e=1e9 f=0x1 g=1.2.3", /* no JSON numbers */
     "\"event\":\"e\",\"a\":\"01\",\"b\":\"1.\",\"c\":\".5\",\"d\":\"-\",\"e\":\"1e9\",\"f\":\"0x1\",\"g\":\"1.2."
     "3\""},
    {"e a=123456789012345 b=1234567890123456", "\"event\":\"e\",\"a\":123456789012345,\"b\":\"1234567890123456\""},
    {"e req=123 layer=5 id=7", "\"event\":\"e\",\"req\":\"123\",\"layer\":\"5\",\"id\":\"7\""},
    {"e layers=0-8 url=http://h:1/?a=b", "\"event\":\"e\",\"layers\":\"0-8\",\"url\":\"http://h:1/?a=b\""},
    {"e why=\"a b=c \\\"q\\\" \\\\ \\x0a\\x7f\" n=1",
     "\"event\":\"e\",\"why\":\"a b=c \\\"q\\\" \\\\ \\u000a\\u007f\",\"n\":1"},
    {"e why=\"cut sh", "\"event\":\"e\",\"why\":\"cut sh\""},
    {"e why=\"cut \\", "\"event\":\"e\",\"why\":\"cut \\\\\""},
    {"e why=\"cut \\x0", "\"event\":\"e\",\"why\":\"cut x0\""},
    {"e a= b=\"\"", "\"event\":\"e\",\"a\":\"\",\"b\":\"\""},
    {"e  a=1   b=2 ", "\"event\":\"e\",\"a\":1,\"b\":2"},
    {"e a=1 some words b=2", "\"event\":\"e\",\"a\":1,\"text\":\"some words b=2\""},
    {"e a-b=1", "\"event\":\"e\",\"text\":\"a-b=1\""},
    {"e a=\x01\"b", "\"event\":\"e\",\"a\":\"\\u0001\\\"b\""},
    {"e a=\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\"event\":\"e\",\"a\":\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
    {"e a=\xff\xc3 b=\xed\xa0\x80 c=\xc0\xaf", /* no UTF-8: cut, a surrogate, overlong */
     "\"event\":\"e\",\"a\":\"\\ufffd\\ufffd\",\"b\":\"\\ufffd\\ufffd\\ufffd\",\"c\":\"\\ufffd\\ufffd\""},
};

START_TEST(log_lines_become_json)
{
    char out[LOG_JSON_BYTES(200)], want[400];
    size_t n = log_json("T", "info", lines[_i].text, strlen(lines[_i].text), out);
    snprintf(want, sizeof want, "{\"ts\":\"T\",\"level\":\"info\",%s}", lines[_i].json);
    out[n] = '\0';
    ck_assert_str_eq(out, want);
    json_error_t e;
    json_t *o = json_loadb(out, n, JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(o != NULL, "%s: %s", e.text, out);
    json_decref(o);
}
END_TEST

/* Whatever the bytes: valid JSON, within the promised size. Beside each byte come those
 * that mean something here, so that shapes like `k="\x0` are met often. */
START_TEST(any_bytes_become_json)
{
    static const char special[] = "   ===\"\"\\x0aA9_-.ek\x01\x7f\xc3\xa4\xed\xf4\xff";
    enum { TEXT_MAX = 60 };
    srand(7);
    for (int round = 0; round < 40000; round++) {
        char text[TEXT_MAX], out[LOG_JSON_BYTES(TEXT_MAX)];
        size_t n = (size_t)rand() % TEXT_MAX;
        for (size_t i = 0; i < n; i++) {
            text[i] = rand() % 8 ? special[(size_t)rand() % (sizeof special - 1)] : (char)rand();
            text[i] = text[i] ? text[i] : ' '; /* printf never makes one */
        }
        size_t made_n = log_json("T", "warn", text, n, out);
        ck_assert_uint_le(made_n, sizeof out);
        json_error_t e;
        json_t *o = json_loadb(out, made_n, 0, &e);
        ck_assert_msg(o != NULL, "%s: %.*s", e.text, (int)made_n, out);
        json_decref(o);
    }
}
END_TEST

/* What log_line() writes to stderr, into out. */
static size_t capture(const char *format, char *out, size_t out_n)
{
    int pipe_fd[2], saved = dup(STDERR_FILENO);
    struct lq_fault fault;
    ck_assert_int_eq(pipe(pipe_fd), 0);
    dup2(pipe_fd[1], STDERR_FILENO);
    ck_assert_int_eq(log_format_set(format, &fault), LQ_OK);
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    log_info("event n=%d why=%s bare=a\nb", 5, log_q("a\n\"b"));
    log_debug("not_shown x=1");
    log_info("long big=%s more=%s", big, big);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fd[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(pipe_fd[0], out + n, out_n - 1 - n)) > 0;)
        n += (size_t)got;
    close(pipe_fd[0]);
    out[n] = '\0';
    return n;
}

START_TEST(lines_are_whole_in_both_formats)
{
    char out[16384], *second;
    struct lq_fault fault;
    ck_assert_int_eq(log_format_set("yaml", &fault), LQ_USAGE);
    ck_assert_ptr_nonnull(strstr(fault.text, "text or json"));

    size_t n = capture("text", out, sizeof out);
    ck_assert_ptr_nonnull(strstr(out, "Z info event n=5 why=\"a\\x0a\\\"b\" bare=a?b\n"));
    ck_assert_int_eq(out[n - 1], '\n');
    ck_assert_ptr_null(strstr(out, "not_shown"));

    n = capture("json", out, sizeof out);
    second = strchr(out, '\n') + 1;
    ck_assert_int_eq(out[n - 1], '\n');
    ck_assert_ptr_eq(strchr(second, '\n'), out + n - 1); /* two lines */
    json_t *o = json_loadb(out, (size_t)(second - out), JSON_REJECT_DUPLICATES, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(o, "event")), "event");
    ck_assert_str_eq(json_string_value(json_object_get(o, "why")), "a\n\"b");
    ck_assert_str_eq(json_string_value(json_object_get(o, "level")), "info");
    ck_assert_int_eq(json_integer_value(json_object_get(o, "n")), 5);
    json_decref(o);
    o = json_loads(second, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_uint_gt(json_string_length(json_object_get(o, "big")), 1900);
    json_decref(o);
}
END_TEST

START_TEST(requests_are_logged_at_debug_unless_asked_for)
{
    struct lq_fault fault;
    ck_assert(!log_requests_wanted());
    log_requests_set(true);
    ck_assert(log_requests_wanted());
    ck_assert_int_eq(log_level_set("error", &fault), LQ_OK);
    ck_assert(!log_requests_wanted());
    log_requests_set(false);
    ck_assert_int_eq(log_level_set("debug", &fault), LQ_OK);
    ck_assert(log_requests_wanted());
}
END_TEST

/* ---- what the door refuses ---- */

static const struct {
    const char *sent;
    enum http_refused why;
} refused[] = {
    {"GET / HTTP/1.1\nHost: h\n\n", HTTP_REFUSED_FRAMING},
    {"GET / HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", HTTP_REFUSED_FRAMING},
    {"GET /hello HTTP/1.1\r\nHost: h\r\nX: ", HTTP_REFUSED_TIMEOUT},
    {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n12", HTTP_REFUSED_TIMEOUT},
    {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n", HTTP_REFUSED_BODY},
    {"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\n", HTTP_REFUSED_FRAMING},
};

START_TEST(refusals_are_counted_by_reason)
{
    struct metrics *m = metrics_new();
    struct metric *counters[HTTP_REFUSED_N];
    struct http_server_opts o;
    struct site w;
    struct raw r;
    for (int i = 0; i < HTTP_REFUSED_N; i++)
        counters[i] = metrics_counter(m, "x", "y", "");
    http_server_opts_init(&o);
    o.header_timeout_ms = o.body_timeout_ms = 50;
    site_open(&w, &o);
    http_server_count_refused(w.server, counters);
    raw_open(&r, w.server);
    raw_text(&r, refused[_i].sent);
    RUN_UNTIL(w.base, r.eof);
    for (int i = 0; i < HTTP_REFUSED_N; i++)
        ck_assert_msg(metric_count(counters[i]) == (i == (int)refused[_i].why), "%d: %llu", i,
                      (unsigned long long)metric_count(counters[i]));
    raw_close(&r);
    site_close(&w);
    metrics_free(m);
}
END_TEST

START_TEST(full_house_and_big_header_are_counted)
{
    struct metrics *m = metrics_new();
    struct metric *counters[HTTP_REFUSED_N];
    struct http_server_opts o;
    struct site w;
    struct raw r[2];
    for (int i = 0; i < HTTP_REFUSED_N; i++)
        counters[i] = metrics_counter(m, "x", "y", "");
    http_server_opts_init(&o);
    o.connections_max = 1;
    site_open(&w, &o);
    http_server_count_refused(w.server, counters);
    raw_open_tcp(&r[0], w.server);
    raw_open_tcp(&r[1], w.server); /* waits */
    RUN_UNTIL(w.base, metric_count(counters[HTTP_REFUSED_CONNECTIONS]) == 1);
    char big[17000] = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
    memset(big + strlen(big), 'x', sizeof big - strlen(big) - 1);
    big[sizeof big - 1] = '\0';
    raw_text(&r[0], big);
    RUN_UNTIL(w.base, metric_count(counters[HTTP_REFUSED_HEADER]) == 1);
    raw_close(&r[0]);
    raw_close(&r[1]);
    site_close(&w);
    metrics_free(m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("seen");
    TCase *t = tcase_create("seen");
    tcase_add_test(t, layer_books_print_what_was_seen);
    tcase_add_test(t, threads_lose_no_observation);
    tcase_add_loop_test(t, log_lines_become_json, 0, sizeof lines / sizeof *lines);
    tcase_add_test(t, any_bytes_become_json);
    tcase_add_test(t, lines_are_whole_in_both_formats);
    tcase_add_test(t, requests_are_logged_at_debug_unless_asked_for);
    tcase_add_loop_test(t, refusals_are_counted_by_reason, 0, sizeof refused / sizeof *refused);
    tcase_add_test(t, full_house_and_big_header_are_counted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
