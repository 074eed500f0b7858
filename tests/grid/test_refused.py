"""Bad input: every body of tests/vectors/refused_bodies.json and what HTTP allows
people to get wrong, on a shard and through the router. Each gets a clear error
and costs nobody else anything."""
import json
import os
import socket
import struct
import time

import pytest

import grid
from fake_shard import FakeShard, http

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
VECTORS = os.path.join(os.path.dirname(__file__), "..", "vectors")
ANY = {"Accept": f"{I8}, {F16};q=0.9, {F32};q=0.5"}


@pytest.fixture(scope="module")
def small(synthetic):
    """A shard of layers 0-7 (hidden size 6) and a router before it."""
    with grid.Grid(synthetic, ["0-7"]) as g:
        yield g


@pytest.fixture(params=["shard", "router"])
def url(request, small):
    return small.shards[0].url if request.param == "shard" else small.url


def vectors(name):
    with open(os.path.join(VECTORS, name), encoding="utf-8") as f:
        return json.load(f)


def error_of(answer):
    status, headers, body = answer
    assert headers["content-type"] == "application/json"
    text = json.loads(body)
    assert text["request_id"] == headers["x-request-id"]
    return status, text["error"]


@pytest.mark.parametrize("case", vectors("refused_bodies.json"), ids=lambda c: c["name"])
def test_refused_bodies(url, case):
    answer = grid.post(url, "/v1/walk-ffn", bytes.fromhex(case["body"]), {"Content-Type": case["content_type"], **ANY})
    status, text = error_of(answer)
    assert status == 400, text
    assert text


def single(layer, values=(0.5,) * 6, seq=1, flags=1):
    return struct.pack("<IIII", layer, seq, flags, 0) + struct.pack(f"<{len(values)}f", *values)


EXACT = [
    (b"", {}, 400, "binary: body too short (need ≥ 16 bytes)"),
    (single(99), {}, 400, "layer 99 out of range (num_layers = 8)"),
    (single(0, flags=0), {}, 400, "binary wire format requires full_output = true"),
    (single(0, seq=0, values=()), {}, 400, "seq_len must be >= 1"),
    (single(0, values=(1.0,) * 5), {}, 400, "residual has 5 elements, expected 6 (seq_len=1 * hidden_size=6)"),
    (single(0) + b"x", {}, 400, "residual has 25 bytes, expected 24"),
    (single(0, values=(1, 2, 3, float("nan"), 5, 6)), {}, 400, "residual is not finite at row 0, index 3"),
    (struct.pack("<IIIII", 0xFFFFFFFF, 0, 1, 1, 0), {}, 400, "empty layer list"),
    (struct.pack("<IIIII", 0xFFFFFFFF, 3, 1, 2, 3), {}, 400, "binary: truncated fixed header (seq_len/flags/top_k)"),
    (struct.pack("<IIIII", 0xFFFFFFFF, 9, 1, 2, 3), {}, 400, "binary batch: body too short for 9 layer indices"),
    (struct.pack("<II", 0xFFFFFFFF, 1025) + b"\0" * (4 * 1025) + struct.pack("<III", 1, 1, 0) + b"\0" * 24, {}, 400,
     "batch of 1025 layers is over the limit of 1024"),
]


@pytest.mark.parametrize("body,headers,status,text", EXACT, ids=[e[3][:40] for e in EXACT])
def test_exact_texts(small, body, headers, status, text):
    answer = error_of(grid.post(small.shards[0].url, "/v1/walk-ffn", body, {"Content-Type": F32, **headers}))
    assert answer == (status, text)


def test_layer_of_another_shard(synthetic):
    with grid.shard(synthetic, "2-4") as s:
        assert error_of(grid.post(s.url, "/v1/walk-ffn", single(5), {"Content-Type": F32})) == (
            400, "layer 5 not served by this shard (owned: 2–4)")
        assert error_of(grid.post(s.url, "/v1/walk-ffn", single(8), {"Content-Type": F32})) == (
            400, "layer 8 out of range (num_layers = 8)")


JSON = [
    ("{", 400, "invalid JSON:"),
    ("[]", 400, "invalid JSON:"),
    ('{"residual":[1,2,3,4,5,6]}', 400, "must provide 'layer' or 'layers'"),
    ('{"layers":[],"residual":[1,2,3,4,5,6]}', 400, "empty layer list"),
    ('{"layer":1,"layer":2,"residual":[1,2,3,4,5,6]}', 400, "invalid JSON: duplicate"),
    ('{"layer":-1,"residual":[1,2,3,4,5,6]}', 400, "layer"),
    ('{"layer":1.0,"residual":[1,2,3,4,5,6]}', 400, "layer"),
    ('{"layer":4294967296,"residual":[1,2,3,4,5,6]}', 400, "layer"),
    ('{"layer":"1","residual":[1,2,3,4,5,6]}', 400, "layer"),
    ('{"layer":1,"seq_len":0,"residual":[],"full_output":true}', 400, "seq_len must be >= 1"),
    ('{"layer":1,"residual":[1,2,3,4,5]}', 400, "residual has 5 elements, expected 6"),
    ('{"layer":1,"residual":[1,2,3,4,5,null]}', 400, "residual"),
    ('{"layer":1,"residual":[1,2,3,4,5,1e39]}', 400, "residual"),
    ('{"layer":1}', 400, "residual"),
    ('{"layer":1,"residual":[1,2,3,4,5,6],"model_id":7}', 400, "model_id"),
    ("[" * 100000, 400, "invalid JSON:"),
]


@pytest.mark.parametrize("text,status,begin", JSON, ids=[e[0][:50] for e in JSON])
def test_json_refused(url, text, status, begin):
    got = error_of(grid.post(url, "/v1/walk-ffn", text.encode(), {"Content-Type": "application/json"}))
    assert got[0] == status
    assert begin in got[1]


def test_unknown_fields_and_big_integers_are_fine(url):
    body = '{"layer":1,"residual":[1,2,3,4,5,100000000000000000000],"x":{"y":[]},"full_output":true}'
    status, _, answer = grid.post(url, "/v1/walk-ffn", body.encode(), {"Content-Type": "application/json"})
    # The number is legal; what the layer makes of 1e20 is beyond f32.
    assert status == 500 and b"FFN output is not finite at layer 1, row 0" in answer, answer
    body = body.replace("100000000000000000000", "00000000000000000001".lstrip("0") + "000")
    assert grid.post(url, "/v1/walk-ffn", body.encode(), {"Content-Type": "application/json"})[0] == 200


MEDIA = [
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "curl --json"),
    ({"Content-Type": "application/x-larql-ffn-f16x"}, 415, "application/x-larql-ffn-f16x"),
    ({"Content-Type": "text/plain"}, 415, "text/plain"),
]


@pytest.mark.parametrize("headers,status,part", MEDIA)
def test_media_types(url, headers, status, part):
    got = error_of(grid.post(url, "/v1/walk-ffn", single(1), headers))
    assert got[0] == status
    assert part in got[1]


def test_i8_body_needs_an_accept_that_names_it(url):
    row = struct.pack("<ff6b", 0.5, 0, 1, 2, 3, 4, 5, 6)
    body = struct.pack("<IIII", 1, 1, 1, 0) + row
    assert grid.post(url, "/v1/walk-ffn", body, {"Content-Type": I8})[0] == 415
    assert grid.post(url, "/v1/walk-ffn", body, {"Content-Type": I8, "Accept": f"{I8};q=0"})[0] == 415
    assert grid.post(url, "/v1/walk-ffn", body, {"Content-Type": I8, "Accept": "*/*"})[0] == 415
    status, headers, _ = grid.post(url, "/v1/walk-ffn", body, {"Content-Type": I8, "Accept": I8})
    assert (status, headers["content-type"]) == (200, I8)


def test_paths_and_methods(url):
    assert error_of(grid.get(url, "/nope"))[0] == 404
    status, headers, _ = grid.get(url, "/v1/walk-ffn")
    assert (status, headers["allow"]) == (405, "POST")
    status, headers, _ = grid.post(url, "/v1/health", b"", {})
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def raw(url, data, until_close=True, limit_s=10):
    """Sends bytes as they are; all that comes back until the server closes."""
    host, port = url.rsplit("/", 1)[1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=limit_s * grid.TIMEOUT_X) as s:
        s.sendall(data)
        out = b""
        while until_close:
            try:
                more = s.recv(65536)
            except ConnectionResetError:
                break
            if not more:
                break
            out += more
        return out


HEAD = b"POST /v1/walk-ffn HTTP/1.1\r\nHost: x\r\n"
FRAMING = {
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "bare LF": b"GET /v1/health HTTP/1.1\nHost: x\n\n",
    "folded header": b"GET /v1/health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "empty header name": b"GET /v1/health HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two different lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "negative length": HEAD + b"Content-Length: -3\r\n\r\nabc",
    "blank in a length": HEAD + b"Content-Length: 1 3\r\n\r\nabc",
    "hexadecimal length": HEAD + b"Content-Length: 0x3\r\n\r\nabc",
    "empty length": HEAD + b"Content-Length: \r\n\r\nabc",
    "length overflow": HEAD + b"Content-Length: 18446744073709551619\r\n\r\nabc",
    "blank before the colon": HEAD + b"Content-Length : 3\r\n\r\nabc",
    "bare LF inside a head": HEAD + b"Content-Length: 3\nX: y\r\n\r\nabc",
    "bare CR": HEAD + b"X: a\rb\r\n\r\n",
    "chunk size sign": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "chunk size minus": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "chunk size empty": HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
    "chunk with a bare LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "length and chunked": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "other coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "no host": b"GET /v1/health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    "another version": b"GET /v1/health HTTP/3.7\r\nHost: x\r\n\r\n",
    "chunk size 0x": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "chunk size overflow": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
}


@pytest.mark.parametrize("name", FRAMING)
def test_framing(url, name):
    out = raw(url, FRAMING[name])
    assert out.startswith(b"HTTP/1.1 400 "), out
    assert out.count(b"HTTP/1.1") == 1
    assert b"connection: close" in out.lower()
    assert grid.get(url, "/v1/health")[0] == 200


def test_413_comes_before_the_body(url):
    for kind, limit in ((F32, 64 << 20), ("application/json", 4 << 20), ("text/plain", 64 << 20)):
        out = raw(url, HEAD + f"Content-Type: {kind}\r\nContent-Length: {limit + 1}\r\n\r\n".encode())
        assert out.startswith(b"HTTP/1.1 413 "), out
        assert f"body of {limit + 1} bytes is over the limit of {limit}".encode() in out


def test_413_while_a_chunked_body_comes(synthetic):
    with grid.shard(synthetic, "0-7", "--max-body-mb", "1") as s:
        piece = b"10000\r\n" + b"\0" * 0x10000 + b"\r\n"
        out = raw(s.url, HEAD + f"Content-Type: {F32}\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + piece * 17)
        assert out.startswith(b"HTTP/1.1 413 "), out


def test_headers_over_16_kb(url):
    assert raw(url, HEAD + b"A: " + b"x" * 17000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")


def test_expect(url):
    for kind in (b"", b"Content-Type: text/plain\r\n"):
        assert raw(url, HEAD + kind + b"Content-Length: 3\r\nExpect: magic\r\n\r\n").startswith(b"HTTP/1.1 417 ")
    body = single(1)
    out = raw(url, HEAD + f"Content-Type: {F32}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
              f"Connection: close\r\n\r\n".encode() + body)
    assert out.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "), out


def test_legal_chunk_extensions_work(url):
    body = single(1)
    out = raw(url, HEAD + f"Content-Type: {F32}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode() +
              b"10;a=b\r\n" + body[:16] + b"\r\n18;c=d\r\n" + body[16:] + b"\r\n0\r\nT: v\r\n\r\n")
    assert out.startswith(b"HTTP/1.1 200 "), out


def test_router_says_continue_before_it_asks_the_shard():
    body = single(1)
    with FakeShard(lambda r, c: http(200, b"x" * 36, F32)) as shard, grid.router(f"0-7={shard.url}") as r:
        host, port = r.url.rsplit("/", 1)[1].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20 * grid.TIMEOUT_X) as s:
            s.sendall(HEAD + f"Content-Type: {F32}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
                      "Connection: close\r\n\r\n".encode())
            assert s.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert not shard.requests
            s.sendall(body)
            assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert len(shard.requests) == 1 and not shard.requests[0].all("Expect")


@pytest.fixture(params=["shard", "router"], scope="module")
def hasty(request, synthetic):
    """A server whose patience is short."""
    args = ("--header-timeout-ms", "300", "--body-timeout-ms", "300", "--idle-timeout-ms", "300")
    with grid.shard(synthetic, "0-7", *args) as s:
        if request.param == "shard":
            yield s.url
        else:
            with grid.router(f"0-7={s.url}", *args) as r:
                yield r.url


def test_slow_header_gets_408(hasty):
    assert raw(hasty, HEAD).startswith(b"HTTP/1.1 408 ")


def test_half_sent_body_gets_408(hasty):
    head = HEAD + f"Content-Type: {F32}\r\nContent-Length: 40\r\n\r\n".encode()
    assert raw(hasty, head + single(1)[:20]).startswith(b"HTTP/1.1 408 ")


def test_idle_connection_is_closed_without_a_word(hasty):
    assert raw(hasty, b"") == b""


def test_crowd_of_half_open_clients_keeps_nobody_waiting(hasty):
    host, port = hasty.rsplit("/", 1)[1].rsplit(":", 1)
    crowd = [socket.create_connection((host, int(port))) for _ in range(200)]
    for i, s in enumerate(crowd):
        s.sendall([b"P", HEAD, HEAD + f"Content-Type: {F32}\r\nContent-Length: 40\r\n\r\n1234".encode()][i % 3])
    for _ in range(20):
        assert grid.post(hasty, "/v1/walk-ffn", single(3), {"Content-Type": F32})[0] == 200
    for s in crowd[::2]:
        s.close()
    until = time.monotonic() + 20 * grid.TIMEOUT_X
    left = set(crowd[1::2])
    while left and time.monotonic() < until:  # each is answered or closed by its timeout
        for s in list(left):
            s.settimeout(1)
            try:
                if not s.recv(4096):
                    left.discard(s)
            except TimeoutError:
                pass
            except OSError:
                left.discard(s)
    assert not left
    assert grid.get(hasty, "/v1/health")[0] == 200
