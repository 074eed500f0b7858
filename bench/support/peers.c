/* peers: see peers.h. */
#include "bench/support/peers.h"

#include "bench/support/timer.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEERS_MAX = 32, FDS_MAX = 8192, BUF_BYTES = 1 << 20, WAIT_MS = 10000 };

static struct {
    pid_t at[PEERS_MAX];
    size_t n;
} peers;

/* ---- processes -------------------------------------------------------------------------- */

/* 0: in the child, which ends when the bench does. */
static pid_t spawn(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0 || peers.n == PEERS_MAX)
        load_die("fork");
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        peers.n = 0;
        return 0;
    }
    peers.at[peers.n++] = pid;
    return pid;
}

void peer_end_all(void)
{
    for (size_t i = 0; i < peers.n; i++)
        (void)kill(peers.at[i], SIGTERM);
    for (size_t i = 0; i < peers.n; i++)
        (void)waitpid(peers.at[i], NULL, 0);
    peers.n = 0;
}

int peer_port(const struct load_addr *a)
{
    struct sockaddr_in in;
    memcpy(&in, &a->a, sizeof in);
    return ntohs(in.sin_port);
}

static int listen_at(struct load_addr *a)
{
    int fd = socket(a->a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, &a->a.any, a->n) != 0 || listen(fd, 1024) != 0 || getsockname(fd, &a->a.any, &a->n) != 0)
        load_die("listen");
    return fd;
}

int peer_free_port(void)
{
    struct load_addr a = load_tcp(0);
    int fd = listen_at(&a);
    close(fd);
    return peer_port(&a);
}

static bool accepts(int port)
{
    struct load_addr a = load_tcp(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, &a.a.any, a.n) == 0;
    close(fd);
    return ok;
}

static int ready_port(int fd)
{
    char line[200];
    size_t n = 0;
    while (n < sizeof line - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    const char *colon = strrchr(line, ':');
    return strncmp(line, "ready url=", 10) == 0 && colon ? atoi(colon + 1) : 0;
}

pid_t peer_start(char *const argv[], bool ready_line, int *port)
{
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0)
        load_die("pipe");
    pid_t pid = spawn();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(ready_line ? out[1] : null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(out[1]);
    if (ready_line && (*port = ready_port(out[0])) == 0)
        load_die(argv[0]);
    for (int ms = 0; !accepts(*port); ms += 10) {
        if (ms > WAIT_MS || waitpid(pid, NULL, WNOHANG) == pid)
            load_die(argv[0]);
        (void)poll(NULL, 0, 10);
    }
    return pid; /* out[0] stays open: the child may print on */
}

void peer_pin(int cpu)
{
    static cpu_set_t all;
    cpu_set_t one;
    if (CPU_COUNT(&all) == 0 && sched_getaffinity(0, sizeof all, &all) != 0)
        load_die("affinity");
    int nth = cpu;
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && (cpu < 0 || nth-- == 0))
            CPU_SET(i, &one);
    if (CPU_COUNT(&one) > 0 && CPU_COUNT(&all) > 1 && sched_setaffinity(0, sizeof one, &one) != 0)
        load_die("affinity");
}

static size_t rss_of(pid_t pid)
{
    char path[64], line[200];
    size_t kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %zu", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}

size_t peer_rss_bytes(pid_t pid)
{
    char path[64];
    size_t sum = 0;
    int child;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fscanf(f, "%d", &child) == 1)
        sum += rss_of(child);
    if (f)
        fclose(f);
    return sum ? sum : rss_of(pid);
}

/* ---- sockets of the forked ones ------------------------------------------------------------ */

static void no_delay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a unix socket has none */
}

static void watch(int ep, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (fd >= FDS_MAX || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) != 0)
        load_die("epoll");
}

/* Blocking. False: the peer is gone. */
static bool send_all(int fd, struct iovec *v, int v_n)
{
    while (v_n > 0) {
        ssize_t n = writev(fd, v, v_n);
        if (n < 0)
            return false;
        for (; v_n > 0 && (size_t)n >= v->iov_len; v++, v_n--)
            n -= (ssize_t)v->iov_len;
        if (v_n > 0) {
            v->iov_base = (char *)v->iov_base + n;
            v->iov_len -= (size_t)n;
        }
    }
    return true;
}

/* ---- the back end ---------------------------------------------------------------------------- */

struct exchange {
    char *buf; /* BUF_BYTES, kept from one request to the next */
    size_t got, head_n, body_n;
};

static bool reply(int fd, struct exchange *x)
{
    static const char stats[] =
        "{\"model\":\"straw\",\"family\":\"llama\",\"mode\":\"ffn-service\",\"layers\":8,\"hidden_size\":5120,"
        "\"features_per_layer\":8,\"layer_start\":0,\"layer_end\":7,\"dtype\":\"F32\","
        "\"wire\":[\"f32\",\"f16\",\"i8\"]}";
    char head[256];
    bool post = x->body_n >= 16;
    char *body = x->buf + x->head_n;
    size_t n = post ? x->body_n - 4 : sizeof stats - 1;
    if (post) { /* layer, rows, 0 ms, and the payload */
        memmove(body + 4, body, 8);
        memset(body + 12, 0, 4);
    }
    int head_n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
                          post ? "application/x-larql-ffn-f16" : "application/json", n);
    struct iovec v[] = {{head, (size_t)head_n}, {post ? body + 4 : (void *)(uintptr_t)stats, n}};
    return send_all(fd, v, 2);
}

/* False: the client is gone. */
static bool step(int fd, struct exchange *x)
{
    if (!x->buf && !(x->buf = malloc(BUF_BYTES)))
        return false;
    ssize_t n = recv(fd, x->buf + x->got, BUF_BYTES - 1 - x->got, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    x->got += (size_t)n;
    if (x->head_n == 0) {
        x->buf[x->got] = '\0';
        char *end = strstr(x->buf, "\r\n\r\n"), *length = strcasestr(x->buf, "\r\ncontent-length:");
        if (!end)
            return true;
        x->head_n = (size_t)(end + 4 - x->buf);
        x->body_n = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    }
    if (x->got < x->head_n + x->body_n)
        return true;
    bool ok = reply(fd, x);
    x->got = x->head_n = 0;
    return ok;
}

static _Noreturn void serve(int listener)
{
    static struct exchange x[FDS_MAX];
    int ep = epoll_create1(EPOLL_CLOEXEC);
    watch(ep, listener);
    for (;;) {
        struct epoll_event e[64];
        int n = epoll_wait(ep, e, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = e[i].data.fd;
            if (fd == listener) {
                fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                no_delay(fd);
                watch(ep, fd);
            } else if (!step(fd, &x[fd])) {
                free(x[fd].buf);
                x[fd] = (struct exchange){0};
                close(fd);
            }
        }
    }
}

pid_t peer_backend(const char *unix_path, struct load_addr *at)
{
    *at = load_tcp(0);
    if (unix_path) {
        at->a.un = (struct sockaddr_un){.sun_family = AF_UNIX};
        snprintf(at->a.un.sun_path, sizeof at->a.un.sun_path, "%s", unix_path);
        at->n = sizeof at->a.un;
    }
    int fd = listen_at(at);
    pid_t pid = spawn();
    if (pid == 0) {
        (void)signal(SIGPIPE, SIG_IGN);
        serve(fd);
    }
    close(fd);
    return pid;
}

/* ---- the forwarder ------------------------------------------------------------------------------ */

/* False: an end. */
static bool copy_some(int from, int to)
{
    static char buf[BUF_BYTES];
    ssize_t n = recv(from, buf, sizeof buf, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    struct iovec v = {buf, (size_t)n};
    return send_all(to, &v, 1);
}

static _Noreturn void forward(int listener, const struct load_addr *to, unsigned spin_us)
{
    static int other[FDS_MAX];
    uint64_t last_ns = 0;
    int ep = epoll_create1(EPOLL_CLOEXEC);
    watch(ep, listener);
    for (;;) {
        struct epoll_event e[64];
        bool spin = spin_us && timer_now_ns() - last_ns < (uint64_t)spin_us * 1000;
        int n = epoll_wait(ep, e, 64, spin ? 0 : -1);
        if (n > 0 && spin_us)
            last_ns = timer_now_ns();
        for (int i = 0; i < n; i++) {
            int fd = e[i].data.fd;
            if (fd == listener) {
                int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC), server = load_open(to);
                no_delay(client);
                watch(ep, client);
                watch(ep, server);
                other[client] = server;
                other[server] = client;
            } else if (other[fd] > 0 && !copy_some(fd, other[fd])) {
                close(other[fd]);
                close(fd);
                other[other[fd]] = 0;
                other[fd] = 0;
            }
        }
    }
}

pid_t peer_forwarder(const struct load_addr *to, unsigned spin_us, struct load_addr *at)
{
    *at = load_tcp(0);
    int fd = listen_at(at);
    pid_t pid = spawn();
    if (pid == 0) {
        (void)signal(SIGPIPE, SIG_IGN);
        forward(fd, to, spin_us);
    }
    close(fd);
    return pid;
}
