"""Shards that join over gRPC: told, checked, routed to, gone."""
import functools
import http.server
import json
import os
import re
import signal
import struct
import subprocess
import threading
import time

import pytest

import grid
from fake_shard import FakeShard
from fake_shard import http as answer_of

F32 = "application/x-larql-ffn"
ROW = (0.5, -1.25, 2.0, 0.125, -3.0, 1.0)


def single(layer):
    return struct.pack("<IIII", layer, 1, 1, 0) + struct.pack("<6f", *ROW)


def wait_for(what, why="", limit_s=30):
    """Polls until what() is true; what it gave."""
    end = time.monotonic() + limit_s * grid.TIMEOUT_X
    while time.monotonic() < end:
        if got := what():
            return got
        time.sleep(0.02)
    raise AssertionError(why or "it never came true")


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """The standard library's file server, with single ranges."""

    def do_GET(self):
        with open(self.translate_path(self.path), "rb") as f:
            body = f.read()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(x) for x in wanted.groups()) if wanted else (0, len(body) - 1)
        last = min(last, len(body) - 1)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", '"1"')
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        self.end_headers()
        self.wfile.write(body[first:last + 1])

    def log_message(self, *_):
        pass


class GridRouter(grid.Proc):
    """A router that shards join; .join is its address for them."""

    def __init__(self, *args, env=None):
        super().__init__([grid.program("larql-router"), "--grid-port", "0", "--port", "0", *args], "router", env)
        self.join = "127.0.0.1:" + wait_for(lambda: re.search(r"grid port=(\d+)", self.log_text())).group(1)

    def topology(self):
        return json.loads(grid.get(self.url, "/v1/topology")[2])

    def up(self):
        """Members that can be sent to."""
        return [s for s in self.topology()["shards"] if s["state"] == "up"]

    def wait_up(self, n):
        return wait_for(lambda: len(self.up()) == n and self.up(), f"never {n} shards up: {self.log_text()[-2000:]}")


def joined(r, model, layers, *args, env=None):
    return grid.shard(model, layers, "--join", r.join, *args, env=env)


def ask(url, layer, **headers):
    return grid.post(url, "/v1/walk-ffn", single(layer), {"Content-Type": F32, **headers})


def error(answer, status):
    assert answer[0] == status, answer
    return json.loads(answer[2])["error"]


def test_shards_join_serve_and_leave(synthetic):
    with GridRouter() as r:
        assert error(ask(r.url, 0), 503) == "no shard has joined this grid yet"
        assert grid.get(r.url, "/v1/health")[0] == 503
        with joined(r, synthetic, "0-3") as a:
            r.wait_up(1)
            assert "no shard serves layers 5 of model 'tiny.gguf' now" in error(ask(r.url, 5), 503)
            assert "layer 8 out of range (num_layers = 8)" in error(ask(r.url, 8), 400)
            assert grid.get(r.url, "/v1/health")[0] == 200
            assert grid.get(r.url, "/v1/health?coverage=full")[0] == 503
            with joined(r, synthetic, "4-7") as b:
                r.wait_up(2)
                assert grid.get(r.url, "/v1/health?coverage=full")[0] == 200
                for layer in range(8):
                    direct = ask((a, b)[layer // 4].url, layer)
                    through = ask(r.url, layer)
                    assert direct[0] == through[0] == 200
                    assert direct[2][:8] + direct[2][12:] == through[2][:8] + through[2][12:]
                t = r.topology()
                assert t["models"][0]["gaps"] == [] and t["models"][0]["layers"] == 8
                assert {s["source"] for s in t["shards"]} == {"joined"}
            wait_for(lambda: len(r.topology()["shards"]) == 1)  # SIGTERM: it said so
            assert r.topology()["models"][0]["gaps"] == [{"layer_start": 4, "layer_end": 7}]
        assert "why=\"shutdown\"" in r.log_text()


def test_killed_shard_is_dropped_with_its_stream(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7"):
        dead = joined(r, synthetic, "0-7")
        r.wait_up(2)
        dead.kill()
        wait_for(lambda: len(r.topology()["shards"]) == 1)
        assert all(ask(r.url, i % 8)[0] == 200 for i in range(20))


def test_router_that_comes_back_is_joined_again(synthetic):
    with GridRouter() as first, joined(first, synthetic, "0-7") as s:
        first.wait_up(1)
        port = first.join.rsplit(":", 1)[1]
        first.kill()
        with grid.Proc([grid.program("larql-router"), "--grid-port", port, "--port", "0"], "router") as second:
            wait_for(lambda: ask(second.url, 3)[0] == 200)
        wait_for(lambda: s.log_text().count("router_lost") >= 2)


def test_each_router_on_its_own(synthetic):
    with GridRouter() as a, GridRouter() as b:
        with grid.shard(synthetic, "0-7", "--join", f"{a.join}, http://{b.join}/"):
            a.wait_up(1)
            b.wait_up(1)
            a.kill()
            assert ask(b.url, 2)[0] == 200


def test_static_and_joined_are_mixed(synthetic):
    with grid.shard(synthetic, "0-3") as s, GridRouter("--shards", f"0-3={s.url}") as r, joined(r, synthetic, "4-7"):
        r.wait_up(2)
        assert all(ask(r.url, layer)[0] == 200 for layer in range(8))
        assert {x["source"] for x in r.topology()["shards"]} == {"static", "joined"}


@pytest.mark.parametrize("what", ["other", "tuned"])
def test_other_weights_under_one_name_are_refused(synthetic, tmp_path, what):
    """A fine-tune: same names, shapes and types, other bytes in one layer. And another model altogether."""
    with open(synthetic, "rb") as f:
        model = bytearray(f.read())
    import conftest
    if what == "tuned":
        model[-64] ^= 1
        path = tmp_path / "tiny.gguf"
        path.write_bytes(model)
    else:
        path = conftest.make("join-other.gguf", "--arch", "llama", "--layers", "8", "--hidden", "6", "--ffn", "16", "--heads", "3",
                             "--kv-heads", "3")
    with GridRouter() as r, joined(r, synthetic, "0-7"):
        r.wait_up(1)
        with joined(r, str(path), "0-7", "--model-id", "tiny.gguf") as bad:
            wait_for(lambda: "join_rejected" in bad.log_text())
            why = re.search(r'join_rejected .*why="([^"]*)"', bad.log_text()).group(1)
            assert ("weights of layer" if what == "tuned" else "identity is") in why, why
            assert len(r.up()) == 1
            assert "refused" in [e["event"] for e in r.topology()["events"]]


def test_two_models_in_one_grid(synthetic):
    import conftest
    big = conftest.make("join-second.gguf", "--arch", "llama", "--layers", "4", "--hidden", "6", "--ffn", "16", "--heads", "3",
                        "--kv-heads", "3")
    with GridRouter() as r, joined(r, synthetic, "0-7") as a, joined(r, big, "0-3") as b:
        r.wait_up(2)
        text = error(ask(r.url, 1), 400)
        assert "X-Larql-Model" in text and "tiny.gguf" in text and "join-second.gguf" in text
        for s, model in ((a, "tiny.gguf"), (b, "join-second.gguf")):
            assert ask(r.url, 1, **{"X-Larql-Model": model})[2][12:] == ask(s.url, 1)[2][12:]
            body = json.dumps({"layer": 1, "residual": ROW, "full_output": True, "model_id": model}).encode()
            one, two = (json.loads(grid.post(u, "/v1/walk-ffn", body, {"Content-Type": "application/json"})[2])["output"]
                        for u in (r.url, s.url))
            assert one == two
            stats = json.loads(grid.get(r.url, f"/v1/stats?model_id={model}")[2])
            assert stats["model"] == model
        assert error(ask(r.url, 1, **{"X-Larql-Model": "no"}), 400).startswith("model 'no' is not in this grid")
        assert {m["id"] for m in json.loads(grid.get(r.url, "/v1/models")[2])["data"]} == {"tiny.gguf", "join-second.gguf"}


def test_public_url_that_does_not_answer_is_refused_with_the_reason(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7", "--public-url", "http://127.0.0.1:1") as s:
        wait_for(lambda: "join_rejected" in s.log_text())
        assert "its public URL http://127.0.0.1:1 does not answer from this router" in s.log_text()
        assert r.up() == []


def test_joins_need_the_grid_key(synthetic, tmp_path):
    key = tmp_path / "grid.keys"
    key.write_text("0123456789abcdef-grid\n")
    key.chmod(0o600)
    with GridRouter("--grid-key-file", str(key)) as r:
        with joined(r, synthetic, "0-7") as s:
            wait_for(lambda: "invalid grid key" in s.log_text())
        with joined(r, synthetic, "0-7", env={"LARQL_GRID_KEY": "0123456789abcdef-grid"}) as s:
            wait_for(lambda: "joined router=" in s.log_text())
            assert ask(r.url, 3)[0] == 200
            for p in (r, s):
                with open(f"/proc/{p.process.pid}/cmdline", "rb") as f:
                    assert b"abcdef-grid" not in f.read()
                assert "abcdef-grid" not in p.log_text()


def test_join_over_tls(synthetic, tmp_path):
    pem, key = str(tmp_path / "r.pem"), str(tmp_path / "r.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                    "2", "-subj", "/CN=router", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", pem],
                   check=True, capture_output=True)
    der = subprocess.run(["openssl", "x509", "-in", pem, "-outform", "DER"], check=True, capture_output=True).stdout
    import hashlib
    pin = "sha256:" + hashlib.sha256(der).hexdigest()
    with GridRouter("--tls-cert", pem, "--tls-key", key) as r:
        for args in (("--tls-ca", pem), ("--join-pin", pin)):
            with joined(r, synthetic, "0-7", *args) as s:
                wait_for(lambda: "joined router=" in s.log_text(), s.log_text())
            wait_for(lambda: "left router=" in s.log_text())
        with joined(r, synthetic, "0-7", "--join-pin", "sha256:" + "0" * 64) as s:
            wait_for(lambda: "router_lost" in s.log_text())
            assert "joined router=" not in s.log_text()


def test_503_goes_to_another_replica():
    busy = FakeShard(lambda r, c: answer_of(503, b'{"error":"full"}', extra="Retry-After: 1\r\n"))
    good = FakeShard(lambda r, c: answer_of(200, b"x" * 36, F32))
    with busy, good, grid.router(f"0-7={busy.url},0-7={good.url}") as r:
        assert all(ask(r.url, 1)[0] == 200 for _ in range(20))
        assert busy.requests and len(busy.requests) < 8  # told to wait, it is asked last


def test_stopped_replica_costs_no_answer(synthetic):
    """SIGSTOP: it neither answers nor resets. Its requests go elsewhere when a probe finds out."""
    with GridRouter() as r, joined(r, synthetic, "0-7"), joined(r, synthetic, "0-7") as frozen:
        r.wait_up(2)
        answers = []

        def client():
            for i in range(40):
                answers.append(ask(r.url, i % 8)[0])

        threads = [threading.Thread(target=client) for _ in range(8)]
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        assert answers == [200] * 320
        r.wait_up(2)


def test_hedge_answers_when_the_first_is_slow():
    first_sleeps, end = threading.Event(), threading.Event()

    def answer(request, conn):
        if first_sleeps.is_set():
            first_sleeps.clear()  # whoever is asked first
            end.wait(20)
        return answer_of(200, b"x" * 36, F32)

    with FakeShard(answer) as a, FakeShard(answer) as b, grid.router(f"0-7={a.url},0-7={b.url}", "--hedge") as r:
        for _ in range(60):
            assert ask(r.url, 1)[0] == 200
        for _ in range(5):
            first_sleeps.set()
            assert ask(r.url, 1)[0] == 200
            assert not end.is_set()
        end.set()
        metrics = grid.get(r.url, "/metrics")[2].decode()
        for name in ("hedges", "hedge_wins"):
            assert re.search(rf"^larql_router_{name}_total [1-9]", metrics, re.M), metrics


class Spare:
    """`larql-shard --spare`: prints its ready line only when it has become a shard."""

    def __init__(self, r, store, *args):
        self.log_path = str(store) + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([grid.program("larql-shard"), "--spare", "--store", str(store), "--join", r.join,
                                             "--port", "0", *args], stdout=subprocess.PIPE, stderr=log, text=True)

    def log_text(self):
        with open(self.log_path, encoding="utf-8") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60 * grid.TIMEOUT_X)
        self.process.stdout.close()
        assert code == 0 and "Sanitizer" not in self.log_text(), self.log_text()


def test_spare_becomes_a_replica_of_what_has_too_few(synthetic, tmp_path):
    with GridRouter("--target-replicas", "2") as r, joined(r, synthetic, "0-7") as first:
        r.wait_up(1)
        with Spare(r, tmp_path / "store") as spare:
            r.wait_up(2)
            assert spare.process.stdout.readline().startswith("ready url=")
            assert "joined router=" in spare.log_text()
            replicas = r.topology()["routes"][0]["replicas"]
            assert len(replicas) == 2 and len(r.topology()["routes"]) == 1
            url = next(x["url"] for x in replicas if x["url"] != first.url)
            for layer in range(8):
                assert ask(first.url, layer)[2][12:] == ask(url, layer)[2][12:]
            first.kill()
            assert all(ask(r.url, layer)[0] == 200 for layer in range(8))


def test_spare_fills_a_gap_from_the_origin(synthetic, tmp_path):
    handler = functools.partial(RangeHandler, directory=os.path.dirname(synthetic))
    origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{origin.server_address[1]}/{os.path.basename(synthetic)}"
    try:
        with GridRouter("--origins", f"tiny.gguf={url}") as r, joined(r, synthetic, "0-3"):
            r.wait_up(1)
            assert ask(r.url, 6)[0] == 503
            with Spare(r, tmp_path / "store"):
                r.wait_up(2)
                assert ask(r.url, 6)[0] == 200
                assert grid.get(r.url, "/v1/health?coverage=full")[0] == 200
    finally:
        origin.shutdown()


def test_spare_that_cannot_load_says_why_and_waits_on(synthetic, tmp_path):
    with GridRouter("--origins", "tiny.gguf=http://127.0.0.1:1/tiny.gguf") as r, joined(r, synthetic, "0-3"):
        r.wait_up(1)
        with Spare(r, tmp_path / "store") as spare:
            wait_for(lambda: "assignment_refused" in r.log_text(), limit_s=60)
            assert "assignment_failed" in spare.log_text()
            assert ask(r.url, 6)[0] == 503
            assert spare.process.poll() is None


@pytest.mark.parametrize("args,part", [
    (("--join", "nohost"), "--join nohost"),
    (("--join", ","), "--join names no router"),
    (("--join", "127.0.0.1:1", "--host", "0.0.0.0", "--insecure"), "--join needs --public-url"),
])
def test_wrong_use(synthetic, args, part):
    done = subprocess.run([grid.program("larql-shard"), synthetic, "--port", "0", *args], capture_output=True, text=True,
                          check=False, timeout=60 * grid.TIMEOUT_X)
    assert done.returncode == 2 and part in done.stderr, done


def test_a_range_with_too_much_to_do_is_reported():
    hold = threading.Event()

    def late(request, _):
        hold.wait(30 * grid.TIMEOUT_X)
        return answer_of(200, request.body, F32)
    with FakeShard(late) as busy, FakeShard(late) as idle, \
            grid.router(f"0-3={busy.url},4-7={idle.url}", "--deadline-ms", "60000") as r:
        def routes():
            return json.loads(grid.get(r.url, "/v1/topology")[2])["routes"]
        wait_for(lambda: [x["hot"] for x in routes()] == [False, False], "nothing to do, and hot")
        clients = [threading.Thread(target=ask, args=(r.url, 1)) for _ in range(30)]
        for c in clients:
            c.start()
        try:
            hot = wait_for(lambda: [x for x in routes() if x["hot"]])
            assert [(x["layer_start"], x["load"] >= 1) for x in hot] == [(0, True)]
            wait_for(lambda: b"larql_router_hot_ranges 1" in grid.get(r.url, "/metrics")[2])
            assert "range_load state=hot" in r.log_text()
        finally:
            hold.set()
            for c in clients:
                c.join()


@pytest.mark.parametrize("more", [(), ("--public-url", "http://0.0.0.0:1"), ("--public-url", "http://[::]:1")])
def test_spare_that_nobody_could_reach_says_so_at_once(tmp_path, more):
    out = subprocess.run([grid.program("larql-shard"), "--spare", "--store", str(tmp_path / "s"), "--join", "127.0.0.1:1",
                          "--host", "0.0.0.0", "--port", "0", "--insecure", *more], capture_output=True, text=True, check=False,
                         timeout=60 * grid.TIMEOUT_X)
    assert out.returncode == 2 and "--spare needs --public-url" in out.stderr, out
    assert not os.path.exists(tmp_path / "s")


def test_spare_on_a_unix_socket_becomes_a_shard(synthetic, tmp_path):
    with GridRouter("--target-replicas", "2") as r, joined(r, synthetic, "0-7"):
        r.wait_up(1)
        with Spare(r, tmp_path / "store", "--unix", str(tmp_path / "s.sock")):
            up = r.wait_up(2)
            assert any(s["url"] == f"unix:{tmp_path / 's.sock'}" for s in up), up


def run_larql(*args):
    return subprocess.run([grid.program("larql"), "run", *args, "--prompt", "The capital of France is", "-n", "8", "-q"],
                          capture_output=True, text=True, check=False, timeout=120 * grid.TIMEOUT_X)


def test_a_client_chooses_a_model_of_several(gemma, smollm2):
    with GridRouter() as r, joined(r, gemma, "0-17", "--model-id", "über & co%"), joined(r, smollm2, "0-29"):
        r.wait_up(2)
        for model, name in ((gemma, "über & co%"), (smollm2, os.path.basename(smollm2))):
            alone = run_larql(model, "--ffn", "local")
            there = run_larql(model, "--ffn", r.url, "--model-id", name, "--wire", "f32")
            assert alone.returncode == there.returncode == 0, there.stderr
            assert alone.stdout == there.stdout
        out = run_larql(gemma, "--ffn", r.url)
        assert out.returncode == 3 and "this grid has several models" in out.stderr, out
        out = run_larql(gemma, "--ffn", r.url, "--model-id", "none")
        assert out.returncode == 3 and "is not in this grid" in out.stderr, out
        out = run_larql(gemma, "--ffn", r.url, "--model-id", "a\nb")
        assert out.returncode == 2 and "model_id" in out.stderr, out
