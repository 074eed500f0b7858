"""Who may do what: keys of clients and of the grid, on both servers, reloaded under load, never shown."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import time
import urllib.parse

import pytest

import grid
from papers import CLIENT_KEY, GRID_KEY, OTHER_CLIENT_KEY, OTHER_GRID_KEY, SECRETS, Papers, bearer

F32 = "application/x-larql-ffn"
WRONG = "wrong-0123456789abcdef"


def body(layer=0):
    return struct.pack("<IIII", layer, 1, 1, 0) + struct.pack("<6f", *[0.5] * 6)


def ask(url, path, key=None, **headers):
    h = {**(bearer(key) if key else {}), **headers}
    if path == "/v1/walk-ffn":
        return grid.post(url, path, body(), {"Content-Type": F32, **h})
    return grid.request("GET", url, path, headers=h)


def wait_for(true, limit_s=30):
    until = time.monotonic() + limit_s * grid.TIMEOUT_X
    while not true():
        assert time.monotonic() < until
        os.sched_yield()


def reload(p, n=1):
    """SIGHUP, done when each of n files was read."""
    before = p.log_text().count("reload")
    p.process.send_signal(signal.SIGHUP)
    wait_for(lambda: p.log_text().count("reload") >= before + n)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def locked(synthetic, papers):
    """A shard for the grid alone; a router for clients and the grid."""
    grid_keys = papers.keys("grid", GRID_KEY)
    with grid.shard(synthetic, "0-7", "--grid-key-file", grid_keys) as s, \
            grid.router(f"0-7={s.url}", "--grid-key-file", grid_keys, "--api-key-file",
                        papers.keys("clients", CLIENT_KEY, OTHER_CLIENT_KEY), "--threads", "2") as r:
        yield s, r


# (path, status without a key, with a client's, with the grid's, with an unknown one)
ROUTER = [
    ("/", 200, 200, 200, 200),
    ("/v1/health", 200, 200, 200, 200),
    ("/v1/walk-ffn", 401, 200, 200, 401),
    ("/v1/stats", 401, 200, 200, 401),
    ("/v1/models", 401, 200, 200, 401),
    ("/v1/topology", 401, 403, 200, 401),
    ("/metrics", 401, 200, 200, 401),
    ("/nowhere", 404, 404, 404, 404),
]
SHARD = [
    ("/v1/health", 200, 200, 200, 200),
    ("/v1/walk-ffn", 401, 401, 200, 401),
    ("/v1/stats", 401, 401, 200, 401),
    ("/v1/models", 401, 401, 200, 401),
    ("/metrics", 401, 401, 200, 401),
]


@pytest.mark.parametrize("which,row", [("router", r) for r in ROUTER] + [("shard", r) for r in SHARD],
                         ids=lambda x: x if isinstance(x, str) else x[0])
def test_who_may_do_what(locked, which, row):
    s, r = locked
    url = r.url if which == "router" else s.url
    for key, want in zip((None, CLIENT_KEY, GRID_KEY, WRONG), row[1:]):
        status, headers, text = ask(url, row[0], key)
        if status == 429:  # tests before this one have guessed as well
            assert want == 401 and key not in (None, GRID_KEY)
            continue
        assert status == want, (key, text)
        if status == 401:
            assert headers["www-authenticate"].startswith('Bearer realm="larql-grid"')
            assert ("invalid_token" in headers["www-authenticate"]) == (key is not None)
        if status in (401, 403):
            assert json.loads(text)["request_id"] == headers["x-request-id"]
            assert not any(k in text.decode() for k in [*SECRETS, WRONG])


def test_404_and_405_come_before_401(locked):
    _, r = locked
    status, headers, _ = grid.request("PUT", r.url, "/v1/topology")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert grid.get(r.url, "/v1/topologyx")[0] == 404
    assert grid.request("HEAD", r.url, "/v1/stats")[0] == 401


def test_a_key_comes_before_the_body(locked):
    """100-continue of a stranger is not answered with 100."""
    _, r = locked
    where = urllib.parse.urlsplit(r.url)
    with socket.create_connection((where.hostname, where.port)) as c:
        c.settimeout(60 * grid.TIMEOUT_X)
        c.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
        got = b""
        while part := c.recv(65536):
            got += part
        assert got.startswith(b"HTTP/1.1 401 ") and b"connection: close" in got.lower(), got


@pytest.mark.parametrize("lines", [
    [f"Bearer {CLIENT_KEY}", f"Bearer {CLIENT_KEY}"], [f"Bearer {WRONG}", f"Bearer {CLIENT_KEY}"], ["Basic Zm9vOmJhcg=="],
    ["Bearer"], [""], [f"Bearer{CLIENT_KEY}"], [CLIENT_KEY]])
def test_what_is_no_key(locked, lines):
    _, r = locked
    where = urllib.parse.urlsplit(r.url)
    c = http.client.HTTPConnection(where.hostname, where.port, timeout=60 * grid.TIMEOUT_X)
    c.putrequest("GET", "/v1/stats")
    for line in lines:
        c.putheader("Authorization", line)
    c.endheaders()
    assert c.getresponse().status == 401
    c.close()
    assert ask(r.url, "/v1/stats", None, Authorization=f"bEARER   {OTHER_CLIENT_KEY}  ")[0] == 200


def test_guesses_are_limited_and_lock_nobody_out(locked):
    _, r = locked
    codes, headers = [], {}
    for i in range(30):
        status, headers, text = ask(r.url, "/v1/stats", f"guess-0123456789-{i}")
        codes.append(status)
        assert b"guess-" not in text
    assert set(codes) <= {401, 429} and codes[-10:] == [429] * 10
    assert headers["retry-after"] == "10"
    assert ask(r.url, "/v1/walk-ffn", CLIENT_KEY)[0] == 200  # of the same address
    assert ask(r.url, "/v1/walk-ffn")[0] == 401
    text = ask(r.url, "/metrics", GRID_KEY)[2].decode()
    count = {line.split('"')[1]: float(line.split()[-1]) for line in text.splitlines()
             if line.startswith("larql_router_auth_failures_total{")}
    assert count["limited"] >= 20 and count["wrong"] >= 30 and count["missing"] >= 1 and "forbidden" in count
    failures = [line for line in r.log_text().splitlines() if "auth_failed" in line]
    assert failures and len(failures) < 30 and "peer=127.0.0.1" in failures[-1]


def test_authorization_ends_at_the_router(locked):
    """The shard knows the grid's key only, so the client's cannot have come through; nor can it be asked past the router."""
    s, r = locked
    assert ask(r.url, "/v1/walk-ffn", CLIENT_KEY)[0] == 200
    assert ask(s.url, "/v1/walk-ffn", CLIENT_KEY)[0] in (401, 429)
    status, _, text = grid.post(r.url, "/v1/walk-ffn", json.dumps({"layers": [0, 7], "residual": [0.5] * 6, "full_output": True}),
                                {"Content-Type": "application/json", **bearer(CLIENT_KEY)})
    assert status == 200, text


def test_a_router_without_the_shards_key_says_so(synthetic, papers):
    with grid.shard(synthetic, "0-3", "--grid-key-file", papers.keys("one", GRID_KEY)) as a, \
            grid.shard(synthetic, "4-7", "--grid-key-file", papers.keys("one", GRID_KEY)) as b, \
            grid.router(f"0-3={a.url},4-7={b.url}", env={"LARQL_GRID_KEY": OTHER_GRID_KEY}) as r:
        status, headers, text = ask(r.url, "/v1/walk-ffn")
        assert status == 502 and "refuses this router's key" in json.loads(text)["error"], text
        assert "www-authenticate" not in headers
        status, _, text = grid.post(r.url, "/v1/walk-ffn", json.dumps({"layers": [0, 7], "residual": [0.5] * 6, "full_output": True}),
                                    {"Content-Type": "application/json"})
        assert status == 502 and "refuses this router's key" in json.loads(text)["error"], text
        assert ask(r.url, "/v1/topology")[0] == 401
        topology = json.loads(ask(r.url, "/v1/topology", OTHER_GRID_KEY)[2])
        assert "--grid-key-file" in topology["routes"][0]["replicas"][0]["why"]


def test_grid_key_by_environment(synthetic, papers):
    env = {"LARQL_GRID_KEY": GRID_KEY}
    with grid.shard(synthetic, "0-7", env=env) as s, grid.router(f"0-7={s.url}", env=env) as r:
        assert ask(r.url, "/v1/walk-ffn")[0] == 200  # a router without client keys lets clients in
        assert ask(s.url, "/v1/walk-ffn")[0] == 401
        assert ask(r.url, "/metrics")[0] == 401
        assert ask(r.url, "/v1/topology", GRID_KEY)[0] == 200
    out = subprocess.run([grid.program("larql-shard"), synthetic, "--port", "0"], capture_output=True, text=True, check=False,
                         timeout=60 * grid.TIMEOUT_X, env={**os.environ, "LARQL_GRID_KEY": "too-short"})
    assert out.returncode == 2 and "LARQL_GRID_KEY" in out.stderr and "too-short" not in out.stderr


def test_client_keys_alone(synthetic, papers):
    """Without a grid key its routes want any key; without any, all is open."""
    with grid.shard(synthetic, "0-7") as s, grid.router(f"0-7={s.url}", "--api-key-file", papers.keys("c", CLIENT_KEY)) as r:
        assert ask(s.url, "/v1/walk-ffn")[0] == ask(s.url, "/metrics")[0] == 200
        assert ask(r.url, "/v1/topology")[0] == 401
        assert ask(r.url, "/v1/topology", CLIENT_KEY)[0] == 200


def test_rotation_under_load(synthetic, papers):
    """Both files change five times, with SIGHUP to both servers, under clients that never see an error."""
    def client_file(*keys):
        return papers.keys("rotating-clients", *keys)

    def grid_file(*keys):
        return papers.keys("rotating-grid", *keys)

    with grid.shard(synthetic, "0-7", "--grid-key-file", grid_file(GRID_KEY)) as s, \
            grid.router(f"0-7={s.url}", "--grid-key-file", grid_file(GRID_KEY), "--api-key-file",
                        client_file(CLIENT_KEY), "--threads", "2") as r:
        stop, key = False, CLIENT_KEY

        def load(keep_alive):
            n, c = 0, None
            where = urllib.parse.urlsplit(r.url)
            while not stop:
                c = c or http.client.HTTPConnection(where.hostname, where.port, timeout=60 * grid.TIMEOUT_X)
                c.request("POST", "/v1/walk-ffn", body(), {"Content-Type": F32, **bearer(key)})
                answer = c.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
                n += 1
                if not keep_alive:
                    c.close()
                    c = None
            return n

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, i % 2) for i in range(4)]
            try:
                old, new, old_grid, new_grid = CLIENT_KEY, OTHER_CLIENT_KEY, GRID_KEY, OTHER_GRID_KEY
                for _ in range(5):
                    client_file(new, old)
                    grid_file(old_grid, new_grid)  # shards learn the new one before the router sends it
                    reload(s, 2), reload(r, 3)
                    key = new
                    grid_file(new_grid, old_grid)
                    reload(r, 3), reload(s, 2)
                    used = [f.running() for f in loads]
                    assert all(used)
                    for _ in range(20):  # requests with the old one that were under way have ended
                        assert ask(r.url, "/v1/walk-ffn", new)[0] == 200
                    grid_file(new_grid)
                    reload(s, 2), reload(r, 3)
                    old, new, old_grid, new_grid = new, old, new_grid, old_grid
                papers.keys("rotating-clients", "short")
                reload(r, 3)
                assert "reload_failed what=api_keys kept=old" in r.log_text()
                assert ask(r.url, "/v1/walk-ffn", old)[0] == 200
            finally:
                stop = True
            assert all(f.result() > 5 for f in loads)
        client_file(old)
        reload(r, 3)
        assert ask(r.url, "/v1/walk-ffn", new)[0] == 401
        assert ask(s.url, "/v1/stats", new_grid)[0] == 401
        for p in (s, r):
            assert not any(k in p.log_text() for k in [*SECRETS, "short\n"])


@pytest.mark.parametrize("text,part", [("", "holds no key"), ("short\n", "line 1: a key has 16 characters at least"),
                                       (f"{WRONG}\n{WRONG} {WRONG}\n", "line 2: a key has only"), (None, "No such file")])
def test_bad_key_files_stop_the_start(synthetic, tmp_path, text, part):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    for option in ("--api-key-file", "--grid-key-file"):
        out = subprocess.run([grid.program("larql-shard"), synthetic, "--port", "0", option, str(path)], capture_output=True,
                             text=True, check=False, timeout=60 * grid.TIMEOUT_X)
        assert out.returncode == 2 and part in out.stderr and str(path) in out.stderr, out
        assert WRONG not in out.stderr


def test_keys_are_in_no_log_and_no_command_line(locked, synthetic, papers):
    s, r = locked
    os.chmod(papers.keys("open", CLIENT_KEY), 0o644)
    with grid.shard(synthetic, "0-7", "--api-key-file", papers.path("open"), "--log-level", "debug",
                    env={"LARQL_GRID_KEY": GRID_KEY}) as d, \
            grid.router(f"0-7={d.url}", "--log-level", "debug", env={"LARQL_GRID_KEY": GRID_KEY}) as e:
        assert f"file_is_world_readable file=\"{papers.path('open')}\"" in d.log_text()
        for key in (CLIENT_KEY, GRID_KEY, WRONG):
            for path in ("/v1/walk-ffn", "/v1/stats", "/metrics", f"/v1/{WRONG}", "/v1/health"):
                ask(d.url, path, key), ask(e.url, path, key)
        client = grid.larql("run", synthetic, "--prompt", "a", "--tokens", "1", "--ffn", d.url, env={"LARQL_API_KEY": CLIENT_KEY})
        assert client.returncode == 0, client.stderr
        texts = [client.stderr, client.stdout]
        for p in (s, r, d, e):
            with open(f"/proc/{p.process.pid}/cmdline", "rb") as f:
                texts.append(f.read().decode())
            texts.append(p.log_text())
        assert not any(k in text for k in SECRETS for text in texts)
        assert not any(f"Bearer {WRONG}" in text for text in texts)


def test_wrong_keys_of_the_grid_port_are_counted_by_address(papers, tmp_path, synthetic):
    """Twelve shards with a wrong key are limited; they wait, and the one with the right key joins."""
    grid_keys = papers.keys("grid-port", GRID_KEY)
    with grid.Proc([grid.program("larql-router"), "--grid-port", "0", "--port", "0", "--grid-key-file", grid_keys],
                   "router") as r:
        end = time.monotonic() + 30 * grid.TIMEOUT_X
        while "grid port=" not in r.log_text():
            assert time.monotonic() < end
        join = "127.0.0.1:" + r.log_text().split("grid port=")[1].split()[0]
        env = {"LARQL_GRID_KEY": "wrong-0123456789abcdef"}
        with contextlib.ExitStack() as wrong:
            shards = [wrong.enter_context(grid.shard(synthetic, "0-7", "--join", join, env=env)) for _ in range(12)]
            while not all("router_lost" in s.log_text() for s in shards):
                assert time.monotonic() < end
                time.sleep(0.05)
            assert all("again_ms=30000" in s.log_text() for s in shards)
            assert "auth_failed why=wrong peer=127.0.0.1" in r.log_text()
            with grid.shard(synthetic, "0-7", "--join", join, "--grid-key-file", grid_keys) as good:
                while "joined router" not in good.log_text():
                    assert time.monotonic() < end
                    time.sleep(0.05)
