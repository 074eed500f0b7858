"""Architectures without a real model here, and chunkings, thread counts, split files: random
models against numpy (tests/golden/synthetic.txt)."""
import json
import os

import pytest

import conftest
import grid
from test_parity import GOLDEN, LOGIT_BOUND, Dump, worst

with open(os.path.join(GOLDEN, "synthetic.txt"), encoding="ascii") as f:
    MODELS = {line.split()[0]: line.split()[1:] for line in f}


@pytest.fixture(scope="module", params=list(MODELS))
def case(request, tmp_path_factory):
    """(golden, model path, a function that dumps logits)"""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    model = conftest.make(f"golden-{name}.gguf", *MODELS[name])
    with open(os.path.join(GOLDEN, f"synthetic-{name}.json"), encoding="utf-8") as f:
        want = json.load(f)
    ids = folder / "ids"
    ids.write_text(" ".join(map(str, want["ids"])))

    def dump(*args, ffn="local", activations=grid.EXACT):
        path = str(folder / "logits")
        done = grid.larql("run", model, "--ffn", ffn, "--teacher", str(ids), "--logits-out", path, "-q", *activations, *args)
        assert done.returncode == 0, done.stderr
        return Dump(path)
    return want, model, dump


@pytest.mark.parametrize("chunk", [1, 7, 8, 9, 256])
def test_against_numpy(case, chunk):
    want, _, dump = case
    assert worst(dump("--chunk", str(chunk)), want) <= LOGIT_BOUND / 100  # ours are exact sums, no 8 bit


@pytest.mark.parametrize("digits,bound", [("16", 1e-3), ("8", 0.2)])
def test_digits_against_numpy(case, digits, bound):
    """Random weights make layers that amplify: bounds of a sanity check (test_parity has the real ones)."""
    want, _, dump = case
    for chunk in ("1", "48"):
        assert worst(dump("--chunk", chunk, activations=("--activations", digits)), want) <= bound


@pytest.mark.parametrize("activations", ["f32", "16", "8"])
def test_threads_change_nothing(case, activations):
    _, _, dump = case
    for chunk in ("1", "48"):
        one, three = (dump("--chunk", chunk, "--threads", n, activations=("--activations", activations)) for n in ("1", "3"))
        assert one.raw == three.raw


def test_remote_f32_equals_local(case):
    _, model, dump = case
    last = json.loads(grid.larql("info", model).stdout)["layers"] - 1
    with grid.shard(model, "0-0", *grid.EXACT) as a, grid.shard(model, f"1-{last}", *grid.EXACT) as b:
        with grid.router(f"0-0={a.url},1-{last}={b.url}") as r:
            for chunk in ("1", "48"):
                assert dump("--chunk", chunk).raw == dump("--chunk", chunk, "--wire", "f32", ffn=r.url).raw


@pytest.mark.parametrize("activations", ["f32", "16", "8"])
def test_instruction_sets_change_nothing_for_single_rows(case, activations, monkeypatch):
    """One order of summation (ADR 0005, 0011): the scalar form gives the same text as AVX-512."""
    _, _, dump = case
    how = ("--activations", activations)
    first = dump("--chunk", "1", activations=how).raw
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        masks = ["ref", "avx2"] if " avx2 " in f.read() else ["ref"]
    for mask in masks:
        monkeypatch.setenv("LQ_CPU", mask)
        assert dump("--chunk", "1", activations=how).raw == first


def test_split_file_reads_as_one(tmp_path):
    whole = conftest.make("golden-llama.gguf", *MODELS["llama"])
    parts = conftest.make("golden-split.gguf", *MODELS["llama"], "--split", "3")
    ids, dumps = tmp_path / "ids", []
    ids.write_text("259 260 7")
    for model in (whole, parts.replace(".gguf", "-00002-of-00003.gguf")):
        path = str(tmp_path / f"{len(dumps)}")
        done = grid.larql("run", model, "--ffn", "local", "--teacher", str(ids), "--logits-out", path, "-q")
        assert done.returncode == 0, done.stderr
        dumps.append(Dump(path).raw)
    assert dumps[0] == dumps[1]


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_1", "F16"])
def test_a_fast_model_is_the_same_every_time_and_runs(tmp_path, kind):
    """--fast is what benchmarks use: pieces of one pool, which this size makes repeat."""
    args = ["--fast", "--layers", "2", "--hidden", "1024", "--ffn", "4608", "--heads", "16", "--kv-heads", "4",
            "--type", kind]
    model, again = (conftest.make(name, *args) for name in ("fast.gguf", "fast-again.gguf"))
    with open(model, "rb") as a, open(again, "rb") as b:
        assert a.read() == b.read()
    ids, logits = tmp_path / "ids", str(tmp_path / "logits")
    ids.write_text("1 265 262 265")
    done = grid.larql("run", model, "--ffn", "local", "--teacher", str(ids), "--logits-out", logits, "-q")
    assert done.returncode == 0, done.stderr
    dump = Dump(logits)
    assert all(abs(v) < 1000 for i in range(4) for v in dump.row(i)), "activations run away"
    assert dump.row(0) != dump.row(1)
