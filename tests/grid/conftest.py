"""Models for the tests of this folder."""
import faulthandler
import os
import subprocess
import sys

import pytest

import grid

MAKE_MODEL = os.path.join(os.path.dirname(__file__), "..", "tools", "make_model.py")


def make(name, *args):
    os.makedirs(os.path.join(grid.BUILD, "models"), exist_ok=True)
    path = os.path.join(grid.BUILD, "models", name)
    subprocess.run([sys.executable, MAKE_MODEL, path, *args], check=True)
    return path


@pytest.fixture(autouse=True)
def limit():
    """A test that hangs shows where and fails the run."""
    faulthandler.dump_traceback_later(120 * grid.TIMEOUT_X, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def synthetic():
    """Hidden size 6, 8 layers: the size of tests/vectors."""
    return make("tiny.gguf", "--arch", "llama", "--layers", "8", "--hidden", "6", "--ffn", "8", "--heads", "3",
                "--kv-heads", "3", "--type", "F32", "--seed", "1")


@pytest.fixture(scope="session")
def big_synthetic():
    """Work enough to be in flight for a while: 2 layers, 512 x 4096."""
    return make("wide.gguf", "--arch", "llama", "--layers", "2", "--hidden", "512", "--ffn", "4096", "--heads", "8",
                "--kv-heads", "8", "--type", "F16", "--seed", "2")


def real_model(variable, name):
    path = os.environ.get(variable) or os.path.join(
        os.environ.get("LARQL_MODEL_DIR") or os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "larql-grid", "models"), name)
    assert os.path.exists(path), f"{path} is missing: run `make models`"
    return path


@pytest.fixture(scope="session")
def gemma():
    return real_model("LQ_MODEL_GEMMA", "gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def smollm2():
    return real_model("LQ_MODEL_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf")
