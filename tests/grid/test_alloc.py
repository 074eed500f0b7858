"""No allocation on the compute path after the warm-up: a shard that dies of one (tests/tools/alloc_guard.c)."""
import json
import os
import random
import signal
import threading

import pytest

import grid
from test_batch import F16, F32, HIDDEN, I8, Ask, ask_together, rows_of, together

GUARDED = os.path.join(grid.BUILD, "guard", "larql-shard")
pytestmark = pytest.mark.skipif(grid.SANITIZED, reason="sanitizers bring their own malloc")


def guarded(model, layers, **env):
    return grid.Proc([GUARDED, model, "--layers", layers, "--port", "0", "--threads", "2"], "guarded", env)


def arm(s):
    s.process.send_signal(signal.SIGUSR1)
    while "alloc_guard armed" not in s.log_text():
        pass


def mixture(rng, layer, hidden):
    return [Ask(layer, kind, accept, rows_of(rng, n, hidden))
            for kind, accept, n in ((F32, F32, 1), (F16, F16, 1), (I8, I8, 1), (F16, F32, 3), (I8, F16, 1),
                                    (F32, I8, 20), (F16, F16, 300))]


@pytest.mark.parametrize("model,layers", [("gemma", "3-4"), ("smollm2", "3-4"), ("big_synthetic", "0-1")])
def test_binary_requests_allocate_nothing(model, layers, request):
    rng = random.Random(12)
    with guarded(request.getfixturevalue(model), layers) as s:
        stats = json.loads(grid.get(s.url, "/v1/stats")[2])
        asks = mixture(rng, stats["layer_start"], stats["hidden_size"])
        warm = [a.post(s.url) for a in asks]
        arm(s)
        for _ in range(3):
            assert [a.post(s.url) for a in asks] == warm
        before = together(s.url)
        assert ask_together(s.url, asks) == warm
        assert together(s.url) > before
        crowd = [threading.Thread(target=a.post, args=(s.url,)) for a in asks]
        for t in crowd:
            t.start()
        for t in crowd:
            t.join()
        assert [a.answer for a in asks] == warm


def test_bad_rows_and_falling_back_allocate_nothing(big_synthetic):
    rng = random.Random(13)
    nan = rows_of(rng, 1, HIDDEN)
    nan[0][9] = float("nan")
    with guarded(big_synthetic, "0-1") as s:
        asks = [Ask(1, F32, F16, r) for r in (nan, [[1e5] * HIDDEN], [[1e38 * (-1) ** (i // 2) for i in range(HIDDEN)]])]
        asks[1].headers["Accept"] = f"{F16}, {F32};q=0.5"
        asks.append(Ask(7, F32, F32, rows_of(rng, 1, HIDDEN)))
        arm(s)
        assert [a.post(s.url)[0] for a in asks] == [400, 200, 500, 400]
        assert asks[1].answer[1] == F32


@pytest.mark.parametrize("may,dies", [("1", False), ("0", True)])
def test_the_guard_bites(big_synthetic, may, dies):
    body = json.dumps({"layer": 0, "residual": [0.5] * HIDDEN, "full_output": True}).encode()
    s = guarded(big_synthetic, "0-1", LQ_ALLOC_GUARD_JSON=may)
    try:
        arm(s)
        if dies:
            with pytest.raises(OSError):
                grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})
            assert s.process.wait(60 * grid.TIMEOUT_X) == -signal.SIGABRT
            assert "bytes in phase json\n" in s.log_text()
        else:
            assert grid.post(s.url, "/v1/walk-ffn", body, {"Content-Type": "application/json"})[0] == 200
    finally:
        s.kill()
        s.process.stdout.close()
