#!/usr/bin/python3
"""A model's identity as model/identity.h defines it, by another implementation.

identity.py MODEL.gguf [A-B]   prints JSON: identity, layer_hashes (of all layers, or A-B), tensors.
Standard library only; whole files, not splits.
"""
import hashlib
import json
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 12: (256, 144),
          13: (256, 176), 14: (256, 210), 30: (1, 2)}
FFN = ("down", "gate", "up")


class Gguf:
    """names -> (head as it is hashed, offset in the file, bytes); data_at, bytes of the file"""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.raw = f.read()
        self.at = 4
        assert self.raw[:4] == b"GGUF"
        version, tensors_n, kvs_n = self.take("<IQQ")
        assert version in (2, 3)
        self.meta = {}
        for _ in range(kvs_n):
            key = self.text().decode()
            self.meta[key] = self.value(self.take("<I")[0])
        heads = [self.head() for _ in range(tensors_n)]
        align = self.meta.get("general.alignment", 32)
        self.data_at = (self.at + align - 1) // align * align
        self.tensors = {name: (head, self.data_at + offset, size) for name, head, offset, size in heads}

    def take(self, form):
        out = struct.unpack_from(form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return out

    def text(self):
        n, = self.take("<Q")
        self.at += n
        return self.raw[self.at - n:self.at]

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.take("<IQ")
            if inner == 8:
                return [self.text() for _ in range(n)]
            return self.take(f"<{n}{SCALARS[inner]}")
        return self.take("<" + SCALARS[kind])[0]

    def head(self):
        name = self.text()
        dims = self.take("<%dQ" % self.take("<I")[0])
        kind, offset = self.take("<IQ")
        values = 1
        for d in dims:
            values *= d
        block_n, block_bytes = BLOCKS[kind]
        head = struct.pack("<I", len(name)) + name + struct.pack("<II", kind, len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        return name.decode(), head, offset, values // block_n * block_bytes

    def layers_n(self):
        return self.meta[self.meta["general.architecture"].decode() + ".block_count"]

    def bytes_of(self, name):
        _, at, n = self.tensors[name]
        return self.raw[at:at + n]


def model_hash(g):
    return hashlib.sha256(b"larql-model-1\n" + b"".join(
        g.tensors[name][0] for name in sorted(g.tensors, key=str.encode))).hexdigest()


def layer_hash(g, layer):
    names = [f"blk.{layer}.ffn_{part}.weight" for part in FFN]
    return hashlib.sha256(b"larql-layer-1\n" + b"".join(
        g.tensors[n][0] + hashlib.sha256(g.bytes_of(n)).digest() for n in names)).hexdigest()


def identity(path, first=0, last=None):
    g = Gguf(path)
    last = g.layers_n() - 1 if last is None else last
    return {"identity": model_hash(g), "layer_hashes": [layer_hash(g, i) for i in range(first, last + 1)]}


if __name__ == "__main__":
    first_layer, last_layer = map(int, sys.argv[2].split("-")) if len(sys.argv) > 2 else (0, None)
    print(json.dumps(identity(sys.argv[1], first_layer, last_layer), indent=1))
