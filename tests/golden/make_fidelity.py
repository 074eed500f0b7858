"""Figures of client/fidelity.h by numpy in float64, as JSON on stdout: rows of logits and what is
made of them, rows of a layer and what a format left of them. Values come from a fixed seed."""
import json

import numpy as np

rng = np.random.default_rng(5)


def f32(v):
    return np.asarray(v, dtype=np.float32)


def logits_case(want, got, k):
    def log_softmax(v):
        v = v.astype(np.float64)
        return v - np.logaddexp.reduce(v)
    p, q = log_softmax(want), log_softmax(got)
    def order(v):  # the largest first, of equal ones the lower index
        return np.lexsort((np.arange(len(v)), -v))[:k].tolist()
    return {"want": want.astype(float).tolist(), "got": got.astype(float).tolist(), "k": k, "want_top": order(want),
            "got_top": order(got), "log_sum": float(np.logaddexp.reduce(want.astype(np.float64))), "kl": float(np.sum(np.exp(p) * (p - q)))}


def row_case(row, got):
    size = np.abs(row)
    median = np.sort(size)[len(row) // 2]
    ordinary = size < np.float32(100) * median
    off = np.linalg.norm((got.astype(np.float64) - row)[ordinary])
    norm = np.linalg.norm(row.astype(np.float64)[ordinary])
    return {"row": row.astype(float).tolist(), "got": got.astype(float).tolist(), "median": float(median),
            "nonzero": int(np.count_nonzero(row)), "zeroed": int(np.sum((row != 0) & (got == 0))),
            "ordinary": int(np.sum(ordinary)), "error": float(off / norm) if norm > 0 else 0.0}


def i8(row):  # as docs/protocol.md has it: one scale a row
    scale = np.float32(np.max(np.abs(row)) / 127)
    return row if scale == 0 else f32(np.rint(row / scale)) * scale


def main():
    logits = []
    for n, spread, noise, k in ((3, 1, 0.1, 1), (17, 5, 1e-3, 5), (200, 8, 0.5, 10), (333, 0.01, 20, 100)):
        want = f32(rng.normal(0, spread, n))
        logits.append(logits_case(want, f32(want + rng.normal(0, noise, n)), k))
    ties = f32(rng.integers(-3, 3, 60))
    logits.append(logits_case(ties, f32(ties[::-1].copy()), 20))
    logits.append(logits_case(f32([3000.0, -3000.0, 2999.5]), f32([2999.0, -3000.0, 3000.0]), 3))
    rows = []
    for n, massive in ((1, 0), (2, 0), (7, 1), (64, 0), (576, 1), (640, 3)):
        row = f32(rng.normal(0, 1, n))
        row[rng.integers(0, n, massive)] = 30000
        rows.append(row_case(row, i8(row)))
        rows.append(row_case(row, f32(row.astype(np.float16))))
    rows.append(row_case(f32(np.zeros(9)), f32(np.zeros(9))))
    rows.append(row_case(f32([0, 0, 0, 0, 5]), f32([0, 0, 0, 0, 5])))  # most are zero: the median is too, none is ordinary
    print(json.dumps({"logits": logits, "rows": rows}))


main()
