"""The Containerfile, really built, on a Debian that mmdebstrap makes here instead of one from a registry.

Slow (a minute): `make check-container`, not a part of `make check`. buildah builds and runs in
chroots, so no engine and no network of containers is needed.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile

import pytest

import clean_root
import tree
import grid

BASE, IMAGE = "localhost/debian:12-slim", "localhost/larql-grid:test"
slow = pytest.mark.skipif(not os.environ.get("LQ_CONTAINER"), reason="slow: make check-container")


def words(store, *args):
    """buildah's command line, with a store of its own and no engine."""
    return ["env", "BUILDAH_ISOLATION=chroot", "buildah", "--root", f"{store}/root", "--runroot", f"{store}/run", *args]


def buildah(store, *args):
    return clean_root.run(*words(store, *args), cwd=tree.ROOT).strip()


@pytest.fixture(scope="module")
def container():
    """(store, name, configuration) of a container of the image."""
    if os.geteuid() != 0 or not shutil.which("buildah"):
        pytest.skip("needs root and buildah")
    store = tempfile.mkdtemp(prefix="container-", dir=tree.BUILD)  # large: not among pytest's, which are kept
    try:
        yield build(store)
    finally:
        buildah(store, "rm", "--all")  # and what it has mounted
        shutil.rmtree(store)


def build(store):
    base = buildah(store, "from", "scratch")
    buildah(store, "add", "-q", base, clean_root.base_tar(), "/")
    buildah(store, "commit", "-q", base, BASE)
    buildah(store, "bud", "-q", "--format", "docker", "--pull-never", "--build-arg", f"BASE={BASE}", "-f", "deploy/Containerfile", "-t", IMAGE, ".")
    name = buildah(store, "from", "--pull-never", IMAGE)
    return store, name, json.loads(buildah(store, "inspect", name))["Docker"]["config"]


def run(container, *args):
    return words(container[0], "run", container[1], "--", *args)


@slow
def test_image_says_how_it_is_run(container):
    config = container[2]
    assert config["User"] == "10001:10001" and config["StopSignal"] == "SIGTERM"
    assert set(config["ExposedPorts"]) == {"9090/tcp", "8080/tcp", "50052/tcp"}
    assert config["Healthcheck"]["Test"][0] == "CMD-SHELL" and config["Cmd"] == ["larql", "--help"]


@slow
def test_image_serves_and_its_health_check_tells(container, model):
    store, name, config = container
    root = buildah(store, "mount", name)
    shutil.copy(model, f"{root}/var/lib/larql-grid/m.gguf")
    for program in ("larql", "larql-router", "larql-shard"):
        assert clean_root.run(*run(container, program, "--version")).startswith(program)
    assert "uid=10001" in clean_root.run(*run(container, "id"))
    check = config["Healthcheck"]["Test"][1]

    def health(url):
        return subprocess.run(run(container, "env", f"LARQL_HEALTH_URL={url}", "sh", "-c", check), capture_output=True, check=False).returncode

    user = ["--userspec=10001:10001", root]
    with grid.Proc(["chroot", *user, "larql-shard", "/var/lib/larql-grid/m.gguf", "--port", "0"], "image-shard") as s, \
            grid.Proc(["chroot", *user, "larql-router", "--shards", f"0-7={s.url}", "--port", "0"], "image-router") as r:
        body = json.dumps({"layer": 3, "residual": [0.5] * 6, "full_output": True}).encode()
        assert grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})[0] == 200
        assert health(s.url + "/v1/health") == 0 and health(r.url + "/v1/health") == 0
        assert health(s.url + "/v1/none") != 0
    assert health(s.url + "/v1/health") != 0


def test_containerfile_is_as_it_should_be():
    """What needs no build: two stages, one base, not root at the end, no key as a word."""
    with open(os.path.join(tree.ROOT, "deploy", "Containerfile"), encoding="utf-8") as f:
        lines = [line for line in re.sub(r"\\\n\s*", " ", f.read()).splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if line.startswith("FROM")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert not [line for line in lines if "KEY" in line.upper() and line.split()[0] in ("ENV", "ARG", "RUN", "CMD", "ENTRYPOINT")]
