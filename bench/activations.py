#!/usr/bin/python3
"""activations.py [--json]: what activations in digits change on real text (ADR 0011): the first
choice and the divergence at each position of some 1000 tokens, beside exact work.
Environment: as bench/whole.py. Needs 2 GB for a while where temporary files go."""
import json
import os
import subprocess
import sys
import tempfile

import whole

TEXT = os.path.join(os.path.dirname(__file__), "..", "LICENSE")
CHARS = 4700


def dump(folder, model, ids, mode):
    path = os.path.join(folder, mode)
    done = whole.grid.larql("run", model, "--ffn", "local", "--teacher", ids, "--quiet", "--logits-out", path, "--activations", mode)
    if done.returncode != 0:
        sys.exit(f"activations: {model}: {done.stderr.strip()}")
    return path


def main():
    rows = []
    for name, model in ((name, whole.find(pattern)) for name, (pattern, _) in whole.MODELS.items()):
        with tempfile.TemporaryDirectory() as folder:
            ids = os.path.join(folder, "ids")
            with open(TEXT, encoding="ascii") as f, open(ids, "w", encoding="ascii") as out:
                run = whole.ours(folder, model, f.read(CHARS), 1, "--ffn", "local")
                out.write(" ".join(map(str, run["prompt_ids"])))
            exact = dump(folder, model, ids, "f32")
            for mode in ("16", "8"):
                other = dump(folder, model, ids, mode)
                done = subprocess.run([os.path.join(whole.grid.BUILD, "bench", "tools", "kl"), exact, other], capture_output=True,
                                      text=True, check=False)
                if done.returncode != 0:
                    sys.exit(done.stderr.strip())
                os.remove(other)
                got = json.loads(done.stdout)
                note = f"{got['positions']} positions of LICENSE"
                rows.append(whole.row("activations", f"{name}: same first choice, {mode}", got["same_first"], 0.99, note))
                rows.append(whole.row("activations", f"{name}: mean KL, {mode}", got["kl"], 0.01, note, "lower", "nats"))
    whole.show(rows)


if __name__ == "__main__":
    main()
