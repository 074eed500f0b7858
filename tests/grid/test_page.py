"""The router's page in headless Chromium: what it shows, how soon, and what it asks for."""
import http.server
import json
import os
import socketserver
import threading

import pytest

import grid
from browser import Browser
from test_join import F32, GridRouter, ask, joined, single

HOSTILE = '"><img src=x onerror=window.hit=1><script>window.hit=1</script>\u202e&amp;'
GRID_KEY, CLIENT_KEY = "0123456789abcdef-grid", "0123456789abcdef-client"

# What one sees: the rows of the shards, their states, and the cells of the replicas' row.
ROWS = "[...document.querySelectorAll('.map tbody tr:not(.total)')]"
STATES = f"{ROWS}.map(r => r.querySelector('.state').innerText.trim()).join()"
TOTALS = "[...document.querySelectorAll('.total td')].map(c => c.title)"
BANNER = "document.querySelector('#banner').textContent"


@pytest.fixture(scope="module")
def tab():
    """One browser for all tests."""
    with Browser() as b:
        yield b


@pytest.fixture
def browser(tab):
    """Begins with an empty page; nothing of a test may have been asked of others, or complained about."""
    tab.open("about:blank")
    tab.wait("location.href === 'about:blank'")
    tab.requests.clear()
    tab.complaints.clear()
    yield tab
    assert not tab.complaints, tab.complaints


def show(browser, router, condition="!document.querySelector('#grid').hidden"):
    browser.open(router.url + "/")
    browser.wait(f"document.querySelector('#grid') && {condition}")


def watch(browser, condition):
    """Begins to wait, by the page's own clock, for what the page will show: window.shown, in ms."""
    browser.js("window.shown = new Promise(resolve => {"
               f"  const begin = performance.now(), look = () => {{ if ({condition}) resolve(performance.now() - begin); }};"
               "  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true,"
               "    attributes: true}); look(); }), 0")


def test_served_as_it_is_with_a_policy(synthetic):
    with GridRouter() as r:
        status, headers, body = grid.get(r.url, "/")
        with open(os.path.join(os.path.dirname(__file__), "..", "..", "router", "page.html"), "rb") as f:
            assert status == 200 and body == f.read()
        assert len(body) < 32768
        assert headers["content-type"] == "text/html; charset=utf-8" and headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "connect-src 'self'" in policy
        head = grid.request("HEAD", r.url, "/")
        assert head[0] == 200 and head[2] == b"" and head[1]["content-length"] == str(len(body))
        assert grid.post(r.url, "/", b"x")[0] == 405


@pytest.mark.parametrize("layers", ["0-7", "4-7"])
def test_killed_replica_is_shown_within_two_seconds(browser, synthetic, layers):
    """0-7: every layer has another replica, and all is well but for it; 4-7 alone: a gap."""
    alone = layers == "4-7"
    with GridRouter() as r, joined(r, synthetic, "0-3" if alone else "0-7"):
        dead = joined(r, synthetic, layers)
        show(browser, r, f"{STATES} === '● up,● up'")
        assert browser.js(BANNER) == "● Every layer has a live shard, and every shard is up."
        assert browser.js(TOTALS) == [f"layers {x}: {n} up, 0 in flight · – ms" for x, n in
                                      ([("0–7", 1)] if alone else [("0–7", 2)])]
        server_id = next(s["server_id"] for s in r.topology()["shards"] if s["url"] == dead.url)
        watch(browser, f"{STATES} === '✕ gone,● up' && {BANNER}.startsWith('{'✕ 4 layers' if alone else '▲ Every'}') && "
                       "document.querySelector('#events .bad')?.textContent === '✕ left'")
        dead.kill()
        shown_ms = browser.js("window.shown")
        assert shown_ms < 2000 * grid.TIMEOUT_X, shown_ms
        print(f"shown after {shown_ms:.0f} ms")
        assert browser.js(f"{ROWS}[0].querySelector('th').innerText").startswith(server_id)
        assert browser.js(TOTALS)[-1].startswith("layers 4–7: gap" if alone else "layers 0–7: 1 up")
        assert server_id in browser.js("document.querySelector('#events tbody tr').innerText")
        assert browser.js("document.title") == "1/1 up, larql-grid"
        assert set(browser.requests) == {r.url + "/", r.url + "/v1/topology?shards=200"}


def test_static_shard_that_dies_stays_as_down(browser, synthetic):
    with grid.shard(synthetic, "0-3") as a:
        b = grid.shard(synthetic, "4-7")
        with grid.router(f"0-3={a.url},4-7={b.url}") as r:
            show(browser, r, f"{STATES} === '● up,● up'")
            watch(browser, f"{STATES} === '✕ down,● up'")
            b.kill()
            shown_ms = browser.js("window.shown")
            assert shown_ms < 2000 * grid.TIMEOUT_X, shown_ms
            assert browser.js(TOTALS)[1] == "layers 4–7: 0 of 1 up"
            assert b.url in browser.js(f"{ROWS}[0].innerText")


def test_load_and_bytes(browser, synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7"):
        show(browser, r, f"{STATES} === '● up'")
        assert [ask(r.url, i % 8, Accept=F32 + "-f16")[0] for i in range(8)] == [200] * 8
        wire = r.topology()["wire"]
        assert wire == {"f32": {"bytes_in": 320, "bytes_out": 0}, "f16": {"bytes_in": 0, "bytes_out": 8 * 24},
                        "i8": {"bytes_in": 0, "bytes_out": 0}, "json": {"bytes_in": 0, "bytes_out": 0}}
        browser.wait("[...document.querySelectorAll('#wire tbody tr')].map(r => [0, 1, 3].map(i => r.cells[i].innerText)"
                     ".join()).join(';') === 'f32,320 B,0 B;f16,0 B,192 B;i8,0 B,0 B;json,0 B,0 B'")
        browser.wait(r"/^layers 0–7: 1 up, 0 in flight · \d+\.\d+ ms$/.test(" + TOTALS + "[0])")


def test_hostile_names_are_text(browser, synthetic):
    with GridRouter() as r, joined(r, synthetic, "0-7", "--model-id", HOSTILE):
        show(browser, r, f"{STATES} === '● up'")
        assert browser.js("document.querySelector('#models h2').firstChild.data") == HOSTILE
        browser.wait(f"document.querySelector('#events').innerText.includes({json.dumps(HOSTILE[:60])})")
        assert browser.js("document.images.length + document.scripts.length") == 1
        assert browser.js("window.hit ?? null") is None


def test_policy_kills_what_is_injected(tab, synthetic):
    """Even markup that got in by a mistake of ours would be dead."""
    with GridRouter() as r:
        show(tab, r)
        tab.js("document.querySelector('#about').insertAdjacentHTML('afterend', '<img src=x onerror=window.hit=1>'), "
               "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hit = 1'})), 0")
        tab.js("fetch('http://127.0.0.1:1/').catch(() => 0)")
        assert tab.js("window.hit ?? null") is None
        assert sum("Content Security Policy" in c for c in tab.complaints) >= 3, tab.complaints


def test_key_is_asked_for_and_kept_in_memory(tab, synthetic, tmp_path):
    grid_keys, client_keys = tmp_path / "grid.keys", tmp_path / "client.keys"
    for path, key in ((grid_keys, GRID_KEY), (client_keys, CLIENT_KEY)):
        path.write_text(key + "\n")
        path.chmod(0o600)
    tab.open("about:blank")
    with GridRouter("--grid-key-file", str(grid_keys), "--api-key-file", str(client_keys)) as r, \
            joined(r, synthetic, "0-7", env={"LARQL_GRID_KEY": GRID_KEY}) as s:
        assert grid.get(r.url, "/v1/topology")[0] == 401
        tab.open(r.url + "/")
        tab.wait("document.querySelector('#key') && !document.querySelector('#key').hidden")
        assert "holders of the grid key" in tab.js(BANNER) and tab.js("document.querySelector('#grid').hidden")

        def enter(key):
            tab.js(f"document.querySelector('#secret').value = {json.dumps(key)}, "
                   "document.querySelector('#key button').click(), 0")

        for key, words in (("short", "16 to 256"), ("wrong-" * 4, "not known here"), (CLIENT_KEY, "a client's key"),
                           ("ключ" * 5, "16 to 256")):
            enter(key)
            tab.wait(f"{BANNER}.includes({json.dumps(words)})")
            assert tab.js("document.querySelector('#grid').hidden")
        refused = r.log_text().count("auth_failed")
        tab.js("poll()")  # a key is waited for: nobody is asked
        enter(GRID_KEY)
        tab.wait(f"{STATES} === '● up'")
        assert r.log_text().count("auth_failed") == refused
        assert tab.js("document.querySelector('#key').hidden && document.querySelector('#secret').value === ''")
        assert tab.js("sessionStorage.length + localStorage.length + document.cookie.length + location.search.length") == 0
        assert GRID_KEY not in tab.js("document.documentElement.outerHTML") + "".join(tab.requests)
        assert GRID_KEY not in r.log_text() + s.log_text()


def test_router_that_dies_and_comes_back(tab, synthetic):
    with GridRouter() as first, joined(first, synthetic, "0-7"):
        tab.open("about:blank")
        show(tab, first, f"{STATES} === '● up'")
        join_port, port = first.join.rsplit(":", 1)[1], first.url.rsplit(":", 1)[1]
        watch(tab, f"{BANNER}.startsWith('✕ The router has not answered')")
        first.kill()
        assert tab.js("window.shown") < 4000 * grid.TIMEOUT_X
        assert tab.js("document.querySelector('#grid').className") == "stale"
        with grid.Proc([grid.program("larql-router"), "--grid-port", join_port, "--port", port], "router"):
            tab.wait(f"{STATES} === '● up' && {BANNER}.startsWith('● ') && document.querySelector('#grid').className === ''")


def test_hidden_tab_asks_nothing(browser, synthetic):
    with GridRouter() as r:
        show(browser, r)
        browser.js("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true}), 0")
        browser.js("window.away = true, 0")
        browser.js("new Promise(done => { const look = () => asking ? setTimeout(look, 1) : done(0); look(); })")
        asked = len(browser.requests)
        browser.js("poll()")
        assert len(browser.requests) == asked
        browser.js("window.away = false, document.dispatchEvent(new Event('visibilitychange')), 0")
        browser.js("new Promise(done => { const look = () => asking ? setTimeout(look, 1) : done(0); look(); })")
        assert len(browser.requests) > asked


def big_grid(shards_n, layers, models):
    """What a router with so many shards answers to ?shards=200."""
    def shard(i):
        first = i * 7 % layers
        return {"server_id": f"srv-{i}", "url": f"http://10.0.{i >> 8}.{i & 255}:8080", "source": "joined",
                "state": "down" if i % 50 == 0 else "up", **({"why": "reset"} if i % 50 == 0 else {}),
                "in_flight": i % 5, "latency_ms": 1 + i % 9 / 7, "p95_ms": 2.5, "answers": i * 10, "failures": 0,
                "model_id": f"model-{i % models}", "layer_start": first, "layer_end": min(first + 6, layers - 1),
                "ranges": [[first, min(first + 6, layers - 1)]],
                "load": {"cpu_pct": 55.5, "ram_used": 1 << 30, "requests_in_flight": 2, "req_per_sec": 7}}
    return {"router": {"version": "0", "uptime_seconds": 99999, "draining": False}, "generation": 7,
            "models": [{"model_id": f"model-{m}", "layers": layers, "hidden_size": 4096, "identity": "ab" * 32,
                        "gaps": [{"layer_start": layers - 1, "layer_end": layers - 1}]} for m in range(models)],
            "shards_n": shards_n, "in_flight": 9999, "shards_up": shards_n - shards_n // 50, "shards": [shard(i) for i in range(min(shards_n, 200))],
            "routes": [{"model_id": f"model-{m}", "layer_start": i, "layer_end": i, "replicas_n": 80, "up_n": 80 - i % 3,
                        "in_flight": i % 4, "latency_ms": 1.5, "replicas": []} for m in range(models) for i in range(layers - 1)],
            "wire": {f: {"bytes_in": 10**13, "bytes_out": 10**9} for f in ("f32", "f16", "i8", "json")},
            "events": [{"seq": 200 - i, "at": "2026-01-05T10:00:00.123Z", "event": "joined", "server_id": f"srv-{i}",
                        "text": "layers"} for i in range(100)]}


class Fake:
    """The real page before a topology of ours."""

    def __init__(self, page, topology):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = page if self.path == "/" else json.dumps(topology).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8" if self.path == "/" else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize("shards,layers,models", [(10000, 126, 1), (10000, 126, 100), (300, 65536, 1)])
def test_large_grids_stay_small_here(browser, shards, layers, models):
    with GridRouter() as r:
        page = grid.get(r.url, "/")[2]
    with Fake(page, big_grid(shards, layers, models)) as fake:
        show(browser, fake)
        browser.wait(f"{STATES}.startsWith('✕ down')")
        assert browser.js(f"{ROWS}.length") <= 200
        more = browser.js("[...document.querySelectorAll('.more')].map(p => p.innerText).join()")
        assert f"{shards - browser.js(f'{ROWS}.length'):,} more shards not listed" in more, more
        assert models == 1 or "80 more models not shown" in more
        assert browser.js("document.querySelectorAll('*').length") < 20000
        assert browser.js("document.querySelector('.map').scrollWidth <= document.querySelector('.map').clientWidth")
        cells = browser.js("[...document.querySelectorAll('.total td')].length")
        assert cells <= 128 * min(models, 20)
        assert browser.js(TOTALS)[-1] == (f"layers {layers - 1}: gap" if layers == 126 else "layers 65024–65535: gap")
        ticks = browser.js("[...document.querySelector('.map tr').querySelectorAll('.tick')].map(t => t.scrollWidth <= t.clientWidth)")
        assert 8 <= len(ticks) <= 15 and all(ticks)


def test_no_more_shards_than_asked_for(synthetic):
    """The bounded list names those in trouble first; the figures are of all."""
    with grid.shard(synthetic, "0-7") as s, grid.router(f"0-7={s.url},0-7=http://127.0.0.1:1,0-7=http://127.0.0.1:2") as r:
        def topology(query):
            return json.loads(grid.get(r.url, "/v1/topology" + query)[2])
        assert grid.post(r.url, "/v1/walk-ffn", single(1), {"Content-Type": F32})[0] == 200
        full = topology("")
        assert [x["state"] for x in full["shards"]] == ["up", "down", "down"] == [x["state"] for x in topology("?shards=3")["shards"]]
        assert len(full["routes"][0]["replicas"]) == 3
        for n, states in ((0, []), (1, ["down"]), (2, ["down", "down"])):
            t = topology(f"?shards={n}")
            assert [x["state"] for x in t["shards"]] == states and (t["shards_n"], t["shards_up"]) == (3, 1)
            assert t["routes"][0]["replicas"] == [] and (t["routes"][0]["replicas_n"], t["routes"][0]["up_n"]) == (3, 1)
        for bad in ("?shards=", "?shards=-1", "?shards=x", "?shards=1x", "?shards=99999999999999999999999"):
            assert len(topology(bad)["shards"]) == 3
