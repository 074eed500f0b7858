"""Which shard may answer: not one of other weights, not one that nobody compared, not a dead one at a live one's cost."""
import contextlib
import functools
import http.server
import json
import os
import re
import signal
import socket
import struct
import threading
import time

import pytest

import conftest
import grid
from fake_shard import STATS, FakeShard
from fake_shard import http as answer_of
from test_join import F32, GridRouter, RangeHandler, Spare, ask, error, joined, wait_for

OTHER = ["--arch", "llama", "--layers", "8", "--hidden", "6", "--ffn", "16", "--heads", "3", "--kv-heads", "3"]


@pytest.fixture
def tuned(synthetic, tmp_path):
    """The same model but for a bit of its last layer's weights: another fine-tune under one name."""
    with open(synthetic, "rb") as f:
        data = bytearray(f.read())
    data[-64] ^= 1
    path = tmp_path / "tuned" / os.path.basename(synthetic)
    path.parent.mkdir()
    path.write_bytes(data)
    return str(path)


def states(r):
    return [s["state"] for s in json.loads(grid.get(r.url, "/v1/topology")[2])["shards"]]


def row_of(value):
    return answer_of(200, struct.pack("<IIf", 1, 1, 1.0) + struct.pack("<6f", *[value] * 6), F32)


def nowhere():
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


# ---- weights ------------------------------------------------------------------------


def test_a_shard_that_came_unseen_answers_no_retry():
    """It was down when the router began, so nobody has compared it: it may be another model."""
    port = nowhere()
    first = {**STATS, "identity": "a" * 64, "layer_hashes": ["1" * 64] * 8}
    second = {**STATS, "identity": "b" * 64, "layer_hashes": ["2" * 64] * 8}
    busy = lambda *_: answer_of(503, b'{"error":"busy"}', extra="Retry-After: 1\r\n")  # noqa: E731
    with FakeShard(busy, stats=first) as a, grid.router(f"0-7={a.url},0-7=http://127.0.0.1:{port}") as r:
        with FakeShard(lambda *_: row_of(9), stats=second, port=port):
            assert ask(r.url, 1)[0] == 503
            wait_for(lambda: "refused" in states(r))
            assert ask(r.url, 1)[0] == 503


def test_a_shard_that_does_not_answer_now_was_there_first(synthetic, tuned):
    with GridRouter() as r, joined(r, synthetic, "0-7") as a:
        r.wait_up(1)
        want = ask(a.url, 7)[2][12:]
        a.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: "down" in states(r))
            with joined(r, tuned, "0-7") as b:
                wait_for(lambda: f"the weights of layer 7 are not those at {a.url}" in b.log_text())
        finally:
            a.process.send_signal(signal.SIGCONT)
        wait_for(lambda: ask(r.url, 7)[2][12:] == want)


def test_weights_are_known_when_their_shard_is_gone(synthetic, tuned):
    with GridRouter() as r:
        with joined(r, synthetic, "0-3"):
            with joined(r, synthetic, "4-7"):
                r.wait_up(2)
            wait_for(lambda: len(states(r)) == 1)
            with grid.shard(tuned, "4-7", "--join", r.join) as b:
                wait_for(lambda: "the weights of layer 7 are not those that this grid had" in b.log_text())
                assert error(ask(r.url, 7), 503)
                with joined(r, synthetic, "4-7"):
                    wait_for(lambda: ask(r.url, 7)[0] == 200)
        wait_for(lambda: not states(r))
        with joined(r, tuned, "4-7"):  # it is alone: what was before counts no more
            wait_for(lambda: ask(r.url, 7)[0] == 200)


# ---- static and joined ---------------------------------------------------------------


def test_a_dead_static_map_stops_no_joined_shard(synthetic):
    with GridRouter("--shards", f"0-7=http://127.0.0.1:{nowhere()}") as r, joined(r, synthetic, "0-7"):
        r.wait_up(1)
        assert ask(r.url, 1)[0] == 200
        assert [m["model_id"] for m in r.topology()["models"]] == ["tiny.gguf"]


def test_static_shards_are_a_fall_back(synthetic):
    with grid.shard(synthetic, "0-7") as static, GridRouter("--shards", f"0-7={static.url}") as r:
        def answers():
            return {s["source"]: s["answers"] for s in r.topology()["shards"]}
        assert ask(r.url, 1)[0] == 200
        with joined(r, synthetic, "0-7"):
            r.wait_up(2)
            before = answers()
            for _ in range(40):
                assert ask(r.url, 1)[0] == 200
            after = answers()
            assert (after["static"] - before["static"], after["joined"] - before["joined"]) == (0, 40)
        assert ask(r.url, 1)[0] == 200
        wait_for(lambda: set(answers()) == {"static"})


# ---- deadlines -----------------------------------------------------------------------


def test_a_shards_own_504_is_tried_elsewhere():
    late = lambda *_: answer_of(504, b'{"error":"no answer within the deadline"}')  # noqa: E731
    with FakeShard(late) as a, FakeShard(lambda *_: row_of(2)) as b, \
            grid.router(f"0-7={a.url},0-7={b.url}") as r:
        assert [ask(r.url, 1)[0] for _ in range(20)] == [200] * 20
        assert a.requests


def counted(r, name):
    text = grid.get(r.url, "/metrics")[2].decode()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in text.splitlines() if re.match(name + r"[ {]", line))


@pytest.mark.parametrize("hedge", [[], ["--hedge"]])
def test_retries_and_hedges_are_a_tenth_and_never_fewer_than_64(hedge):
    """A shard that fails at once looks fast and is asked first, so that without a budget all would go twice."""
    late = lambda *_: answer_of(504, b'{"error":"no"}')  # noqa: E731
    with FakeShard(late) as a, FakeShard(lambda *_: row_of(2)) as b, \
            grid.router(f"0-7={a.url},0-7={b.url}", *hedge) as r:
        began = time.monotonic()
        for _ in range(400):
            ask(r.url, 1)
        if time.monotonic() - began < 10:  # one window of the budget
            spent = counted(r, "larql_router_retries_total") + counted(r, "larql_router_hedges_total")
            assert 0 < spent <= 64
            assert len(a.requests) + len(b.requests) == 400 + spent
            if spent == 64:
                assert counted(r, "larql_router_retry_budget_spent_total") > 0


def test_nothing_of_the_deadline_is_left_to_the_dead():
    def slow(*_):
        time.sleep(0.7 * grid.TIMEOUT_X)
        return row_of(2)
    with FakeShard(slow) as a, grid.router(f"0-7={a.url},0-7=http://127.0.0.1:{nowhere()}") as r:
        answer = ask(r.url, 1, **{"X-Larql-Deadline-Ms": str(1000 * grid.TIMEOUT_X)})
        assert answer[0] == 200, answer


def test_an_answer_over_the_limit_of_a_fan_out_ejects_nobody():
    def large(_, conn):
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n{")
        return b" " * 1000
    with FakeShard(large) as a, FakeShard(large) as b, grid.router(f"0-3={a.url},4-7={b.url}") as r:
        body = json.dumps({"layers": [1, 5], "residual": [0.5] * 6, "full_output": True}).encode()
        text = error(grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"}), 413)
        assert "over the limit" in text and "ask for fewer layers or rows" in text
        assert states(r) == ["up", "up"]
        assert len(a.requests) <= 1 and len(b.requests) <= 1


# ---- spares --------------------------------------------------------------------------


@pytest.fixture
def origin(synthetic):
    handler = functools.partial(RangeHandler, directory=os.path.dirname(synthetic))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def assigned(r):
    return [line.split("id=")[1].split()[0] for line in r.log_text().splitlines() if " assigned id=" in line]


def test_one_gap_takes_one_spare(synthetic, tmp_path, origin):
    name = os.path.basename(synthetic)
    with GridRouter("--origins", f"{name}={origin}/{name}") as r, contextlib.ExitStack() as last:
        with Spare(r, tmp_path / "1"), Spare(r, tmp_path / "2"):
            wait_for(lambda: r.log_text().count("spare_available") == 2)
            last.enter_context(joined(r, synthetic, "0-3"))
            wait_for(lambda: ask(r.url, 7)[0] == 200)
            until = time.monotonic() + 2  # ticks of 0.5 s, in which a second one was assigned
            wait_for(lambda: time.monotonic() > until)
            assert len(assigned(r)) == 1


def test_a_gap_that_cannot_be_filled_stops_no_other(synthetic, tmp_path, origin):
    second = conftest.make("mixing-second.gguf", *OTHER)
    with GridRouter("--origins", f"tiny.gguf=http://127.0.0.1:{nowhere()}/x.gguf,"
                                 f"mixing-second.gguf={origin}/{os.path.basename(second)}") as r:
        with joined(r, synthetic, "0-3"), joined(r, second, "0-3"):
            r.wait_up(2)
            with Spare(r, tmp_path / "1"):
                wait_for(lambda: ask(r.url, 7, **{"X-Larql-Model": "mixing-second.gguf"})[0] == 200, limit_s=60)


def test_new_weights_under_an_old_name(synthetic, tmp_path):
    other = conftest.make("mixing-other.gguf", *OTHER, "--seed", "3")
    with GridRouter("--target-replicas", "2") as r:
        with joined(r, synthetic, "0-7"):
            r.wait_up(1)
        wait_for(lambda: not states(r))
        with joined(r, other, "0-7", "--model-id", "tiny.gguf"):
            r.wait_up(1)
            with Spare(r, tmp_path / "1"):
                wait_for(lambda: "model hash" in r.log_text() or "announced model" in r.log_text() or len(r.up()) == 2)
                assert "model hash" not in r.log_text()
