"""The guides' worked examples, run as they stand: each machine is a network namespace with a name of its own.

Configuration blocks (```ini) become the programs' arguments as systemd would make them; blocks for a
package manager or systemctl are left out. Paths are moved: /etc/larql-grid/, the model and keys/.
"""
import os
import re
import shlex
import subprocess
import sys

import pytest

import grid
import netns
import tree

WHY_NOT = netns.missing()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
              pytest.mark.skipif(grid.SANITIZED, reason="the same as without a sanitizer, slower")]
HEALTH = "on the client: is every layer there?"
MODEL = "/var/lib/larql-grid/models/model.gguf"


def blocks(name):
    """[(language, first line without '# ', the rest)]"""
    with open(os.path.join(tree.ROOT, "docs", name), encoding="utf-8") as f:
        found = re.findall(r"^```(\w+)\n# ([^\n]*)\n(.*?)^```", f.read(), re.M | re.S)
    assert found
    return found


@pytest.fixture(scope="module")
def model18():
    """The example's number of layers."""
    path = os.path.join(tree.BUILD, "models", "guide.gguf")
    subprocess.run([sys.executable, os.path.join(tree.ROOT, "tests", "tools", "make_model.py"), path, "--arch", "llama", "--layers", "18",
                    "--hidden", "6", "--ffn", "8", "--heads", "3", "--kv-heads", "3", "--type", "F32", "--seed", "3"], check=True)
    return path


class Guide:
    """One guide's machines, set up in a folder."""

    def __init__(self, name, folder, model, net):
        self.blocks, self.folder, self.model, self.net = blocks(name), str(folder), model, net

    def moved(self, text, host):
        """text with this folder's paths instead of the machine's."""
        return text.replace("/etc/larql-grid/", f"{self.folder}/{host}/").replace(MODEL, self.model).replace("keys/", f"{self.folder}/keys/")

    def block(self, begins):
        return next(body for _, first, body in self.blocks if first == begins)

    def make_keys(self):
        """The block that makes them, then by hand what its scp lines do."""
        done = subprocess.run(["bash", "-euc", self.block("once, on any machine")], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for host in self.net.hosts:
            os.makedirs(f"{self.folder}/{host}", exist_ok=True)
            for source, target in (("ca.crt", "ca.crt"), ("grid.key", "grid.key"), ("api.keys", "api.keys"), (f"{host}.crt", "tls.crt"),
                                   (f"{host}.key", "tls.key")):
                if os.path.exists(f"{self.folder}/keys/{source}"):
                    subprocess.run(["cp", f"{self.folder}/keys/{source}", f"{self.folder}/{host}/{target}"], check=True)

    def start(self):
        """Every machine's program, in the guide's order; what to stop, in the opposite one."""
        running = []
        for language, first, body in self.blocks:
            if language != "ini":
                continue
            host = first.split(" on ")[1].split(",")[0]
            name, words = re.search(r'^LARQL_(\w+)_ARGS="(.*)"$', body, re.M).groups()
            program = grid.program(f"larql-{name.lower()}")
            running.append(self.net[host].start([program, *shlex.split(self.moved(words, host))], name.lower()))
        return running

    def client(self, begins, host):
        body = self.moved(self.block(begins), host).replace("larql run", f"{grid.program('larql')} run")
        return self.net[host].run(["bash", "-euo", "pipefail", "-c", body])


def check(name, folder, model, hosts, client):
    with netns.Net(*hosts) as net:
        net.name_hosts()
        guide = Guide(name, folder, model, net)
        guide.make_keys()
        running = guide.start()
        try:
            health = guide.client(HEALTH, client)
            while health.returncode == 22:  # 503: shards are joining; the test's own limit ends it
                health = guide.client(HEALTH, client)
            assert health.returncode == 0, health.stderr
            done = guide.client("on the client", client)
            assert done.returncode == 0, done.stderr
            return done.stdout
        finally:
            for p in reversed(running):
                p.stop()


def test_lan(tmp_path, model18):
    text = check("deploy-lan.md", tmp_path, model18, ["router.lan", "a.lan", "b.lan"], "router.lan")
    local = grid.larql("run", model18, "--ffn", "local", "--prompt", "The capital of France is", "-n", "16")
    assert text == local.stdout


@pytest.mark.parametrize("name", ["deploy-lan.md", "deploy-two-regions.md"])
def test_options_of_the_guides_exist(name):
    for language, _, body in blocks(name):
        for program in ("router", "shard") if language == "ini" else ():
            if f"LARQL_{program.upper()}_ARGS" in body:
                tree.check_options(f"larql-{program}", body)
