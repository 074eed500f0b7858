"""larql-shard as its users meet it: all modes, all formats, admin pages, limits,
drain, exit codes."""
import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import threading

import pytest

import grid

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
ROW = (0.5, -1.25, 2.0, 0.125, -3.0, 1.0)


def f32s(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def f16s(data):
    return struct.unpack(f"<{len(data) // 2}e", data)


def i8s(data, hidden):
    out = []
    for at in range(0, len(data), 8 + hidden):
        scale, zero = struct.unpack_from("<ff", data, at)
        assert zero == 0.0
        out += [scale * q for q in struct.unpack_from(f"<{hidden}b", data, at + 8)]
    return out


def encode(kind, values):
    if kind == F32:
        return struct.pack(f"<{len(values)}f", *values)
    if kind == F16:
        return struct.pack(f"<{len(values)}e", *values)
    out = b""
    for at in range(0, len(values), 6):
        row = values[at:at + 6]
        scale = struct.unpack("<f", struct.pack("<f", max(map(abs, row)) / 127))[0]
        out += struct.pack("<ff6b", scale, 0, *(int(math.copysign(math.floor(abs(v / scale) + 0.5), v)) for v in row))
    return out


def decode(kind, data):
    return f32s(data) if kind == F32 else f16s(data) if kind == F16 else i8s(data, 6)


@pytest.fixture(scope="module")
def shard(synthetic):
    with grid.shard(synthetic, "0-7") as s:
        yield s


def ask_json(url, **fields):
    status, _, body = grid.post(url, "/v1/walk-ffn", json.dumps(fields).encode(), {"Content-Type": "application/json"})
    assert status == 200, body
    return json.loads(body)


def close(a, b, tolerance):
    return len(a) == len(b) and all(abs(x - y) <= tolerance * max(1, max(map(abs, a))) for x, y in zip(a, b))


@pytest.mark.parametrize("body_kind", [F32, F16, I8])
@pytest.mark.parametrize("answer_kind", [F32, F16, I8])
def test_every_pair_of_formats(shard, body_kind, answer_kind):
    rows = ROW + tuple(-2 * x for x in ROW)
    body = struct.pack("<IIII", 3, 2, 1, 0) + encode(body_kind, rows)
    accept = answer_kind if body_kind != I8 else f"{answer_kind}, {I8};q=0.1"
    status, headers, answer = grid.post(shard.url, "/v1/walk-ffn", body, {"Content-Type": body_kind, "Accept": accept})
    assert (status, headers["content-type"]) == (200, answer_kind)
    layer, seq, ms = struct.unpack_from("<IIf", answer)
    assert (layer, seq) == (3, 2)
    assert 0 <= ms < 60000
    want = ask_json(shard.url, layer=3, residual=rows, seq_len=2, full_output=True)["output"]
    assert close(want, decode(answer_kind, answer[12:]), 0.05 if I8 in (body_kind, answer_kind) else 0.01)


def test_batch_keeps_order_and_repeats(shard):
    layers = [5, 2, 5, 7]
    body = struct.pack("<II4IIII", 0xFFFFFFFF, 4, *layers, 1, 1, 0) + encode(F32, ROW)
    status, _, answer = grid.post(shard.url, "/v1/walk-ffn", body, {"Content-Type": F32})
    assert status == 200
    mark, count, _ = struct.unpack_from("<IIf", answer)
    assert (mark, count) == (0xFFFFFFFF, 4)
    at, outputs = 12, []
    for want in layers:
        layer, seq, floats = struct.unpack_from("<III", answer, at)
        assert (layer, seq, floats) == (want, 1, 6)
        outputs.append(answer[at + 12:at + 12 + 24])
        at += 12 + 24
    assert at == len(answer)
    assert outputs[0] == outputs[2]
    assert len(set(outputs)) == 3
    for layer, out in zip(layers, outputs):
        alone = grid.post(shard.url, "/v1/walk-ffn", struct.pack("<IIII", layer, 1, 1, 0) + encode(F32, ROW),
                          {"Content-Type": F32})[2]
        assert alone[12:] == out


def test_batch_of_one_answers_in_the_single_form(shard):
    body = struct.pack("<IIIIII", 0xFFFFFFFF, 1, 4, 1, 1, 0) + encode(F32, ROW)
    answer = grid.post(shard.url, "/v1/walk-ffn", body, {"Content-Type": F32})[2]
    assert len(answer) == 12 + 24
    assert struct.unpack_from("<II", answer) == (4, 1)


def test_json_output(shard):
    one = ask_json(shard.url, layer=3, residual=ROW, full_output=True)
    assert set(one) == {"layer", "output", "seq_len", "latency_ms"}
    binary = grid.post(shard.url, "/v1/walk-ffn", struct.pack("<IIII", 3, 1, 1, 0) + encode(F32, ROW),
                       {"Content-Type": F32})[2]
    assert struct.pack("<6f", *one["output"]) == binary[12:]  # 9 digits: exact
    many = ask_json(shard.url, layers=[6, 3, 6], residual=ROW, full_output=True)
    assert [r["layer"] for r in many["results"]] == [6, 3, 6]
    assert many["results"][1]["output"] == one["output"]
    assert many["seq_len"] == 1
    assert ask_json(shard.url, layers=[3], layer=5, residual=ROW, full_output=True)["layer"] == 3


def test_json_features(shard):
    one = ask_json(shard.url, layer=3, residual=ROW)
    assert sorted(one["features"]) == list(range(8))
    strengths = [abs(s) for s in one["scores"]]
    assert strengths == sorted(strengths, reverse=True)
    assert all(round(s, 2) == pytest.approx(s, abs=1e-6) for s in one["scores"])
    top = ask_json(shard.url, layer=3, residual=ROW, top_k=3)
    assert (top["features"], top["scores"]) == (one["features"][:3], one["scores"][:3])
    two = ask_json(shard.url, layers=[3, 4], residual=ROW, top_k=2)
    assert [r["layer"] for r in two["results"]] == [3, 4]
    assert two["results"][0]["features"] == one["features"][:2]
    assert grid.post(shard.url, "/v1/walk-ffn", json.dumps({"layer": 3, "residual": ROW * 2, "seq_len": 2}).encode(),
                     {})[0] == 400


def test_f16_answer_that_would_clip_comes_in_f32(shard):
    huge = tuple(3e4 * x for x in ROW)
    body = struct.pack("<IIII", 3, 1, 1, 0) + encode(F32, huge)
    plain = f32s(grid.post(shard.url, "/v1/walk-ffn", body, {"Content-Type": F32})[2][12:])
    clipped = sum(abs(v) > 65504 for v in plain)
    assert clipped > 0, "the test's row is too small for this model"
    status, headers, answer = grid.post(shard.url, "/v1/walk-ffn", body,
                                        {"Content-Type": F32, "Accept": f"{F16}, {F32};q=0.5"})
    assert (status, headers["content-type"]) == (200, F32)
    assert f32s(answer[12:]) == plain
    status, headers, answer = grid.post(shard.url, "/v1/walk-ffn", body, {"Content-Type": F32, "Accept": F16})
    assert (status, headers["content-type"]) == (200, F16)
    assert headers["x-larql-saturated"] == str(clipped)
    assert max(abs(v) for v in f16s(answer[12:])) == 65504
    two = struct.pack("<IIIIIII", 0xFFFFFFFF, 2, 3, 0, 1, 1, 0) + encode(F32, huge)
    assert grid.post(shard.url, "/v1/walk-ffn", two, {"Content-Type": F32, "Accept": f"{F16}, {F32};q=0.1"}
                     )[1]["content-type"] == F32


def test_output_that_is_not_finite_is_refused(shard):
    body = struct.pack("<IIII", 3, 1, 1, 0) + encode(F32, tuple(1e38 * x for x in ROW))
    status, _, answer = grid.post(shard.url, "/v1/walk-ffn", body, {"Content-Type": F32})
    assert status == 500
    assert re.match(r"FFN output is not finite at layer 3, row 0, index \d$", json.loads(answer)["error"])


def test_switches(synthetic):
    body = struct.pack("<IIII", 3, 1, 1, 0)
    for args, env, off in ((["--no-f16"], {}, F16), ([], {"LARQL_F16_WIRE": "0"}, F16),
                           ([], {"LARQL_F16_WIRE_DISABLE": ""}, F16), (["--no-i8"], {}, I8),
                           ([], {"LARQL_I8_WIRE": "0"}, I8)):
        with grid.shard(synthetic, "0-7", *args, env=env) as s:
            accept = {"Accept": f"{off}, {F32};q=0.1"}
            assert grid.post(s.url, "/v1/walk-ffn", body + encode(off, ROW), {"Content-Type": off, **accept})[0] == 415
            assert grid.post(s.url, "/v1/walk-ffn", body + encode(F32, ROW), {"Content-Type": F32, **accept}
                             )[1]["content-type"] == F32
            assert {F16: "f16", I8: "i8"}[off] not in json.loads(grid.get(s.url, "/v1/stats")[2])["wire"]
    with grid.shard(synthetic, "0-7", "--wire-preference", "compact") as s:
        assert grid.post(s.url, "/v1/walk-ffn", body + encode(F32, ROW),
                         {"Content-Type": F32, "Accept": f"{I8}, {F16}, {F32}"})[1]["content-type"] == I8


def test_admin_pages(synthetic):
    with grid.shard(synthetic, "2-4", "--model-id", "tiny") as s:
        grid.post(s.url, "/v1/walk-ffn", struct.pack("<IIII", 3, 1, 1, 0) + encode(F32, ROW), {"Content-Type": F32})
        health = json.loads(grid.get(s.url, "/v1/health")[2])
        assert health["status"] == "ok"
        assert health["requests_served"] == 1
        stats = json.loads(grid.get(s.url, "/v1/stats")[2])
        assert {k: stats[k] for k in ("model", "family", "mode", "layers", "hidden_size", "features_per_layer",
                                      "layer_start", "layer_end", "wire")} == {
            "model": "tiny", "family": "llama", "mode": "ffn-service", "layers": 8, "hidden_size": 6,
            "features_per_layer": 8, "layer_start": 2, "layer_end": 4, "wire": ["f32", "f16", "i8"]}
        assert stats["kernels"]
        assert stats["loaded"]["ffn_bytes"] == 3 * 3 * 6 * 8 * 4
        models = json.loads(grid.get(s.url, "/v1/models")[2])
        assert models["data"][0]["id"] == "tiny"
        status, headers, page = grid.get(s.url, "/metrics")
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'larql_shard_requests_total{wire="f32",code="2xx"} 1\n' in page.decode()
        for line in page.decode().splitlines():
            assert re.match(r"^(# (HELP|TYPE) \w+ .+|\w+(\{[^}]*\})? [-+.e0-9]+)$", line), line


def test_long_prefill_does_not_block_health(big_synthetic):
    """Health is answered while the compute thread has a job and has not ended it."""
    hidden, rows = 512, 8192
    body = struct.pack("<IIIIIII", 0xFFFFFFFF, 2, 0, 1, rows, 1, 0) + b"\0\0\x80\x3f" * (hidden * rows)
    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        statuses = []
        worker = threading.Thread(
            target=lambda: statuses.append(grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": F32})[0]))
        worker.start()
        during = 0
        while worker.is_alive():
            health = grid.get(s.url, "/v1/health")[0]
            page = grid.get(s.url, "/metrics")[2].decode()
            during += health == 200 and "larql_shard_compute_seconds_count 0\n" in page
        worker.join()
        assert statuses == [200]
        assert during >= 3


def test_full_queue_answers_503(big_synthetic):
    hidden, rows = 512, 2048
    body = struct.pack("<IIII", 0, rows, 1, 0) + b"\0\0\x80\x3f" * (hidden * rows)
    with grid.shard(big_synthetic, "0-1", "--threads", "1", "--queue", "1") as s:
        answers = []

        def ask():
            answers.append(grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": F32}))

        workers = [threading.Thread(target=ask) for _ in range(8)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        full = [a for a in answers if a[0] == 503]
        assert full and any(a[0] == 200 for a in answers)
        assert full[0][1]["retry-after"].isdigit()


def test_deadline_answers_504(big_synthetic):
    hidden, rows = 512, 4096
    body = struct.pack("<IIIIIII", 0xFFFFFFFF, 2, 0, 1, rows, 1, 0) + b"\0\0\x80\x3f" * (hidden * rows)
    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        status, _, answer = grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": F32, "X-Larql-Deadline-Ms": "1"})
        assert status == 504, answer
        assert grid.post(s.url, "/v1/walk-ffn", body[:12] + b"", {"Content-Type": F32})[0] == 400


def test_answer_over_the_limit_is_refused_before_compute(big_synthetic):
    hidden, rows = 512, 600
    body = struct.pack("<IIII", 0, rows, 1, 0) + b"\0\0\x80\x3f" * (hidden * rows)
    with grid.shard(big_synthetic, "0-1", "--max-answer-mb", "1") as s:
        assert grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": F32})[0] == 413


def test_sigterm_finishes_what_is_in_flight(big_synthetic):
    """The signal comes when the request has wholly arrived: it is answered, and the exit code is 0."""
    hidden, rows = 512, 4096
    body = struct.pack("<IIIIIII", 0xFFFFFFFF, 2, 0, 1, rows, 1, 0) + b"\0\0\x80\x3f" * (hidden * rows)
    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        host, port = s.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=60 * grid.TIMEOUT_X) as c:
            c.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-larql-ffn\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            # Another connection, accepted later, was answered: ours is known to the loop by now.
            assert grid.get(s.url, "/v1/health")[0] == 200
            os.kill(s.process.pid, signal.SIGTERM)
            answer = b""
            while more := c.recv(1 << 20):
                answer += more
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
        assert b"connection: close" in answer.split(b"\r\n\r\n", 1)[0].lower()
        assert len(answer.split(b"\r\n\r\n", 1)[1]) == 12 + 2 * (12 + 4 * hidden * rows)
        assert s.process.wait(60 * grid.TIMEOUT_X) == 0


def test_ready_line_and_busy_port(synthetic):
    with grid.shard(synthetic, "0-7") as s:
        port = s.url.rsplit(":", 1)[1]
        done = subprocess.run([grid.program("larql-shard"), synthetic, "--port", port], capture_output=True, text=True,
                              timeout=60 * grid.TIMEOUT_X, check=False)
        assert done.returncode == 1
        assert "in use" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize("args,code,part", [
    (["--help"], 0, "Usage: larql-shard"), (["--version"], 0, "larql-shard "), ([], 2, "missing"),
    (["MODEL", "--layers", "5-2"], 2, "end (2) must be >= start (5)"), (["MODEL", "--layers", "0-8"], 2, "8"),
    (["MODEL", "--port", "x"], 2, "--port"), (["MODEL", "--bogus"], 2, "--bogus"),
    (["/nonexistent.gguf"], 1, "/nonexistent.gguf"), ([__file__], 4, "GGUF"),
    (["MODEL", "--wire-preference", "fast"], 2, "fast")])
def test_exit_codes(synthetic, args, code, part):
    args = [synthetic if a == "MODEL" else a for a in args]
    done = subprocess.run([grid.program("larql-shard"), *args], capture_output=True, text=True, check=False,
                          timeout=60 * grid.TIMEOUT_X)
    assert done.returncode == code, done
    assert part in done.stdout + done.stderr


def test_second_signal_ends_at_once(big_synthetic):
    with grid.shard(big_synthetic, "0-1", "--drain-ms", "600000") as s:
        host, port = s.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as c:
            c.sendall(b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\nContent-Type: " + F32.encode() +
                      b"\r\nContent-Length: 100\r\n\r\n1234")
            grid.get(s.url, "/v1/health")
            os.kill(s.process.pid, signal.SIGTERM)
            while "drain_begin" not in s.log_text():
                pass
            os.kill(s.process.pid, signal.SIGTERM)
            assert s.process.wait(30 * grid.TIMEOUT_X) == 130
