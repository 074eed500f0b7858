#!/usr/bin/python3
"""whole.py [--json]: whole models, two threads in all: ours beside llama.cpp on the same file,
and the grid (router, two shards, client, on the same CPUs) beside our own local run. 128
tokens after a prompt of about 64, and a prompt of about 256 alone; interleaved rounds, each
side's best counts, since load by others only ever adds. Environment: LQ_BUILD, LQ_GGML_DIR,
LARQL_MODEL_DIR, as `make bench` sets them. LQ_BENCH_ROUNDS=5 for more rounds.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "grid"))
import grid  # noqa: E402

ROUNDS = int(os.environ.get("LQ_BENCH_ROUNDS", "4"))
MADE, LONG = 128, 256
MODELS = {"Gemma 3 270M": ("gemma-3-270m-*.gguf", ["0-8", "9-17"]),
          "SmolLM2 135M": ("SmolLM2-135M-*.gguf", ["0-14", "15-29"])}
TEXT = ("The grid keeps the feed-forward layers of a large language model on other machines. A client holds the "
        "embeddings, the attention and the cache, and for each layer it sends the hidden state over the network and "
        "waits for an answer. Here is the first thing to understand about it: the ")


def ours(folder, model, prompt, made, *args):
    """The statistics of one run."""
    path, text = os.path.join(folder, "stats.json"), os.path.join(folder, "prompt.txt")
    with open(text, "w", encoding="ascii") as f:
        f.write(prompt)
    done = grid.larql("run", model, "--prompt-file", text, "-n", str(made), "--ignore-eos", "--quiet", "--stats-json", path, *args)
    if done.returncode != 0:
        sys.exit(f"whole: {model}: {done.stderr.strip()}")
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def theirs(model):
    done = subprocess.run([os.path.join(grid.BUILD, "bench", "tools", "llama"), model, "2", "1"], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"whole: llama.cpp: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(name, model, ranges, folder):
    best = {}

    def keep(what, tokens_per_s):
        best[what] = max(best.get(what, 0), tokens_per_s)

    local = ("--ffn", "local", "--threads", "2")
    with grid.Grid(model, ranges, "--threads", "2") as g, grid.Grid(model, ranges, "--threads", "2", "--activations", "8") as g8:
        sides = {"local": (*local,), "local 8": (*local, "--activations", "8"), "local f32": (*local, "--activations", "f32"),
                 "grid": ("--ffn", g.url, "--threads", "2"),
                 "grid 8": ("--ffn", g8.url, "--threads", "2", "--activations", "8")}
        for _ in range(ROUNDS):
            t = theirs(model)
            keep("llama", t["made_n"] / t["made_ms"] * 1e3)
            keep("llama long", t["prompt_n"] / t["prompt_ms"] * 1e3)
            for side, args in sides.items():
                keep(side, ours(folder, model, TEXT, MADE, *args)["decode_tok_per_s"])
                if side.startswith("local"):
                    keep(f"{side} long", ours(folder, model, TEXT * 5, 1, *args)["prefill_tok_per_s"])

    def beside(case, of, over, bar):
        return row("whole", f"{name}: {case}", best[of] / best[over], bar, f"{best[of]:.1f} tokens/s beside {best[over]:.1f}")

    return [beside("local, x llama.cpp", "local", "llama", 1.0), beside("local 8 bit, x llama.cpp", "local 8", "llama", 1.0),
            beside("local f32, x llama.cpp", "local f32", "llama", None),
            beside("long prompt, x llama.cpp", "local long", "llama long", 1.0),
            beside("long prompt 8 bit, x llama.cpp", "local 8 long", "llama long", 1.0),
            beside("router and two shards, x local", "grid", "local", 0.85),
            beside("the same, 8 bit", "grid 8", "local 8", 0.85)]


def find(pattern):
    found = glob.glob(os.path.join(os.environ["LARQL_MODEL_DIR"], pattern))
    if len(found) != 1:
        sys.exit(f"{pattern}: {len(found)} files in LARQL_MODEL_DIR, expected one: `make models`")
    return found[0]


def row(bench, case, value, bar, note, better="higher", unit="ratio"):
    """As bench/support/report.h."""
    ok = bar is None or (value >= bar if better == "higher" else value <= bar)
    return {"bench": bench, "case": case, "value": value, "bar": bar, "better": better, "unit": unit, "ok": ok, "note": note}


def show(rows):
    if sys.argv[1:] == ["--json"]:
        json.dump(rows, sys.stdout)
        return
    for r in rows:
        print(f"{r['case']:<48} {r['value']:<8.4g} {'' if r['bar'] is None else 'ok' if r['ok'] else 'MISSED'}  {r['note']}")


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (pattern, ranges) in MODELS.items():
            rows += measure(name, find(pattern), ranges, folder)
    show(rows)


if __name__ == "__main__":
    main()
