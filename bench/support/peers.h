/* peers: the other processes of a bench: a back end that looks like a shard and computes
 * nothing, a bare byte forwarder, and programs that are started with their listeners on
 * free ports of loopback. All end with the bench. */
#ifndef LQ_BENCH_SUPPORT_PEERS_H
#define LQ_BENCH_SUPPORT_PEERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "bench/support/http_load.h"

enum { PEER_HIDDEN = 5120 }; /* what the back end's /v1/stats says */

/* Forked. Answers GET /v1/stats, and POST with what a shard's binary answer is: 12 bytes
 * and the request's payload. unix_path NULL: loopback, on *at. */
pid_t peer_backend(const char *unix_path, struct load_addr *at);

/* Forked. Copies bytes both ways between each client and a connection of its own to
 * `to`: the floor of a blocking proxy. spin_us: polls for that long before it sleeps. */
pid_t peer_forwarder(const struct load_addr *to, unsigned spin_us, struct load_addr *at);

/* Starts argv. ready_line: waits for "ready url=http://HOST:PORT" on its stdout and returns
 * the port there; else waits until `port` accepts. */
pid_t peer_start(char *const argv[], bool ready_line, int *port);
/* Ends them all, and waits. */
void peer_end_all(void);

/* This process and what it starts from now on run on that CPU; -1: on any. Nothing on a
 * machine with one. */
void peer_pin(int cpu);
int peer_free_port(void);
int peer_port(const struct load_addr *a);
/* Resident bytes of pid's whole family but pid itself when it has children, else of pid. */
size_t peer_rss_bytes(pid_t pid);

#endif
