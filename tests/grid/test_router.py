"""larql-router: bytes untouched, JSON split and merged, failures named, retries."""
import json
import os
import socket
import struct
import subprocess
import threading

import pytest

import grid
from fake_shard import STATS, FakeShard, http

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
ROW = (0.5, -1.25, 2.0, 0.125, -3.0, 1.0)


def single(layer, rows=1):
    return struct.pack("<IIII", layer, rows, 1, 0) + struct.pack("<6f", *ROW) * rows


def batch(*layers):
    return struct.pack(f"<II{len(layers)}IIII", 0xFFFFFFFF, len(layers), *layers, 1, 1, 0) + struct.pack("<6f", *ROW)


def ask(url, **fields):
    return grid.post(url, "/v1/walk-ffn", json.dumps(fields).encode(), {"Content-Type": "application/json"})


def error(answer, status):
    assert answer[0] == status, answer
    return json.loads(answer[2])["error"]


@pytest.fixture(scope="module")
def two(synthetic):
    with grid.Grid(synthetic, ["0-3", "4-7"]) as g:
        yield g


def test_bytes_pass_untouched():
    odd = bytes(range(256)) * 3
    shard = FakeShard(lambda r, c: http(200, odd, "application/x-larql-ffn-f16; x=\"y\"",
                                        "X-Larql-Saturated: 3\r\nServer-Timing: a;dur=1\r\nX-Secret: 1\r\n"))
    with shard, grid.router(f"0-7={shard.url}") as r:
        body = single(3)
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn; a=b\r\n"
                      b"Accept: application/x-larql-ffn-i8\r\nAccept: application/x-larql-ffn;q=0.5\r\n"
                      b"Authorization: Bearer secret\r\nX-Request-Id: my-id-1\r\nConnection: close\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            answer = b""
            while more := s.recv(65536):
                answer += more
        head, got = answer.split(b"\r\n\r\n", 1)
        assert got == odd
        lower = head.lower()
        assert b'content-type: application/x-larql-ffn-f16; x="y"' in lower
        assert b"x-larql-saturated: 3" in lower
        assert b"server-timing: a;dur=1" in lower
        assert b"x-secret" not in lower
        assert b"x-request-id: my-id-1" in lower
        sent = shard.requests[0]
        assert sent.body == body
        assert sent.all("Content-Type") == ["application/x-larql-ffn; a=b"]
        assert ", ".join(sent.all("Accept")) == "application/x-larql-ffn-i8, application/x-larql-ffn;q=0.5"
        assert sent.all("X-Request-Id") == ["my-id-1"]
        assert sent.all("Authorization") == []
        assert 0 < int(sent.all("X-Larql-Deadline-Ms")[0]) <= 30000


@pytest.mark.parametrize("status", [200, 400, 415, 500, 503])
def test_status_and_body_of_the_shard_pass(status):
    with FakeShard(lambda r, c: http(status, b'{"error":"x"}', extra="Retry-After: 7\r\n")) as shard, \
            grid.router(f"0-7={shard.url}") as r:
        got = grid.post(r.url, "/v1/walk-ffn", single(0), {"Content-Type": F32})
        assert (got[0], got[2], got[1]["retry-after"]) == (status, b'{"error":"x"}', "7")


@pytest.mark.parametrize("kind", [F32, F16, I8])
def test_each_layer_reaches_its_shard(two, kind):
    for layer in range(8):
        direct = two.shards[layer // 4].url
        payload = {F32: struct.pack("<6f", *ROW), F16: struct.pack("<6e", *ROW),
                   I8: struct.pack("<ff6b", 0.5, 0, 1, 2, 3, 4, 5, 6)}[kind]
        body = struct.pack("<IIII", layer, 1, 1, 0) + payload
        headers = {"Content-Type": kind, "Accept": kind}
        a = grid.post(direct, "/v1/walk-ffn", body, headers)
        b = grid.post(two.url, "/v1/walk-ffn", body, headers)
        assert a[0] == b[0] == 200
        assert a[1]["content-type"] == b[1]["content-type"] == kind
        assert a[2][:8] + a[2][12:] == b[2][:8] + b[2][12:]  # all but latency_ms


def test_batch_inside_one_shard_passes_over_several_is_refused(two):
    assert grid.post(two.url, "/v1/walk-ffn", batch(4, 7, 5), {"Content-Type": F32})[0] == 200
    assert error(grid.post(two.url, "/v1/walk-ffn", batch(3, 4), {"Content-Type": F32}), 400) == \
        "binary fan-out across multiple shards is not supported; use JSON or split by shard"


def test_unknown_layer(two):
    text = "layer 9 has no owning shard in this router"
    assert error(grid.post(two.url, "/v1/walk-ffn", single(9), {"Content-Type": F32}), 400) == text
    assert error(ask(two.url, layers=[1, 9], residual=ROW, full_output=True), 400) == text


def test_json_fan_out_is_merged_in_the_order_asked(two):
    layers = [6, 1, 7, 1, 0, 4]
    status, _, body = ask(two.url, layers=layers, residual=ROW, full_output=True)
    assert status == 200, body
    merged = json.loads(body)
    assert [r["layer"] for r in merged["results"]] == layers
    assert merged["seq_len"] == 1
    for r in merged["results"]:
        alone = json.loads(ask(two.url, layer=r["layer"], residual=ROW, full_output=True)[2])
        assert r["output"] == alone["output"]
    features = json.loads(ask(two.url, layers=[5, 2], residual=ROW, top_k=3)[2])
    assert [r["layer"] for r in features["results"]] == [5, 2]
    assert all(len(r["features"]) == 3 for r in features["results"])


def test_fan_out_runs_in_parallel_and_reports_the_slowest():
    barrier = threading.Barrier(2, timeout=20 * grid.TIMEOUT_X)

    def part(ms):
        def answer(r, _):
            barrier.wait()  # ends only when both parts are out
            ask_for = json.loads(r.body)
            layer = ask_for["layers"][0]
            assert ask_for["residual"] == list(ROW)
            assert (ask_for["seq_len"], ask_for["full_output"], ask_for["top_k"], ask_for["model_id"]) == (1, True, 9, "m")
            return http(200, json.dumps({"layer": layer, "output": [layer] * 6, "seq_len": 1, "latency_ms": ms}).encode())
        return answer

    with FakeShard(part(1.5)) as a, FakeShard(part(7.5)) as b, grid.router(f"0-3={a.url},4-7={b.url}") as r:
        status, _, body = ask(r.url, layers=[4, 0], residual=ROW, full_output=True, top_k=9, model_id="m")
        assert status == 200, body
        got = json.loads(body)
        assert got["latency_ms"] == 7.5
        assert [x["output"][0] for x in got["results"]] == [4, 0]


@pytest.mark.parametrize("status", [400, 500, 503])
def test_fan_out_fails_as_a_whole(synthetic, status):
    bad = FakeShard(lambda r, c: http(status, b'{"error":"no luck today"}'))
    with bad, grid.shard(synthetic, "0-3") as good, grid.router(f"0-3={good.url},4-7={bad.url}") as r:
        text = error(ask(r.url, layers=[0, 5, 6], residual=ROW, full_output=True), status)
        assert bad.url in text and "5, 6" in text and "no luck today" in text


def test_fan_out_part_that_lacks_a_layer_is_an_error(synthetic):
    wrong = {"layer": 4, "output": [0.0] * 6, "seq_len": 1, "latency_ms": 0.1}
    bad = FakeShard(lambda r, c: http(200, json.dumps(wrong).encode()))
    with bad, grid.shard(synthetic, "0-3") as good, grid.router(f"0-3={good.url},4-7={bad.url}") as r:
        text = error(ask(r.url, layers=[0, 5, 4], residual=ROW, full_output=True), 502)
        assert bad.url in text and "5" in text


def test_unreachable_shard_is_named(synthetic):
    with socket.create_server(("127.0.0.1", 0)) as s:
        gone = "http://127.0.0.1:%d" % s.getsockname()[1]
    with grid.shard(synthetic, "0-3") as good, grid.router(f"0-3={good.url},4-7={gone}") as r:
        text = error(grid.post(r.url, "/v1/walk-ffn", single(5), {"Content-Type": F32}), 502)
        assert f"shard {gone}: " in text and "layer 5" in text
        text = error(ask(r.url, layers=[1, 5], residual=ROW, full_output=True), 502)
        assert gone in text and "5" in text
        assert grid.post(r.url, "/v1/walk-ffn", single(1), {"Content-Type": F32})[0] == 200
        health = json.loads(grid.get(r.url, "/v1/health")[2])
        assert (health["status"], health["coverage"]["mapped"], health["coverage"]["live"]) == ("ok", 8, 4)
        topology = json.loads(grid.get(r.url, "/v1/topology")[2])["routes"]
        assert [(t["layer_start"], t["replicas"][0]["state"]) for t in topology] == [(0, "up"), (4, "down")]


def test_silent_shard_is_504():
    with FakeShard(lambda r, c: (threading.Event().wait(60), None)[1]) as shard, \
            grid.router(f"0-7={shard.url}", "--deadline-ms", "300") as r:
        assert shard.url in error(grid.post(r.url, "/v1/walk-ffn", single(5), {"Content-Type": F32}), 504)
        assert shard.url in error(ask(r.url, layer=5, residual=ROW, full_output=True), 504)


def test_pooled_connection_that_the_shard_closed_costs_nobody_anything():
    """The shard closes after each answer, without saying so."""
    with FakeShard(lambda r, c: http(200, b"x" * 36, F32), close_after=True) as shard, \
            grid.router(f"0-7={shard.url}") as r:
        for _ in range(50):
            assert grid.post(r.url, "/v1/walk-ffn", single(1), {"Content-Type": F32})[0] == 200
        assert len(shard.requests) == 50


def test_connections_to_a_shard_are_kept():
    with FakeShard(lambda r, c: http(200, b"x" * 36, F32)) as shard, grid.router(f"0-7={shard.url}") as r:
        before = shard.connections_n
        for _ in range(20):
            assert grid.post(r.url, "/v1/walk-ffn", single(1), {"Content-Type": F32})[0] == 200
        assert shard.connections_n - before <= 1


def test_answer_cut_half_way_goes_to_a_replica(synthetic):
    def half(_, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-larql-ffn\r\nContent-Length: 36\r\n\r\n1234")
    stats = dict(STATS)
    with FakeShard(half, stats) as bad, grid.shard(synthetic, "0-7") as good, \
            grid.router(f"0-7={bad.url},0-7={good.url}") as r:
        for _ in range(6):
            status, _, body = grid.post(r.url, "/v1/walk-ffn", single(1), {"Content-Type": F32})
            assert (status, len(body)) == (200, 36)
        assert bad.requests  # it was tried


def test_killed_replica_costs_no_answer(synthetic):
    with grid.shard(synthetic, "0-7") as a, grid.shard(synthetic, "0-7") as b, \
            grid.router(f"0-7={a.url},0-7={b.url}") as r:
        for i in range(30):
            if i == 10:
                a.kill()
            assert grid.post(r.url, "/v1/walk-ffn", single(i % 8), {"Content-Type": F32})[0] == 200


def test_large_answer_that_is_cut_never_looks_complete():
    big = 1 << 20

    def cut(_, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-larql-ffn\r\nContent-Length: %d\r\n\r\n" % big)
        conn.sendall(b"x" * (big // 2))
    with FakeShard(cut) as shard, grid.router(f"0-7={shard.url}") as r:
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as s:
            body = single(1)
            s.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            got = b""
            try:
                while more := s.recv(65536):
                    got += more
            except ConnectionResetError:
                pass
        assert len(got.split(b"\r\n\r\n", 1)[1]) < big


def test_large_body_is_cut_through():
    """A body over 1 MiB begins to leave before it has wholly come."""
    arrived = threading.Event()

    class Peeking(FakeShard):
        def _serve(self, conn):
            data = b""
            while b"\r\n\r\n" not in data:
                more = conn.recv(65536)
                if not more:
                    return
                data += more
            head, data = data.split(b"\r\n\r\n", 1)
            if b"/v1/stats" in head:
                conn.sendall(http(200, self.stats))
                conn.close()
                return
            length = int([x for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")][0].split(b":")[1])
            while len(data) < length:
                more = conn.recv(65536)
                if not more:
                    return
                data += more
                if len(data) > 100000:
                    arrived.set()
            self.requests.append(data)
            conn.sendall(http(200, data[:16] + data[-16:], F32))

    rows = 100000
    body = single(1, rows)
    with Peeking(None) as shard, grid.router(f"0-7={shard.url}") as r:
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                      b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:500000])
            assert arrived.wait(20 * grid.TIMEOUT_X), "nothing left before the body was whole"
            s.sendall(body[500000:])
            got = b""
            while more := s.recv(65536):
                got += more
        assert got.split(b"\r\n\r\n", 1)[1] == body[:16] + body[-16:]
        assert shard.requests[0] == body


LARGE = 100 << 20


def test_client_that_does_not_read_stops_the_shard():
    """A large answer waits at the shard, not in the router's memory."""
    sent = threading.Event()

    def answer(_, conn):
        conn.sendall(http(200, bytes(LARGE), F32))
        sent.set()
    with FakeShard(answer) as shard, grid.router(f"0-7={shard.url}") as r:
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as s:
            body = single(1)
            s.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                      b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert not sent.wait(1), "the router took 100 MB that nobody reads"
            got = 0
            while more := s.recv(1 << 20):
                got += len(more)
        assert got > LARGE
        assert sent.wait(20 * grid.TIMEOUT_X)


def test_shard_that_does_not_read_stops_the_client():
    """A large body waits at the client, not in the router's memory."""
    body = single(1, 2000000)  # 48 MB
    sent, go_on = threading.Event(), threading.Event()

    class Slow(FakeShard):
        def _serve(self, conn):
            data = conn.recv(65536)
            if b"/v1/stats" in data:
                conn.sendall(http(200, self.stats))
                conn.close()
                return
            go_on.wait(60)
            left = len(body) - len(data.split(b"\r\n\r\n", 1)[1])
            while left > 0:
                left -= len(conn.recv(1 << 20))
            conn.sendall(http(200, b"x" * 36, F32))

    with Slow(None) as shard, grid.router(f"0-7={shard.url}") as r:
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as s:
            head = (b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                    b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
            sender = threading.Thread(target=lambda: (s.sendall(head + body), sent.set()))
            sender.start()
            assert not sent.wait(1), "the router took 48 MB that nobody reads"
            go_on.set()
            got = b""
            while more := s.recv(65536):
                got += more
            sender.join()
        assert got.startswith(b"HTTP/1.1 200 ")


def test_chunked_bodies_pass(two):
    body = single(2)
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7))
    host, port = two.url.rsplit("/", 1)[1].rsplit(":", 1)
    with socket.create_connection((host, int(port))) as s:
        s.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                  b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n")
        got = b""
        while more := s.recv(65536):
            got += more
    assert got.startswith(b"HTTP/1.1 200 ")
    assert len(got.split(b"\r\n\r\n", 1)[1]) == 36


def test_stats_are_the_routers_own(two):
    stats = json.loads(grid.get(two.url, "/v1/stats")[2])
    assert (stats["layers"], stats["hidden_size"], stats["layer_start"], stats["layer_end"]) == (8, 6, 0, 7)
    assert stats["wire"] == ["f32", "f16", "i8"]
    assert json.loads(grid.get(two.url, "/v1/models")[2])["data"][0]["id"] == stats["model"]
    page = grid.get(two.url, "/metrics")[2].decode()
    assert "larql_router_shards_up 2" in page


def test_wire_is_the_intersection_over_the_shards(synthetic):
    with grid.shard(synthetic, "0-3", "--no-i8") as a, grid.shard(synthetic, "4-7", "--no-f16") as b, \
            grid.router(f"0-3={a.url},4-7={b.url}") as r:
        assert json.loads(grid.get(r.url, "/v1/stats")[2])["wire"] == ["f32"]


def test_client_that_leaves_is_forgotten():
    release = threading.Event()
    with FakeShard(lambda r, c: (release.wait(30), http(200, b"x" * 36, F32))[1]) as shard, \
            grid.router(f"0-7={shard.url}") as r:
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        body = single(1)
        head = (b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body))
        for _ in range(20):
            with socket.create_connection((host, int(port))) as s:
                s.sendall(head + body)
        while json.loads(grid.get(r.url, "/v1/topology")[2])["routes"][0]["replicas"][0]["in_flight"] > 0:
            pass  # the test's own timeout ends this
        release.set()
        assert grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": F32})[0] == 200


@pytest.mark.parametrize("args,code,part", [
    (["--help"], 0, "Usage: larql-router"), (["--version"], 0, "larql-router "), ([], 2, "--shards"),
    (["--shards", "x"], 2, "expected 'START-END=URL', got 'x'"), (["--shards", "0-1=ftp://h"], 2, "ftp://h"),
    (["--shards", "0-3=http://a:1,2-5=http://b:1"], 2, "overlap"), (["--shards", "0-1=http://h:1", "extra"], 2, "too many")])
def test_exit_codes(args, code, part):
    done = subprocess.run([grid.program("larql-router"), *args], capture_output=True, text=True, check=False,
                          timeout=60 * grid.TIMEOUT_X)
    assert done.returncode == code, done
    assert part in done.stdout + done.stderr


def test_shard_on_a_unix_socket(synthetic, tmp_path):
    path = str(tmp_path / "s")
    with grid.shard(synthetic, "0-7", "--unix", path) as s:
        assert s.url == f"unix:{path}"
        with grid.router(f"0-7={s.url}") as r:
            status, _, body = grid.post(r.url, "/v1/walk-ffn", single(2), {"Content-Type": F32})
            assert (status, len(body)) == (200, 36)
        done = grid.larql("run", synthetic, "--ffn", s.url, "--prompt", "abc", "-n", "4", "-q")
        assert done.returncode == 0, done.stderr
        second = subprocess.run([grid.program("larql-shard"), synthetic, "--unix", path], capture_output=True, text=True, check=False,
                                timeout=60 * grid.TIMEOUT_X)
        assert second.returncode == 1 and "in use" in second.stderr
    assert not os.path.exists(path)
