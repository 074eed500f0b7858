"""The client library (through ctypes) against servers that misbehave: formats, fall-backs,
retries, answers that do not fit. And `larql run` with a model file that has no FFN."""
import array
import ctypes
import math
import os
import struct
import threading

import pytest

import conftest
import grid
from fake_shard import STATS, FakeShard, http

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
WIRES = {"f32": 0, "f16": 1, "i8": 2}
OK, USAGE, UNREACHABLE, REFUSED, BAD_ANSWER, NOT_FINITE = range(6)
ROW = [1.0, -2.0, 3.0, 0.5, 0.25, -1.0]

if grid.SANITIZED:  # a sanitized library does not load into this interpreter
    pytest.skip("the library's tests by ctypes need an unsanitized build", allow_module_level=True)


class Options(ctypes.Structure):
    _fields_ = [("wire", ctypes.c_int), ("deadline_ms", ctypes.c_uint64), ("connect_ms", ctypes.c_uint64),
                ("busy_poll_us", ctypes.c_uint64), *((n, ctypes.c_char_p) for n in (
                    "api_key_file", "api_key", "tls_ca", "tls_cert", "tls_key", "model_id"))]


class Stats(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in (
        "calls", "bytes_up", "bytes_down", "f32_up", "f16_up", "i8_up", "f32_down", "f16_down", "i8_down", "range_fallbacks",
        "saturated_values", "retries")] + [("server_ms", ctypes.c_double)]


LIB = ctypes.CDLL(os.path.join(grid.BUILD, "lib", "liblarql_ffn.so"))
LIB.lq_ffn_model.restype = ctypes.c_char_p


class Ffn:
    def __init__(self, url, wire="f16", deadline_ms=5000, busy_poll_us=0):
        self.handle, self.why = ctypes.c_void_p(), ctypes.create_string_buffer(512)
        o = Options(WIRES[wire], deadline_ms, 1000, busy_poll_us)
        self.rc = LIB.lq_ffn_connect(url.encode(), ctypes.byref(o), ctypes.byref(self.handle), self.why)

    def forward(self, values=None, layer=3, rows=1):
        values = values or ROW * rows
        x, out = (ctypes.c_float * len(values))(*values), (ctypes.c_float * len(values))(*[-7.0] * len(values))
        rc = LIB.lq_ffn_forward(self.handle, layer, x, rows, out, self.why)
        return rc, list(out)

    def stats(self):
        s = Stats()
        LIB.lq_ffn_stats(self.handle, ctypes.byref(s))
        return s

    def __enter__(self):
        assert self.rc == OK, self.why.value
        return self

    def __exit__(self, *_):
        LIB.lq_ffn_close(self.handle)


def answer(kind=F32, layer=3, rows=1, values=None, seq=None):
    values = values or [2.0] * (6 * rows)
    head = struct.pack("<IIf", layer, rows if seq is None else seq, 1.5)
    if kind == F32:
        return head + struct.pack(f"<{len(values)}f", *values)
    if kind == F16:
        return head + struct.pack(f"<{len(values)}e", *values)
    return head + b"".join(struct.pack("<ff6b", 0.5, 0, *[4] * 6) for _ in range(rows))


def test_defaults_and_accept():
    with FakeShard(lambda r, c: http(200, answer(r.all("Content-Type")[0]), r.all("Content-Type")[0])) as s:
        for wire, kind, accept in (("f32", F32, F32), ("f16", F16, f"{F16}, {F32};q=0.5"), ("i8", I8, f"{I8}, {F16};q=0.9, {F32};q=0.5")):
            with Ffn(s.url, wire) as f:
                assert f.forward() == (OK, [2.0] * 6)
            sent = s.requests[-1]
            assert sent.all("Content-Type") == [kind]
            assert ", ".join(sent.all("Accept")) == accept
            assert struct.unpack_from("<IIII", sent.body) == (3, 1, 1, 0)  # top_k 0
            assert sent.all("X-Larql-Deadline-Ms") == ["5000"]


def test_busy_poll_gets_the_same_answers_and_ends_at_the_deadline():
    with FakeShard(lambda r, c: http(200, answer(F16), F16)) as s, Ffn(s.url, busy_poll_us=200) as f:
        for _ in range(100):
            assert f.forward() == (OK, [2.0] * 6)
    silent = FakeShard(lambda r, c: (threading.Event().wait(60), None)[1])
    with silent, Ffn(silent.url, deadline_ms=300, busy_poll_us=200) as f:
        assert f.forward()[0] == UNREACHABLE


def test_server_that_lists_no_formats_gets_f32_bodies_and_the_wish():
    stats = {k: v for k, v in STATS.items() if k != "wire"}
    with FakeShard(lambda r, c: http(200, answer(F16), F16), stats) as s, Ffn(s.url) as f:
        assert f.forward() == (OK, [2.0] * 6)
        assert s.requests[0].all("Content-Type") == [F32]
        assert F16 in s.requests[0].all("Accept")[0]
        assert f.stats().f16_down == 1


@pytest.mark.parametrize("status", [400, 415])
def test_first_compact_body_refused_means_f32_from_then_on(status):
    def choose(r, _):
        return http(200, answer(), F32) if r.all("Content-Type") == [F32] else http(status, b'{"error":"what is this"}')
    with FakeShard(choose) as s, Ffn(s.url) as f:
        for _ in range(3):
            assert f.forward() == (OK, [2.0] * 6)
        assert [r.all("Content-Type")[0] for r in s.requests] == [F16, F32, F32, F32]


def test_later_refusal_is_an_error():
    def choose(r, _):
        return http(200, answer(F16), F16) if len(s.requests) == 1 else http(400, b'{"error":"not this one"}')
    with FakeShard(choose) as s, Ffn(s.url) as f:
        assert f.forward()[0] == OK
        rc, out = f.forward()
        assert (rc, out) == (REFUSED, [-7.0] * 6)
        assert f.why.value.decode() == f"layer 3 at {s.url}: status 400: not this one"


def test_values_beyond_f16_go_in_f32_for_that_call():
    with FakeShard(lambda r, c: http(200, answer(), F32)) as s, Ffn(s.url) as f:
        assert f.forward()[0] == f.forward([1e5] + ROW[1:])[0] == f.forward()[0] == OK
        assert [r.all("Content-Type")[0] for r in s.requests] == [F16, F32, F16]
        assert f.stats().range_fallbacks == 1
        assert s.requests[1].body[16:20] == struct.pack("<f", 1e5)


def test_clipped_values_are_counted():
    with FakeShard(lambda r, c: http(200, answer(F16), F16, "X-Larql-Saturated: 4\r\n")) as s, Ffn(s.url) as f:
        f.forward()
        f.forward()
        assert f.stats().saturated_values == 8


def test_input_that_is_not_finite_is_never_sent():
    with FakeShard(lambda r, c: http(200, answer(), F32)) as s, Ffn(s.url) as f:
        for bad in (math.nan, math.inf, -math.inf):
            rc, out = f.forward([1, 2, bad, 4, 5, 6])
            assert (rc, out) == (NOT_FINITE, [-7.0] * 6)
        assert not s.requests


WRONG = {
    "another layer": http(200, answer(layer=4), F32), "more rows": http(200, answer(rows=2), F32),
    "rows that are not there": http(200, answer(seq=2), F32), "cut inside": http(200, answer()[:-1], F32),
    "bytes behind": http(200, answer() + b"x", F32), "empty": http(200, b"", F32), "no type": http(200, answer(), "text/html"),
    "another type": http(200, answer(F32), F16), "batch form of none": http(200, struct.pack("<IIf", 0xFFFFFFFF, 0, 0), F32),
    "batch that claims four billion": http(200, struct.pack("<IIfIII", 0xFFFFFFFF, 1, 0, 3, 0xFFFFFFFF, 0xFFFFFFFF), F32),
    "NaN": http(200, answer(values=[math.nan] * 6), F32), "Inf": http(200, answer(values=[math.inf] * 6), F32),
}


@pytest.mark.parametrize("name", WRONG)
def test_answers_that_do_not_fit(name):
    with FakeShard(lambda r, c: WRONG[name]) as s, Ffn(s.url, "f32") as f:
        rc, out = f.forward()
        assert rc == BAD_ANSWER, f.why.value
        assert f"layer 3 at {s.url}: " in f.why.value.decode()


def test_lost_call_is_sent_once_more():
    def cut_first(r, conn):
        if len(s.requests) % 2 == 1:
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-larql-ffn\r\nContent-Length: 36\r\n\r\nhalf")
            return None
        return http(200, answer(), F32)
    with FakeShard(cut_first) as s, Ffn(s.url) as f:
        for _ in range(3):
            assert f.forward() == (OK, [2.0] * 6)
        assert f.stats().retries == 3
        s.answer = lambda r, c: None
        rc, _ = f.forward()
        assert rc == UNREACHABLE
        assert f"layer 3 at {s.url}: " in f.why.value.decode()


def test_deadline_and_gone_server():
    import threading
    with FakeShard(lambda r, c: (threading.Event().wait(30), None)[1]) as s, Ffn(s.url, deadline_ms=200) as f:
        assert f.forward()[0] == UNREACHABLE
        assert b"deadline" in f.why.value
    f = Ffn("http://127.0.0.1:1")
    assert f.rc == UNREACHABLE and b"127.0.0.1:1" in f.why.value
    for url in ("", "ftp://x", "https://", "http://", "http://h:0", "http://h:99999", "unix:relative"):
        f = Ffn(url)
        assert f.rc == USAGE, (url, f.why.value)


@pytest.mark.parametrize("stats", [[], {"hidden_size": 0}, {"hidden_size": "6"}, {"hidden_size": 1 << 40}, {"hidden_size": -6}, {}])
def test_hostile_stats(stats):
    with FakeShard(None, stats or {"x": 1}) as s:
        f = Ffn(s.url)
        assert f.rc == BAD_ANSWER
        assert s.url in f.why.value.decode()


def test_environment(monkeypatch):
    lib_opts = Options()
    monkeypatch.setenv("LARQL_F16_WIRE", "0")
    LIB.lq_ffn_opts_init(ctypes.byref(lib_opts))
    assert lib_opts.wire == 0
    monkeypatch.setenv("LARQL_I8_WIRE", "1")
    LIB.lq_ffn_opts_init(ctypes.byref(lib_opts))
    assert lib_opts.wire == 2
    with FakeShard(lambda r, c: http(200, answer(), F32)) as s:
        monkeypatch.setenv("LARQL_F16_WIRE", "maybe")
        f = Ffn(s.url)
        assert f.rc == USAGE and b"LARQL_F16_WIRE=maybe" in f.why.value


def test_long_prefill_goes_in_several_calls():
    hidden, rows = 65536, 100  # 26 MB in f32
    stats = {**STATS, "hidden_size": hidden}

    def echo(r, _):
        _, seq, _, _ = struct.unpack_from("<IIII", r.body)
        return http(200, struct.pack("<IIf", 3, seq, 0.0) + r.body[16:], F32)
    with FakeShard(echo, stats) as s, Ffn(s.url, "f32") as f:
        values = array.array("f", range(hidden * rows))
        x = (ctypes.c_float * len(values)).from_buffer(values)
        out = (ctypes.c_float * len(values))()
        assert LIB.lq_ffn_forward(f.handle, 3, x, rows, out, f.why) == OK, f.why.value
        assert bytes(out) == values.tobytes()
        assert len(s.requests) == 2
        assert all(len(r.body) <= 32 << 20 for r in s.requests)


def test_client_needs_no_ffn_in_its_file(synthetic):
    """It maps no FFN tensor when the FFN is remote: one without any serves as well."""
    bare = conftest.make("bare.gguf", "--arch", "llama", "--layers", "8", "--hidden", "6", "--ffn", "8", "--heads", "3", "--kv-heads", "3",
                         "--type", "F32", "--seed", "1", "--no-ffn")
    with grid.shard(synthetic, "0-7") as s:
        done = grid.larql("run", bare, "--ffn", s.url, "--prompt", "abc", "-n", "8", "-q")
        assert done.returncode == 0, done.stderr
    done = grid.larql("run", bare, "--ffn", "local", "--prompt", "abc")
    assert done.returncode == 4
    assert "blk.0.ffn_down.weight" in done.stderr
