"""An answer that is not finite is refused whatever its form: 500 naming layer, row and index,
counted, and nobody else's. The model has a NaN in layer 3 (output 4) and in the gate of layer 5."""
import json
import struct

import pytest

import grid
from conftest import make
from test_batch import Ask, ask_together, metric, together

F32, F16, I8 = (f"application/x-larql-ffn{x}" for x in ("", "-f16", "-i8"))
KINDS = [F32, F16, I8]
ROW = [0.5, -1.25, 2.0, 0.125, -3.0, 1.0]
HIDDEN, FFN = 6, 8


@pytest.fixture(scope="module")
def poisoned():
    args = ("--arch", "llama", "--layers", "8", "--hidden", str(HIDDEN), "--ffn", str(FFN), "--type", "F32")
    with grid.shard(make("nan-down.gguf", *args, "--nan", f"blk.3.ffn_down.weight:{4 * FFN + 1}"), "0-4") as down, \
            grid.shard(make("nan-gate.gguf", *args, "--nan", f"blk.5.ffn_gate.weight:{2 * HIDDEN}"), "5-7") as gate, \
            grid.router(f"0-4={down.url},5-7={gate.url}") as router:
        yield down, gate, router


def counted(shard):
    return metric(shard.url, "larql_shard_not_finite_total")


def several(layers, kind, rows):
    a = Ask(0, kind, kind, rows)
    a.body = struct.pack(f"<II{len(layers)}IIII", 0xFFFFFFFF, len(layers), *layers, len(rows), 1, 0) + a.body[16:]
    return a


@pytest.mark.parametrize("answer_kind", KINDS)
@pytest.mark.parametrize("body_kind", KINDS)
def test_every_pair_of_formats(poisoned, body_kind, answer_kind):
    down, _, router = poisoned
    before = counted(down)
    for url in (down.url, router.url):
        for rows in (1, 3):
            status, kind, text = Ask(3, body_kind, answer_kind, [ROW] * rows).post(url)
            assert (status, kind) == (500, "application/json")
            assert text == b"FFN output is not finite at layer 3, row 0, index 4"
            assert Ask(2, body_kind, answer_kind, [ROW] * rows).post(url)[0] == 200
    assert counted(down) == before + 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [[2, 3], [3, 2], [0, 3, 3, 1]])
def test_several_layers_fail_as_a_whole(poisoned, layers, kind):
    down, _, router = poisoned
    for url in (down.url, router.url):
        assert several(layers, kind, [ROW]).post(url)[::2] == (
            500, b"FFN output is not finite at layer 3, row 0, index 4")
        assert several([2, 1, 2], kind, [ROW]).post(url)[0] == 200


@pytest.mark.parametrize("layers", [{"layer": 3}, {"layers": [1, 3]}])
def test_json_output(poisoned, layers):
    down, _, router = poisoned
    before = counted(down)
    for url in (down.url, router.url):
        status, _, body = grid.request("POST", url, "/v1/walk-ffn",
                                       json.dumps({"residual": ROW, "full_output": True, **layers}),
                                       {"Content-Type": "application/json"})
        assert (status, json.loads(body)["error"]) == (500, "FFN output is not finite at layer 3, row 0, index 4")
    assert counted(down) == before + 2


def test_json_features(poisoned):
    _, gate, _ = poisoned
    before = counted(gate)
    status, _, body = grid.request("POST", gate.url, "/v1/walk-ffn", json.dumps({"residual": ROW, "layer": 5}),
                                   {"Content-Type": "application/json"})
    assert (status, json.loads(body)["error"]) == (500, "gate score is not finite at layer 5, feature 2")
    assert counted(gate) == before + 1


def test_json_over_two_shards(poisoned):
    down, _, router = poisoned
    status, _, body = grid.request("POST", router.url, "/v1/walk-ffn",
                                   json.dumps({"residual": ROW, "full_output": True, "layers": [6, 3]}),
                                   {"Content-Type": "application/json"})
    text = json.loads(body)["error"]
    assert status == 500 and down.url in text and "not finite at layer 3, row 0, index 4" in text


@pytest.mark.parametrize("kind", [F32, I8])
def test_the_row_is_named_in_a_long_job(poisoned, kind):
    """Rows come in chunks of 256: what overflows is the last one."""
    down, _, _ = poisoned
    ask = Ask(1, F32, kind, [ROW] * 299 + [[1e38, -1e38] * 3])
    status, _, text = ask.post(down.url)
    assert status == 500 and text.startswith(b"FFN output is not finite at layer 1, row 299, index "), text


def test_i8_body_whose_scale_overflows(poisoned):
    down, _, _ = poisoned
    ask = Ask(1, I8, I8, [ROW])
    ask.body = ask.body[:16] + struct.pack("<ff6b", 3e38, 0, 127, -127, 127, -127, 127, -127)
    status, _, text = ask.post(down.url)
    assert status == 500 and text.startswith(b"FFN output is not finite at layer 1, row 0, index "), text


def test_others_of_the_same_pass_get_their_answers(big_synthetic):
    """Requests computed together, in all formats: only those that overflow are refused."""
    hidden = 512
    fine, huge = [0.01 * (i % 7 - 3) for i in range(hidden)], [1e38 * (-1) ** (i // 2) for i in range(hidden)]
    with grid.shard(big_synthetic, "0-1", "--threads", "1") as s:
        asks = [Ask(1, F16, F16, [fine]), Ask(1, F32, F16, [huge]), Ask(1, I8, I8, [fine]), Ask(1, F32, I8, [huge]),
                Ask(1, F32, F32, [fine]), Ask(1, F32, F32, [fine, huge])]
        alone = [a.post(s.url) for a in asks]
        assert [a[0] for a in alone] == [200, 500, 200, 500, 200, 500]
        assert b"layer 1, row 0, index" in alone[1][2] and b"layer 1, row 1, index" in alone[5][2]
        assert ask_together(s.url, asks) == alone
        assert together(s.url) == 1
        assert metric(s.url, "larql_shard_not_finite_total") == 6
