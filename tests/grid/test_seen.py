"""What people see of a grid: metrics as Prometheus reads them, logs as text and JSON with one
request id from client to shard, Server-Timing; and docs/operating.md, which names them."""
import glob
import json
import os
import re
import shutil
import struct
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

import grid
from fake_shard import FakeShard, http

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
ROW = (0.5, -1.25, 2.0, 0.125, -3.0, 1.0)
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


def single(layer):
    return struct.pack("<IIII", layer, 1, 1, 0) + struct.pack("<6f", *ROW)


def batch(*layers):
    return struct.pack(f"<II{len(layers)}IIII", 0xFFFFFFFF, len(layers), *layers, 1, 1, 0) + struct.pack("<6f", *ROW)


def post(url, body, kind=F32, accept=F32, **headers):
    return grid.post(url, "/v1/walk-ffn", body, {"Content-Type": kind, "Accept": accept, **headers})


def samples(url):
    """{(name, ((label, value), ...)): value} of a page, read by another's parser."""
    page = grid.get(url, "/metrics")[2].decode()
    out = {}
    for family in text_string_to_metric_families(page):
        for s in family.samples:
            key = s.name, tuple(sorted(s.labels.items()))
            assert key not in out, key
            out[key] = s.value
    return out


def value(page, name, **labels):
    return page.get((name, tuple(sorted(labels.items()))), 0)


@pytest.fixture(scope="module")
def busy(synthetic):
    """A grid that has seen a bit of everything, and the bytes that went."""
    with grid.Grid(synthetic, ["0-3", "4-7"]) as g:
        for _ in range(3):
            assert post(g.url, single(2), accept=F16)[0] == 200
        assert post(g.url, batch(0, 1), accept=I8)[0] == 200
        assert post(g.url, struct.pack("<IIII", 6, 1, 1, 0) + struct.pack("<6e", *ROW), F16, F16)[0] == 200
        text = json.dumps({"layers": [1, 6], "residual": ROW, "full_output": True}).encode()
        assert grid.post(g.url, "/v1/walk-ffn", text, {"Content-Type": "application/json"})[0] == 200
        assert post(g.url, single(2)[:-1])[0] == 400
        yield g


def test_layers_and_bytes_are_counted(busy):
    page = samples(busy.shards[0].url)
    layer = "larql_shard_layer_seconds_count"
    assert value(page, layer, layer="2", format="f32") == 3
    assert value(page, layer, layer="batch", format="f32") == 1
    assert value(page, layer, layer="1", format="json") == 1
    assert sum(v for (n, _), v in page.items() if n == layer) == 5
    name = "larql_shard_body_bytes_total"
    assert value(page, name, direction="in", format="f32") == 3 * 40 + (28 + 24) + 39
    assert value(page, name, direction="out", format="f16") == 3 * (12 + 12)
    assert value(page, name, direction="out", format="i8") == 12 + 2 * (12 + 14)
    assert value(page, name, direction="out", format="f32") == 0
    page = samples(busy.url)
    assert value(page, "larql_router_body_bytes_total", direction="in", format="f16") == 28
    assert value(page, "larql_router_body_bytes_total", direction="in", format="json") > 60


def test_histograms_are_cumulative(busy):
    for p in (busy.router, *busy.shards):
        page, series = samples(p.url), {}
        for (name, labels), v in page.items():
            if name.endswith("_bucket"):
                rest = tuple(x for x in labels if x[0] != "le")
                series.setdefault((name[:-7], rest), []).append((float(dict(labels)["le"]), v))
        assert series
        for (name, labels), buckets in series.items():
            counts = [v for _, v in sorted(buckets)]
            assert counts == sorted(counts)
            assert counts[-1] == page[name + "_count", labels]
            assert sorted(b for b, _ in buckets)[0] == 5e-05 and sorted(b for b, _ in buckets)[-2] == 30


PROMTOOL = shutil.which("promtool") or shutil.which(os.path.join(grid.BUILD, "tools", "promtool"))


@pytest.mark.skipif(not PROMTOOL, reason="no promtool here: tests/tools/promtool.sh")
def test_promtool_finds_nothing_wrong(busy):
    for p in (busy.router, *busy.shards):
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=grid.get(p.url, "/metrics")[2], capture_output=True,
                              check=False, timeout=60 * grid.TIMEOUT_X)
        assert done.returncode == 0 and not done.stderr, done.stderr.decode()


def test_operating_md_names_every_metric(busy):
    with open(os.path.join(ROOT, "docs", "operating.md"), encoding="utf-8") as f:
        rows = re.findall(r"^\| `(larql_\w+)`(?: \{([\w, ]+)\})? \|", f.read(), re.M)
    told = {name: set(filter(None, re.split(r", *", labels))) for name, labels in rows}
    real = {}
    for p in (busy.router, busy.shards[0]):
        for family in text_string_to_metric_families(grid.get(p.url, "/metrics")[2].decode()):
            name = family.name + ("_total" if family.type == "counter" else "")
            real[name] = {k for s in family.samples for k in s.labels if k != "le"}
    missing = {n for n in real if n not in told}
    assert not missing, f"not in docs/operating.md: {sorted(missing)}"
    assert not set(told) - set(real), f"only in docs/operating.md: {sorted(set(told) - set(real))}"
    assert {n: ls for n, ls in told.items() if real[n] and ls != real[n]} == {}


TIMING = r"queue;dur=(\d+\.\d{3}), compute;dur=(\d+\.\d{3}), encode;dur=(\d+\.\d{3})"


def test_server_timing(busy):
    asks = [(single(1), F32), (batch(1, 2, 1), F32), (json.dumps({"layer": 1, "residual": ROW}).encode(), "application/json"),
            (json.dumps({"layer": 1, "residual": ROW, "full_output": True}).encode(), "application/json")]
    for url in (busy.shards[0].url, busy.url):
        for body, kind in asks:
            status, headers, _ = post(url, body, kind)
            assert status == 200
            got = re.search(TIMING, headers["server-timing"])
            assert got, headers
            assert all(0 <= float(x) < 60000 for x in got.groups())


def fields(line):
    return dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)', line))


def lines_of(process, event):
    return [fields(x) for x in process.log_text().splitlines() if f" {event} " in x]


def test_one_request_id_from_client_to_shard(synthetic):
    with grid.shard(synthetic, "0-7", "--log-requests") as s, \
            grid.router(f"0-7={s.url}", "--log-level", "debug") as r:
        done = grid.larql("run", synthetic, "--ffn", r.url, "--prompt", "a b", "-n", "3", "-q", "--temperature", "0")
        assert done.returncode == 0, done.stderr
        assert post(r.url, single(1), **{"X-Request-Id": "mine-1"})[0] == 200
        logged = lines_of(s, "request")
        ids = [x["req"] for x in logged]
        assert ids[-1] == "mine-1"
        assert len(ids) == len(set(ids)) >= 8
        session = {x.split(".")[0] for x in ids[:-1]}
        assert len(session) == 1 and re.fullmatch(r"[0-9a-f]{16}", session.pop())
        last = logged[-1]
        assert {k: last[k] for k in ("layer", "layers", "rows", "format", "answer", "status", "bytes_in", "bytes_out")} \
            == {"layer": "1", "layers": "1", "rows": "1", "format": "f32", "answer": "f32", "status": "200",
                "bytes_in": "40", "bytes_out": "36"}
        assert int(last["us"]) > 0


def test_client_names_the_request_that_failed():
    with FakeShard(lambda r, c: http(500, b'{"error":"no luck"}')) as s:
        model = os.path.join(grid.BUILD, "models", "tiny.gguf")
        done = grid.larql("run", model, "--ffn", s.url, "--prompt", "a", "-n", "1", "-q")
        assert done.returncode != 0
        sent = s.requests[-1].all("X-Request-Id")
        assert len(sent) == 1 and f"no luck (request {sent[0]})" in done.stderr, done.stderr


def test_failed_requests_are_logged_with_their_status(synthetic):
    with grid.shard(synthetic, "0-3", "--log-requests") as s:
        post(s.url, single(9))
        post(s.url, single(2)[:-1])
        post(s.url, b'{"layers":[1,2],"residual":[1,2,3,4,5,1e30],"full_output":true}', "application/json")
        got = [(x["layer"], x["rows"], x["format"], x["status"]) for x in lines_of(s, "request")]
        assert got == [("9", "1", "f32", "400"), ("-", "0", "f32", "400"), ("batch", "1", "json", "500")]
        assert lines_of(s, "walk_ffn_failed")[0]["error"] == "not_finite"


def test_requests_are_not_logged_unasked(synthetic):
    with grid.shard(synthetic, "0-3") as s:
        post(s.url, single(1))
        assert not lines_of(s, "request")


def test_json_logs(synthetic):
    """Every line of both programs is one object, on a bad day too."""
    args = ("--log-format", "json", "--log-level", "debug")
    with grid.shard(synthetic, "0-3", *args, "--model-id", 'od"d \\ \x01 ä') as s, \
            grid.router(f"0-3={s.url},4-7=http://127.0.0.1:1", *args) as r:
        for url in (s.url, r.url):
            post(url, single(1))
            post(url, single(6))
            post(url, single(1), kind="text/pl\"ain")
            post(url, b'{"layer":1,"residual":[1,2,3,4,5,1e30],"full_output":true}', "application/json")
    for p in (s, r):
        lines = [json.loads(x, object_pairs_hook=unique) for x in p.log_text().splitlines()]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", x["ts"]) for x in lines)
        assert {x["level"] for x in lines} <= {"debug", "info", "warn", "error"}
        assert not any("text" in x for x in lines), lines
        assert {"serving", "drain_begin", "drain_end"} <= {x["event"] for x in lines}
    serving = next(json.loads(x) for x in s.log_text().splitlines() if '"serving"' in x)
    assert serving["model"] == 'od"d \\ \x01 ä' and serving["hidden"] == 6


def unique(pairs):
    keys = [k for k, _ in pairs]
    assert len(keys) == len(set(keys)), keys
    return dict(pairs)


def test_failure_to_start_is_json_too():
    for program, args in (("larql-shard", ["/none.gguf"]), ("larql-router", ["--shards", "0-1=http://127.0.0.1:1",
                                                                            "--host", "256.1.1.1"])):
        done = subprocess.run([grid.program(program), *args, "--log-format", "json"], capture_output=True, text=True,
                              check=False, timeout=60 * grid.TIMEOUT_X)
        assert done.returncode == 1
        last = json.loads(done.stderr.splitlines()[-1])
        assert (last["event"], last["level"], last["program"]) == ("cannot_serve", "error", program) and last["why"]
        done = subprocess.run([grid.program(program), *args, "--log-format", "yaml"], capture_output=True, text=True,
                              check=False, timeout=60 * grid.TIMEOUT_X)
        assert done.returncode == 2 and "text or json" in done.stderr


CALL = re.compile(r'\blog_(?:debug|info|warn|error|request|line)\(\s*(?:level,\s*)?((?:"(?:[^"\\]|\\.)*"\s*)+)', re.S)


def test_every_log_call_is_event_and_keys():
    """What log_json() relies on: `event key=%x ...`, each key once, none of the three of its own."""
    seen = 0
    for path in glob.glob(os.path.join(ROOT, "*", "*.c")):
        with open(path, encoding="utf-8") as f:
            source = f.read()
        for call in CALL.finditer(source):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call.group(1)))
            where = f"{os.path.relpath(path, ROOT)}: {text}"
            words = text.split(" ")
            assert re.fullmatch(r"[a-z][a-z0-9_]*", words[0]), where
            keys = [w.split("=")[0] for w in words[1:] if w != "%s"]  # %s: compute_describe()'s own keys
            assert all("=" in w or w == "%s" for w in words[1:]), where
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", k) for k in keys), where
            assert len(keys) == len(set(keys)) and not set(keys) & {"ts", "level", "event"}, where
            seen += 1
    assert seen > 15
