"""--threads: several loops of one router on one listener. --busy-poll: the same answers."""
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import urllib.parse
from http.client import HTTPConnection

import pytest

import grid
from fake_shard import FakeShard, http

F32 = "application/x-larql-ffn"
ROW = (0.5, -1.25, 2.0, 0.125, -3.0, 1.0)
BODY = struct.pack("<IIII", 3, 1, 1, 0) + struct.pack("<6f", *ROW)


class Client:
    """One keep-alive connection."""

    def __init__(self, url):
        where = urllib.parse.urlsplit(url)
        self.http = HTTPConnection(where.hostname, where.port, timeout=60 * grid.TIMEOUT_X)
        self.http.connect()

    def send(self, method, path, body=None):
        self.http.request(method, path, body, {"Content-Type": F32} if body else {})

    def answer(self):
        r = self.http.getresponse()
        return r.status, r.read()

    def ask(self, method, path, body=None):
        self.send(method, path, body)
        return self.answer()

    def post(self):
        return self.ask("POST", "/v1/walk-ffn", BODY)

    def json(self, path):
        return json.loads(self.ask("GET", path)[1])

    def metric(self, name):
        """The sum over its labels."""
        lines = self.ask("GET", "/metrics")[1].decode().splitlines()
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.split("{")[0].split(" ")[0] == name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()


def clients(stack, url, n):
    return [stack.enter_context(Client(url)) for _ in range(n)]


class Held:
    """Answers of a FakeShard that wait for let_go; arrived counts the requests that do."""

    def __init__(self):
        self.arrived, self.let_go = threading.Semaphore(0), threading.Event()

    def __call__(self, request, _):
        self.arrived.release()
        self.let_go.wait(60 * grid.TIMEOUT_X)
        return http(200, request.body[-24:] + b"x" * 12, F32)

    def wait_for(self, n):
        for _ in range(n):
            assert self.arrived.acquire(timeout=60 * grid.TIMEOUT_X)


def all_at_once(asks):
    """Their results; each on a thread of its own."""
    out = [None] * len(asks)

    def run(i):
        out[i] = asks[i]()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def test_counts_are_of_all_loops(synthetic):
    with grid.shard(synthetic, "0-7") as s, grid.router(f"0-7={s.url}", "--threads", "3") as r, \
            contextlib.ExitStack() as stack:
        many = clients(stack, r.url, 24)
        direct = grid.post(s.url, "/v1/walk-ffn", BODY, {"Content-Type": F32})[2]
        for got in all_at_once([lambda c=c: [c.post() for _ in range(20)] for c in many]):
            assert [status for status, _ in got] == [200] * 20
            assert all(body[12:] == direct[12:] for _, body in got)
        for c in many:  # whichever loop has it
            assert c.json("/v1/health")["requests_served"] == 24 * 20
            assert c.metric("larql_router_requests_total") == 24 * 20
            assert c.metric("larql_router_request_seconds_count") == 24 * 20
            assert c.metric("larql_router_connections") == 24
            assert c.json("/v1/topology")["routes"][0]["replicas"][0]["answers"] == 24 * 20


def test_requests_in_flight_are_of_all_loops():
    held = Held()
    with FakeShard(held) as shard, grid.router(f"0-7={shard.url}", "--threads", "3") as r, \
            contextlib.ExitStack() as stack:
        many = clients(stack, r.url, 12)
        for c in many:
            c.send("POST", "/v1/walk-ffn", BODY)
        held.wait_for(12)
        for c in clients(stack, r.url, 6):
            assert c.json("/v1/topology")["routes"][0]["replicas"][0]["in_flight"] == 12
        held.let_go.set()
        for c in many:
            assert c.answer() == (200, BODY[-24:] + b"x" * 12)


def test_each_loop_accepts():
    """Three connections for three loops: each takes one, and the fourth waits for a place."""
    with FakeShard(lambda r, c: http(200, b"x" * 36, F32)) as shard, \
            grid.router(f"0-7={shard.url}", "--threads", "3", "--max-connections", "3") as r, \
            contextlib.ExitStack() as stack:
        three = clients(stack, r.url, 3)
        assert [c.post()[0] for c in three] == [200] * 3
        fourth = clients(stack, r.url, 1)[0]
        fourth.send("POST", "/v1/walk-ffn", BODY)
        assert [c.post()[0] for c in three] == [200] * 3
        assert len(shard.requests) == 6
        three[1].http.close()
        assert fourth.answer()[0] == 200


def test_more_threads_than_connections():
    with FakeShard(lambda r, c: http(200, b"x" * 36, F32)) as shard, \
            grid.router(f"0-7={shard.url}", "--threads", "4", "--max-connections", "2") as r:
        with Client(r.url) as a, Client(r.url) as b:
            assert (a.post()[0], b.post()[0]) == (200, 200)
        assert "threads=2" in r.log_text()


def test_what_one_loop_learns_of_a_shard_all_tell(synthetic):
    with grid.shard(synthetic, "0-3") as a, grid.shard(synthetic, "4-7") as b, \
            grid.router(f"0-3={a.url},4-7={b.url}", "--threads", "3", "--max-connections", "9") as r, \
            contextlib.ExitStack() as stack:
        nine = clients(stack, r.url, 9)  # three for each loop
        for c in nine:
            assert [x["replicas"][0]["state"] for x in c.json("/v1/topology")["routes"]] == ["up", "up"]
        b.kill()
        status, body = nine[0].ask("POST", "/v1/walk-ffn", struct.pack("<I", 5) + BODY[4:])
        assert status == 502 and b.url in json.loads(body)["error"]
        for c in nine:
            down = c.json("/v1/topology")["routes"][1]["replicas"][0]
            assert (down["state"], down["why"] != "") == ("down", True)
            assert c.json("/v1/health")["coverage"]["live"] == 4


def refuses_connections(url):
    where = urllib.parse.urlsplit(url)
    try:
        with socket.create_connection((where.hostname, where.port)):
            return False
    except ConnectionError:
        return True


def test_drain_of_all_loops_with_requests_in_flight():
    held = Held()
    with FakeShard(held) as shard, \
            grid.router(f"0-7={shard.url}", "--threads", "2", "--max-connections", "2") as r, \
            contextlib.ExitStack() as stack:
        two = clients(stack, r.url, 2)  # one for each loop
        for c in two:
            c.send("POST", "/v1/walk-ffn", BODY)
        held.wait_for(2)
        os.kill(r.process.pid, signal.SIGTERM)
        while not refuses_connections(r.url):
            pass  # the test's own timeout ends this
        assert r.process.poll() is None
        held.let_go.set()
        for c in two:
            assert c.answer() == (200, BODY[-24:] + b"x" * 12)
        assert r.process.wait(60 * grid.TIMEOUT_X) == 0
        assert r.log_text().count("drain_end connections=0") == 2


def test_second_signal_ends_all_loops_at_once():
    held = Held()
    leaves_threads = {"TSAN_OPTIONS": "report_thread_leaks=0"}  # which is what "at once" means
    with FakeShard(held) as shard, \
            grid.router(f"0-7={shard.url}", "--threads", "2", env=leaves_threads) as r, Client(r.url) as c:
        c.send("POST", "/v1/walk-ffn", BODY)
        held.wait_for(1)
        os.kill(r.process.pid, signal.SIGTERM)
        while "drain_begin" not in r.log_text():
            pass
        os.kill(r.process.pid, signal.SIGTERM)
        assert r.process.wait(60 * grid.TIMEOUT_X) == 130
        held.let_go.set()


@pytest.mark.parametrize("threads", ["1", "3"])
def test_second_process_on_the_port_fails(threads):
    with FakeShard(None) as shard, grid.router(f"0-7={shard.url}", "--threads", threads) as r:
        port = r.url.rsplit(":", 1)[1]
        second = subprocess.run([grid.program("larql-router"), "--shards", f"0-7={shard.url}", "--port", port,
                                 "--threads", threads], capture_output=True, text=True, check=False,
                                timeout=60 * grid.TIMEOUT_X)
        assert second.returncode == 1
        assert port in second.stderr and "Address already in use" in second.stderr
        assert second.stdout == ""


def test_busy_poll_changes_no_byte(synthetic):
    def answers(*busy):
        with grid.shard(synthetic, "0-7", *busy) as s, grid.router(f"0-7={s.url}", *busy) as r:
            got = [grid.post(r.url, "/v1/walk-ffn", struct.pack("<I", layer) + BODY[4:], {"Content-Type": F32})
                   for layer in range(8)]
            text = grid.larql("run", synthetic, "--ffn", r.url, "--prompt", "abc", "-n", "8", "-q", *busy)
            assert text.returncode == 0, text.stderr
            return [(status, body[:8] + body[12:]) for status, _, body in got], text.stdout  # all but latency_ms
    plain = answers()
    assert [status for status, _ in plain[0]] == [200] * 8
    assert answers("--busy-poll", "200") == plain


def test_busy_poll_with_too_few_cpus_is_off_and_says_so():
    with FakeShard(lambda r, c: http(200, b"x" * 36, F32)) as shard, \
            grid.router(f"0-7={shard.url}", "--threads", "64", "--busy-poll", "200") as r, Client(r.url) as c:
        assert c.post()[0] == 200
        enough = os.sysconf("SC_NPROCESSORS_ONLN") > 64 and len(os.sched_getaffinity(0)) >= 64
        assert ("busy_poll_off us=200 spinning_threads=64" in r.log_text()) is not enough


@pytest.mark.parametrize("option,value", [("--threads", "0"), ("--threads", "9999"), ("--threads", "x"),
                                          ("--threads", ""), ("--busy-poll", "-1"), ("--busy-poll", "1000001"),
                                          ("--busy-poll", "1ms")])
def test_refused_values(option, value):
    done = subprocess.run([grid.program("larql-router"), "--shards", "0-7=http://127.0.0.1:1", option, value],
                          capture_output=True, text=True, check=False, timeout=60 * grid.TIMEOUT_X)
    assert done.returncode == 2
    assert f"{option} {value}" in done.stderr.replace('"', "") and "need a whole number" in done.stderr
