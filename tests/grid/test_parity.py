"""The whole path on real models against the outside judges (tests/golden/README.md)."""
import array
import heapq
import json
import math
import os

import pytest

import grid

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")
MODELS = {"gemma": ["0-8", "9-17"], "smollm2": ["0-14", "15-29"]}
if grid.SANITIZED:
    del MODELS["gemma"]  # the same code; its vocabulary alone takes minutes
numbers = pytest.mark.skipif(grid.SANITIZED, reason="figures of the plain build, which runs this")
LOGIT_BOUND = 2e-3   # of the position's largest |logit|
GAP_BOUND = 0.2      # a greedy divergence from llama.cpp beyond this is a bug


def golden(name):
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as f:
        return json.load(f)


class Dump:
    """--logits-out: rows of f32."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.raw = f.read()
        assert self.raw[:4] == b"LQLG"
        head = array.array("I", self.raw[4:16])
        assert head[0] == 1
        self.vocab, self.positions = head[1], head[2]
        assert len(self.raw) == 16 + 4 * self.vocab * self.positions

    def row(self, i):
        at = 16 + 4 * self.vocab * i
        return array.array("f", self.raw[at:at + 4 * self.vocab])


def top(row, n):
    return heapq.nlargest(n, range(len(row)), key=row.__getitem__)  # ties: the lower id first


@pytest.fixture(scope="module", params=list(MODELS))
def case(request, tmp_path_factory):
    """(name, model path, the grid that serves it, a folder)"""
    name = request.param
    model = request.getfixturevalue(name)
    with grid.Grid(model, MODELS[name], *grid.EXACT) as g:
        yield name, model, g, tmp_path_factory.mktemp(name)


def run(model, ffn, *args, activations=grid.EXACT):
    done = grid.larql("run", model, "--ffn", ffn, "--quiet", *activations, *args)
    assert done.returncode == 0, done.stderr
    return done


def dump(case, label, ffn, *args, activations=grid.EXACT):
    name, model, _, folder = case
    path = str(folder / label)
    if not os.path.exists(path):
        run(model, ffn, "--teacher", os.path.join(GOLDEN, f"ids-{name}.txt"), "--logits-out", path, *args, activations=activations)
    return Dump(path)


def worst(d, want):
    bad = 0.0
    for i, position in enumerate(want["positions"]):
        row = d.row(i)
        pairs = list(zip(want["sample_ids"], position["sample"])) + position["top"]
        bad = max(bad, max(abs(row[t] - v) for t, v in pairs) / position["max"])
    return bad


@pytest.mark.parametrize("how", ["local", "remote", "remote one row at a time"])
def test_logits_against_numpy(case, how):
    name, _, g, _ = case
    want = golden(f"logits-{name}.json")
    d = {"local": lambda: dump(case, "local", "local"),
         "remote": lambda: dump(case, "remote", g.url, "--wire", "f32"),
         "remote one row at a time": lambda: dump(case, "steps", g.url, "--wire", "f32", "--chunk", "1")}[how]()
    assert d.positions == len(want["ids"]) == 64
    share = worst(d, want)
    print(f"{name} {how}: max |delta| = {share:.2g} x max |logit|")
    assert share <= LOGIT_BOUND


@pytest.mark.parametrize("chunk", ["256", "1"])
def test_remote_f32_equals_local_bit_for_bit(case, chunk):
    _, _, g, _ = case
    local = dump(case, f"local-{chunk}", "local", "--chunk", chunk)
    remote = dump(case, f"remote-{chunk}", g.url, "--wire", "f32", "--chunk", chunk)
    assert local.raw == remote.raw


@numbers
def test_f16_keeps_top_1_and_top_5(case):
    """Equal at every position, except where f32's own ranks (1 and 2, or 5 and 6) are closer
    than twice what f16 moves any logit there: those are counted and printed."""
    name, _, g, _ = case
    f32 = dump(case, "steps", g.url, "--wire", "f32", "--chunk", "1")
    f16 = dump(case, "steps-f16", g.url, "--wire", "f16", "--chunk", "1")
    close = {1: [], 5: []}
    for i in range(f32.positions):
        a, b = f32.row(i), f16.row(i)
        best = top(a, 6)
        delta = max(abs(x - y) for x, y in zip(a, b))
        for k in (1, 5):
            if set(top(b, k)) != set(best[:k]):
                gap = a[best[k - 1]] - a[best[k]]
                close[k].append((i, round(gap, 5), round(delta, 5)))
                assert gap < 2 * delta, f"position {i}: ranks {k} and {k + 1} are {gap} apart, f16 moved logits by {delta}"
    print(f"{name} f16: of {f32.positions} positions top-1 differs at {len(close[1])}, the top-5 set at {len(close[5])}; each where f32 "
          f"itself is that close (position, gap, largest change): {close}")


@numbers
def test_i8_agreement_is_reported(case):
    name, _, g, _ = case
    f32 = dump(case, "steps", g.url, "--wire", "f32", "--chunk", "1")
    i8 = dump(case, "steps-i8", g.url, "--wire", "i8", "--chunk", "1")
    same = sum(top(f32.row(i), 1) == top(i8.row(i), 1) for i in range(f32.positions))
    share = same / f32.positions
    print(f"{name} i8: top-1 agrees at {same} of {f32.positions} positions ({share:.0%})" +
          ("" if share >= 0.95 else "  FINDING: under 95 %, see README"))
    assert i8.raw != f32.raw  # it did travel as i8


def divergence(want, got):
    """KL of two rows of logits, in nats."""
    def log_softmax(row):
        most = max(row)
        scale = most + math.log(math.fsum(math.exp(v - most) for v in row))
        return [v - scale for v in row]
    p, q = log_softmax(want), log_softmax(got)
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))


@numbers
@pytest.mark.parametrize("digits", ["default", "8"])
def test_activations_in_digits(case, digits):
    """Beside exact work: the default keeps top-1 (99 %) and mean KL (0.01); one digit keeps the
    KL, its top-1 is printed (ADR 0011 has both over a longer text)."""
    name, _, _, _ = case
    exact = dump(case, "local", "local")
    other = dump(case, f"digits-{digits}", "local", activations=() if digits == "default" else ("--activations", digits))
    assert other.raw != exact.raw
    same, total = 0, 0.0
    for i in range(exact.positions):
        a, b = exact.row(i), other.row(i)
        same += top(a, 1) == top(b, 1)
        total += divergence(a, b)
    print(f"{name} {digits}: top-1 agrees at {same} of {exact.positions}, mean KL {total / exact.positions:.2g}")
    assert total / exact.positions <= 0.01
    if digits == "default":
        assert same / exact.positions >= 0.99


@pytest.mark.parametrize("digits", ["16", "8"])
@pytest.mark.parametrize("chunk", ["256", "1"])
def test_remote_equals_local_in_digits(case, digits, chunk):
    name, model, _, folder = case
    args, how = ("--chunk", chunk, "--teacher", str(folder / "few")), ("--activations", digits)
    with open(os.path.join(GOLDEN, f"ids-{name}.txt"), encoding="ascii") as f:
        (folder / "few").write_text(" ".join(f.read().split()[:20]))
    with grid.Grid(model, MODELS[name], *how) as g:
        local = dump(case, f"local-{digits}-{chunk}", "local", *args, activations=how)
        remote = dump(case, f"remote-{digits}-{chunk}", g.url, "--wire", "f32", *args, activations=how)
    assert local.raw == remote.raw


@numbers
def test_greedy_text_against_llama_cpp(case):
    """Where the texts part, the two tokens must be close. llama.cpp rounds activations to 8
    bit and keeps its cache in f16, so its own distance is noisy; ours is numpy's to 1e-6
    (test_logits_against_numpy). A bug would show in both: the smaller one is held to the bound."""
    name, model, _, folder = case
    for n, want in enumerate(golden(f"greedy-{name}.json")["runs"]):
        stats, logits = str(folder / f"greedy-{n}.json"), str(folder / "greedy.logits")
        run(model, "local", "--prompt", want["prompt"], "-n", "64", "--ignore-eos", "--stats-json", stats, "--logits-out", logits)
        with open(stats, encoding="utf-8") as f:
            got = json.load(f)
        assert got["prompt_ids"] == want["prompt_ids"]
        apart = next((i for i in range(64) if got["generated"][i] != want["generated"][i]), None)
        if apart is None:
            print(f"{name} {want['prompt']!r}: 64 tokens equal")
            continue
        row = Dump(logits).row(apart)
        ours = row[got["generated"][apart]] - row[want["generated"][apart]]
        print(f"{name} {want['prompt']!r}: parts at token {apart}; llama.cpp's second best was {want['gaps'][apart]} behind, "
              f"its choice is {ours:.4f} behind ours here")
        assert min(want["gaps"][apart], ours) <= GAP_BOUND


def test_wire_counters_and_defaults(case):
    """f16 both ways by default; the environment and --wire change that."""
    _, model, g, folder = case
    for label, args, env, kind in (("default", [], {}, "f16"), ("env-f32", [], {"LARQL_F16_WIRE": "0"}, "f32"),
                                   ("env-i8", [], {"LARQL_I8_WIRE": "1"}, "i8"), ("flag", ["--wire", "i8"], {}, "i8")):
        path = str(folder / f"wire-{label}.json")
        done = grid.larql("run", model, "--ffn", g.url, "-q", "--prompt", "Hello", "-n", "3", "--stats-json", path, *args, env=env)
        assert done.returncode == 0, done.stderr
        with open(path, encoding="utf-8") as f:
            s = json.load(f)
        assert s["up_calls"][kind] == s["down_calls"][kind] == s["calls"] > 0
    assert grid.larql("run", model, "--ffn", g.url, "--prompt", "x", env={"LARQL_F16_WIRE": "2"}).returncode == 2


@numbers
def test_memory_of_a_shard_stays_near_its_slice(gemma):
    with grid.shard(gemma, "9-17", "--threads", "2") as s:
        stats = json.loads(grid.get(s.url, "/v1/stats")[2])
        hidden = stats["hidden_size"]
        for rows in (1, 256):
            for layer in range(9, 18):
                body = (layer.to_bytes(4, "little") + rows.to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(4) +
                        array.array("f", [0.25] * (hidden * rows)).tobytes())
                assert grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": "application/x-larql-ffn"})[0] == 200
        with open(f"/proc/{s.process.pid}/status", encoding="ascii") as f:
            rss = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))
        print(f"resident {rss / 1e6:.1f} MB, slice {stats['loaded']['ffn_bytes'] / 1e6:.1f} MB")
        assert rss <= stats["loaded"]["ffn_bytes"] + 64 * 1024 * 1024


def test_grid_that_fails_ends_the_run_with_layer_url_and_reason(gemma):
    with grid.shard(gemma, "0-8") as a, grid.shard(gemma, "9-17") as b, grid.router(f"0-8={a.url},9-17={b.url}") as r:
        b.kill()
        done = grid.larql("run", gemma, "--ffn", r.url, "--prompt", "Hello", "-n", "4")
        assert done.returncode == 3
        assert "layer 9" in done.stderr and r.url in done.stderr and b.url in done.stderr
        assert done.stdout == ""
    assert grid.larql("run", gemma, "--ffn", "http://127.0.0.1:1", "--prompt", "x").returncode == 3


def test_other_model_is_refused(gemma, smollm2):
    with grid.shard(smollm2, "0-29") as s:
        done = grid.larql("run", gemma, "--ffn", s.url, "--prompt", "Hello")
        assert done.returncode == 3
        assert "576" in done.stderr and "640" in done.stderr
