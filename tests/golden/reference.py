#!/usr/bin/python3
"""The outside judge of the arithmetic: numpy on weights that the `gguf` package dequantised.

    python3 reference.py MODEL.gguf IDS.txt > logits-NAME.json

An independent forward pass in float64, written from the architectures' papers and reference
implementations, for llama, gemma3, qwen2 and qwen3. Needs numpy and gguf (see run.sh).
Per position: the largest |logit|, the ten best, and those of 256 fixed ids.
--check DUMP compares a dump of `larql run --teacher IDS.txt --logits-out DUMP` on the spot.
"""
import argparse
import importlib.metadata
import json

import numpy as np
from gguf import GGUFReader, dequantize

SAMPLES = 256


class Model:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.family = self.field("general.architecture")
        get = lambda key, default=None: self.field(f"{self.family}.{key}", default)
        self.layers, self.hidden = get("block_count"), get("embedding_length")
        self.heads = get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv", self.heads)
        self.head_dim = get("attention.key_length", self.hidden // self.heads)
        self.eps = get("attention.layer_norm_rms_epsilon", 1e-6)
        self.rope_dims = get("rope.dimension_count", self.head_dim)
        gemma = self.family == "gemma3"
        self.rope_base = get("rope.freq_base", 1000000.0 if gemma else 10000.0)
        self.rope_factor = get("rope.scaling.factor", 1.0)
        self.window = get("attention.sliding_window", 0) if gemma else 0

    def field(self, key, default=None):
        f = self.reader.fields.get(key)
        return default if f is None else f.contents()

    def weight(self, name, optional=False):
        t = self.tensors.get(name)
        if t is None:
            if optional:
                return None
            raise KeyError(name)
        return dequantize(t.data, t.tensor_type).astype(np.float64).reshape(tuple(int(d) for d in reversed(t.shape)))


def rms(x, w, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w


def rotate(x, positions, dims, base, factor, pairs):
    """x: [tokens, heads, head_dim]. llama's rows were permuted by the converter: neighbours pair."""
    half = dims // 2
    angle = positions[:, None] / factor * base ** (-2.0 * np.arange(half) / dims)[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    out = x.copy()
    first, second = (np.arange(half) * 2, np.arange(half) * 2 + 1) if pairs else (np.arange(half), np.arange(half) + half)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def attention(q, k, v, scale, window):
    tokens, heads, _ = q.shape
    share = heads // k.shape[1]
    k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    i, j = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    visible = (j <= i) & ((i - j < window) if window else True)
    scores = np.where(visible[None], scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, v)


def act(family, x):
    if family == "gemma3":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
    return x / (1 + np.exp(-x))


def forward(m, ids):
    gemma, pairs = m.family == "gemma3", m.family in ("llama", "mistral")
    embed = m.weight("token_embd.weight")
    x = embed[ids] * (np.sqrt(m.hidden) if gemma else 1.0)
    positions = np.arange(len(ids), dtype=np.float64)
    for i in range(m.layers):
        w = lambda name, optional=False: m.weight(f"blk.{i}.{name}", optional)
        local = gemma and m.window and i % 6 != 5
        base, factor = (10000.0, 1.0) if local else (m.rope_base, m.rope_factor)
        h = rms(x, w("attn_norm.weight"), m.eps)
        q, k, v = (h @ w(f"attn_{n}.weight").T for n in "qkv")
        for name, t in (("q", q), ("k", k), ("v", v)):
            bias = w(f"attn_{name}.bias", True)
            if bias is not None:
                t += bias
        q, k, v = (t.reshape(len(ids), -1, m.head_dim) for t in (q, k, v))
        if m.family in ("gemma3", "qwen3"):
            q, k = rms(q, w("attn_q_norm.weight"), m.eps), rms(k, w("attn_k_norm.weight"), m.eps)
        q, k = (rotate(t, positions, m.rope_dims, base, factor, pairs) for t in (q, k))
        a = attention(q, k, v, m.head_dim ** -0.5, m.window if local else 0).reshape(len(ids), -1) @ w("attn_output.weight").T
        x = x + (rms(a, w("post_attention_norm.weight"), m.eps) if gemma else a)
        h = rms(x, w("ffn_norm.weight"), m.eps)
        f = (act(m.family, h @ w("ffn_gate.weight").T) * (h @ w("ffn_up.weight").T)) @ w("ffn_down.weight").T
        x = x + (rms(f, w("post_ffw_norm.weight"), m.eps) if gemma else f)
    head = m.weight("output.weight", True)
    return rms(x, m.weight("output_norm.weight"), m.eps) @ (embed if head is None else head).T


def read_dump(path):
    raw = open(path, "rb").read()
    assert raw[:4] == b"LQLG"
    _, vocab, positions = np.frombuffer(raw, "<u4", 3, 4)
    return np.frombuffer(raw, "<f4", offset=16).reshape(positions, vocab)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("ids")
    p.add_argument("--check")
    o = p.parse_args()
    ids = [int(x) for x in open(o.ids, encoding="ascii").read().split()]
    logits = forward(Model(o.model), np.array(ids))
    if o.check:
        delta = np.abs(read_dump(o.check) - logits).max(axis=1)
        print(f"max |delta| / max |logit| = {(delta / np.abs(logits).max(axis=1)).max():.3g} over {len(ids)} positions")
        return
    sample = sorted(np.random.default_rng(1).choice(logits.shape[1], SAMPLES, replace=False).tolist())
    name = o.model.rsplit("/", 1)[-1]
    print(json.dumps({
        "command": f"python3 reference.py {name} {o.ids.rsplit('/', 1)[-1]}",
        "versions": {n: importlib.metadata.version(n) for n in ("numpy", "gguf")},
        "ids": ids, "sample_ids": sample,
        "positions": [{"max": round(float(np.abs(row).max()), 6),
                       "top": [[int(t), round(float(row[t]), 6)] for t in np.argsort(-row)[:10]],
                       "sample": [round(float(v), 5) for v in row[sample]]} for row in logits]}))


if __name__ == "__main__":
    main()
