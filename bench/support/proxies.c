/* proxies: see proxies.h. */
#include "bench/support/proxies.h"

#include <ftw.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

void proxies_init(void)
{
    snprintf(dir, sizeof dir, "%s/lq-bench-XXXXXX", P_tmpdir);
    if (!mkdtemp(dir))
        load_die("mkdtemp");
}

void proxies_release(void)
{
    peer_end_all();
    if (dir[0])
        (void)nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    dir[0] = '\0';
}

const char *proxies_dir(void)
{
    return dir;
}

static void write_file(const char *path, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void write_file(const char *path, const char *fmt, ...)
{
    va_list ap;
    FILE *f = fopen(path, "w");
    va_start(ap, fmt);
    if (!f || vfprintf(f, fmt, ap) < 0 || fclose(f) != 0)
        load_die(path);
    va_end(ap);
}

struct proxy proxy_larql(const char *shard, unsigned threads, unsigned busy_poll_us)
{
    char self[400] = "", path[420], map[200], threads_text[16], busy_text[16];
    int port;
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        load_die("/proc/self/exe");
    snprintf(path, sizeof path, "%s/bin/larql-router", dirname(dirname(self)));
    snprintf(map, sizeof map, "0-7=%s", shard);
    snprintf(threads_text, sizeof threads_text, "%u", threads);
    snprintf(busy_text, sizeof busy_text, "%u", busy_poll_us);
    char *argv[] = {path,   "--shards",  map,          "--port",      "0",       "--log-level",
                    "warn", "--threads", threads_text, "--busy-poll", busy_text, NULL};
    pid_t pid = peer_start(argv, true, &port);
    return (struct proxy){pid, load_tcp(port)};
}

struct proxy proxy_nginx(int to_port, unsigned workers)
{
    static unsigned n;
    char conf[128], log[128], prefix[96];
    int port = peer_free_port();
    snprintf(prefix, sizeof prefix, "%s/nginx-%u", dir, n++);
    snprintf(conf, sizeof conf, "%s.conf", prefix);
    snprintf(log, sizeof log, "%s.log", prefix);
    write_file(conf,
               "%sdaemon off;\nworker_processes %u;\npid %s.pid;\nerror_log %s warn;\n"
               "events { worker_connections 8192; }\n"
               "http {\n  access_log off;\n  tcp_nodelay on;\n  keepalive_requests 1000000000;\n"
               "  client_max_body_size 64m;\n"
               "  client_body_temp_path %s-body;\n  proxy_temp_path %s-proxy;\n  fastcgi_temp_path %s-fastcgi;\n"
               "  uwsgi_temp_path %s-uwsgi;\n  scgi_temp_path %s-scgi;\n"
               "  upstream b { server 127.0.0.1:%d; keepalive 64; keepalive_requests 1000000000; }\n"
               "  server {\n    listen 127.0.0.1:%d;\n    location / {\n      proxy_pass http://b;\n"
               "      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n"
               "      proxy_buffering off;\n      proxy_request_buffering off;\n    }\n  }\n}\n",
               geteuid() == 0 ? "user root;\n" : "", workers, prefix, log, prefix, prefix, prefix, prefix, prefix,
               to_port, port);
    char *argv[] = {"nginx", "-e", log, "-c", conf, NULL};
    pid_t pid = peer_start(argv, false, &port);
    return (struct proxy){pid, load_tcp(port)};
}

struct proxy proxy_haproxy(int to_port)
{
    char conf[128];
    int port = peer_free_port();
    snprintf(conf, sizeof conf, "%s/haproxy.conf", dir);
    write_file(conf,
               "global\n  nbthread 1\n  maxconn 8192\n"
               "defaults\n  mode http\n  option http-keep-alive\n  http-reuse always\n"
               "  timeout connect 1s\n  timeout client 75s\n  timeout server 75s\n"
               "frontend f\n  bind 127.0.0.1:%d\n  default_backend b\n"
               "backend b\n  server s 127.0.0.1:%d\n",
               port, to_port);
    char *argv[] = {"haproxy", "-db", "-f", conf, NULL};
    pid_t pid = peer_start(argv, false, &port);
    return (struct proxy){pid, load_tcp(port)};
}
