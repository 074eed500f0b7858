#!/usr/bin/python3
"""What larql extract writes, read by the format's definition (docs/vindex.md) with numpy and
held against the gguf package's values of the source; tokenizer.json by Hugging Face's tokenizers.

vindex_judge.py MODEL.gguf...     larql from $LQ_BUILD/bin
Each model goes through f32 and f16; synthetic ones of rows of 256 through q4k too. Exit status 1: something differs.
"""
import json
import os
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
LARQL = os.path.join(os.environ.get("LQ_BUILD", "build"), "bin", "larql")
GOLDEN = os.path.join(HERE, "..", "golden")
failures = 0


def check(ok, what):
    global failures
    if not ok:
        failures += 1
        print("DIFFERS:", what)


# ---- the directory, by its definition --------------------------------------------------------------

def q4k(raw):
    b = np.frombuffer(raw, np.uint8).reshape(-1, 144)
    d, dmin = (b[:, i:i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
    s, q = b[:, 4:16], b[:, 16:].reshape(-1, 4, 32)
    scale = np.concatenate([s[:, 0:4] & 63, s[:, 8:12] & 15 | s[:, 0:4] >> 6 << 4], 1).astype(np.float32)
    low = np.concatenate([s[:, 4:8] & 63, s[:, 8:12] >> 4 | s[:, 4:8] >> 6 << 4], 1).astype(np.float32)
    v = np.stack([q & 15, q >> 4], 2).reshape(-1, 8, 32).astype(np.float32)
    return ((d * scale)[:, :, None] * v - (dmin * low)[:, :, None]).reshape(-1)


def q6k(raw):
    b = np.frombuffer(raw, np.uint8).reshape(-1, 210)
    i = np.arange(256)
    lo = b[:, i // 2] >> (4 * (i & 1)).astype(np.uint8) & 15
    hi = b[:, 128 + i // 4] >> (2 * (i & 3)).astype(np.uint8) & 3
    scale = b[:, 192:208].copy().view(np.int8)[:, i // 16].astype(np.float32)
    d = b[:, 208:210].copy().view("<f2").astype(np.float32)
    return (d * scale * ((lo | hi << 4).astype(np.float32) - 32)).reshape(-1)


class Vindex:
    def __init__(self, folder):
        self.folder = folder
        self.index = self.json("index.json")
        self.weights = {r["key"]: r for r in self.json("weight_manifest.json")}
        self.q4k = self.index["quant"] == "q4k"
        if self.q4k:
            self.blocks = {name: self.json(f"{name}_manifest.json") for name in ("interleaved_q4k", "attn_weights_q4k")}

    def json(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as f:
            return json.load(f)

    def read(self, name, offset, length):
        with open(os.path.join(self.folder, name), "rb") as f:
            f.seek(offset)
            return f.read(length)

    def floats(self, name, offset, length, shape):
        n = int(np.prod(shape))
        kind = {4 * n: "<f4", 2 * n: "<f2"}[length]
        return np.frombuffer(self.read(name, offset, length), kind).astype(np.float32).reshape(shape)

    def row(self, r):
        raw = self.read(r["file"], r["offset"], r["length"])
        if r["kind"] == "tensor_q4k":
            return q4k(raw).reshape(r["shape"])
        return self.floats(r["file"], r["offset"], r["length"], r["shape"])

    def block(self, name, i, key):
        r = self.blocks[name][i]
        assert r["key"] == key, (r["key"], key)
        raw = self.read(name + ".bin", r["offset"], r["length"])
        return {"Q4_K": q4k, "Q6_K": q6k}[r["format"]](raw).reshape(r["shape"])

    def tensor(self, key):
        """None: it is not there."""
        parts = key.split(".")
        if key == "embeddings":
            shape = (self.index["vocab_size"], self.index["hidden_size"])
            return self.floats("embeddings.bin", 0, os.path.getsize(os.path.join(self.folder, "embeddings.bin")), shape)
        mats = {"interleaved_q4k": ["gate_proj", "up_proj", "down_proj"], "attn_weights_q4k": ["q_proj", "k_proj", "v_proj", "o_proj"]}
        for name, order in mats.items():
            if self.q4k and parts[0] == "layers" and parts[-1] == "weight" and parts[-2] in order:
                return self.block(name, int(parts[1]) * len(order) + order.index(parts[-2]), key)
        if parts[-2:] == ["gate_proj", "weight"]:
            r = self.index["layers"][int(parts[1])]
            return self.floats("gate_vectors.bin", r["offset"], r["length"], (r["num_features"], self.index["hidden_size"]))
        return self.row(self.weights[key]) if key in self.weights else None


# ---- the source, as Hugging Face has it ----------------------------------------------------------------

NAMES = {"attn_norm.weight": "input_layernorm.weight", "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
         "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight", "attn_q.bias": "self_attn.q_proj.bias",
         "attn_k.bias": "self_attn.k_proj.bias", "attn_v.bias": "self_attn.v_proj.bias", "attn_q_norm.weight": "self_attn.q_norm.weight",
         "attn_k_norm.weight": "self_attn.k_norm.weight", "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
         "ffn_down.weight": "mlp.down_proj.weight", "ffn_norm.weight": "post_attention_layernorm.weight"}
GEMMA = {"ffn_norm.weight": "pre_feedforward_layernorm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
         "post_ffw_norm.weight": "post_feedforward_layernorm.weight"}


def source(path):
    """(key, values, ggml type) of each tensor, with the converter's changes undone."""
    r = gguf.GGUFReader(path)
    arch = r.fields["general.architecture"].contents()
    heads = r.fields[f"{arch}.attention.head_count"].contents()
    kv_heads = r.fields[f"{arch}.attention.head_count_kv"].contents()
    for t in r.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(int(n) for n in reversed(t.shape)))
        name = t.name.removeprefix("blk.")
        if name == t.name:
            key = {"token_embd.weight": "embeddings", "output.weight": "lm_head.weight", "output_norm.weight": "norm.weight"}[name]
        else:
            layer, _, rest = name.partition(".")
            key = f"layers.{layer}." + ({**NAMES, **GEMMA} if arch == "gemma3" else NAMES)[rest]
        if arch == "llama" and (".q_proj" in key or ".k_proj" in key):
            n = heads if ".q_proj" in key else kv_heads
            x = x.reshape(n, x.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)
        if arch == "gemma3" and key.endswith("norm.weight"):
            x = x - np.float32(1)
        yield key, x, t.tensor_type.name


def judge_tensors(model, folder, dtype):
    v, n, worst = Vindex(folder), 0, 0.0
    for key, want, kind in source(model):
        got = v.tensor(key)
        check(got is not None, f"{folder}: {key} is missing")
        if got is None:
            continue
        vector = want.ndim == 1
        if dtype == "f16" and not vector and key != "lm_head.weight":
            want = want.astype(np.float16).astype(np.float32)
        if dtype == "q4k" and (key == "embeddings" or kind not in ("Q4_K", "Q6_K", "F32")):
            want = want.astype(np.float16).astype(np.float32)
        same = got.shape == want.shape and np.array_equal(got, want)
        if not same and got.shape == want.shape:
            worst = max(worst, float(np.abs(got - want).max()))
        check(same, f"{folder}: {key} ({kind}), {got.shape} beside {want.shape}, by up to {worst:g}")
        n += 1
    print(f"{os.path.basename(model)} {dtype}: {n} tensors, values equal to the gguf package's: {failures == 0}")


def judge_tokenizer(name, folder):
    """Lines that hold a special token's text are left out: these tokenizers always take it for the token."""
    t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        special = [a["content"] for a in json.load(f)["added_tokens"] if a["special"]]
    special.append("</s>")  # by llama.cpp's rule a control token, whatever the file says
    lines = same = 0
    with open(os.path.join(GOLDEN, "text.jsonl"), encoding="utf-8") as texts, open(os.path.join(GOLDEN, f"tokens-{name}.txt"), encoding="ascii") as ids:
        for text, want in zip(texts, ids):
            text = json.loads(text)
            if any(s in text for s in special):
                continue
            lines += 1
            same += t.encode(text, add_special_tokens=False).ids == [int(i) for i in want.split()]
    check(lines > 1500 and same == lines, f"{name}: tokens of {lines - same} of {lines} lines")
    print(f"{name}: {same} of {lines} lines have llama.cpp's tokens by Hugging Face's tokenizers")


def run(model, dtype, folder):
    subprocess.run([LARQL, "extract", model, "-o", folder, "--dtype", dtype, "-q"], check=True)
    judge_tensors(model, folder, dtype)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        for i, model in enumerate(sys.argv[1:]):
            for dtype in ("f32", "f16"):
                folder = os.path.join(tmp, f"{i}-{dtype}")
                run(model, dtype, folder)
                if dtype == "f16":
                    judge_tokenizer("gemma" if "gemma" in os.path.basename(model) else "smollm2", folder)
                subprocess.run(["rm", "-r", folder], check=True)
        for arch in ("llama", "gemma3", "qwen2", "qwen3"):
            model = os.path.join(tmp, f"{arch}.gguf")
            subprocess.run([sys.executable, os.path.join(HERE, "make_model.py"), model, "--arch", arch, "--layers", "2", "--hidden", "256",
                            "--ffn", "512", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--type", "Q4_K", "--down-type", "Q6_K",
                            "--untied", "--embed-type", "Q4_K"], check=True)
            for dtype in ("q4k", "f32"):
                run(model, dtype, os.path.join(tmp, f"{arch}-{dtype}"))
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
