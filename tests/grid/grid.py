"""Real programs on real sockets: what the tests of this folder share.

Programs come from $LQ_BUILD/bin (default build/bin), always on port 0; a test waits
for their `ready url=` line, never for a time. Their logs are kept under
$LQ_BUILD/grid-logs.
"""
import http.client
import itertools
import os
import signal
import subprocess
import urllib.parse

BUILD = os.environ.get("LQ_BUILD", "build")
TIMEOUT_X = float(os.environ.get("LQ_TEST_TIMEOUT_X", "1"))
LOGS = os.path.join(BUILD, "grid-logs")
SANITIZED = os.path.basename(BUILD.rstrip("/")).endswith("asan")  # arithmetic ten times slower, memory larger
EXACT = ("--activations", "f32")  # what numbers are compared with a judge in; the default has its own bounds
_number = itertools.count(1)


def program(name):
    return os.path.join(BUILD, "bin", name)


class Proc:
    """One server. url is set when it is ready; leaving the `with` stops it and wants exit code 0."""

    def __init__(self, args, name, env=None):
        os.makedirs(LOGS, exist_ok=True)
        self.log_path = os.path.join(LOGS, f"{next(_number):04d}-{name}.log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        if not line.startswith("ready url="):
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{name} is not ready: {line!r}\n{self.log_text()}")
        self.url = line.split("=", 1)[1].strip()

    def log_text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60 * TIMEOUT_X)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        alive = self.process.poll() is None
        code = self.stop()
        self.process.stdout.close()
        if kind is None and alive:
            assert code == 0, f"{self.log_path}: exit code {code}\n{self.log_text()[-3000:]}"
        if kind is None:
            text = self.log_text()
            assert "Sanitizer" not in text and "runtime error" not in text, text[-6000:]


def shard(model, layers, *args, env=None):
    return Proc([program("larql-shard"), model, "--layers", layers, "--port", "0", *args], f"shard-{layers}", env)


def router(table, *args, env=None):
    return Proc([program("larql-router"), "--shards", table, "--port", "0", *args], "router", env)


class Grid:
    """A router before one shard a range."""

    def __init__(self, model, ranges, *shard_args):
        self.shards = []
        self.router = None
        try:
            for r in ranges:
                self.shards.append(shard(model, r, *shard_args))
            self.router = router(",".join(f"{r}={s.url}" for r, s in zip(ranges, self.shards)))
        except BaseException:
            self._stop()
            raise
        self.url = self.router.url

    def _stop(self):
        for p in [self.router, *self.shards]:
            if p:
                p.stop()

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        for p in [self.router, *self.shards]:
            p.__exit__(kind, *rest)


def larql(*args, env=None, timeout_s=300):
    return subprocess.run([program("larql"), *args], capture_output=True, text=True, errors="replace", check=False,
                          timeout=timeout_s * TIMEOUT_X, env={**os.environ, **(env or {})})


def request(method, url, path, body=None, headers=None):
    """(status, headers with lower-case names, body)."""
    where = urllib.parse.urlsplit(url)
    c = http.client.HTTPConnection(where.hostname, where.port, timeout=120 * TIMEOUT_X)
    try:
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
    finally:
        c.close()


def get(url, path):
    return request("GET", url, path)


def post(url, path, body, headers=None):
    return request("POST", url, path, body, headers)
