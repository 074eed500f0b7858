"""The installed tree and the model of this folder's checks."""
import faulthandler
import os
import subprocess
import sys

import pytest

import tree
from tree import grid


@pytest.fixture(autouse=True)
def limit():
    """A test that hangs shows where and fails the run. Some fetch and build."""
    faulthandler.dump_traceback_later(400 * grid.TIMEOUT_X, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """As `make install PREFIX=/usr DESTDIR=...` leaves it."""
    root = str(tmp_path_factory.mktemp("root"))
    tree.install("install", root, PREFIX="/usr")
    return root


@pytest.fixture(scope="session")
def model():
    """Hidden size 6, 8 layers."""
    os.makedirs(os.path.join(tree.BUILD, "models"), exist_ok=True)
    path = os.path.join(tree.BUILD, "models", "deploy.gguf")
    subprocess.run([sys.executable, os.path.join(tree.ROOT, "tests", "tools", "make_model.py"), path, "--arch", "llama", "--layers",
                    "8", "--hidden", "6", "--ffn", "8", "--heads", "3", "--kv-heads", "3", "--type", "F32", "--seed", "1"],
                   check=True)
    return path
