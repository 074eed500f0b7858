"""What a person types: sub-commands, help, man pages, an installed tree, larql-grid-up."""
import json
import os
import re
import signal
import subprocess

import pytest

import grid

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


@pytest.mark.parametrize("args,code,part", [
    ([], 2, "Commands:"), (["--help"], 0, "Commands:"), (["--version"], 0, "larql "), (["bogus"], 2, "bogus"),
    (["run", "--help"], 0, "Usage: larql run"), (["run"], 2, "missing"), (["run", "x.gguf"], 2, "--prompt"),
    (["run", "/none.gguf", "--prompt", "x"], 1, "/none.gguf"), (["run", __file__, "--prompt", "x"], 4, "GGUF"),
    (["run", "M", "--ffn", "local", "--prompt", "x", "--temperature", "-1"], 2, "--temperature"),
    (["run", "M", "--ffn", "local", "--prompt", "x", "--wire", "f16"], 2, "--wire"),
    (["run", "M", "--ffn", "ftp://x", "--prompt", "x"], 2, "ftp://x"),
    (["run", "M", "--ffn", "local", "--prompt", "a b c", "--context", "2"], 2, "--context 2"),
    (["run", "M", "--ffn", "local", "--chat", "--prompt", "x"], 4, "chat template"),
    (["info", "M"], 0, '"layers": 8'), (["info"], 2, "missing")])
def test_exit_codes(synthetic, args, code, part):
    done = grid.larql(*[synthetic if a == "M" else a for a in args])
    assert done.returncode == code, done
    assert part in done.stdout + done.stderr


def test_seeded_sampling_repeats(synthetic):
    def text(seed):
        return grid.larql("run", synthetic, "--ffn", "local", "--prompt", "abc", "-n", "20", "--temperature", "1.5", "--top-k", "50",
                          "--top-p", "0.95", "--seed", seed, "-q").stdout
    assert text("1") == text("1")
    assert len({text(str(s)) for s in range(5)}) > 1


def test_prompt_from_a_file_and_stdin(synthetic, tmp_path):
    path = tmp_path / "p"
    path.write_text("abc")
    args = ["run", synthetic, "--ffn", "local", "-n", "5", "-q"]
    want = grid.larql(*args, "--prompt", "abc").stdout
    assert grid.larql(*args, "--prompt-file", str(path)).stdout == want
    done = subprocess.run([grid.program("larql"), *args, "--prompt-file", "-"], input="abc", capture_output=True, text=True, errors="replace", check=True)
    assert done.stdout == want


def test_chat_form(gemma, smollm2):
    for model, marks in ((smollm2, ["<|im_start|>"]),):
        done = grid.larql("run", model, "--ffn", "local", "--chat", "--prompt", "What is the capital of France?", "-n", "20",
                          "--stats-json", "/dev/stdout", "-q")
        assert done.returncode == 0, done.stderr
        assert "Paris" in done.stdout and marks
    assert grid.larql("run", gemma, "--ffn", "local", "--chat", "--prompt", "x", "-n", "1").returncode in (0, 4)


@pytest.mark.parametrize("page,args", [("larql-router", ["larql-router"]), ("larql-shard", ["larql-shard"]),
                                       ("larql-run", ["larql", "run"]), ("larql-info", ["larql", "info"]),
                                       ("larql-extract", ["larql", "extract"]), ("larql-verify", ["larql", "verify"]),
                                       ("larql-grid", ["larql", "grid"]), ("larql-bench", ["larql", "bench"])])
def test_man_pages_are_up_to_date(page, args):
    now = subprocess.run([grid.program(args[0]), *args[1:], "--help-man"], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(ROOT, "docs", "man", page + ".1"), encoding="utf-8") as f:
        assert f.read() == now, "run `make man`"


PROGRAM = r"""
#include <larql_ffn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    struct lq_ffn *f;
    char why[LQ_WHY_BYTES];
    if (argc < 2 || lq_ffn_connect(argv[1], NULL, &f, why) != LQ_FFN_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    float x[6] = {1, 2, 3, 4, 5, 6}, out[2][6];
    unsigned layers[2] = {3, 2};
    if (lq_ffn_forward_batch(f, layers, 2, x, 1, out[0], why) || lq_ffn_forward(f, 3, x, 1, out[1], why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    printf("%s %u %u %g %g\n", lq_ffn_model(f), lq_ffn_hidden(f), lq_ffn_layers(f), out[0][0], out[1][0]);
    x[2] = 0.0f / 0.0f;
    printf("%d %s\n", lq_ffn_forward(f, 3, x, 1, out[1], why), why);
    printf("%d %s\n", lq_ffn_forward(f, 9, (float[6]){0}, 1, out[1], why), why);
    lq_ffn_close(f);
    return 0;
}
"""


def test_installed_library_serves_a_program_of_its_own(synthetic, tmp_path):
    """make install, then a program that knows the header and pkg-config only."""
    if grid.SANITIZED:
        return  # the sanitized library needs the sanitizer's run time in the program, too
    env = {**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0"}
    subprocess.run(["make", "-s", f"BUILD={grid.BUILD}", f"PREFIX={tmp_path}/usr", "DESTDIR=", "install"] +
                   (["DEV=1"] if "-Werror" in open(os.path.join(grid.BUILD, ".flags"), encoding="utf-8").read() else []),
                   check=True, cwd=ROOT, env=env, capture_output=True)
    assert sorted(os.listdir(tmp_path / "usr" / "bin")) == ["larql", "larql-grid-up", "larql-router", "larql-shard"]
    source = tmp_path / "p.c"
    source.write_text(PROGRAM)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "larql_ffn"], check=True, capture_output=True, text=True,
                           env={**os.environ, "PKG_CONFIG_PATH": f"{tmp_path}/usr/lib/pkgconfig"}).stdout.split()
    subprocess.run(["gcc", "-Wall", "-Werror", "-o", str(tmp_path / "p"), str(source), *flags, f"-Wl,-rpath,{tmp_path}/usr/lib"], check=True)
    with grid.shard(synthetic, "0-7") as s:
        done = subprocess.run([str(tmp_path / "p"), s.url], capture_output=True, text=True, check=True)
        first, nan, layer = done.stdout.splitlines()
        assert first.startswith("tiny.gguf 6 8 ")
        assert first.split()[3] == first.split()[4]
        assert nan == "5 layer 3: the input is not finite at row 0, index 2"
        assert layer.startswith("3 layer 9 at ") and "layer 9 out of range (num_layers = 8)" in layer


def test_library_exports_what_it_says():
    out = subprocess.run(["nm", "-D", "--defined-only", os.path.join(grid.BUILD, "lib", "liblarql_ffn.so")], check=True,
                         capture_output=True, text=True).stdout
    names = sorted(line.split()[2] for line in out.splitlines() if line.split()[1] == "T")
    with open(os.path.join(ROOT, "client", "symbols.txt"), encoding="utf-8") as f:
        assert names == f.read().split()


def test_grid_up_local(synthetic):
    bin_dir = os.path.join(grid.BUILD, "bin")
    p = subprocess.Popen([os.path.join(ROOT, "deploy", "larql-grid-up"), "--model", synthetic, "--local", "3", "--port", "0", "--bin",
                          bin_dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        line = p.stdout.readline()
        assert line.startswith("grid http://"), line + p.stderr.read()
        url = line.split()[1]
        spans = [p.stdout.readline().split()[1] for _ in range(3)]
        assert spans == ["0-1", "2-4", "5-7"]
        health = json.loads(grid.get(url, "/v1/health")[2])
        assert health["coverage"]["live"] == 8
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(30 * grid.TIMEOUT_X) == 0
        p.stdout.close()
        p.stderr.close()
    with pytest.raises(OSError):
        grid.get(url, "/v1/health")


def test_grid_up_over_a_pretended_ssh(synthetic, tmp_path):
    """An ssh that runs the command here: the script's own half, without a second host."""
    fake = tmp_path / "ssh"
    fake.write_text("#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\nshift\nexec sh -c \"$*\"\n")
    fake.chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("# two ranges\n127.0.0.1 0-3\n")
    port = 18080 + os.getpid() % 1000
    p = subprocess.Popen([os.path.join(ROOT, "deploy", "larql-grid-up"), "--model", os.path.abspath(synthetic), "--hosts", str(hosts), "--port", "0",
                          "--shard-port", str(port), "--bin", os.path.join(grid.BUILD, "bin"),
                          "--remote-bin", os.path.abspath(os.path.join(grid.BUILD, "bin"))],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                         env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    try:
        line = p.stdout.readline()
        assert line.startswith("grid http://"), line + p.stderr.read()
        assert re.match(r"  layers 0-3  http://127.0.0.1:%d$" % port, p.stdout.readline())
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(30 * grid.TIMEOUT_X) == 0
        p.stdout.close()
        p.stderr.close()
    with pytest.raises(OSError):
        grid.get(f"http://127.0.0.1:{port}", "/v1/health")


@pytest.mark.parametrize("args,code,part", [(["--help"], 0, "Usage:"), ([], 2, "--model"), (["--model", "m"], 2, "--hosts"),
                                            (["--model", "m", "--local", "x"], 2, "number"), (["--bogus"], 2, "--bogus")])
def test_grid_up_usage(args, code, part):
    done = subprocess.run([os.path.join(ROOT, "deploy", "larql-grid-up"), *args], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert part in done.stdout + done.stderr


def test_demo_leaves_nothing_running_when_it_fails(synthetic):
    """The demo on a model that answers nonsense still ends cleanly; interrupted too."""
    env = {**os.environ, "LQ_BUILD": grid.BUILD}
    done = subprocess.run(["/usr/bin/python3", os.path.join(ROOT, "deploy", "demo.py"), synthetic], capture_output=True, text=True, errors="replace",
                          env=env, check=False, timeout=120 * grid.TIMEOUT_X)
    assert done.returncode == 0, done.stderr
    assert "tokens equal to f32" in done.stdout
    urls = re.findall(r"http://[0-9.]+:[0-9]+", done.stdout)
    assert len(urls) == 3
    for url in urls:
        with pytest.raises(OSError):
            grid.get(url, "/v1/health")
    p = subprocess.Popen(["/usr/bin/python3", os.path.join(ROOT, "deploy", "demo.py"), synthetic], stdout=subprocess.PIPE, text=True, errors="replace", env=env)
    while "router http" not in (line := p.stdout.readline()):
        assert line or p.poll() is None
    p.send_signal(signal.SIGINT)
    assert p.wait(60 * grid.TIMEOUT_X) in (130, 0)
    p.stdout.close()
    with pytest.raises(OSError):
        grid.get(line.split()[1], "/v1/health")
