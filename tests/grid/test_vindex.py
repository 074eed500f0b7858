"""vindex directories: what larql extract writes, what shard, run and info make of it, and of
directories that others wrote or that are out to do harm (docs/vindex.md)."""
import hashlib
import json
import os
import random
import shutil
import struct

import pytest

import conftest
import grid

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")
SHAPE = ("--layers", "4", "--hidden", "256", "--ffn", "512", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--vocab", "300")
IDS = "3 7 250 261 262 263 264 270 260 259 100 101 102 103 104 105 106 107 108"


def extract(model, out, *args):
    done = grid.larql("extract", model, "-o", str(out), *args)
    assert done.returncode == 0, done.stderr
    return str(out)


def logits(model, folder, name, *args, ffn="local"):
    ids, out = str(folder / "ids"), str(folder / f"{name}.logits")
    if not os.path.exists(ids):
        (folder / "ids").write_text(IDS)
    done = grid.larql("run", model, "--ffn", ffn, "-q", "--teacher", ids, "--logits-out", out, "--threads", "2", *args)
    assert done.returncode == 0, done.stderr
    with open(out, "rb") as f:
        return f.read()


def index_of(folder):
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as f:
        return json.load(f)


def put_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f)


# ---- the same answers as from the GGUF file ---------------------------------------------------

FAMILIES = ["llama", "gemma3", "qwen2", "qwen3"]
# source types -> the dtype that keeps every byte or value of them
EXACT = {"f32-q8": (("--type", "Q8_0"), "f32", ("--activations", "f32")),
         "f32": (("--type", "F32"), "f32", ()),
         "f16": (("--type", "F16"), "f16", ()),
         "q4k": (("--type", "Q4_K", "--down-type", "Q6_K", "--embed-type", "F16"), "q4k", ())}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", list(EXACT))
def test_same_bits_as_from_the_gguf(tmp_path, family, case):
    types, dtype, how = EXACT[case]
    model = conftest.make(f"vx-{family}-{case}.gguf", "--arch", family, *SHAPE, *types, "--seed", "5")
    folder = extract(model, tmp_path / "v", "--dtype", dtype)
    for chunk in ("256", "1"):
        assert logits(model, tmp_path, "gguf", *how, "--chunk", chunk) == logits(folder, tmp_path, "vindex", *how, "--chunk", chunk)
    assert grid.larql("verify", folder).returncode == 0
    a, b = (json.loads(grid.larql("info", m).stdout) for m in (model, folder))
    for key in ("name", "family", "layers", "hidden_size", "intermediate_size", "vocab_size", "context_length", "heads", "kv_heads", "head_dim"):
        assert a[key] == b[key], key


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_rope_scaling_and_untied_head(tmp_path, dtype):
    model = conftest.make("vx-scaled.gguf", "--arch", "gemma3", *SHAPE, "--type", "F16", "--rope-factor", "8", "--untied", "--rope-base", "500000")
    folder = extract(model, tmp_path / "v", "--dtype", dtype)
    assert os.path.getsize(os.path.join(folder, "lm_head.bin")) == 300 * 256 * 4  # LARQL takes it for f32
    assert logits(model, tmp_path, "gguf") == logits(folder, tmp_path, "vindex")


@pytest.fixture(scope="module")
def q4k(tmp_path_factory):
    """A llama in Q4_K with Q6_K, and its directory."""
    model = conftest.make("vx-llama-q4k.gguf", "--arch", "llama", *SHAPE, *EXACT["q4k"][0], "--seed", "5")
    return model, extract(model, tmp_path_factory.mktemp("q4k") / "v", "--dtype", "q4k")


def test_a_shard_of_each_kind_are_replicas(q4k):
    """The layers' bytes are the same, so are their hashes, and the answers."""
    model, folder = q4k
    answers = []
    for source in (model, folder):
        with grid.shard(source, "1-2") as s:
            stats = json.loads(grid.get(s.url, "/v1/stats")[2])
            body = json.dumps({"layer": 2, "residual": [0.01 * i for i in range(256)], "full_output": True})
            answers.append((stats["identity"], stats["layer_hashes"], grid.post(s.url, "/v1/walk-ffn", body,
                                                                                {"Content-Type": "application/json"})[2].split(b'"latency')[0]))
    assert answers[0] == answers[1]


def test_new_file_names(tmp_path, q4k):
    model, folder = q4k
    new = shutil.copytree(folder, tmp_path / "new")
    for name in os.listdir(new):
        if "q4k" in name:
            os.rename(new / name, new / name.replace("q4k", "kquant"))
    index = index_of(new)
    index["quant"] = "kquant"
    put_json(new, "index.json", index)
    assert logits(model, tmp_path, "gguf") == logits(str(new), tmp_path, "new")


def test_what_is_quantised_anew_is_said(tmp_path):
    model = conftest.make("vx-q8.gguf", "--arch", "llama", *SHAPE, "--type", "Q8_0", "--untied", "--seed", "6")
    done = grid.larql("extract", model, "-o", str(tmp_path / "v"), "--dtype", "q4k")
    assert done.returncode == 0 and "quantised anew" in done.stdout and "Q8_0 to Q4_K" in done.stdout
    logits(str(tmp_path / "v"), tmp_path, "anew")
    assert {r["format"] for r in json.load(open(tmp_path / "v" / "interleaved_q4k_manifest.json", encoding="utf-8"))} == {"Q4_K", "Q6_K"}


def test_q4k_that_larql_misreads_is_refused(tmp_path):
    model = conftest.make("vx-576.gguf", "--arch", "llama", "--layers", "1", "--hidden", "64", "--ffn", "96", "--heads", "2", "--kv-heads", "2")
    done = grid.larql("extract", model, "-o", str(tmp_path / "v"), "--dtype", "q4k")
    assert done.returncode == 4
    assert "hidden size 64" in done.stderr and "256" in done.stderr and "--dtype f16" in done.stderr
    assert os.listdir(tmp_path) == []


def test_f16_that_overflows_is_refused(tmp_path):
    model = conftest.make("vx-tiny.gguf", "--arch", "llama", "--layers", "2", "--hidden", "32", "--ffn", "32", "--heads", "2", "--kv-heads", "2")
    big = tmp_path / "big.gguf"
    with open(model, "rb") as f:
        raw = bytearray(f.read())
    raw[-16:-12] = struct.pack("<f", 1e6)  # near the end of the last layer's ffn_down
    big.write_bytes(raw)
    done = grid.larql("extract", str(big), "-o", str(tmp_path / "v"))
    assert done.returncode == 4 and "blk.1.ffn_down.weight" in done.stderr and "--dtype f32" in done.stderr


# ---- parts of a model ---------------------------------------------------------------------------

def test_shards_and_client_from_directories_of_their_own(tmp_path, q4k):
    model, _ = q4k
    low = extract(model, tmp_path / "low", "--level", "ffn", "--layers", "0-1", "--dtype", "q4k")
    high = extract(model, tmp_path / "high", "--level", "ffn", "--layers", "2-3", "--dtype", "q4k")
    client = extract(model, tmp_path / "client", "--level", "client", "--dtype", "q4k")
    assert not os.path.exists(os.path.join(low, "attn_weights_q4k.bin"))
    assert not os.path.exists(os.path.join(client, "interleaved_q4k.bin"))
    for folder in (low, high, client):
        assert grid.larql("verify", folder).returncode == 0
    want = logits(model, tmp_path, "gguf")
    with grid.shard(low, "0-1") as a, grid.shard(high, "2-3") as b, grid.router(f"0-1={a.url},2-3={b.url}") as r:
        assert logits(client, tmp_path, "grid", "--wire", "f32", ffn=r.url) == want
        done = grid.larql("run", low, "--ffn", r.url, "--prompt", "x")
        assert done.returncode == 4 and "'output_norm.weight' is missing" in done.stderr
    for args in ((low, "2-3"), (client, "0-3")):
        with pytest.raises(AssertionError, match="tensor 'blk"):
            grid.shard(*args)


def test_float_shard_of_some_layers(tmp_path):
    model = conftest.make("vx-llama-f16.gguf", "--arch", "llama", *SHAPE, "--type", "F16", "--seed", "5")
    part = extract(model, tmp_path / "part", "--level", "ffn", "--layers", "1-2", "--dtype", "f16")
    assert os.path.getsize(os.path.join(part, "gate_vectors.bin")) == 2 * 512 * 256 * 2
    hashes = []
    for source in (model, part):
        with grid.shard(source, "1-2") as s:
            hashes.append(json.loads(grid.get(s.url, "/v1/stats")[2])["layer_hashes"])
    assert hashes[0] == hashes[1]
    with pytest.raises(AssertionError, match="blk.0.ffn_"):
        grid.shard(part, "0-1")


def test_a_shard_maps_only_its_layers(q4k):
    _, folder = q4k
    with grid.shard(folder, "1-1") as s:
        with open(f"/proc/{s.process.pid}/maps", encoding="utf-8") as f:
            maps = [line.split() for line in f if folder in line]
    spans = {os.path.basename(m[5]): sum(int(x, 16) * sign for x, sign in zip(m[0].split("-"), (-1, 1))) for m in maps}
    assert set(spans) == {"interleaved_q4k.bin"}
    layer = os.path.getsize(os.path.join(folder, "interleaved_q4k.bin")) // 4
    assert layer <= spans["interleaved_q4k.bin"] <= layer + 8192


# ---- a directory as LARQL writes it, by this file's own reading of the format ----------------------

def q4k_values(block):
    """Q4_K: docs/vindex.md."""
    d, dmin = struct.unpack_from("<2e", block)
    s, q = block[4:16], block[16:]
    out = []
    for j in range(8):
        scale, low = (s[j] & 63, s[j + 4] & 63) if j < 4 else (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
        out += [d * scale * (q[32 * (j // 2) + i] >> 4 * (j % 2) & 15) - dmin * low for i in range(32)]
    return out


def q6k_values(block):
    """LARQL's Q6_K: bits in the values' order."""
    ql, qh, scales, d = block[:128], block[128:192], struct.unpack_from("<16b", block, 192), struct.unpack_from("<e", block, 208)[0]
    return [d * scales[i // 16] * ((ql[i // 2] >> 4 * (i & 1) & 15 | (qh[i // 4] >> 2 * (i & 3) & 3) << 4) - 32) for i in range(256)]


def random_matrix(r, rows, cols, kind):
    """(bytes, values): rows filled up to 256 columns with zeros, as far as blocks of random bits allow: what
    stands there must not count."""
    data, values = b"", []
    for _ in range(rows):
        row = []
        for _ in range(-(-cols // 256)):
            if kind == "Q4_K":
                block = struct.pack("<2e", r.uniform(.001, .002), r.uniform(.001, .01)) + r.randbytes(140)
            else:
                block = r.randbytes(208) + struct.pack("<e", r.uniform(1e-5, 2e-5))
            data += block
            row += (q4k_values if kind == "Q4_K" else q6k_values)(block)
        values.append(row[:cols])
    return data, values


def larql_made(folder, hidden=40, ffn=300, layers=3, seed=9):
    """interleaved_q4k.bin of a model whose rows are no multiple of 256; the matrices' values by layer."""
    r = random.Random(seed)
    os.makedirs(folder)
    rows, data, mats = [], b"", []
    for layer in range(layers):
        mats.append({})
        for name, shape, kind in (("gate", (ffn, hidden), "Q4_K"), ("up", (ffn, hidden), "Q4_K"), ("down", (hidden, ffn), "Q6_K")):
            raw, mats[-1][name] = random_matrix(r, *shape, kind)
            rows.append({"key": f"layers.{layer}.mlp.{name}_proj.weight", "shape": [shape[0], -(-shape[1] // 256) * 256],
                         "format": kind, "offset": len(data), "length": len(raw)})
            data += raw
    with open(os.path.join(folder, "interleaved_q4k.bin"), "wb") as f:
        f.write(data)
    put_json(folder, "interleaved_q4k_manifest.json", rows)
    put_json(folder, "index.json", {
        "version": 2, "model": "someone/model-x", "family": "llama", "num_layers": layers, "hidden_size": hidden,
        "intermediate_size": ffn, "vocab_size": 11, "embed_scale": 1.0, "dtype": "f16", "quant": "q4k", "extract_level": "browse",
        "has_model_weights": True, "down_top_k": 10, "unknown_to_us": {"deep": [1, 2]},
        "layers": [{"layer": i, "num_features": ffn, "offset": i * hidden * ffn * 2, "length": hidden * ffn * 2} for i in range(layers)],
        "model_config": {"model_type": "llama", "head_dim": 20, "num_q_heads": 2, "num_kv_heads": 1, "rope_base": 10000.0, "moe": None}})
    return str(folder), mats


@pytest.mark.parametrize("activations", ["16", "f32"])
def test_rows_that_are_no_multiple_of_256(tmp_path, activations):
    import math
    folder, mats = larql_made(tmp_path / "v")
    r = random.Random(1)
    for rows in (1, 3, 20, 70):
        x = [[r.uniform(-1, 1) for _ in range(40)] for _ in range(rows)]
        m = mats[1]
        with grid.shard(folder, "1-2", "--activations", activations) as s:
            head = struct.pack("<4I", 1, rows, 1, 0)
            status, _, body = grid.post(s.url, "/v1/walk-ffn", head + b"".join(struct.pack("<40f", *v) for v in x),
                                        {"Content-Type": "application/x-larql-ffn"})
        assert status == 200
        got = struct.unpack(f"<{rows * 40}f", body[-rows * 160:])
        for i, v in enumerate(x):
            mul = lambda w, y: [math.fsum(a * b for a, b in zip(row, y)) for row in w]  # noqa: E731
            h = [g / (1 + math.exp(-g)) * u for g, u in zip(mul(m["gate"], v), mul(m["up"], v))]
            want = mul(m["down"], h)
            scale = max(map(abs, want))
            assert max(abs(a - b) for a, b in zip(want, got[40 * i:40 * i + 40])) < 2e-3 * scale
    done = grid.larql("verify", folder)
    assert done.returncode == 0 and "LARQL misreads it" in done.stdout


# ---- real models --------------------------------------------------------------------------------------

@pytest.fixture(scope="module", params=["gemma", "smollm2"])
def real(request, tmp_path_factory):
    if grid.SANITIZED and request.param == "gemma":
        pytest.skip("the same code; its vocabulary alone takes minutes")
    model = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp(f"vindex-{request.param}")
    return request.param, model, extract(model, folder / "v", "--dtype", "f16"), folder


def generated(model, ffn, folder, *args):
    stats = str(folder / "stats.json")
    done = grid.larql("run", model, "--ffn", ffn, "-q", "--ignore-eos", "-n", "24", "--prompt", "The capital of France is", "--stats-json", stats, *args)
    assert done.returncode == 0, done.stderr
    with open(stats, encoding="utf-8") as f:
        s = json.load(f)
    return s["prompt_ids"], s["generated"]


def test_real_model_from_a_grid_of_directories(real):
    """f16 rounds the weights: the tokens stay."""
    name, model, folder, tmp = real
    ranges = {"gemma": ["0-8", "9-17"], "smollm2": ["0-14", "15-29"]}[name]
    want = generated(model, "local", tmp)
    with grid.Grid(folder, ranges) as g:
        assert generated(folder, g.url, tmp) == want
    assert generated(folder, "local", tmp) == want


def test_real_model_in_f32_gives_the_same_logits(smollm2, tmp_path):
    folder = extract(smollm2, tmp_path / "v", "--dtype", "f32")
    how = ("--activations", "f32")
    assert logits(smollm2, tmp_path, "gguf", *how) == logits(folder, tmp_path, "vindex", *how)


def test_extract_twice_gives_the_same_bytes(smollm2, real, tmp_path):
    name, _, folder, _ = real
    if name != "smollm2":
        pytest.skip("once is enough")
    again = extract(smollm2, tmp_path / "again", "--dtype", "f16")
    sums = [{n: hashlib.sha256(open(os.path.join(d, n), "rb").read()).hexdigest() for n in sorted(os.listdir(d))
             if not n.endswith(".larql-hashes")} for d in (folder, again)]
    assert sums[0] == sums[1] and "progress.json" not in sums[0]


# ---- harm --------------------------------------------------------------------------------------------------

def change(path, **what):
    def do(o):
        *where, last = path
        for w in where:
            o = o[w]
        if "drop" in what:
            del o[last]
        else:
            o[last] = what["to"]
    return do


HOSTILE = [
    ("index.json", change(["num_layers"], to=10**9), ["num_layers", "1000000000"]),
    ("index.json", change(["hidden_size"], to=-1), ["hidden_size", "-1"]),
    ("index.json", change(["hidden_size"], to=2.5), ["hidden_size", "no whole number"]),
    ("index.json", change(["vocab_size"], drop=1), ["vocab_size", "missing"]),
    ("index.json", change(["quant"], to="q3"), ["quant", "q3"]),
    ("index.json", change(["model_config", "model_type"], to="gpt2"), ["model_type", "gpt2"]),
    ("index.json", change(["model_config", "head_dim"], to=10**6), ["head_dim", "1000000"]),
    ("index.json", change(["model_config", "rope_base"], to="x"), ["rope_base"]),
    ("index.json", change(["model_config", "moe"], to={"num_experts": 4}), ["mixture of experts"]),
    ("index.json", change(["layers", 1, "layer"], to=0), ["layers[1].layer", "before"]),
    ("index.json", change(["layers", 1, "layer"], to=77), ["layers[1].layer", "77"]),
    ("index.json", change(["layers", 2, "num_features"], to=3), ["layers[2].num_features", "3"]),
    ("index.json", change(["layers"], to=[]), ["layers", "0 rows"]),
    ("interleaved_q4k_manifest.json", change([4, "offset"], to=2**40), ["layers.1.mlp.up_proj.weight", "past the end", str(2**40)]),
    ("interleaved_q4k_manifest.json", change([4, "offset"], to=2**63 - 2), ["row 4", "length"]),
    ("interleaved_q4k_manifest.json", change([4, "offset"], to=-2), ["row 4", "offset"]),
    ("interleaved_q4k_manifest.json", change([4, "length"], to=17), ["row 4", "length", "17"]),
    ("interleaved_q4k_manifest.json", change([4, "shape"], to=[2**31, 2**31]), ["row 4"]),
    ("interleaved_q4k_manifest.json", change([4, "shape"], to=[300, 512]), ["row 4"]),
    ("interleaved_q4k_manifest.json", change([4, "shape"], to=[]), ["row 4", "shape"]),
    ("interleaved_q4k_manifest.json", change([4, "format"], to="q4_k"), ["row 4", "format"]),
    ("interleaved_q4k_manifest.json", change([4, "key"], drop=1), ["row 4", "key"]),
    ("interleaved_q4k_manifest.json", change([8], drop=1), ["8 rows", "3"]),
]


@pytest.mark.parametrize("n", range(len(HOSTILE)))
def test_hostile_json_is_refused_with_its_place(tmp_path, n):
    name, spoil, words = HOSTILE[n]
    folder, _ = larql_made(tmp_path / "v")
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        value = json.load(f)
    spoil(value)
    put_json(folder, name, value)
    with pytest.raises(AssertionError) as refused:
        grid.shard(folder, "1-2")
    verified = grid.larql("verify", folder)
    assert verified.returncode == 1
    for text in (str(refused.value), verified.stderr):
        assert name in text and all(w in text for w in words), text


def test_file_that_is_cut_short_or_none(tmp_path):
    folder, _ = larql_made(tmp_path / "v")
    path = os.path.join(folder, "interleaved_q4k.bin")
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(AssertionError, match="layers.2.mlp.down_proj.weight.*past the end of interleaved_q4k.bin"):
        grid.shard(folder, "0-0")  # even where the row is of no interest
    os.remove(path)
    with pytest.raises(AssertionError, match="interleaved_q4k.bin, which is not there"):
        grid.shard(folder, "0-0")
    os.mkfifo(path)
    with pytest.raises(AssertionError, match="no regular file"):
        grid.shard(folder, "0-0")


def test_verify_finds_a_changed_byte(tmp_path, q4k):
    _, folder = q4k
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name in sorted(os.listdir(folder)):
        if name == "index.json" or name.endswith("larql-hashes"):
            continue
        with open(copy / name, "r+b") as f:
            f.seek(os.path.getsize(copy / name) // 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        done = grid.larql("verify", str(copy))
        assert done.returncode == 1 and name in done.stderr and "SHA-256" in done.stderr
        shutil.copy(os.path.join(folder, name), copy / name)
    assert grid.larql("verify", str(copy)).returncode == 0
    os.remove(copy / "norms.bin")
    assert "norms.bin" in grid.larql("verify", str(copy)).stderr


# ---- larql extract: wrong use, and what an earlier run left -------------------------------------------------

def test_wrong_use(tmp_path, synthetic):
    out = str(tmp_path / "v")
    for args, word in ((("-o", out, "--level", "some"), "--level"), (("-o", out, "--dtype", "q8"), "--dtype"), ((), "-o DIR"),
                       (("-o", out, "--layers", "5-3"), "--layers"), (("-o", out, "--layers", "5-8"), "0-7"),
                       (("-o", out, "--level", "client", "--layers", "0-1"), "--layers"), (("-o", str(tmp_path)), "is there already")):
        done = grid.larql("extract", synthetic, *args)
        assert done.returncode == 2 and word in done.stderr, (args, done.stderr)
    assert grid.larql("extract", str(tmp_path / "none.gguf"), "-o", out).returncode == 1
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path, synthetic):
    out = tmp_path / "v"
    os.mkdir(f"{out}.tmp")
    (tmp_path / "v.tmp" / "norms.bin").write_text("mine")
    done = grid.larql("extract", synthetic, "-o", str(out))
    assert done.returncode == 2 and "v.tmp" in done.stderr
    assert (tmp_path / "v.tmp" / "norms.bin").read_text() == "mine"


def test_goes_on_after_a_kill(tmp_path, smollm2):
    """SIGINT leaves DIR.tmp with whole files; the next run keeps those that are right."""
    import signal
    import subprocess
    out = tmp_path / "v"
    p = subprocess.Popen([grid.program("larql"), "extract", smollm2, "-o", str(out), "--dtype", "f32"], stderr=subprocess.PIPE, text=True)
    noted = tmp_path / "v.tmp" / "progress.json"
    while p.poll() is None:
        if noted.exists() and len(json.loads(noted.read_text())["files"]) >= 2:
            p.send_signal(signal.SIGINT)
            break
    assert p.wait(60 * grid.TIMEOUT_X) == 130, p.stderr.read()
    p.stderr.close()
    assert not out.exists()
    kept = sorted(json.loads(noted.read_text())["files"])
    with open(tmp_path / "v.tmp" / kept[0], "r+b") as f:  # one of them is spoilt meanwhile
        f.write(b"spoilt")
    other = grid.larql("extract", smollm2, "-o", str(out), "--dtype", "f16")
    assert other.returncode == 2 and "other options" in other.stderr
    done = grid.larql("extract", smollm2, "-o", str(out), "--dtype", "f32")
    assert done.returncode == 0 and f"{len(kept) - 1} of the files kept" in done.stdout, done.stdout + done.stderr
    assert grid.larql("verify", str(out)).returncode == 0
    assert not noted.exists()
