/* notify: the datagram that a service manager gets, by path and by abstract name. */
#include "common/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/unit/support.h"

/* A manager's socket, by its name; *path is for the environment. */
static int manager(const char *name, size_t sun_path_n)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memcpy(at.sun_path, name, strlen(name));
    if (name[0] == '@')
        at.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(
        bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sun_path_n)), 0);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
    return fd;
}

static void ck_assert_told(int fd, const char *want)
{
    char got[2048];
    ssize_t n = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
    ck_assert_int_ge(n, 0);
    got[n] = '\0';
    ck_assert_str_eq(got, want);
}

START_TEST(path_and_abstract_names_get_the_lines)
{
    char name[64];
    snprintf(name, sizeof name, _i ? "@larql-test-%d" : "/tmp/larql-test-%d", (int)getpid());
    int fd = manager(name, strlen(name) + (_i ? 0 : 1));
    ck_assert(notify_is_on());
    notify_send("READY=1\nSTATUS=%d of %s", 3, "4");
    ck_assert_told(fd, "READY=1\nSTATUS=3 of 4");
    close(fd);
    if (!_i)
        unlink(name);
    notify_send("STOPPING=1"); /* nobody there: a line in the log */
}
END_TEST

START_TEST(nothing_to_tell_is_nothing_done)
{
    unsetenv("NOTIFY_SOCKET");
    ck_assert(!notify_is_on());
    notify_send("READY=1");
    setenv("NOTIFY_SOCKET", "", 1);
    ck_assert(!notify_is_on());
    char long_name[300] = "/";
    memset(long_name + 1, 'x', sizeof long_name - 2);
    static const char *const bad[] = {"relative", "@", "/", "vsock:2:1234"};
    setenv("NOTIFY_SOCKET", long_name, 1);
    notify_send("READY=1");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("NOTIFY_SOCKET", bad[i], 1);
        notify_send("READY=1");
    }
}
END_TEST

START_TEST(text_that_is_too_long_is_not_cut_but_left)
{
    char name[64], text[1024];
    snprintf(name, sizeof name, "@larql-long-%d", (int)getpid());
    int fd = manager(name, strlen(name));
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    notify_send("%s%s", text, text);
    notify_send("%s", text);
    ck_assert_told(fd, text);
    close(fd);
}
END_TEST

START_TEST(watchdog_is_for_us_alone)
{
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    const struct {
        const char *socket, *us, *pid;
        uint64_t want;
    } cases[] = {
        {"/run/x", "30000000", NULL, 30000000},
        {"/run/x", "30000000", pid, 30000000},
        {"/run/x", "30000000", "1", 0},
        {"", "30000000", NULL, 0},
        {"/run/x", "3s", NULL, 0},
        {"/run/x", "-5", NULL, 0},
        {"/run/x", "", NULL, 0},
        {"/run/x", "99999999999999999999999", NULL, 0},
    };
    unsetenv("WATCHDOG_USEC");
    ck_assert_uint_eq(notify_watchdog_us(), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("NOTIFY_SOCKET", cases[i].socket, 1);
        setenv("WATCHDOG_USEC", cases[i].us, 1);
        if (cases[i].pid)
            setenv("WATCHDOG_PID", cases[i].pid, 1);
        else
            unsetenv("WATCHDOG_PID");
        ck_assert_uint_eq(notify_watchdog_us(), cases[i].want);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("common");
    TCase *t = tcase_create("notify");
    tcase_add_loop_test(t, path_and_abstract_names_get_the_lines, 0, 2);
    tcase_add_test(t, nothing_to_tell_is_nothing_done);
    tcase_add_test(t, text_that_is_too_long_is_not_cut_but_left);
    tcase_add_test(t, watchdog_is_for_us_alone);
    suite_add_tcase(s, t);
    return run_suite(s);
}
