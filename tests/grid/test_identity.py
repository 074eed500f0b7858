"""What a shard says its weights are, against another implementation; and the cache of hashes."""
import json
import os
import re
import shutil
import sys

import pytest

import conftest
import grid

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))
import identity  # noqa: E402


def stats_of(model, layers, env=None):
    """(stats, bytes hashed, log)"""
    with grid.shard(model, layers, env=env) as s:
        stats = json.loads(grid.get(s.url, "/v1/stats")[2])
    hashed = re.search(r"identity_hashed bytes=(\d+)", s.log_text())
    return stats, int(hashed.group(1)) if hashed else 0, s.log_text()


@pytest.fixture
def model(synthetic, tmp_path):
    return shutil.copy(synthetic, tmp_path / "copy.gguf")


def cache_of(model):
    return str(model) + ".larql-hashes"


@pytest.mark.parametrize("which", ["synthetic", "gemma", "smollm2"])
def test_equals_another_implementation(which, request):
    path = request.getfixturevalue(which)
    stats = stats_of(path, "2-5")[0]
    want = identity.identity(path, 2, 5)
    assert stats["identity"] == want["identity"]
    assert stats["layer_hashes"] == want["layer_hashes"]


def test_split_model_is_the_same_model():
    args = ["--arch", "llama", "--layers", "4", "--hidden", "6", "--ffn", "8", "--seed", "7"]
    whole, parts = conftest.make("identity.gguf", *args), conftest.make("identity-split.gguf", *args, "--split", "3")
    want = stats_of(whole, "0-3")[0]
    stats = stats_of(parts.replace(".gguf", "-00001-of-00003.gguf"), "0-3")[0]
    assert stats["identity"] == want["identity"]
    assert stats["layer_hashes"] == want["layer_hashes"]


def test_bytes_are_hashed_once(model):
    first, hashed, _ = stats_of(model, "0-3")
    assert hashed == 4 * 3 * 6 * 8 * 4
    again, hashed, _ = stats_of(model, "2-3")
    assert hashed == 0 and again["layer_hashes"] == first["layer_hashes"][2:]
    _, hashed, _ = stats_of(model, "2-5")
    assert hashed == 2 * 3 * 6 * 8 * 4, "only what is new"
    _, hashed, _ = stats_of(model, "0-5")
    assert hashed == 0, "and what was known is kept"


def damaged(text):
    at = text.index("ffn_down.weight\":\"") + 18
    return text[:at] + ("1" if text[at] == "0" else "0") + text[at + 1:]


@pytest.mark.parametrize("make", [damaged, lambda t: t[:len(t) // 2], lambda t: "", lambda t: "[]",
                                  lambda t: "[" * 100000, lambda t: t.replace('"version":1', '"version":2')],
                         ids=["a-digit", "cut", "empty", "list", "deep", "version"])
def test_damaged_cache_is_computed_again(model, make):
    want, _, _ = stats_of(model, "0-1")
    with open(cache_of(model), "r+", encoding="utf-8") as f:
        text = f.read()
        f.seek(0)
        f.truncate()
        f.write(make(text))
    stats, hashed, log = stats_of(model, "0-1")
    assert hashed > 0 and "why=\"damaged\"" in log
    assert stats["layer_hashes"] == want["layer_hashes"]
    assert stats_of(model, "0-1")[1] == 0, "the new one is good"


def test_changed_model_is_hashed_again(model):
    before, _, _ = stats_of(model, "0-7")
    _, at, _ = identity.Gguf(model).tensors["blk.3.ffn_up.weight"]
    with open(model, "r+b") as f:
        f.seek(at)
        f.write(b"\x01\x02\x03\x3f")
    after, hashed, log = stats_of(model, "0-7")
    assert hashed > 0 and "the model has changed" in log
    assert after["identity"] == before["identity"], "names and shapes are the same"
    assert [i for i in range(8) if after["layer_hashes"][i] != before["layer_hashes"][i]] == [3]
    assert after["layer_hashes"] == identity.identity(model)["layer_hashes"]


def test_folder_that_takes_no_file(model, tmp_path):
    os.makedirs(os.path.join(cache_of(model), "in-the-way"))  # like a read-only folder, for root too
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert stats_of(model, "0-7", env)[1] > 0
    assert len(os.listdir(tmp_path / "cache" / "larql-grid" / "hashes")) == 1
    assert stats_of(model, "0-7", env)[1] == 0
    (tmp_path / "file").write_text("")
    nowhere = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    for _ in range(2):
        stats, hashed, log = stats_of(model, "0-7", nowhere)
        assert hashed > 0 and log.count("hash_cache_unwritten") == 1 and len(stats["layer_hashes"]) == 8
