"""What the checks of deploy/ share: make, folders, an option that must exist, a venv outside the source tree."""
import os
import re
import subprocess
import sys


HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "grid"))

import grid  # noqa: E402

BUILD = os.path.abspath(grid.BUILD)
CACHE = os.path.join(os.environ.get("LQ_DEPLOY_CACHE") or os.path.expanduser("~/.cache/larql-grid"), "deploy")


def make(*words):
    """The flags are those of the make that runs the tests, if one does; it has built what there is to build."""
    env = {**os.environ, "MAKELEVEL": "0"}
    done = subprocess.run(["make", "-s", f"BUILD={grid.BUILD}", *words], cwd=ROOT, env=env, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(target, root, **where):
    """make TARGET into the empty folder root; the path of what is there, relative to it."""
    make(target, f"DESTDIR={root}", *(f"{k}={v}" for k, v in where.items()))
    return files(root)


def files(root):
    return sorted(os.path.relpath(os.path.join(d, f), root) for d, _, names in os.walk(root) for f in names)


def check_options(program, text):
    """Every --option in text is one of program's."""
    helptext = subprocess.run([grid.program(program), "--help"], check=True, capture_output=True, text=True).stdout
    have = set(re.findall(r"--[a-z0-9][a-z0-9-]*", helptext))
    missing = set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", text)) - have
    assert not missing, f"{program} has no {sorted(missing)}"


def venv(*requirements):
    """A python with these of PyPI, cached outside the tree; None: it cannot be had."""
    where = os.path.join(CACHE, "venv-" + "-".join(r.replace("==", "-") for r in requirements))
    python = os.path.join(where, "bin", "python")
    if not os.path.exists(os.path.join(where, "complete")):
        subprocess.run(["rm", "-rf", where], check=True)
        for step in (["/usr/bin/python3", "-m", "venv", where], [python, "-m", "pip", "install", "-q", *requirements]):
            if subprocess.run(step, capture_output=True, check=False).returncode != 0:
                return None
        open(os.path.join(where, "complete"), "w", encoding="utf-8").close()
    return python
