"""The .deb: lintian's opinion; and its life in a clean root: installed, run, removed, purged."""
import glob
import json
import os
import shutil
import subprocess
import tempfile

import pytest

import clean_root
import tree
import grid

# What lintian would have of Debian's own packages and not of a vendor's: an address to write to, a
# library package a soname.
NOT_OURS = ("bogus-mail-host", "bogus-mail-host-in-debian-changelog", "no-shlibs", "link-to-shared-library-in-wrong-package",
            "package-name-doesnt-match-sonames")


def packages():
    found = {os.path.basename(p).split("_")[0]: os.path.abspath(p) for p in glob.glob(os.path.join(tree.BUILD, "*.deb"))}
    assert set(found) == {"larql-grid", "liblarql-ffn-dev"}, "run `make deb`"
    return found


def test_lintian_finds_nothing():
    if not shutil.which("lintian"):
        pytest.skip("no lintian here")
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags", ",".join(NOT_OURS),
                           *packages().values()], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout


def test_names_version_and_contents():
    with open(os.path.join(tree.ROOT, "VERSION"), encoding="utf-8") as f:
        version = f.read().strip()
    for name, path in packages().items():
        arch = clean_root.run("dpkg", "--print-architecture").strip()
        assert os.path.basename(path) == f"{name}_{version}_{arch}.deb"
        listing = clean_root.run("dpkg-deb", "-c", path)
        assert all(line.split()[1] == "root/root" for line in listing.splitlines())
        assert tree.ROOT not in clean_root.run("dpkg-deb", "-I", path)
    conffiles = clean_root.run("dpkg-deb", "-I", packages()["larql-grid"], "conffiles").split()
    assert conffiles == ["/etc/larql-grid/router.env", "/etc/larql-grid/shard-example.env"]


def test_same_source_same_package(tmp_path):
    """Packed twice from what was built once: equal to the byte."""
    again = tmp_path / "again"
    again.mkdir()
    shutil.copytree(os.path.join(tree.BUILD, "deb", "stage"), tmp_path / "x", symlinks=True)  # as packed before
    for root in os.listdir(tmp_path / "x"):
        out = again / f"{root}.deb"
        clean_root.run("dpkg-deb", "--root-owner-group", "--build", str(tmp_path / "x" / root), str(out),
                       env={**os.environ, "SOURCE_DATE_EPOCH": _epoch(packages()[root])})
        with open(out, "rb") as a, open(packages()[root], "rb") as b:
            assert a.read() == b.read(), root


def _epoch(deb):
    """The time that ar's first member carries."""
    with open(deb, "rb") as f:
        return f.read(8 + 28)[8 + 16:].decode().strip()


@pytest.fixture(scope="module")
def root():
    """A clean root with the libraries that the package depends on, and not yet the package."""
    path = tempfile.mkdtemp(prefix="root-", dir=tree.BUILD)  # large: not among pytest's, which are kept
    try:
        yield prepared(path)
    finally:
        shutil.rmtree(path)


def prepared(path):
    os.chmod(path, 0o755)
    r = clean_root.Root(path)
    deb = packages()["larql-grid"]
    r.do("apt-get", "update", "-q")
    r.do("apt-get", "satisfy", "-y", "-q", "--no-install-recommends", clean_root.run("dpkg-deb", "-f", deb, "Depends").strip())
    shutil.copy(deb, f"{r.path}/tmp/larql-grid.deb")
    return r


def exists(root, path):
    return os.path.lexists(root.path + path)


def test_life_in_a_clean_root(root, model):
    before = root.all_paths()
    root.do("dpkg", "-i", "/tmp/larql-grid.deb")
    assert "larql:" in open(root.path + "/etc/passwd", encoding="utf-8").read()
    assert exists(root, "/var/lib/larql-grid/models") and exists(root, "/lib/systemd/system/larql-router.service")
    # nothing runs or will run by itself
    assert not [p for p in root.all_paths() - before if p.startswith("/etc/systemd")]
    for program in ("larql", "larql-router", "larql-shard"):
        assert root.do(program, "--version").startswith(program)

    shutil.copy(model, f"{root.path}/var/lib/larql-grid/models/m.gguf")
    with grid.Proc(root.words("larql", "larql-shard", "/var/lib/larql-grid/models/m.gguf", "--port", "0"), "deb-shard") as s, \
            grid.Proc(root.words("larql", "larql-router", "--shards", f"0-7={s.url}", "--port", "0"), "deb-router") as r:
        body = json.dumps({"layer": 3, "residual": [0.5] * 6, "full_output": True}).encode()
        status, _, answer = grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})
        assert status == 200 and len(json.loads(answer)["output"]) == 6
    os.unlink(f"{root.path}/var/lib/larql-grid/models/m.gguf")

    # an operator's change outlives an upgrade
    with open(f"{root.path}/etc/larql-grid/router.env", "a", encoding="utf-8") as f:
        f.write("# mine\n")
    root.do("dpkg", "-i", "/tmp/larql-grid.deb")
    assert "# mine" in open(f"{root.path}/etc/larql-grid/router.env", encoding="utf-8").read()

    root.do("dpkg", "--remove", "larql-grid")
    assert exists(root, "/etc/larql-grid/router.env") and not exists(root, "/usr/bin/larql")
    with open(f"{root.path}/etc/larql-grid/grid.key", "w", encoding="utf-8") as f:
        f.write("secret\n")
    root.do("dpkg", "--purge", "larql-grid")
    left = {p for p in root.all_paths() - before if not p.endswith(("passwd-", "group-", "shadow-"))}
    assert not left, left
    assert "larql" not in open(root.path + "/etc/passwd", encoding="utf-8").read()
    assert "larql" not in open(root.path + "/etc/group", encoding="utf-8").read()


def test_library_package_names_all_libraries_it_needs(root):
    """The loader finds everything."""
    shutil.copy(packages()["liblarql-ffn-dev"], f"{root.path}/tmp/dev.deb")
    root.do("dpkg", "--force-depends", "-i", "/tmp/dev.deb")  # libevent-dev is for compiling, which is not done in there
    multiarch = clean_root.run("dpkg-architecture", "-q", "DEB_HOST_MULTIARCH").strip()
    out = root.do("ldd", f"/usr/lib/{multiarch}/liblarql_ffn.so.0")
    assert "not found" not in out, out
    root.do("dpkg", "--purge", "liblarql-ffn-dev")
