"""5,000 slow and half-open connections: while they are there another client's requests all
succeed; afterwards descriptors are what they were, and memory does not pile up."""
import json
import os
import resource
import socket
import struct
import time

import pytest

import grid
from test_join import GridRouter, joined

F32 = "application/x-larql-ffn"
CROWD_N = 5000
HEAD = b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\n"
ROWS = 2048  # an answer of 48 KB, which nobody reads
BIG = struct.pack("<IIII", 1, ROWS, 1, 0) + struct.pack("<6f", 0.5, 1, -1, 2, 0.25, 1) * ROWS
KINDS = (
    b"POST /v1/walk",                                                                     # a header that trickles
    b"",                                                                                  # no byte at all
    HEAD + f"Content-Type: {F32}\r\nContent-Length: 40\r\n\r\n".encode(),                 # a body that never comes
    HEAD + f"Content-Type: {F32}\r\nContent-Length: {len(BIG)}\r\n\r\n".encode() + BIG,   # an answer left unread
)
PATIENCE = ("--header-timeout-ms", "2000", "--body-timeout-ms", "2000", "--idle-timeout-ms", "2000")


def files_n(p):
    return len(os.listdir(f"/proc/{p.process.pid}/fd"))


def resident_mb(p):
    with open(f"/proc/{p.process.pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / (1 << 20)


def connections_n(p, program):
    page = grid.get(p.url, "/metrics")[2].decode()
    return int(float(next(x.split()[1] for x in page.splitlines() if x.startswith(f"larql_{program}_connections "))))


def ask(url):
    body = struct.pack("<IIII", 3, 1, 1, 0) + struct.pack("<6f", *[0.5] * 6)
    return grid.post(url, "/v1/walk-ffn", body, {"Content-Type": F32})[0]


def crowd_of(url, n):
    """n sockets that have sent their part, as far as it went without waiting."""
    host, port = url.rsplit("/", 1)[1].rsplit(":", 1)
    crowd = []
    for i in range(n):
        kind = KINDS[i % 4] if i % 40 == 3 or i % 4 != 3 else KINDS[2]  # of the large ones a tenth
        s = socket.socket()
        if len(kind) > 1000:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect((host, int(port)))
        if len(kind) > 1000:
            s.settimeout(30 * grid.TIMEOUT_X)
            s.sendall(kind)
        elif kind:
            s.send(kind)
        crowd.append(s)
    return crowd


def settled(p, program, limit_s=60):
    """Until the timers have ended all connections but the one that asks."""
    until = time.monotonic() + limit_s * grid.TIMEOUT_X
    while connections_n(p, program) > 1:
        assert time.monotonic() < until, f"{connections_n(p, program)} connections are left"
    return files_n(p), resident_mb(p)


@pytest.mark.parametrize("program", ["shard", "router"])
def test_slow_and_half_open_connections(synthetic, program):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CROWD_N + 500:
        pytest.skip(f"at most {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with grid.shard(synthetic, "0-7", *PATIENCE) as s, grid.router(f"0-7={s.url}", *PATIENCE) as r:
            p = s if program == "shard" else r
            assert ask(p.url) == 200
            rounds = []
            files, resident = files_n(p), resident_mb(p)
            for _ in range(2):
                crowd = crowd_of(p.url, CROWD_N)
                assert [x for x in (ask(p.url) for _ in range(50)) if x != 200] == []
                after = settled(p, program)
                for c in crowd:
                    c.close()
                rounds.append(after)
            assert json.loads(grid.get(p.url, "/v1/health")[2])["status"] == "ok"
            assert rounds[1][0] <= files + 4, (files, rounds)  # the pool's connections to the shard
            # Weaker than "returns to the baseline": what is freed stays in malloc's heap, in pieces
            # (malloc_trim() gives most of it back). A second crowd must add less than the first.
            if not grid.SANITIZED:
                assert rounds[1][1] - rounds[0][1] < rounds[0][1] - resident, (resident, rounds)
            page = grid.get(p.url, "/metrics")[2].decode()
            refused = f'larql_{program}_refused_total{{reason="timeout"}} '
            assert int(next(x.split()[1] for x in page.splitlines() if x.startswith(refused))) > CROWD_N / 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def queues(local_port, remote_port):
    """Bytes at one end of a connection: sent and not acknowledged, come and not read."""
    with open("/proc/net/tcp", encoding="ascii") as f:
        for line in f:
            _, local, remote, _, tx_rx = line.split()[:5]
            if local.endswith(f":{local_port:04X}") and remote.endswith(f":{remote_port:04X}"):
                return tuple(int(x, 16) for x in tx_rx.split(":"))
    raise AssertionError("no such connection")


def reader_of_nothing(url):
    """A socket whose answers have filled all there is on the way, and wait at the server besides."""
    host, port = url.rsplit("/", 1)[1].rsplit(":", 1)
    port = int(port)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((host, port))
    s.settimeout(30 * grid.TIMEOUT_X)
    mine = s.getsockname()[1]
    full = 0
    for _ in range(400):
        s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 300)
        until = time.monotonic() + 30 * grid.TIMEOUT_X
        while queues(mine, port)[0] or queues(port, mine)[1]:
            assert time.monotonic() < until, "the server has stopped reading"
            os.sched_yield()
        assert grid.get(url, "/v1/health")[0] in (200, 503)  # of the same loop: what it had read it has answered
        now = queues(port, mine)[0]
        if now == full:
            return s
        full = now
    raise AssertionError(f"its answers all find room: {full}")


@pytest.mark.parametrize("program", ["shard", "router"])
def test_who_resets_under_an_answer_leaves_nothing(synthetic, tmp_path, program):
    """Without a key, even: each such connection was kept for ever, and held a SIGTERM up."""
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-grid-0123456789\n", encoding="ascii")
    keys.chmod(0o600)
    with grid.shard(synthetic, "0-7", "--grid-key-file", str(keys)) as s, \
            grid.router(f"0-7={s.url}", "--grid-key-file", str(keys), "--api-key-file", str(keys)) as r:
        p = s if program == "shard" else r
        assert grid.get(p.url, "/v1/health")[0] == 200
        files = files_n(p)
        for _ in range(5):
            c = reader_of_nothing(p.url)
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()
        until = time.monotonic() + 60 * grid.TIMEOUT_X
        while files_n(p) > files:
            assert time.monotonic() < until, (files, files_n(p))
            os.sched_yield()
        assert p.stop() == 0
        assert "drain_end connections=0" in p.log_text()


GRID_CROWD_N = 1000


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name, value):
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = frame(4, 0, 0)
JOIN = b"".join(literal(n, v) for n, v in (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/larql.grid.v1.GridService/Join"), (b":authority", b"h"),
    (b"te", b"trailers"), (b"content-type", b"application/grpc")))
GRID_KINDS = (
    b"",                                             # no byte at all
    PREFACE[:9],                                     # half a hello
    PREFACE,                                         # a hello without its SETTINGS
    PREFACE + SETTINGS + frame(1, 0, 1, JOIN[:20]),  # a head that never ends
    PREFACE + SETTINGS + frame(1, 4, 1, JOIN),       # a Join that says nothing more, and answers no PING
)


def test_slow_and_half_open_connections_of_the_grid_port(synthetic):
    """A shard joins and serves beside them; afterwards descriptors are what they were. Who has said a whole
    hello and has no call stays for 300 s, by intent: it is not in this crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * GRID_CROWD_N:
        pytest.skip(f"at most {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with GridRouter() as r:
            host, port = r.join.split(":")
            files, resident, rounds = files_n(r), resident_mb(r), []
            for _ in range(2):
                crowd = []
                for i in range(GRID_CROWD_N):
                    crowd.append(socket.create_connection((host, int(port)), timeout=30 * grid.TIMEOUT_X))
                    crowd[-1].sendall(GRID_KINDS[i % len(GRID_KINDS)])
                with joined(r, synthetic, "0-7"):
                    r.wait_up(1)
                    assert [x for x in (ask(r.url) for _ in range(50)) if x != 200] == []
                until = time.monotonic() + 90 * grid.TIMEOUT_X
                while files_n(r) > files:
                    assert time.monotonic() < until, (files, files_n(r))
                    os.sched_yield()
                rounds.append(resident_mb(r))
                for c in crowd:
                    c.close()
            if not grid.SANITIZED:  # as above: what is freed stays in malloc's heap
                assert rounds[1] - rounds[0] < max(rounds[0] - resident, 1), (resident, rounds)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
