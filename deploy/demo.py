#!/usr/bin/python3
"""make demo: a router and two shards on this machine, an answer through them.

demo.py MODEL.gguf. Programs come from $LQ_BUILD/bin (default build/bin).
Nothing is left running, also when it fails or is interrupted.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PROMPT = "The capital of France is"
TOKENS = 32
READY_S = 60
BIN = os.path.join(os.environ.get("LQ_BUILD", "build"), "bin")


class Failed(Exception):
    pass


class Server:
    """One program of the grid, in a process group of its own."""

    running = []

    def __init__(self, name, args, log_dir):
        self.name = name
        self.log_path = os.path.join(log_dir, name + ".log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=log, text=True,
                                            start_new_session=True)
        Server.running.append(self)
        line = self.process.stdout.readline()  # ends when the process does
        if not line.startswith("ready url="):
            raise Failed(f"{name} did not start:\n{self.log()}")
        self.url = line.split("=", 1)[1].strip()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-20:])

    @classmethod
    def stop_all(cls):
        for s in cls.running:
            if s.process.poll() is None:
                s.process.terminate()
        for s in cls.running:
            try:
                s.process.wait(10)
            except subprocess.TimeoutExpired:
                s.process.kill()
                s.process.wait()
        cls.running.clear()


def program(name):
    path = os.path.join(BIN, name)
    if not os.access(path, os.X_OK):
        raise Failed(f"{path} is missing: run make first")
    return path


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def wait_healthy(url):
    until = time.monotonic() + READY_S
    while True:
        try:
            health = get(url + "/v1/health")
            if health["status"] == "ok" and health["coverage"]["live"] == health["coverage"]["mapped"]:
                return
        except (urllib.error.URLError, OSError, ValueError, KeyError):
            pass
        if time.monotonic() > until:
            raise Failed(f"the grid at {url} is not healthy after {READY_S} s")
        time.sleep(0.05)


def start_grid(model, layers, log_dir):
    half = layers // 2
    ranges = [f"0-{half - 1}", f"{half}-{layers - 1}"] if half else [f"0-{layers - 1}"]
    shards = [Server(f"shard-{r}", [program("larql-shard"), model, "--layers", r, "--port", "0"], log_dir)
              for r in ranges]
    table = ",".join(f"{r}={s.url}" for r, s in zip(ranges, shards))
    router = Server("router", [program("larql-router"), "--shards", table, "--port", "0"], log_dir)
    wait_healthy(router.url)
    return router


def print_grid(router):
    stats = get(router.url + "/v1/stats")
    print(f"\nrouter {router.url}   {stats['model']}: {stats['layers']} layers of hidden size {stats['hidden_size']}")
    for route in get(router.url + "/v1/topology")["routes"]:
        for replica in route["replicas"]:
            span = f"{route['layer_start']}-{route['layer_end']}"
            print(f"  layers {span:>7}  {replica['url']}  {replica['state']}")


def run(model, url, wire, log_dir):
    print(f"\n--- wire {wire}\n{PROMPT}", end="", flush=True)
    stats_path = os.path.join(log_dir, f"run-{wire}.json")
    command = [program("larql"), "run", model, "--ffn", url, "--prompt", PROMPT, "-n", str(TOKENS), "--wire", wire,
               "--stats-json", stats_path]
    environment = {k: v for k, v in os.environ.items() if k not in ("LARQL_F16_WIRE", "LARQL_I8_WIRE")}
    with open(os.path.join(log_dir, f"run-{wire}.log"), "w+", encoding="utf-8") as log:
        code = subprocess.call(command, stderr=log, env=environment)
        log.seek(0)
        if code != 0:
            raise Failed(f"larql run ended with {code}:\n{log.read()}")
    print()
    with open(stats_path, encoding="utf-8") as f:
        return json.load(f)


def same_prefix(a, b):
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n


def print_table(results):
    reference = results["f32"]["generated"]
    print("\nwire   tok/s   ms/token   KB/token up   KB/token down   tokens equal to f32")
    for wire, s in results.items():
        fed = s["tokens_fed"]
        print(f"{wire:<4} {s['decode_tok_per_s']:>7.1f} {s['decode_ms_per_token_p50']:>10.2f} "
              f"{s['bytes_up'] / fed / 1000:>13.1f} {s['bytes_down'] / fed / 1000:>15.1f} "
              f"{same_prefix(reference, s['generated']):>11} of {len(reference)}")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    model = sys.argv[1]
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, lambda *_: sys.exit(130))
    with tempfile.TemporaryDirectory(prefix="larql-demo-") as log_dir:
        try:
            info = subprocess.run([program("larql"), "info", model], stdout=subprocess.PIPE, text=True, check=False)
            if info.returncode != 0:
                return info.returncode
            router = start_grid(model, json.loads(info.stdout)["layers"], log_dir)
            print_grid(router)
            print_table({wire: run(model, router.url, wire, log_dir) for wire in ("f32", "f16", "i8")})
            return 0
        except Failed as why:
            print(f"demo: {why}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            Server.stop_all()


if __name__ == "__main__":
    sys.exit(main())
