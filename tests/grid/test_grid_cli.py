"""larql grid: what an operator sees of a grid, and shards that leave it under load."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import urllib.parse

import pytest

import grid
from test_join import F32, GridRouter, RangeHandler, Spare, ask, joined, single, wait_for

NOBODY = "127.0.0.1:1"


def cli(r, *args, env=None):
    return grid.larql("grid", *args, "--router", r.join if isinstance(r, GridRouter) else r, env=env, timeout_s=120)


def ok(done, code=0):
    assert done.returncode == code, done
    return done.stdout


def status(r):
    return json.loads(ok(cli(r, "status", "--json")))


class Load:
    """threads_n clients that ask layer after layer, until the `with` is left; .statuses and .failed."""

    def __init__(self, url, threads_n=16):
        self.url, self.end = url, threading.Event()
        self.statuses, self.failed = {}, []
        self.threads = [threading.Thread(target=self._run) for _ in range(threads_n)]

    def _run(self):
        layer = 0
        while not self.end.is_set():
            try:
                s, _, body = ask(self.url, layer)
                self.statuses[s] = self.statuses.get(s, 0) + 1
                if s != 200:
                    self.failed.append((s, body))
            except OSError as e:
                self.failed.append(repr(e))
            layer = (layer + 1) % 8

    def answers_n(self):
        return sum(self.statuses.values())

    def wait_more(self, n=200):
        want = self.answers_n() + n
        wait_for(lambda: self.answers_n() >= want)

    def __enter__(self):
        for t in self.threads:
            t.start()
        self.wait_more()
        return self

    def __exit__(self, *_):
        self.end.set()
        for t in self.threads:
            t.join()


@pytest.mark.parametrize("args,part", [
    ((), "missing"), (("bogus",), "give one of"), (("status", "x"), "only drain"), (("drain",), "SHARD"),
    (("drain", "a", "--server", "b"), "SHARD"), (("drain", "a", "b"), "too many"), (("assign", "--model", "m"), "--layers"),
    (("assign", "--model", "m", "--layers", "3-1"), "3"), (("status", "--model", "m"), "--model"),
    (("gaps", "--no-wait"), "--no-wait"), (("top", "--json"), "--json"), (("status", "--router", "nohost"), "--router nohost"),
    (("status", "--tls-cert", "x"), "--tls-key"), (("status", "--grid-key-file", "/none"), "/none"),
    (("status", "--pin", "abc"), "abc")])
def test_wrong_use(args, part):
    done = grid.larql("grid", *args)
    assert done.returncode == 2 and part in done.stderr and not done.stdout, done


@pytest.mark.parametrize("verb", [("status",), ("gaps",), ("drain", "x"), ("assign", "--model", "m", "--layers", "1"), ("top",)])
def test_no_router(verb):
    done = cli(NOBODY, *verb)
    assert done.returncode == 1 and done.stderr.startswith("error: router 127.0.0.1:1: "), done


def test_peer_that_speaks_no_grpc(synthetic):
    with grid.shard(synthetic, "0-7") as s:
        done = cli(s.url, "status")
        assert done.returncode == 1 and done.stderr.startswith("error: "), done


def test_status_and_gaps(synthetic):
    with GridRouter() as r:
        assert ok(cli(r, "status")) == "Grid: empty (no servers registered).\n"
        assert ok(cli(r, "gaps"), 3) == "Grid: empty (no servers registered).\n"
        with joined(r, synthetic, "0-4") as a:
            r.wait_up(1)
            text = ok(cli(r, "status"))
            assert "Model: tiny.gguf (1 shard, coverage ~62%)\n  layers   0-4    servers=" in text
            assert "  replicas=1\n  GAP layers 5-7\nServers:\n" in text
            assert re.search(rf"^  \S+ +{re.escape(a.url)} +state=serving model=tiny.gguf\[0-4\] cpu=\d+% ram=\d+MB inflight=0$",
                             text, re.M), text
            assert ok(cli(r, "gaps"), 3) == ok(cli(r, "gaps", "--model", "tiny.gguf"), 3) == "Model: tiny.gguf\n  layers 5-7\n"
            assert json.loads(ok(cli(r, "gaps", "--json"), 3)) == {
                "gaps": [{"layer_start": 5, "layer_end": 7, "model_id": "tiny.gguf"}]}
            done = cli(r, "gaps", "--model", "x")
            assert done.returncode == 2 and done.stderr == "error: model 'x' is not in this grid\n"
            with joined(r, synthetic, "5-7"), joined(r, synthetic, "5-7"):
                r.wait_up(3)
                assert ok(cli(r, "gaps", env={"LARQL_ROUTER": NOBODY})) == "No gaps.\n"
                s = grid.larql("grid", "status", "--json", env={"LARQL_ROUTER": f"http://{r.join}/"})
                s = json.loads(ok(s))
                assert s["models"][0]["coverage_pct"] == 100 and s["models"][0]["covered_layers"] == 8
                assert [x["replicas"] for x in s["models"][0]["ranges"]] == [1, 2]
                assert len(s["servers"]) == 3
                assert "(2 shards, coverage ~100%)" in ok(cli(r, "status"))


def test_a_range_whose_only_replica_is_down_is_a_gap(synthetic):
    with joined_static(synthetic) as (r, s):
        assert ok(cli(r, "gaps")) == "No gaps.\n"
        s.kill()
        wait_for(lambda: cli(r, "gaps").returncode == 3)
        assert "coverage ~0%" in ok(cli(r, "status"))


class joined_static:
    """A shard of the static map behind a router that others could join."""

    def __init__(self, model):
        self.shard = grid.shard(model, "0-7")
        self.router = GridRouter("--shards", f"0-7={self.shard.url}")

    def __enter__(self):
        self.router.wait_up(1)
        return self.router, self.shard

    def __exit__(self, *_):
        assert self.router.stop() == 0
        self.shard.stop()


def test_grid_key(synthetic, tmp_path):
    key, other = tmp_path / "k", tmp_path / "o"
    key.write_text("0123456789abcdef-grid\n")
    other.write_text("0123456789abcdef-other\n")
    key.chmod(0o600)
    other.chmod(0o600)
    with GridRouter("--grid-key-file", str(key)) as r:
        for verb in (("status",), ("drain", "x"), ("assign", "--model", "m", "--layers", "0-1"), ("top",)):
            for args in ((), ("--grid-key-file", str(other))):
                done = cli(r, *verb, *args)
                assert done.returncode == 2 and done.stderr == "error: invalid grid key\n", done
        assert cli(r, "status", "--grid-key-file", str(key)).returncode == 0
        assert cli(r, "status", env={"LARQL_GRID_KEY": "0123456789abcdef-grid"}).returncode == 0


def test_tls(tmp_path):
    import hashlib
    pem, key = str(tmp_path / "r.pem"), str(tmp_path / "r.key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                    "2", "-subj", "/CN=router", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", pem],
                   check=True, capture_output=True)
    der = subprocess.run(["openssl", "x509", "-in", pem, "-outform", "DER"], check=True, capture_output=True).stdout
    with GridRouter("--tls-cert", pem, "--tls-key", key) as r:
        assert cli(r, "status", "--tls-ca", pem).returncode == 0
        assert cli("https://" + r.join, "status", "--tls-ca", pem).returncode == 0
        assert cli(r, "status", "--pin", "sha256:" + hashlib.sha256(der).hexdigest()).returncode == 0
        assert cli(r, "status", "--pin", "sha256:" + "0" * 64).returncode == 1
        assert cli("https://" + r.join, "status").returncode == 1  # nobody that the system trusts
        assert cli(r, "status").returncode == 1


def test_assign(synthetic, tmp_path):
    import functools
    import http.server
    handler = functools.partial(RangeHandler, directory=os.path.dirname(synthetic))
    origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{origin.server_address[1]}/{os.path.basename(synthetic)}"
    try:
        with GridRouter() as r:
            args = ("assign", "--model", "tiny.gguf", "--layers", "2-3", "--origin-url", url)
            done = cli(r, *args)
            assert done.returncode == 2 and done.stderr == "error: no available server matched the request\n"
            with Spare(r, tmp_path / "store"):
                wait_for(lambda: status(r)["servers"])
                spare = status(r)["servers"][0]
                assert spare["state"] == "spare" and "model_id" not in spare
                assert " state=spare model=- cpu=" in ok(cli(r, "status"))
                done = cli(r, *args, "--server", "x", "--json")
                assert done.returncode == 2 and done.stderr == 'error: server_id "x" is not in the available pool\n'
                assert json.loads(done.stdout)["ok"] is False
                assert ok(cli(r, *args, "--server", spare["server_id"])) == "ok: assigned tiny.gguf\n"
                r.wait_up(1)
                assert ask(r.url, 3)[0] == 200
    finally:
        origin.shutdown()


# ---- leaving under load ------------------------------------------------------------------


def test_drain_under_load_costs_no_request(synthetic):
    with GridRouter("--threads", "2") as r, joined(r, synthetic, "0-7") as a, joined(r, synthetic, "0-7") as b:
        r.wait_up(2)
        with Load(r.url) as load:
            done = cli(r, "drain", b.url, "--reason", "new \"kernel\"")
            assert re.fullmatch(r"ok: drained \S+\n", ok(done)), done
            assert re.match(r"draining \S+: \d+ in flight\n", done.stderr), done
            load.wait_more()
            assert [s["url"] for s in status(r)["servers"]] == [a.url]
            # the last one is kept, and served on
            done = cli(r, "drain", a.url)
            assert done.returncode == 2 and "is the last replica of layers 0-7" in done.stderr, done
            load.wait_more()
        assert load.failed == []
        done = cli(r, "drain", b.url)
        assert done.returncode == 2 and "is not currently serving" in done.stderr, done
        assert b.log_text().count("joined router=") == 1 and 'unassigned router=' in b.log_text()
        assert ask(b.url, 1)[0] == 200  # it runs on, for who asks it itself
        assert b.stop() == 0
        with joined(r, synthetic, "0-7") as again:
            r.wait_up(2)
            assert again.url in [s["url"] for s in status(r)["servers"]]


def test_drained_shard_stays_out_when_its_router_comes_back(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7") as a, joined(r, synthetic, "0-7") as b:
        r.wait_up(2)
        ok(cli(r, "drain", b.url))
        port = r.join.rsplit(":", 1)[1]
        r.kill()
        with grid.Proc([grid.program("larql-router"), "--grid-port", port, "--port", "0"], "router"):
            wait_for(lambda: a.log_text().count("joined router=") == 2)
            assert [s["url"] for s in status(f"127.0.0.1:{port}")["servers"]] == [a.url]


class Held:
    """A request that a shard has begun and waits for the rest of."""

    def __init__(self, url):
        body = single(1)
        where = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((where.hostname, where.port), 60 * grid.TIMEOUT_X)
        self.socket.sendall(f"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: {F32}\r\n"
                            f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:8])
        self.rest = body[8:]
        wait_for(lambda: b"larql_shard_in_flight 1" in grid.get(url, "/metrics")[2])

    def finish(self):
        """The answer's status."""
        self.socket.sendall(self.rest)
        head = self.socket.recv(4096)
        self.socket.close()
        return int(head.split()[1])


def test_drain_waits_for_what_is_in_flight(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7"), joined(r, synthetic, "0-7") as b:
        r.wait_up(2)
        held = Held(b.url)
        p = subprocess.Popen([grid.program("larql"), "grid", "drain", b.url, "--router", r.join], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        assert re.match(r"draining \S+: 0 in flight\n", p.stderr.readline())
        assert [s["state"] for s in status(r)["servers"] if s["url"] == b.url] == ["draining"]
        assert ok(cli(r, "gaps")) == "No gaps.\n"
        done = cli(r, "drain", b.url)
        assert done.returncode == 2 and "is not currently serving" in done.stderr, done
        assert p.poll() is None
        assert held.finish() == 200
        assert p.communicate(timeout=60 * grid.TIMEOUT_X)[0].startswith("ok: drained ") and p.returncode == 0


def test_router_lost_while_draining_is_not_joined_again(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7") as a, joined(r, synthetic, "0-7") as b:
        r.wait_up(2)
        held = Held(b.url)
        ok(cli(r, "drain", b.url, "--no-wait"))
        wait_for(lambda: "unassigned router=" in b.log_text())
        r.kill()
        wait_for(lambda: "left router=" in b.log_text())
        port = r.join.rsplit(":", 1)[1]
        with grid.Proc([grid.program("larql-router"), "--grid-port", port, "--port", "0"], "router"):
            wait_for(lambda: a.log_text().count("joined router=") == 2)
            assert held.finish() == 200
            assert [s["url"] for s in status(f"127.0.0.1:{port}")["servers"]] == [a.url]


def test_drain_with_no_wait_and_json(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7"), joined(r, synthetic, "0-3") as b:
        r.wait_up(2)
        shard_id = next(s["server_id"] for s in status(r)["servers"] if s["url"] == b.url)
        done = cli(r, "drain", "--server", shard_id, "--no-wait", "--json")
        assert json.loads(ok(done)) == {"ok": True, "message": f"drained {shard_id}"} and done.stderr == ""
        wait_for(lambda: len(status(r)["servers"]) == 1)


def test_static_shard_cannot_be_drained_from_here(synthetic):
    with joined_static(synthetic) as (r, s):
        done = cli(r, "drain", s.url)
        assert done.returncode == 2 and "SIGTERM" in done.stderr, done


@pytest.mark.parametrize("source", ["joined", "static"])
def test_sigterm_of_a_replica_under_load_costs_no_request(synthetic, source):
    if source == "static":
        a, b = grid.shard(synthetic, "0-7"), grid.shard(synthetic, "0-7")
        r = GridRouter("--threads", "2", "--shards", f"0-7={a.url},0-7={b.url}")
    else:
        r = GridRouter("--threads", "2")
        a, b = joined(r, synthetic, "0-7"), joined(r, synthetic, "0-7")
    with r, a, b:
        r.wait_up(2)
        with Load(r.url) as load:
            assert b.stop() == 0
            load.wait_more()
        assert load.failed == []


# ---- top -------------------------------------------------------------------------------------


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, args, rows=24, columns=200):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.mode = termios.tcgetattr(self.slave)
        self.text = ""
        self.process = subprocess.Popen(args, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
                                        env={**os.environ, "TERM": "xterm"})

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.master], [], [], 0.05)[0]:
            self.text += os.read(self.master, 65536).decode()
        return self.text

    def frame(self):
        """The last whole one."""
        frames = self.read().split("\033[H")
        return frames[-1] if frames[-1].rstrip().endswith("\033[J") else ""

    def press(self, keys):
        os.write(self.master, keys.encode())

    def end(self):
        """The exit code; the terminal must be as it was."""
        wait_for(lambda: self.read() is not None and self.process.poll() is not None)
        self.read()
        assert self.text.endswith("\033[?7h\033[?25h\033[?1049l"), self.text[-300:]
        assert termios.tcgetattr(self.slave) == self.mode
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def top(r, **size):
    return Terminal([grid.program("larql"), "grid", "top", "--router", r.join], **size)


def test_top_without_a_terminal_is_one_frame(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-4") as s:
        r.wait_up(1)
        text = ok(cli(r, "top"))
        assert text.startswith(f"larql grid  router {r.join}  at ") and "\033" not in text
        assert "MODEL tiny.gguf   8 layers   coverage 62%" in text and "  GAP layers 5-7\n" in text and s.url in text
        assert re.search(r"^  0-4 +1/1 +0$", text, re.M), text


def test_top_follows_the_grid_and_the_size(synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-4"):
        r.wait_up(1)
        with top(r) as t:
            wait_for(lambda: "GAP layers 5-7" in t.frame(), t.text)
            assert "\033[?1049h" in t.text
            with joined(r, synthetic, "5-7"):
                wait_for(lambda: "coverage 100%" in t.frame() and "GAP" not in t.frame())
            wait_for(lambda: "GAP layers 5-7" in t.frame())
            t.resize(6, 60)
            os.killpg(t.process.pid, signal.SIGWINCH)
            wait_for(lambda: "more below" in t.frame() and t.frame().count("\n") == 5)
            first = t.frame()
            t.press("j")
            wait_for(lambda: t.frame() and t.frame().splitlines()[1] != first.splitlines()[1])
            t.press("q")
            assert t.end() == 0


@pytest.mark.parametrize("sig,code", [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGQUIT, -3),
                                      (signal.SIGSEGV, -11), (signal.SIGABRT, -6)])
def test_top_gives_the_terminal_back_on_signals(sig, code):
    with GridRouter() as r, top(r) as t:
        wait_for(lambda: "Grid: empty" in t.frame(), t.text)
        t.process.send_signal(sig)
        assert t.end() == code


def test_top_is_stopped_and_goes_on():
    with GridRouter() as r, top(r) as t:
        wait_for(lambda: "Grid: empty" in t.frame())
        t.process.send_signal(signal.SIGTSTP)
        pid, how = os.waitpid(t.process.pid, os.WUNTRACED)
        assert pid and os.WIFSTOPPED(how)
        assert t.read().endswith("\033[?1049l") and termios.tcgetattr(t.slave) == t.mode
        t.process.send_signal(signal.SIGCONT)
        wait_for(lambda: "Grid: empty" in t.frame() and t.text.count("\033[?1049h") == 2)
        t.press("q")
        assert t.end() == 0


def test_top_waits_for_a_router_that_is_gone():
    with GridRouter() as r:
        t = top(r)
        wait_for(lambda: "Grid: empty" in t.frame())
        r.kill()
    with t:
        wait_for(lambda: "NO ANSWER: router" in t.frame() and "Grid: empty" in t.frame())
        port = r.join.rsplit(":", 1)[1]
        with grid.Proc([grid.program("larql-router"), "--grid-port", port, "--port", "0"], "router"):
            wait_for(lambda: t.frame() and "NO ANSWER" not in t.frame())
            t.press("q")
            assert t.end() == 0
