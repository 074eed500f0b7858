"""The Grafana board asks for what the programs really print."""
import json
import os
import re
import struct

import pytest

import tree
import grid

BOARD = os.path.join(tree.ROOT, "deploy", "grafana", "larql-grid.json")
ANY = "*"
ROWS = ["Grid coverage", "Requests", "Latency by layer", "Bytes by format", "Retries, hedges, ejections", "Queue and batches",
        "Numbers that did not fit"]


@pytest.fixture(scope="module")
def board():
    with open(BOARD, encoding="utf-8") as f:
        return json.load(f)


def expressions(board):
    return [t["expr"] for p in board["panels"] for t in p.get("targets", [])]


def metrics(text):
    """{name: its label names} of a /metrics page; ANY for a family that has no series yet."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            found.setdefault(line.split()[2], {ANY})
        elif line and not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
            found[name] = (found.get(name, set()) - {ANY}) | set(re.findall(r'(\w+)="', labels or ""))
    return found


@pytest.fixture(scope="module")
def served(model):
    """What a router and a shard print after requests of both kinds."""
    with grid.shard(model, "0-7") as s, grid.router(f"0-7={s.url}") as r:
        binary = struct.pack("<IIII6f", 3, 1, 1, 0, *[0.5] * 6)
        for wire in ("", "-f16"):
            answer = grid.post(r.url, "/v1/walk-ffn", binary, {"Content-Type": "application/x-larql-ffn", "Accept": f"application/x-larql-ffn{wire}"})
            assert answer[0] == 200
        body = json.dumps({"layers": [1, 2], "residual": [0.5] * 6, "full_output": True}).encode()
        assert grid.post(r.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})[0] == 200
        return {**metrics(grid.get(s.url, "/metrics")[2].decode()), **metrics(grid.get(r.url, "/metrics")[2].decode())}


def test_rows_are_those_that_were_asked_for(board):
    assert [p["title"] for p in board["panels"] if p["type"] == "row"] == ROWS


def test_panels_do_not_overlap_and_have_one_id_each(board):
    ids = [p["id"] for p in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for p in board["panels"]:
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken and g["x"] + g["w"] <= 24, p["title"]
        taken |= cells


def test_expressions_are_whole_and_use_the_boards_variables(board):
    names = {v["name"] for v in board["templating"]["list"]}
    for e in expressions(board):
        assert all(e.count(a) == e.count(b) for a, b in ("()", "{}", "[]")), e
        assert set(re.findall(r"\$(\w+)", e)) <= names | {"__rate_interval"}, e


def test_every_metric_and_label_exists(board, served):
    for e in [*expressions(board), *(v["definition"] for v in board["templating"]["list"] if "definition" in v)]:
        used = re.findall(r"larql_\w+", e)
        assert used, e
        for name in used:
            assert name in served, f"{name} in {e}"
        for by in re.findall(r"by \(([^)]*)\)", e):
            for label in set(re.split(r",\s*", by)) - {"instance"}:
                assert any(label in served[n] or ANY in served[n] for n in used), f"{label} in {e}"
        for name, selector in re.findall(r"(larql_\w+)\{([^}]*)\}", e):
            for label in set(re.findall(r"(\w+)\s*[!=]", selector)) - {"instance"}:
                assert label in served[name] or ANY in served[name], f"{label} of {name} in {e}"
