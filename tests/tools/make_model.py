#!/usr/bin/python3
"""Writes a small GGUF model of any shape with seeded random weights, for tests.

make_model.py OUT.gguf --arch llama --layers 8 --hidden 6 --ffn 8 ...
Standard library only. Block types (Q8_0, Q4_0, Q4_K, ...) get random blocks whose
scales are small and finite. --split N writes OUT-0000K-of-0000N.gguf instead.

--fast is for the models of benchmarks: gigabytes in seconds. A tensor is then pieces of
one pool of random blocks, and the blocks of every type have the mean and the spread of
a trained layer, so that no activation runs away over many layers:
make_model.py OUT.gguf --fast --layers 4 --hidden 5120 --ffn 13824 --heads 40 --kv-heads 8 --type Q4_K
"""
import argparse
import array
import random
import struct
import sys

U32, F32V, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
# name: (ggml type, values in a block, bytes of a block, offsets of f16 scales in it)
TYPES = {
    "F32": (0, 1, 4, ()), "F16": (1, 1, 2, ()), "BF16": (30, 1, 2, ()),
    "Q4_0": (2, 32, 18, (0,)), "Q4_1": (3, 32, 20, (0, 2)), "Q5_0": (6, 32, 22, (0,)), "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)), "Q4_K": (12, 256, 144, (0, 2)), "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
ALIGN = 32
# Of a block of random bits: its values' root mean square, scale 1 and centred, and what
# its second scale must be times the first to be centred.
SHAPE = {
    "Q4_0": (4.6, 0), "Q4_1": (4.6, -7.5), "Q5_0": (9.2, 0), "Q5_1": (9.2, -15.5), "Q8_0": (74, 0),
    "Q4_K": (258, 7.5), "Q5_K": (527, 15.5), "Q6_K": (1369, 0),
}
POOL_BYTES = 1 << 21


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def kv(key, kind, value):
    out = text(key) + struct.pack("<I", kind)
    if kind == U32:
        return out + struct.pack("<I", value)
    if kind == F32V:
        return out + struct.pack("<f", value)
    if kind == BOOL:
        return out + struct.pack("<?", value)
    if kind == STRING:
        return out + text(value)
    inner, items = value
    out += struct.pack("<IQ", inner, len(items))
    if inner == STRING:
        return out + b"".join(text(x) for x in items)
    return out + array.array({U32: "I", 5: "i", F32V: "f"}[inner], items).tobytes()


class Weights:
    def __init__(self, seed, fast):
        self.random = random.Random(seed)
        self.fast = fast
        self.pools = {}

    def floats(self, n, spread):
        r = self.random.random
        return array.array("f", ((r() * 2 - 1) * spread for _ in range(n)))

    def data(self, kind, n, spread, centre=0.0):
        _, block_n, block_bytes, scales = TYPES[kind]
        if block_n == 1:
            values = self.floats(n, spread)
            if centre:
                values = array.array("f", (v + centre for v in values))
            if kind == "F32":
                return values.tobytes()
            if kind == "F16":
                return b"".join(struct.pack("<%de" % len(p), *p) for p in (values[i:i + 4096] for i in range(0, n, 4096)))
            return b"".join(struct.pack("<f", v)[2:] for v in values)
        if self.fast:
            return self.centred_blocks(kind, n // block_n, spread)
        blocks = bytearray(self.random.randbytes(n // block_n * block_bytes))
        for at in range(0, len(blocks), block_bytes):
            for s in scales:
                struct.pack_into("<e", blocks, at + s, self.random.uniform(0.2, 1) * spread / 64)
        return bytes(blocks)

    def centred_blocks(self, kind, blocks_n, spread):
        _, _, block_bytes, scales = TYPES[kind]
        rms, second = SHAPE[kind]
        blocks = bytearray(self.random.randbytes(blocks_n * block_bytes))
        for at in range(0, len(blocks), block_bytes):
            first = self.random.uniform(0.7, 1.3) * spread / 3 ** 0.5 / rms
            for s, times in zip(scales, (1, second)):
                struct.pack_into("<e", blocks, at + s, first * times)
        return bytes(blocks)

    def pieces(self, kind, n, spread, centre):
        """The bytes of n values, in pieces; --fast: of a pool, each from a random block of it."""
        _, block_n, block_bytes, _ = TYPES[kind]
        pool_blocks = POOL_BYTES // block_bytes
        if not self.fast or n // block_n <= pool_blocks:
            yield self.data(kind, n, spread, centre)
            return
        key = (kind, spread, centre)
        if key not in self.pools:
            self.pools[key] = memoryview(self.data(kind, pool_blocks * block_n, spread, centre))
        left = n // block_n
        while left:
            start = self.random.randrange(pool_blocks)
            take = min(left, pool_blocks - start)
            yield self.pools[key][start * block_bytes:(start + take) * block_bytes]
            left -= take


def tokenizer(vocab_n):
    """SentencePiece style: unknown, bos, eos, 256 bytes, then a few pieces with scores."""
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    pieces = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "abc"]
    while len(tokens) < vocab_n:
        i = len(tokens) - 259
        tokens.append(pieces[i] if i < len(pieces) else f"▁t{i}")
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    scores = [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)]
    return [kv("tokenizer.ggml.model", STRING, "llama"), kv("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
            kv("tokenizer.ggml.scores", ARRAY, (F32V, scores)), kv("tokenizer.ggml.token_type", ARRAY, (5, types)),
            kv("tokenizer.ggml.bos_token_id", U32, 1), kv("tokenizer.ggml.eos_token_id", U32, 2),
            kv("tokenizer.ggml.unknown_token_id", U32, 0), kv("tokenizer.ggml.add_bos_token", BOOL, True)]


def metadata(o, head_dim):
    a = o.arch
    out = [kv("general.architecture", STRING, a), kv("general.name", STRING, f"synthetic {a}"),
           kv(f"{a}.block_count", U32, o.layers), kv(f"{a}.context_length", U32, o.context),
           kv(f"{a}.embedding_length", U32, o.hidden), kv(f"{a}.feed_forward_length", U32, o.ffn),
           kv(f"{a}.attention.head_count", U32, o.heads), kv(f"{a}.attention.head_count_kv", U32, o.kv_heads),
           kv(f"{a}.attention.layer_norm_rms_epsilon", F32V, 1e-6), kv(f"{a}.rope.freq_base", F32V, o.rope_base)]
    if a in ("gemma3", "qwen3") or o.head_dim:
        out += [kv(f"{a}.attention.key_length", U32, head_dim), kv(f"{a}.attention.value_length", U32, head_dim)]
    if a == "gemma3":
        out.append(kv("gemma3.attention.sliding_window", U32, o.window))
    if o.rope_factor:
        out += [kv(f"{a}.rope.scaling.type", STRING, "linear"), kv(f"{a}.rope.scaling.factor", F32V, o.rope_factor)]
    return out + tokenizer(o.vocab)


def tensors(o, head_dim):
    """(name, dims in ggml's order, type, spread, centre)"""
    a, h, f = o.arch, o.hidden, o.ffn
    q, kvd = o.heads * head_dim, o.kv_heads * head_dim
    out = [("token_embd.weight", (h, o.vocab), o.embed_type or o.type, 1.0, 0.0), ("output_norm.weight", (h,), "F32", 0.1, 1.0)]
    if o.untied:
        out.append(("output.weight", (h, o.vocab), o.embed_type or o.type, 1.0, 0.0))
    for i in range(o.layers):
        b = f"blk.{i}."
        norms = ["attn_norm", "ffn_norm"] + (["post_attention_norm", "post_ffw_norm"] if a == "gemma3" else [])
        out += [(f"{b}{n}.weight", (h,), "F32", 0.1, 1.0) for n in norms]
        if a in ("gemma3", "qwen3"):
            out += [(f"{b}attn_{n}_norm.weight", (head_dim,), "F32", 0.1, 1.0) for n in "qk"]
        out += [(f"{b}attn_q.weight", (h, q), o.type, 0.6, 0.0), (f"{b}attn_k.weight", (h, kvd), o.type, 0.6, 0.0),
                (f"{b}attn_v.weight", (h, kvd), o.down_type or o.type, 0.6, 0.0), (f"{b}attn_output.weight", (q, h), o.type, 0.6, 0.0)]
        if a == "qwen2":
            out += [(f"{b}attn_{n}.bias", (d,), "F32", 0.5, 0.0) for n, d in (("q", q), ("k", kvd), ("v", kvd))]
        if o.no_ffn:
            continue
        out += [(f"{b}ffn_gate.weight", (h, f), o.type, 0.8, 0.0), (f"{b}ffn_up.weight", (h, f), o.type, 0.8, 0.0),
                (f"{b}ffn_down.weight", (f, h), o.down_type or o.type, 0.8, 0.0)]
    return out


def pad(n):
    return (n + ALIGN - 1) // ALIGN * ALIGN


def size_of(kind, dims):
    n = 1
    for d in dims:
        n *= d
    _, block_n, block_bytes, _ = TYPES[kind]
    if dims[0] % block_n:
        sys.exit(f"make_model.py: rows of {dims[0]} cannot be {kind} (blocks of {block_n})")
    return n, n // block_n * block_bytes


def write(path, meta, list_of_tensors, weights, one=None):
    """one: (name, n, value): what value number n of that F32 tensor is instead."""
    head, offset = b"", 0
    for name, dims, kind, _, _ in list_of_tensors:
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", TYPES[kind][0], offset)
        offset += pad(size_of(kind, dims)[1])
    start = b"GGUF" + struct.pack("<IQQ", 3, len(list_of_tensors), len(meta)) + b"".join(meta) + head
    with open(path, "wb") as f:
        f.write(start + b"\0" * (pad(len(start)) - len(start)))
        for name, dims, kind, spread, centre in list_of_tensors:
            n, size = size_of(kind, dims)
            fan_in = dims[0] if len(dims) > 1 else 1
            f.writelines(weights.pieces(kind, n, spread * 3 / fan_in ** 0.5 if len(dims) > 1 else spread, centre))
            if one and one[0] == name:
                f.seek(4 * one[1] - size, 1)
                f.write(struct.pack("<f", one[2]))
                f.seek(0, 2)
            f.write(b"\0" * (pad(size) - size))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--arch", default="llama", choices=["llama", "gemma3", "qwen2", "qwen3"])
    for name, default in (("layers", 8), ("hidden", 6), ("ffn", 8), ("heads", 3), ("kv-heads", 3), ("head-dim", 0),
                          ("vocab", 272), ("context", 512), ("window", 16), ("split", 1), ("seed", 1)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--type", default="F32", choices=list(TYPES))
    p.add_argument("--embed-type", choices=list(TYPES))
    p.add_argument("--down-type", choices=list(TYPES), help="of ffn_down and attn_v, as Q4_K_M has Q6_K there")
    p.add_argument("--fast", action="store_true", help="for large files: weights repeat, other bytes than without it")
    p.add_argument("--untied", action="store_true")
    p.add_argument("--no-ffn", action="store_true", help="leave the FFN tensors out: what a client needs")
    p.add_argument("--nan", metavar="TENSOR:N", help="value number N of that F32 tensor becomes a NaN")
    p.add_argument("--set", metavar="TENSOR:N=V", help="value number N of that F32 tensor becomes V")
    p.add_argument("--rope-base", type=float, default=10000.0)
    p.add_argument("--rope-factor", type=float, default=0.0)
    o = p.parse_args()
    head_dim = o.head_dim or o.hidden // o.heads
    weights = Weights(o.seed, o.fast)
    every = tensors(o, head_dim)
    if o.split == 1:
        name, _, rest = (f"{o.nan}=nan" if o.nan else o.set or "").partition(":")
        number, _, value = rest.partition("=")
        write(o.out, metadata(o, head_dim), every, weights, (name, int(number), float(value)) if name else None)
        return
    for i in range(o.split):
        part = every[len(every) * i // o.split:len(every) * (i + 1) // o.split]
        meta = metadata(o, head_dim) if i == 0 else []
        meta += [text("split.no") + struct.pack("<IH", 2, i),
                 text("split.count") + struct.pack("<IH", 2, o.split),
                 text("split.tensors.count") + struct.pack("<Ii", 5, len(every))]
        write(f"{o.out.removesuffix('.gguf')}-{i + 1:05d}-of-{o.split:05d}.gguf", meta, part, weights)


if __name__ == "__main__":
    main()
