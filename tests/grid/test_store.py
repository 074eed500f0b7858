"""Shards that fetch their layers: only those bytes, resumed, checked; and /v1/model/file."""
import glob
import json
import os
import re
import signal
import subprocess
import sys

import pytest

import conftest
import grid
from origin import Origin

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tools"))
import identity  # noqa: E402

GAP = 16 << 10  # shard/store_job.c: gaps up to this are fetched too


@pytest.fixture(scope="module")
def model():
    """8 layers of 442 KB of FFN weights each, and more than a head's first guess in all."""
    return conftest.make("store.gguf", "--layers", "8", "--hidden", "96", "--ffn", "384", "--heads", "3", "--kv-heads",
                         "3", "--seed", "5")


@pytest.fixture
def data(model):
    with open(model, "rb") as f:
        return f.read()


def from_store(url, layers, folder, *args):
    return grid.shard(url, layers, "--store", str(folder), *args)


def fails(url, layers, folder, *args):
    """(exit code, stderr) of a shard that must not become ready"""
    done = subprocess.run([grid.program("larql-shard"), url, "--layers", layers, "--store", str(folder), "--port", "0",
                           *args], capture_output=True, text=True, timeout=100 * grid.TIMEOUT_X, check=False)
    assert "ready url" not in done.stdout and "Sanitizer" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def the_file(folder):
    name, = glob.glob(str(folder / "*.gguf"))
    return name


def held(folder):
    name, = glob.glob(str(folder / "*.held"))
    with open(name, encoding="utf-8") as f:
        return json.load(f)


def answers(url, hidden, layers):
    body = {"residual": [((i * 37) % 19 - 9) / 8 for i in range(hidden)], "full_output": True}
    out = []
    for layer in layers:
        status, _, text = grid.post(url, "/v1/walk-ffn", json.dumps({**body, "layer": layer}),
                                    {"Content-Type": "application/json"})
        assert status == 200, text
        out.append(json.loads(text)["output"])
    return out


def needed(path, first, last):
    g = identity.Gguf(path)
    return g.data_at + sum(g.tensors[f"blk.{i}.ffn_{p}.weight"][2] for i in range(first, last + 1) for p in identity.FFN)


@pytest.mark.parametrize("which,hidden,cut", [("model", 96, 4), ("gemma", 640, 9)])
def test_two_shards_of_a_store_equal_those_of_the_file(which, hidden, cut, request, tmp_path):
    path = request.getfixturevalue(which)
    with open(path, "rb") as f:
        whole = f.read()
    last = identity.Gguf(path).layers_n() - 1
    parts = ((0, cut - 1), (cut, last))
    with Origin(whole) as o:
        for i, (a, b) in enumerate(parts):
            o.sent_n, folder = 0, tmp_path / str(i)
            with from_store(o.url + "/dir/m.gguf?x=1", f"{a}-{b}", folder) as s, grid.shard(path, f"{a}-{b}") as w:
                assert answers(s.url, hidden, range(a, b + 1)) == answers(w.url, hidden, range(a, b + 1))
                one, other = (json.loads(grid.get(x.url, "/v1/stats")[2]) for x in (s, w))
                assert one["identity"] == other["identity"] and one["layer_hashes"] == other["layer_hashes"]
            head_n = identity.Gguf(path).data_at  # found in steps of a quarter, 1 MiB at least
            bound = needed(path, a, b) + (b - a + 2) * 3 * GAP + max(1 << 20, head_n // 4)
            assert o.sent_n <= min(bound, len(whole)), f"{o.sent_n} bytes for {needed(path, a, b)}"
            assert os.path.getsize(the_file(folder)) == len(whole)
            for from_, end in held(folder)["held"]:
                with open(the_file(folder), "rb") as f:
                    f.seek(from_)
                    assert f.read(end - from_) == whole[from_:end]
            before = len(o.asked)
            with from_store(o.url + "/dir/m.gguf?x=1", f"{a}-{b}", folder) as s:
                assert "identity_hashed" not in s.log_text()
            assert len(o.asked) == before, "what is there needs no network"


def test_missing_layers_are_added_and_holes_are_not_served(model, data, tmp_path):
    with Origin(data) as o:
        with from_store(o.url + "/m.gguf", "6-7", tmp_path):
            pass
        o.sent_n = 0
        with from_store(o.url + "/m.gguf", "5-7", tmp_path):
            pass
        size = needed(model, 5, 5) - identity.Gguf(model).data_at
        assert size <= o.sent_n <= size + 3 * GAP
        code, err = fails_file(the_file(tmp_path), "2-3")
        assert code == 4 and "tensor 'blk.2.ffn_down.weight' is not in this partial file" in err
        with grid.shard(the_file(tmp_path), "5-6"):
            pass
        name, = glob.glob(str(tmp_path / "*.held"))
        with open(name, "w", encoding="utf-8") as f:
            f.write("{")
        code, err = fails_file(the_file(tmp_path), "5-6")
        assert code == 4 and "damaged" in err


def fails_file(path, layers):
    done = subprocess.run([grid.program("larql-shard"), path, "--layers", layers, "--port", "0"], capture_output=True,
                          text=True, timeout=60 * grid.TIMEOUT_X, check=False)
    return done.returncode, done.stderr


def lying(content_range):
    def bend(o):
        return lambda h, a, b, n: o.partial(h, a, b, n, content_range(a, b, n)) or True
    return bend


BENT = {
    "whole": (lambda o: lambda h, a, b, n: whole_answer(o, h), "answers 200 with the whole file"),
    "other-bytes": (lying(lambda a, b, n: f"bytes {a + 1}-{b + 1}/{n}"), "asked were"),
    "no-size": (lying(lambda a, b, n: f"bytes {a}-{b}/*"), "names no Content-Range"),
    "huge": (lying(lambda a, b, n: f"bytes {a}-{b}/99999999999999999999"), "names no Content-Range"),
    "backwards": (lying(lambda a, b, n: f"bytes {b}-{a}/{n}"), "names no Content-Range"),
    "missing": (lambda o: lambda h, a, b, n: o.plain(h, 404) or True, "status 404"),
    "loop": (lambda o: lambda h, a, b, n: o.plain(h, 302, [("Location", "/again")]) or True, "redirect"),
    "file": (lambda o: lambda h, a, b, n: o.plain(h, 302, [("Location", "file:///etc/passwd")]) or True, "rotocol"),
    "not-gguf": (lambda o: lambda h, a, b, n: o.partial(h, a, b, n, body=b"x" * (b - a + 1)) or True, "not a GGUF file"),
    "2^60": (lambda o: lambda h, a, b, n: o.partial(
        h, a, b, n, body=b"GGUF\3\0\0\0" + b"\0" * 7 + b"\x10" + b"\0" * (b - a + 1 - 16)) or True, "over the limit"),
}


def whole_answer(o, h):
    h.send_response(200)
    h.send_header("Content-Length", str(len(o.data)))
    h.end_headers()
    try:
        h.wfile.write(o.data)
    except OSError:
        h.close_connection = True
    return True


@pytest.mark.parametrize("how", list(BENT))
def test_bad_answers_are_refused(how, data, tmp_path):
    make, text = BENT[how]
    with Origin(data) as o:
        o.bend = make(o)
        code, err = fails(o.url + "/m.gguf", "0-1", tmp_path)
    assert code in (1, 4) and text in err, err
    assert not glob.glob(str(tmp_path / "*.gguf"))


@pytest.mark.parametrize("how", ["short", "cut", "503"])
def test_what_passes_is_tried_again(how, model, data, tmp_path):
    with Origin(data) as o:
        seen = set()

        def bend(h, a, b, n):
            if (b in seen) or b - a < 100:
                return False
            seen.add(b)
            if how == "503":
                o.plain(h, 503)
            else:  # half of the body, then the end
                o.partial(h, a, b, n, body=o.data[a:(a + b) // 2], length=b - a + 1)
                h.close_connection = True
            return True
        o.bend = bend
        with from_store(o.url + "/m.gguf", "3-4", tmp_path) as s:
            assert "fetch_again" in s.log_text()
            stats = json.loads(grid.get(s.url, "/v1/stats")[2])
        assert stats["layer_hashes"] == identity.identity(model, 3, 4)["layer_hashes"]


def test_sigterm_keeps_what_came_and_the_next_goes_on(model, data, tmp_path):
    with Origin(data) as o:
        def stall(h, a, b, n):
            if a == 0 or len(o.asked) < 3:
                return False
            o.partial(h, a, b, n, body=o.data[a:a + 100000], length=b - a + 1)
            h.wfile.flush()
            process.send_signal(signal.SIGTERM)
            h.rfile.read(1)  # until the peer closes
            h.close_connection = True
            return True
        o.bend = stall
        process = subprocess.Popen([grid.program("larql-shard"), o.url + "/m.gguf", "--layers", "1-6", "--store",
                                    str(tmp_path), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=60 * grid.TIMEOUT_X)
        assert process.returncode == 0 and out == b"" and b"fetch_stopped" in err, err
        assert glob.glob(str(tmp_path / "*.part")) and not glob.glob(str(tmp_path / "*.gguf"))
        kept = sum(end - a for a, end in held(tmp_path)["held"])
        o.bend, o.sent_n = None, 0
        with from_store(o.url + "/m.gguf", "1-6", tmp_path) as s:
            stats = json.loads(grid.get(s.url, "/v1/stats")[2])
        assert stats["layer_hashes"] == identity.identity(model, 1, 6)["layer_hashes"]
        assert kept > 100000 and o.sent_n <= len(data) - kept + 8 * 3 * GAP


@pytest.mark.parametrize("etag", ['"two"', None])
def test_changed_origin_begins_anew(etag, model, data, tmp_path):
    with Origin(data) as o:
        with from_store(o.url + "/m.gguf", "0-1", tmp_path):
            pass
        at = identity.Gguf(model).tensors["blk.0.ffn_up.weight"][1]
        o.data, o.etag = data[:at] + b"\1\2\3\x3f" + data[at + 4:], etag
        with from_store(o.url + "/m.gguf", "0-7", tmp_path) as s:
            assert "store_begins_anew" in s.log_text()
            got = json.loads(grid.get(s.url, "/v1/stats")[2])["layer_hashes"]
        want = identity.identity(model)["layer_hashes"]
        assert got[1:] == want[1:] and got[0] != want[0]


def test_damaged_bytes_on_disk_are_fetched_again(model, data, tmp_path):
    with Origin(data) as o:
        with from_store(o.url + "/m.gguf", "0-3", tmp_path):
            pass
        with open(the_file(tmp_path), "r+b") as f:
            f.seek(identity.Gguf(model).tensors["blk.2.ffn_gate.weight"][1])
            f.write(b"\1\2\3\x3f")
        with from_store(o.url + "/m.gguf", "0-3", tmp_path) as s:
            assert re.search(r"store_layer_damaged .*layer=2 ", s.log_text())
            assert json.loads(grid.get(s.url, "/v1/stats")[2])["layer_hashes"] == identity.identity(model, 0, 3)["layer_hashes"]


def test_key_is_sent_and_never_logged(data, tmp_path):
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    with Origin(data, key="s3cret") as o:
        code, err = fails(o.url + "/m.gguf", "0-0", tmp_path / "s")
        assert code == 1 and "status 401" in err
        with from_store(o.url + "/m.gguf", "0-0", tmp_path / "s", "--origin-key-file", str(key)) as s:
            assert "s3cret" not in s.log_text()


def test_names_in_the_folder_are_harmless(data, tmp_path):
    with Origin(data) as o:
        for path in ("/..%2f..%2fevil", "/a/..;x", "/", "/.hidden.gguf"):
            folder = tmp_path / str(len(os.listdir(tmp_path)))
            with from_store(o.url + path, "0-0", folder):
                pass
            assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", n) for n in os.listdir(folder))
    code, err = fails("http://user:pw@127.0.0.1:1/m.gguf", "0-0", tmp_path / "x")
    assert code == 2 and "key file" in err


def test_two_processes_share_a_folder(data, model, tmp_path):
    with Origin(data) as o:
        two = [subprocess.Popen([grid.program("larql-shard"), o.url + "/m.gguf", "--layers", layers, "--store",
                                 str(tmp_path), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
               for layers in ("0-3", "4-7")]
        try:
            for p, first in zip(two, (0, 4)):
                url = p.stdout.readline().strip().split("=", 1)[1]
                got = json.loads(grid.get(url, "/v1/stats")[2])["layer_hashes"]
                assert got == identity.identity(model, first, first + 3)["layer_hashes"]
        finally:
            for p in two:
                p.terminate()
                p.wait()
                p.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_full_disk_names_need_and_room(data, tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("no mount here")
    try:
        with Origin(data) as o:
            code, err = fails(o.url + "/m.gguf", "0-7", tmp_path)
        assert code == 1 and re.search(r"\d+ bytes are needed, \d+ are free", err), err
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def ranged(url, value, **more):
    return grid.request("GET", url, "/v1/model/file", None, {**({"Range": value} if value else {}), **more})


def test_model_file_by_ranges(model, data):
    n = len(data)
    with grid.shard(model, "0-7") as s:
        assert grid.get(s.url, "/v1/model/file")[0] == 404
    with grid.shard(model, "0-7", "--serve-model") as s:
        status, head, body = ranged(s.url, None)
        assert status == 200 and body == data
        for value, want in (("bytes=0-0", data[:1]), ("bytes=5-99", data[5:100]), (f"bytes={n - 3}-", data[-3:]),
                            ("bytes=-7", data[-7:]), (f"bytes=1-{10 * n}", data[1:]), ("bytes=100000-900000", data[100000:900001])):
            status, h, body = ranged(s.url, value)
            assert status == 206 and body == want, value
            assert re.fullmatch(r"bytes \d+-\d+/" + str(n), h["content-range"]) and h["etag"] == head["etag"]
        for value in (f"bytes={n}-", "bytes=9-3", "bytes=-0", "bytes=0-1,3-4", "lines=1-2", "bytes=", "bytes=x-1",
                      "bytes=99999999999999999999999-"):
            status, _, body = ranged(s.url, value)
            assert status == 416 and b"Range: " in body, value
        assert ranged(s.url, "bytes=0-9", **{"If-Range": head["etag"]})[0] == 206
        assert ranged(s.url, "bytes=0-9", **{"If-Range": '"other"'})[0] == 200
        status, h, body = grid.request("HEAD", s.url, "/v1/model/file")
        assert status == 200 and body == b"" and h["content-length"] == str(n)


def test_a_shard_is_an_origin_for_what_it_holds(model, tmp_path):
    with grid.shard(model, "0-7", "--serve-model") as whole:
        with from_store(whole.url + "/v1/model/file", "2-5", tmp_path / "a", "--serve-model") as part:
            with from_store(part.url + "/v1/model/file", "3-4", tmp_path / "b") as s:
                got = json.loads(grid.get(s.url, "/v1/stats")[2])["layer_hashes"]
                assert got == identity.identity(model, 3, 4)["layer_hashes"]
            code, err = fails(part.url + "/v1/model/file", "0-1", tmp_path / "c")
            assert code == 1 and "status 416" in err
            assert b"holds a part of the file (layers 2-5)" in ranged(part.url, None)[2]
