/* The small parts of common: options, ranges, log quoting, metrics, the loop's
 * hand-over and the offload thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "common/file.h"
#include "common/hash256.h"
#include "common/peer_stats.h"
#include "common/args.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/percent.h"
#include "common/offload.h"
#include "common/opt.h"
#include "tests/unit/support.h"

/* ---- options ---- */

struct parsed {
    bool flag;
    int64_t port;
    double rate;
    const char *name;
};

static enum opt_result parse(struct parsed *p, char **args, int n, char ***rest, int *rest_n)
{
    struct opt opts[] = {
        {"flag", 'f', OPT_FLAG, NULL, "LQ_TEST_FLAG", "a flag", 0, 0, &p->flag},
        {"port", 'p', OPT_INT, "PORT", "LQ_TEST_PORT", "a port", 0, 65535, &p->port},
        {"rate", 0, OPT_REAL, "R", NULL, "a rate", 0, 1, &p->rate},
        {"name", 0, OPT_TEXT, "NAME", NULL, "a name", 0, 0, &p->name},
    };
    struct opt_program program = {.name = "prog",
                                  .synopsis = "ARG",
                                  .about = "A test.",
                                  .opts = opts,
                                  .opts_n = 4,
                                  .args_min = 1,
                                  .args_max = 2};
    return opt_parse(&program, n, args, rest, rest_n);
}

static const struct {
    const char *line; /* words after the program's name */
    enum opt_result want;
    int64_t port;
} lines[] = {
    {"a --port 80", OPT_RUN, 80},
    {"--port=80 a", OPT_RUN, 80},
    {"-p 80 a b", OPT_RUN, 80},
    {"-p80 a", OPT_RUN, 80},
    {"a --flag --rate 0.5", OPT_RUN, 1},
    {"a -- --port", OPT_RUN, 1},
    {"", OPT_EXIT_USAGE, 1},
    {"a b c", OPT_EXIT_USAGE, 1},
    {"a --port", OPT_EXIT_USAGE, 1},
    {"a --port x", OPT_EXIT_USAGE, 1},
    {"a --port -1", OPT_EXIT_USAGE, 1},
    {"a --port 65536", OPT_EXIT_USAGE, 1},
    {"a --port 80x", OPT_EXIT_USAGE, 1},
    {"a --rate nan", OPT_EXIT_USAGE, 1},
    {"a --rate 1.5", OPT_EXIT_USAGE, 1},
    {"a --bogus", OPT_EXIT_USAGE, 1},
    {"a --port 99999999999999999999", OPT_EXIT_USAGE, 1},
    {"--help", OPT_EXIT_OK, 1},
    {"--version", OPT_EXIT_OK, 1},
};

START_TEST(options_are_taken_or_refused)
{
    struct parsed p = {.port = 1};
    char text[128], *args[16] = {"prog"}, **rest;
    int n = 1, rest_n;
    snprintf(text, sizeof text, "%s", lines[_i].line);
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " "))
        args[n++] = w;
    ck_assert_msg(parse(&p, args, n, &rest, &rest_n) == lines[_i].want, "%s", lines[_i].line);
    if (lines[_i].want == OPT_RUN)
        ck_assert_int_eq(p.port, lines[_i].port);
}
END_TEST

START_TEST(environment_fills_in_and_flags_win)
{
    struct parsed p = {.port = 1};
    char *args[] = {"prog", "a", NULL}, *both[] = {"prog", "a", "--port", "7", NULL}, **rest;
    int rest_n;
    setenv("LQ_TEST_PORT", "42", 1);
    setenv("LQ_TEST_FLAG", "1", 1);
    ck_assert_int_eq(parse(&p, args, 2, &rest, &rest_n), OPT_RUN);
    ck_assert_int_eq(p.port, 42);
    ck_assert(p.flag);
    ck_assert_int_eq(parse(&p, both, 4, &rest, &rest_n), OPT_RUN);
    ck_assert_int_eq(p.port, 7);
    setenv("LQ_TEST_FLAG", "maybe", 1);
    ck_assert_int_eq(parse(&p, args, 2, &rest, &rest_n), OPT_EXIT_USAGE);
}
END_TEST

START_TEST(ranges)
{
    uint32_t a, b;
    ck_assert_int_eq(args_range(" 3 - 5 ", 7, &a, &b, NULL), LQ_OK);
    ck_assert_uint_eq(a, 3);
    ck_assert_uint_eq(b, 5);
    ck_assert_int_eq(args_range("7", 1, &a, &b, NULL), LQ_OK);
    ck_assert_uint_eq(b, 7);
    const char *bad[] = {"", "-", "5-3", "1-2-3", "0x1-2", "1e3", "4294967295", "-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(args_range(bad[i], strlen(bad[i]), &a, &b, NULL) == LQ_USAGE, "'%s'", bad[i]);
}
END_TEST

START_TEST(hash_texts)
{
    char text[HASH256_TEXT_BYTES];
    struct hash256 h, kept;
    for (int i = 0; i < HASH256_BYTES; i++)
        h.b[i] = (uint8_t)(i * 9);
    ck_assert_uint_eq(strlen(hash256_text(&h, text)), 64);
    kept = h;
    text[1] = 'A', text[0] = '0'; /* either case */
    ck_assert(hash256_read(text, &h));
    ck_assert_uint_eq(h.b[0], 10);
    text[63] = 'g';
    ck_assert(!hash256_read(text, &kept));
    text[63] = '\0';
    ck_assert(!hash256_read(text, &kept));
    ck_assert(!hash256_read(NULL, &kept));
    ck_assert_uint_eq(kept.b[1], 9);
}
END_TEST

/* What /v1/stats may say of hashes, and whether it is taken. %s: 64 digits. */
static const struct {
    const char *text;
    bool taken;
} stats_said[] = {
    {"", true},
    {",\"identity\":\"%s\"", false}, /* its layers could not be compared */
    {",\"layer_start\":3,\"layer_end\":4,\"layer_hashes\":[\"%s\",\"%s\"]", false},
    {",\"identity\":\"%s0\"", false},
    {",\"identity\":7", false},
    {",\"identity\":null", false},
    {",\"identity\":\"%s\",\"layer_start\":3,\"layer_end\":4,\"layer_hashes\":[\"%s\",\"%s\"]", true},
    {",\"identity\":\"%s\",\"layer_start\":3,\"layer_end\":4,\"layer_hashes\":[\"%s\"]", false},
    {",\"identity\":\"%s\",\"layer_start\":3,\"layer_end\":4,\"layer_hashes\":[\"%s\",8]", false},
    {",\"identity\":\"%s\",\"layer_start\":4,\"layer_end\":3,\"layer_hashes\":[]", false},
    {",\"identity\":\"%s\",\"layer_hashes\":\"%s\"", false},
};

START_TEST(percent_goes_there_and_back)
{
    char there[64], back[32];
    ck_assert(percent_encode(there, sizeof there, "a b&c=\u00e4%/~.gguf"));
    ck_assert_str_eq(there, "a%20b%26c%3D%C3%A4%25%2F~.gguf");
    ck_assert(percent_decode(back, sizeof back, there));
    ck_assert_str_eq(back, "a b&c=\u00e4%/~.gguf");
    ck_assert(percent_decode(back, sizeof back, "%c3%A4&more=%zz"));
    ck_assert_str_eq(back, "\u00e4");
    static const char *const bad[] = {"%", "%4", "%4g", "%g4", "%00", "%%41"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!percent_decode(back, sizeof back, bad[i]), "%s", bad[i]);
    ck_assert(!percent_decode(back, 4, "abcd") && percent_decode(back, 5, "abcd"));
    ck_assert(!percent_encode(there, 6, "a b") && !percent_encode(there, 2, "ab"));
    ck_assert(percent_decode(back, 1, "") && !percent_decode(back, 0, ""));
}
END_TEST

START_TEST(a_long_name_of_a_peer_ends_between_characters)
{
    for (size_t before = 120; before < 128; before++) {
        char text[512] = "{\"hidden_size\":6,\"model\":\"";
        struct peer_stats s;
        struct lq_fault fault;
        size_t n = strlen(text);
        memset(text + n, 'x', before);
        snprintf(text + n + before, sizeof text - n - before, "\u00e4\u20ac\U0001f600\"}");
        ck_assert_int_eq(peer_stats_read(text, strlen(text), &s, &fault), LQ_OK);
        json_t *name = json_string(s.model); /* NULL: no UTF-8 */
        ck_assert_ptr_nonnull(name);
        json_decref(name);
        ck_assert_uint_ge(strlen(s.model), before - 4);
    }
}
END_TEST

START_TEST(hashes_of_a_peer)
{
    static const char hex[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    char text[512] = "{\"hidden_size\":6";
    size_t n = strlen(text);
    struct peer_stats s;
    struct lq_fault fault = {.text = ""};
    for (const char *p = stats_said[_i].text; *p; p++) {
        bool here = strncmp(p, "%s", 2) == 0;
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", here ? 64 : 1, here ? hex : p);
        p += here;
    }
    snprintf(text + n, sizeof text - n, "}");
    enum lq_err rc = peer_stats_read(text, strlen(text), &s, &fault);
    ck_assert_msg((rc == LQ_OK) == stats_said[_i].taken, "%s: %s", text, fault.text);
    if (rc == LQ_OK && s.layer_hashes)
        ck_assert_uint_eq(s.layer_hashes[1].b[31], 0xff);
    if (rc == LQ_OK)
        peer_stats_release(&s);
    ck_assert_ptr_null(s.layer_hashes);
}
END_TEST

START_TEST(files_are_replaced_whole)
{
    char path[] = "/tmp/lq-file-XXXXXX", *text;
    size_t n;
    struct lq_fault fault;
    ck_assert_ptr_nonnull(mkdtemp(path));
    char name[64];
    snprintf(name, sizeof name, "%s/f", path);
    ck_assert_int_eq(file_read(name, 10, &text, &n, &fault), LQ_IO);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(file_replace(name, "0123456789", 10, true, &fault), LQ_OK);
    ck_assert_int_eq(file_replace(name, "abc", 3, false, &fault), LQ_OK);
    ck_assert_int_eq(file_read(name, 3, &text, &n, &fault), LQ_OK);
    ck_assert_str_eq(text, "abc");
    free(text);
    ck_assert_int_eq(file_read(name, 2, &text, &n, &fault), LQ_IO);
    ck_assert_int_eq(file_read(path, 99, &text, &n, &fault), LQ_IO);
    ck_assert_int_eq(unlink(name), 0);
    ck_assert_int_eq(mkdir(name, 0700), 0);
    ck_assert_int_eq(file_replace(name, "abc", 3, false, &fault), LQ_IO);
    ck_assert_int_eq(rmdir(name), 0);
    ck_assert_int_eq(rmdir(path), 0); /* nothing else was left there */
}
END_TEST

START_TEST(what_is_no_file_is_written_to_not_replaced)
{
    char dir[] = "/tmp/lq-file-XXXXXX", *text;
    struct lq_fault fault;
    struct stat st;
    size_t n;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char fifo[64], link[64], file[64], got[8];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(file, sizeof file, "%s/file", dir);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(symlink("file", link), 0);
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    ck_assert_int_eq(file_replace(fifo, "abc", 3, false, &fault), LQ_IO);
    ck_assert_ptr_nonnull(strstr(fault.text, "no regular file"));
    ck_assert_int_eq(file_output(fifo, "abc", 3, &fault), LQ_OK);
    ck_assert_int_eq(read(reader, got, sizeof got), 3);
    close(reader);
    ck_assert_int_eq(file_output(file, "0123456789", 10, &fault), LQ_OK);
    ck_assert_int_eq(file_output(link, "xyz", 3, &fault), LQ_OK); /* as /dev/stdout */
    ck_assert(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    ck_assert_int_eq(file_read(file, 10, &text, &n, &fault), LQ_OK);
    ck_assert_str_eq(text, "xyz");
    free(text);
    ck_assert_int_eq(file_output(dir, "x", 1, &fault), LQ_IO);
    ck_assert(unlink(fifo) == 0 && unlink(link) == 0 && unlink(file) == 0 && rmdir(dir) == 0);
}
END_TEST

START_TEST(log_quotes_what_people_send)
{
    ck_assert_str_eq(log_q("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\x0a\\x01\"");
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    const char *q = log_q(big);
    ck_assert_uint_lt(strlen(q), 600);
    ck_assert_ptr_nonnull(strstr(q, "...\""));
}
END_TEST

START_TEST(metrics_print_as_prometheus_reads)
{
    struct metrics *m = metrics_new();
    struct metric *a = metrics_counter(m, "x_total", "things", "k=\"a\""),
                  *b = metrics_counter(m, "x_total", "things", "k=\"b\""), *g = metrics_gauge(m, "g", "level", ""),
                  *h = metrics_histogram(m, "s", "time", "");
    metric_add(a, 3);
    metric_add(b, 1);
    metric_set(g, 2.5);
    metric_observe_us(h, 100); /* on a bound: inside it */
    metric_observe_us(h, 101);
    metric_observe_us(h, 60000000);
    struct evbuffer *out = evbuffer_new();
    ck_assert(metrics_print(m, out));
    evbuffer_add(out, "", 1);
    const char *text = (const char *)evbuffer_pullup(out, -1);
    const char *want[] = {"# HELP x_total things\n# TYPE x_total counter\nx_total{k=\"a\"} 3\nx_total{k=\"b\"} 1\n",
                          "# TYPE g gauge\ng 2.5\n",
                          "s_bucket{le=\"0.0001\"} 1\n",
                          "s_bucket{le=\"0.0002\"} 2\n",
                          "s_bucket{le=\"30\"} 2\n",
                          "s_bucket{le=\"+Inf\"} 3\n",
                          "s_count 3\n",
                          "s_sum 60.000201\n"};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        ck_assert_msg(strstr(text, want[i]) != NULL, "no %s in\n%s", want[i], text);
    evbuffer_free(out);
    metrics_free(m);
}
END_TEST

/* ---- loop and offload ---- */

struct square {
    struct offload_task task;
    int n, result;
    int *left;
    struct loop *loop;
};

static void square_run(struct offload_task *t, void *arg)
{
    struct square *s = (struct square *)t;
    s->result = s->n * s->n + *(int *)arg;
}

static void square_done(struct loop_msg *m)
{
    struct square *s = (struct square *)m;
    if (--*s->left == 0)
        loop_stop(s->loop);
}

START_TEST(tasks_run_beside_the_loop_and_come_back)
{
    enum { N = 500 };
    struct loop *l = loop_new();
    int one = 1, left = N;
    struct offload *o;
    ck_assert_int_eq(offload_new(l, "test", N, N, &one, &o, NULL), LQ_OK);
    struct square *s = calloc(N, sizeof *s);
    for (int i = 0; i < N; i++) {
        s[i] = (struct square){
            .task = {.done.fn = square_done, .run = square_run, .bytes = 1}, .n = i, .left = &left, .loop = l};
        ck_assert_int_eq(offload_put(o, &s[i].task, NULL), LQ_OK);
    }
    loop_run(l);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(s[i].result, i * i + 1);
    offload_free(o);
    loop_free(l);
    free(s);
}
END_TEST

static void block_run(struct offload_task *t, void *arg)
{
    (void)t;
    char c;
    ck_assert_int_eq(read(*(int *)arg, &c, 1), 1);
}

static void count_done(struct loop_msg *m)
{
    ++*((struct square *)m)->left;
}

START_TEST(full_queue_refuses_and_free_runs_every_done)
{
    int pipe_fd[2], done = 0;
    ck_assert_int_eq(pipe(pipe_fd), 0);
    struct loop *l = loop_new();
    struct offload *o;
    ck_assert_int_eq(offload_new(l, "test", 2, 10, &pipe_fd[0], &o, NULL), LQ_OK);
    struct square s[4];
    for (int i = 0; i < 4; i++)
        s[i] = (struct square){.task = {.done.fn = count_done, .run = block_run, .bytes = 4}, .left = &done};
    ck_assert_int_eq(offload_put(o, &s[0].task, NULL), LQ_OK);
    uint64_t bytes;
    while (offload_waiting_n(o, &bytes) > 0) /* until the thread has it */
        usleep(100);
    ck_assert_int_eq(offload_put(o, &s[1].task, NULL), LQ_OK);
    ck_assert_int_eq(offload_put(o, &s[2].task, NULL), LQ_OK);
    struct lq_fault fault;
    ck_assert_int_eq(offload_put(o, &s[3].task, &fault), LQ_QUEUE_FULL);
    ck_assert_int_eq(lq_err_status(fault.code), 503);
    ck_assert_int_eq(write(pipe_fd[1], "x", 1), 1);
    ck_assert_int_eq(write(pipe_fd[1], "xx", 2), 2); /* those that may start before the stop */
    offload_free(o);
    loop_free(l);
    ck_assert_int_eq(done, 3);
}
END_TEST

/* ---- what joins, and in which order ---- */

struct letter {
    struct offload_task task;
    char layer, *out; /* where the batches are written: "AA" "B" ... */
    int room;         /* of the first: how many more may join */
    int gate_fd;      /* >= 0: waits for a byte there */
};

static bool letter_joins(struct offload_task *first, const struct offload_task *t)
{
    struct letter *f = (struct letter *)first;
    if (f->layer != ((const struct letter *)t)->layer || f->room == 0)
        return false;
    f->room--;
    return true;
}

static void letter_run(struct offload_task *first, void *arg)
{
    char *out = arg, c;
    out += strlen(out);
    for (struct offload_task *t = first; t; t = t->next) {
        *out++ = ((struct letter *)t)->layer;
        if (((struct letter *)t)->gate_fd >= 0)
            ck_assert_int_eq(read(((struct letter *)t)->gate_fd, &c, 1), 1);
    }
    *out++ = ' ';
}

static void letter_done(struct loop_msg *m)
{
    (void)m;
}

/* The head of the queue always goes next, however many of another layer wait: a stream
 * of A never keeps B from its turn. */
START_TEST(tasks_join_the_first_and_never_overtake_it)
{
    static const char queue[] = "GABAACABCxAx";
    char ran[64] = "";
    int pipe_fd[2];
    ck_assert_int_eq(pipe(pipe_fd), 0);
    struct loop *l = loop_new();
    struct offload *o;
    ck_assert_int_eq(offload_new(l, "test", 64, 64, ran, &o, NULL), LQ_OK);
    struct letter s[sizeof queue - 1];
    for (size_t i = 0; i < sizeof queue - 1; i++) {
        s[i] = (struct letter){
            .task = {.done.fn = letter_done, .run = letter_run, .joins = queue[i] == 'x' ? NULL : letter_joins},
            .layer = queue[i],
            .room = 3, /* of 5 A, 4 go together */
            .gate_fd = i == 0 ? pipe_fd[0] : -1};
        ck_assert_int_eq(offload_put(o, &s[i].task, NULL), LQ_OK);
        uint64_t bytes;
        while (i == 0 && offload_waiting_n(o, &bytes) > 0) /* until the thread has it */
            usleep(100);
    }
    ck_assert(offload_is_busy(o));
    ck_assert_int_eq(write(pipe_fd[1], "x", 1), 1);
    while (offload_is_busy(o))
        usleep(100);
    ck_assert_str_eq(ran, "G AAAA BB CC x A x ");
    offload_free(o);
    loop_free(l);
}
END_TEST

static void count_here(struct loop_msg *m)
{
    ++*((struct square *)m)->left;
}

static void where_run(struct offload_task *t, void *arg)
{
    *(pthread_t *)arg = pthread_self();
    (void)t;
}

START_TEST(lone_small_task_runs_on_the_loops_thread)
{
    struct loop *l = loop_new();
    struct offload *o;
    pthread_t where;
    int done = 0;
    ck_assert_int_eq(offload_new(l, "test", 4, 64, &where, &o, NULL), LQ_OK);
    struct square s[3], first = {.task = {.done.fn = count_here, .run = where_run}, .left = &done};
    uint64_t bytes;
    for (int i = 0; i < 3; i++)
        s[i] = (struct square){.task = {.done.fn = count_here, .run = where_run, .small = i < 2}, .left = &done};
    /* Once round, so that the thread has started and waits: before, it may take a small one too. */
    ck_assert_int_eq(offload_put(o, &first.task, NULL), LQ_OK);
    while (offload_waiting_n(o, &bytes) > 0 || offload_is_busy(o))
        usleep(100);
    ck_assert_int_eq(offload_queue(o, &s[0].task, NULL), LQ_OK);
    ck_assert(offload_start(o));
    ck_assert_int_eq(done, 1);
    ck_assert(pthread_equal(where, pthread_self()));
    ck_assert(!offload_start(o));                                /* nothing waits */
    ck_assert_int_eq(offload_queue(o, &s[1].task, NULL), LQ_OK); /* two: the thread's */
    ck_assert_int_eq(offload_queue(o, &s[2].task, NULL), LQ_OK);
    ck_assert(!offload_start(o));
    while (offload_waiting_n(o, &bytes) > 0 || offload_is_busy(o))
        usleep(100);
    ck_assert(!pthread_equal(where, pthread_self()));
    offload_free(o);
    loop_free(l);
    ck_assert_int_eq(done, 4);
}
END_TEST

static void later_count(void *arg)
{
    ++*(int *)arg;
}

struct later_probe {
    struct loop *loop;
    int *count;
};

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct later_probe *p = arg;
    loop_later(p->loop, later_count, p->count);
    ck_assert_int_eq(*p->count, 0); /* not under our feet */
    loop_later(p->loop, (void (*)(void *))loop_stop, p->loop);
}

START_TEST(later_runs_after_the_turn)
{
    int count = 0;
    struct loop *l = loop_new();
    struct later_probe p = {l, &count};
    struct timeval now = {0};
    event_base_once(loop_base(l), -1, EV_TIMEOUT, on_turn, &p, &now);
    loop_run(l);
    ck_assert_int_eq(count, 1);
    loop_free(l);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("common");
    TCase *t = tcase_create("small");
    tcase_add_loop_test(t, options_are_taken_or_refused, 0, sizeof lines / sizeof *lines);
    tcase_add_test(t, environment_fills_in_and_flags_win);
    tcase_add_test(t, ranges);
    tcase_add_test(t, hash_texts);
    tcase_add_test(t, percent_goes_there_and_back);
    tcase_add_test(t, a_long_name_of_a_peer_ends_between_characters);
    tcase_add_loop_test(t, hashes_of_a_peer, 0, sizeof stats_said / sizeof *stats_said);
    tcase_add_test(t, files_are_replaced_whole);
    tcase_add_test(t, what_is_no_file_is_written_to_not_replaced);
    tcase_add_test(t, log_quotes_what_people_send);
    tcase_add_test(t, metrics_print_as_prometheus_reads);
    tcase_add_test(t, tasks_run_beside_the_loop_and_come_back);
    tcase_add_test(t, full_queue_refuses_and_free_runs_every_done);
    tcase_add_test(t, tasks_join_the_first_and_never_overtake_it);
    tcase_add_test(t, lone_small_task_runs_on_the_loops_thread);
    tcase_add_test(t, later_runs_after_the_turn);
    suite_add_tcase(s, t);
    return run_suite(s);
}
