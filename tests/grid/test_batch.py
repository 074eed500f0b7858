"""Requests that wait together are computed together, and nobody can tell from the answers.

What fills the queue is a long request that holds the compute thread and is given up (its
client leaves) when /metrics says that all the others wait: no test depends on a time."""
import json
import random
import re
import socket
import struct
import threading

import pytest

import grid

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
HIDDEN = 512  # of big_synthetic


class Held:
    """A shard's compute thread at work on a request that nobody wants; leaving the `with` gives it up."""

    def __init__(self, url):
        stats = json.loads(grid.get(url, "/v1/stats")[2])
        layers = [stats["layer_start"], stats["layer_end"]]
        rows = (24 << 20) // (2 * stats["hidden_size"])  # seconds of work
        body = struct.pack("<IIIIIII", 0xFFFFFFFF, 2, *layers, rows, 1, 0) + \
            struct.pack("<e", 0.5) * (rows * stats["hidden_size"])
        host, port = url.rsplit("/", 1)[1].rsplit(":", 1)
        self.url = url
        self.socket = socket.create_connection((host, int(port)), timeout=60 * grid.TIMEOUT_X)
        self.socket.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
                            % (F16.encode(), len(body)) + body)
        while metric(url, "larql_shard_busy") != 1:  # it has been read and begun
            pass

    def until_waiting(self, n):
        while metric(self.url, "larql_shard_queue_jobs") < n:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def metric(url, name):
    page = grid.get(url, "/metrics")[2].decode()
    return sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? ([-+.e0-9]+)$", page, re.M))


def together(url):
    """Batches of more than one request so far."""
    page = grid.get(url, "/metrics")[2].decode()
    return sum(int(n) for k, n in re.findall(r'^larql_shard_batches_total{requests="([^"]+)"} (\d+)$', page, re.M)
               if k != "1")


def encode(kind, rows):
    out = b""
    for row in rows:
        if kind == F32:
            out += struct.pack(f"<{len(row)}f", *row)
        elif kind == F16:
            out += struct.pack(f"<{len(row)}e", *row)
        else:
            scale = max(map(abs, row)) / 127
            out += struct.pack(f"<ff{len(row)}b", scale, 0, *(int(v / scale) for v in row))
    return out


class Ask:
    """One request and, once asked, its answer: alone or on a thread."""

    def __init__(self, layer, kind, accept, rows):
        self.body = struct.pack("<IIII", layer, len(rows), 1, 0) + encode(kind, rows)
        self.headers = {"Content-Type": kind, "Accept": f"{accept}, {kind};q=0.1"}
        self.answer = None

    def post(self, url):
        """(status, content type, body less its latency)"""
        status, headers, body = grid.post(url, "/v1/walk-ffn", self.body, self.headers)
        if status == 200:
            body = body[:8] + body[12:]
        else:
            body = json.loads(body)["error"].encode()
        self.answer = status, headers["content-type"], body
        return self.answer


def ask_together(url, asks):
    """Posts all while the compute thread is held; returns when all are answered."""
    threads = [threading.Thread(target=a.post, args=(url,)) for a in asks]
    with Held(url) as held:
        for i, t in enumerate(threads):  # one by one: the queue's order is the list's
            t.start()
            held.until_waiting(i + 1)
    for t in threads:
        t.join()
    return [a.answer for a in asks]


def rows_of(rng, n, hidden):
    return [[rng.uniform(-2, 2) for _ in range(hidden)] for _ in range(n)]


@pytest.mark.parametrize("model", ["gemma", "smollm2"])
def test_answers_are_those_of_lone_requests(model, request):
    rng = random.Random(5)
    with grid.shard(request.getfixturevalue(model), "3-4", "--threads", "2") as s:
        hidden = json.loads(grid.get(s.url, "/v1/stats")[2])["hidden_size"]
        asks = [Ask(3, kind, accept, rows_of(rng, n, hidden))
                for kind, accept, n in ((F32, F32, 1), (F16, F16, 1), (I8, I8, 1), (F32, I8, 1), (F16, F32, 2), (I8, F16, 1),
                                        (F32, F16, 3), (F16, F16, 1), (F16, F16, 1), (F32, F32, 5), (I8, I8, 1),
                                        (F16, F16, 1), (F16, I8, 1), (F32, F32, 1), (F16, F16, 20), (F16, F16, 1))]
        alone = [a.post(s.url) for a in asks]
        assert [a[0] for a in alone] == [200] * len(asks)
        assert together(s.url) == 0
        assert ask_together(s.url, asks) == alone
        assert together(s.url) > 0


def test_one_row_of_one_layer_list(big_synthetic):
    """Several layers in one request: together only with the same list."""
    rng = random.Random(6)

    def many(layers, row):
        a = Ask(0, F32, F32, [row])
        a.body = struct.pack(f"<II{len(layers)}IIII", 0xFFFFFFFF, len(layers), *layers, 1, 1, 0) + encode(F32, [row])
        return a

    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        asks = [many(layers, rows_of(rng, 1, HIDDEN)[0]) for layers in ([0, 1, 0], [0, 1, 0], [1, 0], [0, 1, 0])]
        alone = [a.post(s.url) for a in asks]
        assert ask_together(s.url, asks) == alone
        assert together(s.url) == 1


def test_a_bad_request_fails_alone(big_synthetic):
    rng = random.Random(7)
    good = [rows_of(rng, 1, HIDDEN) for _ in range(4)]
    nan = rows_of(rng, 1, HIDDEN)
    nan[0][3] = float("nan")
    huge = [[0.5] * HIDDEN, [1e38 * (-1) ** (i // 2) for i in range(HIDDEN)]]
    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        asks = [Ask(1, F32, F32, r) for r in (good[0], nan, good[1], huge, good[2], good[3])]
        alone = [a.post(s.url) for a in asks]
        assert [a[0] for a in alone] == [200, 400, 200, 500, 200, 200]
        assert alone[1][2] == b"residual is not finite at row 0, index 3"
        assert b"at layer 1, row 1, index" in alone[3][2]
        assert ask_together(s.url, asks) == alone
        assert together(s.url) == 1


def test_f16_that_would_clip_falls_back_alone(big_synthetic):
    rng = random.Random(8)
    row = rows_of(rng, 1, HIDDEN)[0]

    def peak(url, layer, factor):
        a = Ask(layer, F32, F32, [[factor * v for v in row]]).post(url)
        assert a[0] == 200, a[2]
        return max(map(abs, struct.unpack(f"<{HIDDEN}f", a[2][8:])))

    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        # Far from 0 the output grows with the square: a factor with which one layer clips and the other does not.
        peaks = [peak(s.url, layer, 1000) for layer in (0, 1)]
        factor = 1000 * (65504 / (peaks[0] * peaks[1]) ** 0.5) ** 0.5
        order = sorted((0, 1), key=lambda layer: peak(s.url, layer, factor))
        assert peak(s.url, order[0], factor) < 65504 < peak(s.url, order[1], factor)
        big = [[factor * v for v in row]]
        one = [Ask(order[1], F32, F16, r) for r in (rows_of(rng, 1, HIDDEN), big, rows_of(rng, 1, HIDDEN))]
        two = [Ask(0, F32, F16, []) for _ in range(2)]
        for a, r in zip(two, (rows_of(rng, 1, HIDDEN), big)):  # clips in the second layer, the first is encoded by then
            a.body = struct.pack("<IIIIIII", 0xFFFFFFFF, 2, *order, 1, 1, 0) + encode(F32, r)
        for a in one + two:
            a.headers["Accept"] = f"{F16}, {F32};q=0.5"
        alone = [a.post(s.url) for a in one + two]
        assert [a[1] for a in alone] == [F16, F32, F16, F16, F32]
        assert ask_together(s.url, one + two) == alone
        assert together(s.url) == 2


def test_a_client_that_left_is_skipped(big_synthetic):
    rng = random.Random(9)
    asks = [Ask(1, F32, F32, rows_of(rng, 1, HIDDEN)) for _ in range(3)]
    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        alone = [a.post(s.url) for a in asks]
        host, port = s.url.rsplit("/", 1)[1].rsplit(":", 1)
        threads = [threading.Thread(target=a.post, args=(s.url,)) for a in asks]
        with Held(s.url) as held:
            with socket.create_connection((host, int(port))) as leaver:
                leaver.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
                               % (F32.encode(), len(asks[0].body)) + asks[0].body)
                held.until_waiting(1)
                open_n = metric(s.url, "larql_shard_connections")
            while metric(s.url, "larql_shard_connections") >= open_n:
                pass
            for t in threads:
                t.start()
            held.until_waiting(4)
        for t in threads:
            t.join()
        assert [a.answer for a in asks] == alone
        # Of the four that waited, three were computed, after the one that was given up.
        page = grid.get(s.url, "/metrics")[2].decode()
        assert 'larql_shard_batches_total{requests="3-4"} 1\n' in page
        

@pytest.mark.parametrize("rows_max,batches", [("1", 0), ("3", 2)])
def test_batch_rows_bounds(big_synthetic, rows_max, batches):
    rng = random.Random(10)
    with grid.shard(big_synthetic, "0-1", "--threads", "1", "--batch-rows", rows_max) as s:
        asks = [Ask(1, F32, F32, rows_of(rng, n, HIDDEN)) for n in (1, 2, 1, 1, 4)]  # 1+2, 1+1, 4 alone
        alone = [a.post(s.url) for a in asks]
        assert json.loads(grid.get(s.url, "/v1/stats")[2])["batch_rows_max"] == int(rows_max)
        assert ask_together(s.url, asks) == alone
        assert together(s.url) == batches


def test_full_queue_while_others_wait(big_synthetic):
    rng = random.Random(11)
    asks = [Ask(1, F32, F32, rows_of(rng, 1, HIDDEN)) for _ in range(4)]
    with grid.shard(big_synthetic, "0-1", "--threads", "1", "--queue", "4") as s:
        alone = [a.post(s.url) for a in asks]
        threads = [threading.Thread(target=a.post, args=(s.url,)) for a in asks]
        with Held(s.url) as held:
            for t in threads:
                t.start()
            held.until_waiting(4)
            status, headers, body = grid.post(s.url, "/v1/walk-ffn", asks[0].body, asks[0].headers)
            assert (status, headers["retry-after"]) == (503, "1"), body
            assert metric(s.url, "larql_shard_refused_total{reason=\"queue\"}") == 1
        for t in threads:
            t.join()
        assert [a.answer for a in asks] == alone
