"""The systemd units as installed: systemd's own verdicts, and the programs under their hardening."""
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import tree
import grid
import sandbox

UNITS = ["larql-router.service", "larql-shard@.service"]
EXPOSURE_MAX = 1.5  # of 10; systemd's own services have 5 and more


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """Installed under a PREFIX where the programs really are, so that ExecStart can be followed."""
    root = str(tmp_path_factory.mktemp("units"))
    tree.make("install", f"PREFIX={root}/usr", f"SYSCONFDIR={root}/etc")
    return root


def unit(root, name):
    return f"{root}/usr/lib/systemd/system/{name}"


def analyze(*args):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    return subprocess.run(["systemd-analyze", "--no-pager", *args], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", UNITS)
def test_verify_has_nothing_to_say(placed, name):
    done = analyze("verify", "--man=no", unit(placed, name))
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_credentials_drop_in_is_valid_beside_the_unit(placed, tmp_path):
    text = (tmp_path / "larql-router.service")
    with open(unit(placed, UNITS[0]), encoding="utf-8") as f, open(f"{placed}/usr/share/doc/larql-grid/examples/credentials.conf",
                                                                   encoding="utf-8") as d:
        text.write_text(f.read())
        (tmp_path / "larql-router.service.d").mkdir()
        (tmp_path / "larql-router.service.d" / "credentials.conf").write_text(d.read())
    done = analyze("verify", "--man=no", str(text))
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_verify_sees_a_misspelt_setting(placed, tmp_path):
    """The check above would be worth nothing if this one passed silently."""
    bad = tmp_path / "larql-router.service"
    with open(unit(placed, UNITS[0]), encoding="utf-8") as f:
        bad.write_text(f.read().replace("ProtectSystem=", "ProtectSistem="))
    assert "ProtectSistem" in analyze("verify", "--man=no", str(bad)).stderr


@pytest.mark.parametrize("name", UNITS)
def test_exposure_is_low(placed, name):
    done = analyze("security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", unit(placed, name))
    level = float(re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout).group(1))
    print(name, level)
    assert done.returncode == 0 and level <= EXPOSURE_MAX, done.stdout[-400:]


@pytest.mark.parametrize("name", UNITS)
def test_key_material_is_never_an_argument(placed, name):
    """argv is the operator's words; the unit itself adds no key, and nothing goes through a shell."""
    start = sandbox.settings(unit(placed, name))["ExecStart"][0]
    assert re.fullmatch(rf"{re.escape(placed)}/usr/bin/larql-\w+ \$LARQL_\w+_ARGS", start)


@pytest.mark.parametrize("name,program", [("router.env", "larql-router"), ("shard-example.env", "larql-shard")])
def test_examples_name_real_options(placed, name, program):
    """Also those in comments."""
    with open(f"{placed}/etc/larql-grid/{name}", encoding="utf-8") as f:
        tree.check_options(program, " ".join(line for line in f if "_ARGS=" in line))


@pytest.mark.parametrize("extra", [(), ("--pin", "--prefetch")])
def test_programs_work_under_the_filters(placed, model, extra):
    """A request through both, then SIGTERM, under SystemCallFilter= and MemoryDenyWriteExecute=, BLIS included."""
    if grid.SANITIZED:
        pytest.skip("a sanitizer's run time needs more of the kernel than the programs")
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")

    def confined(name):
        return [sys.executable, os.path.join(tree.HERE, "sandbox.py"), unit(placed, name)]

    with grid.Proc([*confined(UNITS[1]), grid.program("larql-shard"), model, "--port", "0", *extra], "confined-shard") as s, \
            grid.Proc([*confined(UNITS[0]), grid.program("larql-router"), "--threads", "2", "--shards", f"0-7={s.url}",
                       "--port", "0"], "confined-router") as r:
        with open(f"/proc/{s.process.pid}/status", encoding="utf-8") as f:
            assert "Seccomp:\t2" in f.read()
        rows = 64  # enough for BLIS
        body = json.dumps({"layer": 3, "residual": [0.5] * 6 * rows, "seq_len": rows, "full_output": True}).encode()
        status, _, answer = grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})
        assert status == 200, answer
