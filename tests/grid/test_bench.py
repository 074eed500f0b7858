"""`larql bench` on real grids: its figures beside ones made here from dumped logits, its files, its
exit codes, and the baselines of the two models.

To make the baselines anew, where a change of theirs is meant: LQ_BENCH_REBASE=1 with this file's
test_baseline; then look at the difference."""
import json
import math
import os
import subprocess
import xml.etree.ElementTree as ET

import jsonschema
import pytest

import grid
from conftest import make
from test_parity import Dump, divergence, numbers, top

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
DATA = os.path.join(ROOT, "tests", "data")
TEXT = os.path.join(DATA, "alice.txt")
RANGES = {"gemma": ["0-8", "9-17"], "smollm2": ["0-14", "15-29"]}
STEPS = 16


def schema():
    with open(os.path.join(ROOT, "docs", "bench.schema.json"), encoding="utf-8") as f:
        return json.load(f)


def bench(model, url, *args, code=0):
    done = grid.larql("bench", model, "--ffn", url, *args)
    assert done.returncode == code, (done.returncode, done.stderr)
    return done


def result(model, url, path, *args):
    bench(model, url, "--output", "json", "--output-file", str(path), *args)
    with open(path, encoding="utf-8") as f:
        r = json.load(f)
    jsonschema.validate(r, schema(), jsonschema.Draft7Validator)
    return r


def by_name(r):
    return {f["wire"]: f for f in r["formats"]}


@pytest.fixture(scope="module")
def small(synthetic):
    """(model, url) of 8 layers of hidden size 6."""
    with grid.Grid(synthetic, ["0-3", "4-7"]) as g:
        yield synthetic, g.url


@pytest.fixture(scope="module")
def real(smollm2):
    with grid.Grid(smollm2, RANGES["smollm2"], *grid.EXACT) as g:
        yield smollm2, g.url


# ---- figures -------------------------------------------------------------------------------------

@numbers
def test_figures_against_dumped_logits(real, tmp_path):
    """Agreement and KL of a text, from the logits that `larql run` dumps for the same tokens."""
    model, url = real
    with open(TEXT, encoding="utf-8") as f:
        (tmp_path / "text").write_text(f.read()[:400])
    done = grid.larql("bench", model, "--ffn", url, "--text", str(tmp_path / "text"), "--steps", str(STEPS), "--assert-topk-match", "3",
                      "--output", "json", *grid.EXACT)
    assert done.returncode == 1, done.stderr  # i8 does not keep it
    r = json.loads(done.stdout)
    jsonschema.validate(r, schema(), jsonschema.Draft7Validator)
    grid.larql("run", model, "--ffn", "local", "--prompt-file", str(tmp_path / "text"), "-n", "1", "-q", "--stats-json", str(tmp_path / "ids"))
    with open(tmp_path / "ids", encoding="utf-8") as f:
        ids = json.load(f)["prompt_ids"][:STEPS]
    (tmp_path / "teacher").write_text(" ".join(map(str, ids)))
    dumps = {}
    for wire in ("f32", "f16", "i8"):
        path = str(tmp_path / wire)
        run = grid.larql("run", model, "--ffn", url, "--teacher", str(tmp_path / "teacher"), "--wire", wire, "--chunk", "1", "-q",
                         "--logits-out", path, *grid.EXACT)
        assert run.returncode == 0, run.stderr
        dumps[wire] = Dump(path)
    for wire, dump in dumps.items():
        got = by_name(r)[wire]
        kl = [divergence(dumps["f32"].row(i), dump.row(i)) for i in range(STEPS)]
        tops = [(top(dumps["f32"].row(i), 5), top(dump.row(i), 5)) for i in range(STEPS)]
        for want, is_ in zip(kl, got["steps"]["kl"]):
            assert math.isclose(max(want, 0), is_, rel_tol=1e-6, abs_tol=1e-11)
        assert math.isclose(got["kl"]["mean"], sum(kl) / STEPS, rel_tol=1e-6, abs_tol=1e-11)
        assert math.isclose(got["kl"]["max"], max(kl), rel_tol=1e-6, abs_tol=1e-11)
        assert got["steps"]["top1"] == [a[0] == b[0] for a, b in tops]
        for k, name in ((5, "top5"), (3, "topk")):
            same = [a[0] == b[0] and set(a[:k]) == set(b[:k]) for a, b in tops]
            assert math.isclose(got["agreement"][name], sum(same) / STEPS, abs_tol=1e-7)
    failed = next(i for i in range(STEPS) if
                  top(dumps["f32"].row(i), 1) != top(dumps["i8"].row(i), 1) or
                  set(top(dumps["f32"].row(i), 3)) != set(top(dumps["i8"].row(i), 3)))
    f = next(x for x in r["topk_failures"] if x["wire"] == "i8")
    assert f["first_step"] == failed
    assert f["want"] == top(dumps["f32"].row(failed), 3) and f["got"] == top(dumps["i8"].row(failed), 3)
    words = f"i8: top-3 differs at step {failed}"
    line = next(x for x in done.stderr.splitlines() if words in x)
    assert " ".join(map(str, f["want"])) in line and " ".join(map(str, f["got"])) in line


@numbers
def test_free_run_is_what_run_makes(real, tmp_path):
    model, url = real
    r = result(model, url, tmp_path / "r.json", "--steps", "16", "--prompt", "Once upon a time", *grid.EXACT)
    made = {}
    for wire in ("f32", "f16", "i8"):
        stats = str(tmp_path / wire)
        run = grid.larql("run", model, "--ffn", url, "--prompt", "Once upon a time", "-n", "16", "--ignore-eos", "--wire", wire, "--chunk", "1",
                         "-q", "--stats-json", stats, *grid.EXACT)
        assert run.returncode == 0, run.stderr
        with open(stats, encoding="utf-8") as f:
            made[wire] = json.load(f)["generated"]
    for wire, ids in made.items():
        free = by_name(r)[wire]["free_run"]
        apart = next((i for i in range(16) if ids[i] != made["f32"][i]), None)
        assert free["first_divergence"] == apart
        if wire != "f32":
            assert free["tokens"] == (16 if apart is None else apart + 1)


def test_bytes_are_those_of_the_protocol(small, tmp_path):
    """A request of one row has a head of 16 bytes, an answer one of 12 (docs/protocol.md, 2)."""
    model, url = small
    r = result(model, url, tmp_path / "r.json", "--steps", "5", "--prompt", "abc")
    for name, row in (("f32", 24), ("f16", 12), ("i8", 14)):
        assert by_name(r)[name]["bytes_per_token"] == {"up": 8 * (16 + row), "down": 8 * (12 + row)}
    assert r["formats"][0]["kl"] == {"mean": 0, "max": 0}
    assert r["formats"][0]["agreement"] == {"top1": 1, "top5": 1, "topk": 1}
    for layer in r["layers"]:
        assert layer["max_abs"]["request"] > 0
        assert layer["formats"]["f32"]["request"] == {"zeroed": 0, "clipped": 0, "error_mean": 0, "error_max": 0}
        assert 0 < layer["formats"]["f16"]["request"]["error_max"] < 1e-3


@pytest.mark.parametrize("many", ["2", "3"])
def test_concurrent_sequences_agree(small, tmp_path, many):
    model, url = small
    one = result(model, url, tmp_path / "1.json", "--steps", "12", "--prompt", "abc", "--wire", "f16")
    more = result(model, url, tmp_path / "n.json", "--steps", "12", "--prompt", "abc", "--wire", "f16", "--concurrent", many)
    assert more["concurrent"] == int(many)
    for a, b in zip(one["formats"], more["formats"]):
        for same in ("bytes_per_token", "agreement", "kl", "free_run"):
            assert a[same] == pytest.approx(b[same])


def test_text_in_windows(small, tmp_path):
    """Each window is a text of its own: the second one equals the first of a run over it alone."""
    model, url = small
    (tmp_path / "t").write_text("abcdefgh" * 8)
    r = result(model, url, tmp_path / "r.json", "--text", str(tmp_path / "t"), "--steps", "0", "--window", "9")
    assert r["input"]["kind"] == "text" and r["input"]["windows"] > 1
    assert r["input"]["steps"] == len(r["formats"][0]["steps"]["ms"])
    some = result(model, url, tmp_path / "s.json", "--text", str(tmp_path / "t"), "--steps", "11", "--window", "9")
    assert some["input"]["windows"] == 2
    for a, b in zip(r["formats"], some["formats"]):
        assert a["steps"]["kl"][:11] == b["steps"]["kl"]


def test_layer_with_one_huge_value_needs_f32(tmp_path):
    """One value of 10^6 in each request of layer 3: beyond f16, and i8 loses all beside it. The
    other layers are told apart from it."""
    model = make("huge.gguf", "--arch", "llama", "--layers", "6", "--hidden", "64", "--ffn", "96", "--heads", "4", "--kv-heads", "4",
                 "--seed", "5", "--set", "blk.3.ffn_norm.weight:2=1e6")
    with grid.Grid(model, ["0-5"]) as g:
        r = result(model, g.url, tmp_path / "r.json", "--steps", "8", "--prompt", "abc", "--write-policy", str(tmp_path / "p"))
        layer = r["layers"][3]
        assert layer["max_abs"]["request"] > 65504 and layer["advice"] == "f32"
        assert layer["formats"]["f16"]["request"]["clipped"] > 0
        assert layer["formats"]["i8"]["request"]["zeroed"] > 0.9 and layer["formats"]["i8"]["request"]["error_max"] > 0.99
        assert "f32" not in [x["advice"] for x in r["layers"][:3]]
        assert by_name(r)["f16"]["range_fallbacks"] >= 8
        p = result(model, g.url, tmp_path / "q.json", "--steps", "8", "--prompt", "abc", "--wire", "f16", "--wire-policy", str(tmp_path / "p"))
        assert by_name(p)["policy"]["range_fallbacks"] == 0
        assert by_name(p)["policy"]["clipped_by_server"] == 0


# ---- files --------------------------------------------------------------------------------------

def test_plot_is_whole_and_alone(small, tmp_path):
    model, url = small
    done = bench(model, url, "--steps", "30", "--plot", str(tmp_path / "p.svg"), "-q")
    assert "f16" in done.stdout and done.stderr == ""
    text = (tmp_path / "p.svg").read_text(encoding="utf-8")
    tree = ET.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    assert tree.tag == svg + "svg"
    words = " ".join(t.text for t in tree.iter(svg + "text"))
    for part in ("Latency", "KB per token", "Agreement by step", "f32", "i8", "30 steps"):
        assert part in words
    assert "href" not in text and "script" not in text and "url(" not in text
    for e in tree.iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
            assert -1 <= float(e.get(name, "0")) <= 961
    assert len(list(tree.iter(svg + "polyline"))) == 3
    assert len(list(tree.iter(svg + "circle"))) + len(list(tree.iter(svg + "path"))) == 60


def test_run_follows_a_policy_layer_by_layer(small, tmp_path):
    model, url = small
    bench(model, url, "--steps", "4", "--write-policy", str(tmp_path / "p"))
    with open(tmp_path / "p", encoding="utf-8") as f:
        p = json.load(f)
    assert p["larql_wire_policy"] == 1 and p["hidden_size"] == 6 and len(p["layers"]) == 8
    assert set(p["layers"]) <= {"f32", "f16", "i8"}
    p["layers"] = ["f32", "i8", "f16", "f16", "f16", "i8", "f16", "f16"]
    (tmp_path / "p").write_text(json.dumps(p))
    done = grid.larql("run", model, "--ffn", url, "--prompt", "abc", "-n", "4", "-q", "--ignore-eos", "--wire-policy", str(tmp_path / "p"),
                      "--stats-json", str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "s", encoding="utf-8") as f:
        s = json.load(f)
    rounds = s["calls"] // 8
    assert s["up_calls"] == s["down_calls"] == {"f32": rounds, "f16": 5 * rounds, "i8": 2 * rounds}
    r = result(model, url, tmp_path / "r.json", "--steps", "4", "--wire-policy", str(tmp_path / "p"))
    assert by_name(r)["policy"]["bytes_per_token"]["up"] == 8 * 16 + 24 + 5 * 12 + 2 * 14
    for args, part in ((["--wire-policy", str(tmp_path / "none")], "none"), (["--wire-policy", TEXT], "no wire policy"),
                       (["--wire-policy", str(tmp_path / "p"), "--wire", "f16"], "--wire-policy")):
        done = grid.larql("run", model, "--ffn", url, "--prompt", "abc", *args)
        assert done.returncode == 2 and part in done.stderr, done


def test_progress_is_for_terminals(small):
    model, url = small
    assert bench(model, url, "--steps", "3").stderr == ""


# ---- exit codes -----------------------------------------------------------------------------------

@pytest.mark.parametrize("args,part", [
    ([], "missing"), (["M", "--steps", "0"], "--text"), (["M", "--prompt", "a", "--text", "b"], "--prompt"),
    (["M", "--output", "xml"], "--output"), (["M", "--output-file", "x"], "--output-file"), (["M", "--ordered"], "--ordered"),
    (["M", "--baseline-ratios", "kl=2"], "--baseline"), (["M", "--ffn", "local"], "local"), (["M", "--wire", "f12"], "f12"),
    (["M", "--wire", ""], "wire format"), (["M", "--assert-topk-match", "101"], "--assert-topk-match"), (["M", "--ffn", "ftp://x"], "ftp://x"),
    (["M", "--text", "/none.txt"], "/none.txt"), (["M", "--text", "SHORT", "--steps", "50"], "--steps wants 50"),
    (["M", "--baseline", "/none.json"], "/none.json"), (["M", "--baseline", "SHORT"], "no result"),
    (["M", "--wire-policy", "SHORT"], "no wire policy"), (["M", "--steps", "9000"], "--steps"), (["M", "--activations", "9"], "9")])
def test_wrong_use(synthetic, tmp_path, args, part):
    (tmp_path / "short").write_text("abc")
    done = grid.larql("bench", *[{"M": synthetic, "SHORT": str(tmp_path / "short")}.get(a, a) for a in args])
    code = 1 if "/none.txt" in args else 2
    assert done.returncode == code, done
    assert part in done.stderr and done.stdout == ""


def test_grid_that_cannot_be_reached(synthetic):
    done = grid.larql("bench", synthetic, "--ffn", "http://127.0.0.1:1")
    assert done.returncode == 3 and "127.0.0.1:1" in done.stderr


def test_model_that_cannot_be_used():
    assert grid.larql("bench", __file__).returncode == 4


def test_grid_without_a_format_is_no_figure(synthetic):
    with grid.Grid(synthetic, ["0-7"], "--no-i8") as g:
        done = bench(synthetic, g.url, "--steps", "3", code=3)
        assert "no i8" in done.stderr and done.stdout == ""
        bench(synthetic, g.url, "--steps", "3", "--wire", "f16")


@pytest.mark.parametrize("many", ["1", "3"])
def test_grid_that_fails_on_the_way_ends_all_sequences(synthetic, many):
    """The one that meets the failure takes the others with it, wherever they are."""
    with grid.shard(synthetic, "0-3") as a, grid.shard(synthetic, "4-7") as b, grid.router(f"0-3={a.url},4-7={b.url}") as r:
        with subprocess.Popen([grid.program("larql"), "bench", synthetic, "--ffn", r.url, "--steps", "480", "--concurrent", many, "--deadline-ms",
                               "500"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
            while served(b) < 100:
                assert p.poll() is None
            b.kill()
            out, err = p.communicate(timeout=60 * grid.TIMEOUT_X)
        assert p.returncode == 3 and "layer " in err and r.url in err and out == ""


def served(shard):
    text = grid.get(shard.url, "/metrics")[2].decode()
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith("larql_shard_layer_seconds_count"))


@numbers
def test_assertion_and_order(real):
    model, url = real
    args = ("--text", TEXT, "--steps", "20")
    bench(model, url, *args, "--wire", "f32,f16", "--assert-topk-match", "1")
    done = bench(model, url, *args, "--wire", "f32,i8", "--assert-topk-match", "50", "--ordered", code=1)
    assert "i8: top-50 differs at step 0" in done.stderr and "top-50: the same first choice and the same list" in done.stdout


# ---- baselines --------------------------------------------------------------------------------------

@numbers
@pytest.mark.parametrize("name", list(RANGES))
def test_baseline(request, tmp_path, name):
    """Bytes and agreement of both models are no worse than what is kept. Other CPUs round
    otherwise: hence the ratios."""
    model, path = request.getfixturevalue(name), os.path.join(DATA, f"bench-{name}.json")
    args = ("--text", TEXT, "--steps", "100", "--window", "50", "-q")
    with grid.Grid(model, RANGES[name]) as g:
        if os.environ.get("LQ_BENCH_REBASE"):
            bench(model, g.url, *args, "--output", "baseline", "--output-file", path)
        bench(model, g.url, *args, "--baseline", path, "--baseline-ratios", "bytes=1,agreement=0.95,kl=2")
        with open(path, encoding="utf-8") as f:
            kept = json.load(f)
    jsonschema.validate(kept, schema(), jsonschema.Draft7Validator)
    assert "ms_per_token" not in kept["formats"][0] and "grid" not in kept


def test_baseline_that_is_missed(small, tmp_path):
    model, url = small
    args = ("--steps", "6", "--prompt", "abc")
    r = result(model, url, tmp_path / "r.json", *args)
    bench(model, url, *args, "--baseline", str(tmp_path / "r.json"))
    by_name(r)["f16"]["bytes_per_token"]["up"] -= 1
    (tmp_path / "less.json").write_text(json.dumps(r))
    done = bench(model, url, *args, "--baseline", str(tmp_path / "less.json"), code=1)
    assert "f16 bytes_per_token.up is 224, was 223" in done.stderr
    bench(model, url, *args, "--baseline", str(tmp_path / "less.json"), "--baseline-ratios", "bytes=1.1")
    done = bench(model, url, "--steps", "7", "--prompt", "abc", "--baseline", str(tmp_path / "r.json"), code=2)
    assert "other tokens" in done.stderr
    done = bench(model, url, *args, "--wire", "f16", "--baseline", str(tmp_path / "r.json"), code=2)
    assert "i8, which was not run" in done.stderr


def test_progress_bar_on_a_terminal(small):
    """Under script(1), which gives it one."""
    model, url = small
    command = f"{grid.program('larql')} bench {model} --ffn {url} --steps 20 -o json --output-file /dev/null"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, check=False, timeout=60 * grid.TIMEOUT_X)
    assert "step [" in done.stdout and "20 of 20" in done.stdout, done
