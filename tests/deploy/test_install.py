"""make install into an empty DESTDIR: what is there, that it works from there, and that uninstall takes it away."""
import json
import os
import subprocess

import tree
import grid

PROGRAM = """
#include <larql_ffn.h>
#include <stdio.h>
int main(void)
{
    printf("%s\\n", lq_ffn_version());
    return 0;
}
"""


def test_everything_is_there(installed):
    have = set(tree.files(installed))
    for path in ("usr/bin/larql", "usr/bin/larql-router", "usr/bin/larql-shard", "usr/bin/larql-grid-up",
                 "usr/lib/liblarql_ffn.a", "usr/lib/liblarql_ffn.so", "usr/lib/liblarql_ffn.so.0", "usr/include/larql_ffn.h",
                 "usr/lib/pkgconfig/larql_ffn.pc", "usr/share/man/man1/larql-router.1", "usr/share/man/man1/larql-shard.1",
                 "usr/lib/systemd/system/larql-router.service", "usr/lib/systemd/system/larql-shard@.service",
                 "usr/lib/sysusers.d/larql-grid.conf", "etc/larql-grid/router.env", "etc/larql-grid/shard-example.env",
                 "usr/share/doc/larql-grid/README.md", "usr/share/doc/larql-grid/examples/compose.yaml",
                 "usr/share/doc/larql-grid/examples/kubernetes/kustomization.yaml",
                 "usr/share/doc/larql-grid/examples/grafana/larql-grid.json"):
        assert path in have, path


def test_no_file_knows_where_it_was_staged(installed):
    """Text files name PREFIX, never DESTDIR, and no @WORD@ is left."""
    for path in tree.files(installed):
        if path.startswith(("usr/bin/larql-grid-up", "usr/lib/systemd", "usr/lib/pkgconfig", "usr/lib/sysusers.d", "etc")):
            with open(os.path.join(installed, path), encoding="utf-8") as f:
                text = f.read()
            assert installed not in text and "@PREFIX@" not in text and "@BINDIR@" not in text and "@SYSCONFDIR@" not in text, path


def test_smoke_run_from_there(installed, model):
    bin_dir = os.path.join(installed, "usr", "bin")
    with grid.Proc([f"{bin_dir}/larql-shard", model, "--port", "0"], "installed-shard") as s, \
            grid.Proc([f"{bin_dir}/larql-router", "--shards", f"0-7={s.url}", "--port", "0"], "installed-router") as r:
        body = json.dumps({"layer": 3, "residual": [0.5] * 6, "full_output": True}).encode()
        status, _, answer = grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})
        assert status == 200 and len(json.loads(answer)["output"]) == 6
        done = subprocess.run([f"{bin_dir}/larql", "run", model, "--ffn", r.url, "--prompt", "abc", "-n", "3", "-q"],
                              capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_installed_manuals_are_readable(installed):
    for page in ("larql-router", "larql-shard", "larql-grid-up"):
        done = subprocess.run(["man", "-l", f"{installed}/usr/share/man/man1/{page}.1"], capture_output=True, text=True, check=False,
                              env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C"})
        assert done.returncode == 0 and not done.stderr and "SYNOPSIS" in done.stdout, done.stderr


def test_library_is_found_by_pkg_config(installed, tmp_path):
    if grid.SANITIZED:
        return  # the sanitized library needs the sanitizer's run time in the program, too
    env = {**os.environ, "PKG_CONFIG_PATH": f"{installed}/usr/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": installed}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "larql_ffn"], check=True, capture_output=True, text=True,
                           env=env).stdout.split()
    flags = flags or [f"-I{installed}/usr/include", f"-L{installed}/usr/lib", "-llarql_ffn"]
    (tmp_path / "p.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-o", str(tmp_path / "p"), str(tmp_path / "p.c"), f"-I{installed}/usr/include",
                    f"-L{installed}/usr/lib", *flags, f"-Wl,-rpath,{installed}/usr/lib"], check=True)
    out = subprocess.run([str(tmp_path / "p")], check=True, capture_output=True, text=True).stdout
    with open(os.path.join(tree.ROOT, "VERSION"), encoding="utf-8") as f:
        assert f.read().strip() in out


def test_second_install_and_uninstall_keep_what_an_operator_changed(tmp_path):
    root = str(tmp_path)
    tree.install("install", root, PREFIX="/usr")
    with open(f"{root}/etc/larql-grid/router.env", "w", encoding="utf-8") as f:
        f.write("LARQL_ROUTER_ARGS=\"mine\"\n")
    tree.install("install", root, PREFIX="/usr")
    with open(f"{root}/etc/larql-grid/router.env", encoding="utf-8") as f:
        assert "mine" in f.read()
    assert tree.install("uninstall", root, PREFIX="/usr") == ["etc/larql-grid/router.env"]


def test_uninstall_leaves_no_file_under_any_prefix(tmp_path):
    root = str(tmp_path)
    tree.install("install", root, PREFIX="/opt/larql")
    assert any(p.startswith("opt/larql/etc/larql-grid/") for p in tree.files(root))
    assert tree.install("uninstall", root, PREFIX="/opt/larql") == []
