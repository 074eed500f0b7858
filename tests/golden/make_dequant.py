#!/usr/bin/python3
"""Random blocks of each quantised type, and the values that the `gguf` package reads there.

    python3 make_dequant.py > dequant.json
"""
import importlib.metadata
import json
import random

import numpy as np
from gguf import GGMLQuantizationType as T, dequantize

BLOCKS = 3
# type: (bytes of a block, offsets of its f16 scales)
TYPES = {T.F16: (2, ()), T.BF16: (2, ()), T.Q4_0: (18, (0,)), T.Q4_1: (20, (0, 2)), T.Q5_0: (22, (0,)), T.Q5_1: (24, (0, 2)),
         T.Q8_0: (34, (0,)), T.Q4_K: (144, (0, 2)), T.Q5_K: (176, (0, 2)), T.Q6_K: (210, (208,))}
SCALES = [1.0, -0.5, 0.0123, 6e-8, 6.2e-5, 1000.0, 65504.0, 0.0, -0.0]


def main():
    r = random.Random(7)
    out = {"command": "python3 make_dequant.py", "gguf": importlib.metadata.version("gguf"), "cases": []}
    for kind, (size, scales) in TYPES.items():
        data = bytearray(r.randbytes(size * (BLOCKS if scales else 64) * (3 if scales else 1)))
        for at in range(0, len(data), size):
            for s in scales:
                data[at + s:at + s + 2] = np.float16(r.choice(SCALES) * r.uniform(0.5, 1)).tobytes()
            if not scales and kind == T.F16 and data[at + 1] & 0x7c == 0x7c:
                data[at + 1] &= 0x83  # a finite half
            if not scales and kind == T.BF16 and data[at + 1] & 0x7f == 0x7f:
                data[at + 1] &= 0x80
        values = dequantize(np.frombuffer(bytes(data), np.uint8).reshape(1, -1), kind).astype("<f4")
        out["cases"].append({"type": kind.name, "bytes": bytes(data).hex(), "f32": values.tobytes().hex()})
    print(json.dumps(out, indent=0))


if __name__ == "__main__":
    main()
