"""TLS on every hop, judged from outside by curl, openssl s_client and Python's ssl."""
import concurrent.futures
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import time
import urllib.parse

import pytest

import grid
from papers import CLIENT_KEY, GRID_KEY, Papers, bearer

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
X = (0.5, -1.0, 2.0, 0.25, -0.125, 1.0)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


def tls_args(papers, cert, key):
    return "--tls-cert", cert, "--tls-key", key, "--tls-ca", papers.ca


class SecureGrid:
    """client key -> router -> grid key -> two shards, TLS everywhere."""

    def __init__(self, model, papers, *shard_args):
        cert, key = papers.certify("server")
        self.grid_keys = papers.keys("grid-keys", GRID_KEY)
        self.client_keys = papers.keys("client-keys", CLIENT_KEY)
        self.tls = tls_args(papers, cert, key)
        self.shards, self.router = [], None
        try:
            for r in ("0-3", "4-7"):
                self.shards.append(grid.shard(model, r, *self.tls, "--grid-key-file", self.grid_keys, *shard_args))
            self.router = grid.router(",".join(f"{r}={s.url}" for r, s in zip(("0-3", "4-7"), self.shards)), *self.tls,
                                      "--grid-key-file", self.grid_keys, "--api-key-file", self.client_keys)
        except BaseException:
            for p in self.shards:
                p.stop()
            raise
        self.url = self.router.url

    def __enter__(self):
        return self

    def __exit__(self, *why):
        for p in [self.router, *self.shards]:
            p.__exit__(*why)


@pytest.fixture(scope="module")
def secure(synthetic, papers):
    with SecureGrid(synthetic, papers, *grid.EXACT) as g:
        yield g


@pytest.fixture(scope="module")
def plain(synthetic):
    with grid.Grid(synthetic, ["0-3", "4-7"], *grid.EXACT) as g:
        yield g


def context(papers, **kwargs):
    c = ssl.create_default_context(cafile=papers.ca)
    for name, value in kwargs.items():
        setattr(c, name, value)
    return c


def request(papers, method, url, path, body=None, headers=None):
    where = urllib.parse.urlsplit(url)
    c = grid.http.client.HTTPSConnection(where.hostname, where.port, timeout=120 * grid.TIMEOUT_X, context=context(papers))
    try:
        c.request(method, path, body, headers or {})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
    finally:
        c.close()


def body_of(content_type, layer):
    head = struct.pack("<IIII", layer, 1, 1, 0)
    if content_type == F32:
        return head + struct.pack("<6f", *X)
    if content_type == F16:
        return head + struct.pack("<6e", *X)
    return head + struct.pack("<ff6b", 2.0 / 127, 0.0, *(round(x * 127 / 2) for x in X))


def curl(*args):
    return subprocess.run(["curl", "-sS", *args], capture_output=True, text=True, check=False, timeout=60 * grid.TIMEOUT_X)


# ---- the whole path ----

@pytest.mark.parametrize("kind", [F32, F16, I8])
@pytest.mark.parametrize("layer", [0, 7])
def test_binary_answers_are_those_of_a_plain_grid(secure, plain, papers, kind, layer):
    headers = {"Content-Type": kind, "Accept": kind}
    want = grid.post(plain.url, "/v1/walk-ffn", body_of(kind, layer), headers)
    got = request(papers, "POST", secure.url, "/v1/walk-ffn", body_of(kind, layer), {**headers, **bearer(CLIENT_KEY)})
    assert (got[0], got[1]["content-type"]) == (200, kind), got
    assert (got[2][:8], got[2][12:]) == (want[2][:8], want[2][12:])  # all but latency_ms


def test_json_fans_out(secure, plain, papers):
    body = json.dumps({"layers": [7, 0, 4], "full_output": True, "residual": X})
    headers = {"Content-Type": "application/json"}
    want = json.loads(grid.post(plain.url, "/v1/walk-ffn", body, headers)[2])
    status, _, text = request(papers, "POST", secure.url, "/v1/walk-ffn", body, {**headers, **bearer(CLIENT_KEY)})
    assert status == 200, text
    assert json.loads(text)["results"] == want["results"]


def test_large_bodies_stream(secure, papers):
    """Cut through: over 1 MiB in, over 64 KiB out; and many on one connection."""
    rows = 60000
    body = struct.pack("<IIII", 0, rows, 1, 0) + struct.pack("<6f", *X) * rows
    where = urllib.parse.urlsplit(secure.url)
    c = grid.http.client.HTTPSConnection(where.hostname, where.port, timeout=120 * grid.TIMEOUT_X, context=context(papers))
    rows_of = set()
    for _ in range(3):
        c.request("POST", "/v1/walk-ffn", body, {"Content-Type": F32, **bearer(CLIENT_KEY)})
        r = c.getresponse()
        answer = r.read()
        assert r.status == 200 and len(answer) == 12 + 24 * rows, answer[:200]
        rows_of.update(answer[12 + 24 * i:36 + 24 * i] for i in range(0, rows, 997))
    c.close()
    assert len(rows_of) == 1


def test_larql_run_over_tls_with_a_key(secure, synthetic, papers):
    args = ("run", synthetic, "--prompt", "a b c", "--tokens", "4", "--ffn")
    key_file = papers.keys("mine", CLIENT_KEY)
    tls = ("--tls-ca", papers.ca)
    good = grid.larql(*args, secure.url, *tls, "--api-key-file", key_file)
    assert good.returncode == 0, good.stderr
    by_env = grid.larql(*args, secure.url, *tls, env={"LARQL_API_KEY": CLIENT_KEY})
    assert by_env.returncode == 0 and by_env.stdout == good.stdout, by_env.stderr
    for extra, env, part in [(tls, {}, "401"), (tls, {"LARQL_API_KEY": "wrong-0123456789abcdef"}, "401"),
                             ((), {"LARQL_API_KEY": CLIENT_KEY}, "certificate is refused")]:
        bad = grid.larql(*args, secure.url, *extra, env=env)
        assert bad.returncode == 3 and part in bad.stderr, bad.stderr
        assert "wrong-0123" not in bad.stderr
    for extra, part in [(("--api-key-file", "/nowhere"), "/nowhere"), (("--tls-ca", "/nowhere.pem"), "/nowhere.pem"),
                        (("--tls-cert", key_file), "key is missing")]:
        bad = grid.larql(*args, secure.url, *extra)
        assert bad.returncode == 2 and part in bad.stderr, bad.stderr


# ---- judges from outside ----

def test_curl_believes_the_right_authority_only(secure, papers, tmp_path):
    assert secure.url.startswith("https://127.0.0.1:")
    good = curl("--cacert", papers.ca, f"{secure.url}/v1/health")
    assert json.loads(good.stdout)["status"] == "ok", good.stderr
    by_name = curl("--cacert", papers.ca, f"https://localhost:{secure.url.rsplit(':', 1)[1]}/v1/health")
    assert json.loads(by_name.stdout)["status"] == "ok", by_name.stderr
    assert curl("--cacert", Papers(tmp_path, "other").ca, f"{secure.url}/v1/health").returncode == 60
    assert curl(f"{secure.url}/v1/health").returncode == 60


def s_client(url, *args):
    return subprocess.run(["openssl", "s_client", "-connect", url.split("//")[1], *args], input="", capture_output=True,
                          text=True, check=False, timeout=60 * grid.TIMEOUT_X)


def test_s_client_sees_modern_tls(secure, papers):
    out = s_client(secure.url, "-CAfile", papers.ca, "-verify_return_error", "-alpn", "http/1.1")
    assert out.returncode == 0 and "TLSv1.3" in out.stdout and "ALPN protocol: http/1.1" in out.stdout, out
    out = s_client(secure.url, "-tls1_2", "-CAfile", papers.ca)
    assert out.returncode == 0 and "Cipher is ECDHE-" in out.stdout, out
    for refused in (["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"], ["-tls1", "-cipher", "DEFAULT:@SECLEVEL=0"],
                    ["-tls1_2", "-cipher", "AES128-SHA256"], ["-alpn", "h2"]):
        out = s_client(secure.url, *refused)
        assert "Cipher is (NONE)" in out.stdout or out.returncode != 0, (refused, out)
    assert curl("--cacert", papers.ca, f"{secure.url}/v1/health").returncode == 0


def test_the_wrong_language_ends_at_once(secure, plain):
    host = secure.url.split("//")[1]
    out = curl("-i", f"http://{host}/v1/health")
    assert out.stdout.startswith("HTTP/1.1 400") and "use https://" in out.stdout, out
    assert "tls_handshake_failed" in secure.router.log_text()
    out = curl("-k", f"https://{plain.url.split('//')[1]}/v1/health")
    assert out.returncode == 35, out  # at once, not by a timeout
    assert "tls_hello_on_plain_port" in plain.router.log_text()


# ---- what a router believes ----

@pytest.mark.parametrize("names,expired,own_ca,part", [
    ("DNS:elsewhere.example", False, False, "IP address mismatch"),
    ("DNS:localhost,IP:127.0.0.1", True, False, "certificate has expired"),
    ("DNS:localhost,IP:127.0.0.1", False, True, "unable to get local issuer"),
])
def test_router_refuses_a_shard_that_it_cannot_believe(synthetic, papers, tmp_path, names, expired, own_ca, part):
    issuer = Papers(tmp_path, "stranger") if own_ca else papers
    with grid.shard(synthetic, "0-7", *tls_args(issuer, *issuer.certify("doubtful", names, expired))) as s, \
            grid.router(f"0-7={s.url}", "--tls-ca", papers.ca) as r:
        assert ("certificate_expired" in s.log_text()) == expired
        status, _, text = grid.post(r.url, "/v1/walk-ffn", body_of(F32, 0), {"Content-Type": F32})
        assert status == 502 and part in json.loads(text)["error"], text
        replica = json.loads(grid.get(r.url, "/v1/topology")[2])["routes"][0]["replicas"][0]
        assert replica["state"] == "down" and part in replica["why"]


def test_client_certificates(synthetic, papers, tmp_path):
    server, client = papers.certify("server2"), papers.certify("a-client", "DNS:client")
    stranger = Papers(tmp_path, "stranger").certify("a-client", "DNS:client")
    with grid.shard(synthetic, "0-7", *tls_args(papers, *server), "--tls-client-ca", papers.ca) as s:
        ca = ("--cacert", papers.ca)
        assert curl(*ca, f"{s.url}/v1/health").returncode != 0
        assert curl(*ca, "--cert", stranger[0], "--key", stranger[1], f"{s.url}/v1/health").returncode != 0
        assert curl(*ca, "--cert", client[0], "--key", client[1], f"{s.url}/v1/health").returncode == 0
        for own, status in (((), 502), (tls_args(papers, *client), 200)):
            with grid.router(f"0-7={s.url}", "--tls-ca", papers.ca, *own) as r:
                answer = post_any(r.url, papers)
                assert answer[0] == status, answer
        text = s.log_text()
        assert "tls_handshake_failed" in text and "did not return a certificate" in text


def test_a_store_shows_its_certificate(synthetic, papers, tmp_path):
    server, client = papers.certify("server10"), papers.certify("fetcher")
    with grid.shard(synthetic, "0-7", *tls_args(papers, *server), "--tls-client-ca", papers.ca, "--serve-model") as s:
        fetch = ("2-3", "--store", str(tmp_path / "store"), *tls_args(papers, *client))
        with grid.shard(f"{s.url}/v1/model/file", *fetch) as part:
            assert "store_ready" in part.log_text()
        assert "did not return a certificate" not in s.log_text()


def post_any(url, papers):
    """curl, since the client's certificate names nothing that the router's URL has."""
    out = curl("-k", "-w", "\n%{http_code}", "-H", f"Content-Type: {F32}", "--data-binary",
               f"@{write(papers, body_of(F32, 0))}", "-o", "/dev/null", f"{url}/v1/walk-ffn")
    return int(out.stdout.split()[-1]), out


def write(papers, data):
    path = papers.path("body")
    with open(path, "wb") as f:
        f.write(data)
    return path


# ---- connections that do not become any ----

def test_half_open_handshakes_are_closed(synthetic, papers):
    ms = int(200 * grid.TIMEOUT_X)
    with grid.shard(synthetic, "0-7", *tls_args(papers, *papers.certify("server3")), "--header-timeout-ms", str(ms)) as s:
        host, port = s.url.split("//")[1].rsplit(":", 1)
        silent = [socket.create_connection((host, int(port))) for _ in range(40)]
        for c in silent[::2]:
            c.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        for c in silent:
            c.settimeout(60 * grid.TIMEOUT_X)
            try:
                while c.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            c.close()
        assert curl("--cacert", papers.ca, f"{s.url}/v1/health").returncode == 0
        metrics = curl("--cacert", papers.ca, f"{s.url}/metrics").stdout
        assert "larql_shard_connections 1\n" in metrics


# ---- new files under load ----

def test_new_certificates_under_load(synthetic, tmp_path):
    papers = Papers(tmp_path)
    cert, key = papers.certify("server")
    with grid.shard(synthetic, "0-7", "--tls-cert", cert, "--tls-key", key) as s, \
            grid.router(f"0-7={s.url}", *tls_args(papers, cert, key), "--threads", "2", "--busy-poll", "50") as r:
        stop = False

        def load(keep_alive):
            n, c = 0, None
            where = urllib.parse.urlsplit(r.url)
            while not stop:
                c = c or grid.http.client.HTTPSConnection(where.hostname, where.port, timeout=60 * grid.TIMEOUT_X,
                                                          context=context(papers))
                c.request("POST", "/v1/walk-ffn", body_of(F32, 0), {"Content-Type": F32})
                answer = c.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
                n += 1
                if not keep_alive:
                    c.close()
                    c = None
            return n

        def serial():
            out = s_client(r.url, "-CAfile", papers.ca)
            return subprocess.run(["openssl", "x509", "-noout", "-serial"], input=out.stdout, capture_output=True,
                                  text=True, check=True).stdout

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, i % 2) for i in range(4)]
            try:
                seen = {serial()}
                for i in range(5):
                    fresh = papers.certify(f"fresh{i}")
                    os.replace(fresh[0], cert)
                    os.replace(fresh[1], key)
                    for p in (s, r):
                        before = p.log_text().count("reloaded what=tls_server")
                        p.process.send_signal(signal.SIGHUP)
                        wait_for(lambda p=p, n=before: p.log_text().count("reloaded what=tls_server") > n)
                    seen.add(serial())
                with open(cert, "w", encoding="utf-8") as f:
                    f.write("not a certificate\n")
                for p in (s, r):
                    p.process.send_signal(signal.SIGHUP)
                    wait_for(lambda p=p: "reload_failed what=tls_server kept=old" in p.log_text())
                last = serial()
            finally:
                stop = True
            assert len(seen) == 6 and last in seen
            assert all(f.result() > 5 for f in loads)


def wait_for(true, limit_s=30):
    until = time.monotonic() + limit_s * grid.TIMEOUT_X
    while not true():
        assert time.monotonic() < until
        os.sched_yield()


# ---- options ----

@pytest.mark.parametrize("program", ["larql-shard", "larql-router"])
def test_off_loopback_wants_tls_and_a_key(synthetic, papers, program):
    cert, key = papers.certify("server4")
    start = [grid.program(program), *([synthetic] if program == "larql-shard" else ["--shards", "0-7=http://127.0.0.1:1"]),
             "--port", "0", "--host", "0.0.0.0"]
    tls = ["--tls-cert", cert, "--tls-key", key]
    keys = ["--api-key-file", papers.keys("some", CLIENT_KEY)]
    for args, part in [([], "--tls-cert"), (tls, "--api-key-file"), (keys, "--tls-cert")]:
        out = subprocess.run([*start, *args], capture_output=True, text=True, check=False, timeout=60 * grid.TIMEOUT_X)
        assert out.returncode == 2 and part in out.stderr and "--insecure" in out.stderr, out
        assert out.stdout == ""
    for args in (tls + keys, ["--insecure"]):
        with grid.Proc([*start, *args], program):
            pass


def test_the_grid_port_wants_the_grids_key(papers):
    """Whatever guards the other port, or where that one is."""
    cert, key = papers.certify("server9")
    start = [grid.program("larql-router"), "--grid-port", "0"]
    tls = ["--tls-cert", cert, "--tls-key", key]
    clients, ours = (["--api-key-file", papers.keys("g1", CLIENT_KEY)], ["--grid-key-file", papers.keys("g2", GRID_KEY)])
    wide, near = ["--host", "0.0.0.0", "--port", "0"], ["--port", "0"]
    aside = ["--host", "0.0.0.0", "--unix", papers.path("r.sock")]
    for args, part in [(wide + tls + clients, "--grid-key-file"), (aside, "--tls-cert"), (aside + tls, "--grid-key-file"),
                       (aside + ours, "--tls-cert"), (near + clients, "every client could join shards")]:
        out = subprocess.run([*start, *args], capture_output=True, text=True, check=False, timeout=60 * grid.TIMEOUT_X)
        assert out.returncode == 2 and part in out.stderr, out
    for args in (near, near + clients + ours, aside + tls + ours, wide + tls + clients + ours, aside + ["--insecure"]):
        with grid.Proc([*start, *args], "router"):
            pass


@pytest.mark.parametrize("args,part", [
    (["--tls-cert", "CERT"], "--tls-cert and --tls-key are given together"),
    (["--tls-client-ca", "CERT"], "--tls-client-ca is for a TLS server"),
    (["--tls-cert", "/nowhere.pem", "--tls-key", "KEY"], "cannot read certificate /nowhere.pem: No such file"),
    (["--tls-cert", "CERT", "--tls-key", "OTHER"], "is not of the certificate"),
    (["--tls-cert", "KEY", "--tls-key", "KEY"], "cannot use certificate"),
    (["--tls-ca", "/nowhere.ca"], "/nowhere.ca"),
])
def test_bad_files_stop_the_start(synthetic, papers, args, part):
    cert, key = papers.certify("server5")
    words = {"CERT": cert, "KEY": key, "OTHER": papers.certify("other")[1]}
    out = subprocess.run([grid.program("larql-shard"), synthetic, "--port", "0", *(words.get(a, a) for a in args)],
                         capture_output=True, text=True, check=False, timeout=60 * grid.TIMEOUT_X)
    assert out.returncode == 2 and part in out.stderr, out


def test_without_tls_ca_the_systems_store_is_believed(synthetic, papers):
    """The system's store is what is believed where --tls-ca is not given: not ours."""
    with grid.shard(synthetic, "0-7", *tls_args(papers, *papers.certify("server6"))) as s, \
            grid.router(f"0-7={s.url}") as r:
        status, _, text = grid.post(r.url, "/v1/walk-ffn", body_of(F32, 0), {"Content-Type": F32})
        assert status == 502 and "its certificate is refused" in json.loads(text)["error"], text
