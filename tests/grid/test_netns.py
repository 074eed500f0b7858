"""A grid over several hosts: network namespaces with addresses of their own, joined by veth."""
import http.client
import json
import os
import time

import pytest

import grid
import netns

WHY_NOT = netns.missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

ASK = json.dumps({"layer": 5, "residual": [0.5, -1.25, 2.0, 0.125, -3.0, 1.0], "full_output": True}).encode()
REGION_KBIT, REGION_RTT_MS = 10000, 50
KEY = "0123456789abcdef0123456789abcdef"  # of the tests in which shards join


@pytest.fixture
def net():
    with netns.Net("router", "a", "b", "client") as n:
        yield n


def start_shard(net, name, model, layers, *args):
    return net[name].start([grid.program("larql-shard"), model, "--layers", layers, *netns.off_loopback("larql-shard"), *args], "shard")


def start_router(net, *args):
    return net["router"].start([grid.program("larql-router"), *netns.off_loopback("larql-router"), *args], "router")


def url(net, name):
    return f"http://{net[name].address}:{9090 if name == 'router' else 8080}"


def table(net):
    return f"0-3={url(net, 'a')},4-7={url(net, 'b')}"


def ask(net, path="/v1/walk-ffn", headers=None):
    return net["client"].call(grid.post, url(net, "router"), path, ASK, {"Content-Type": "application/json", **(headers or {})})


def get(net, path):
    """As an operator, who has the grid key."""
    return net["client"].call(grid.request, "GET", url(net, "router"), path, None, {"Authorization": f"Bearer {KEY}"})


def poll(net, path, done):
    """GET path over one connection until done(status, body); the test's own limit ends it."""
    def turns():
        c = http.client.HTTPConnection(net["router"].address, 9090, timeout=60 * grid.TIMEOUT_X)
        while True:
            c.request("GET", path, headers={"Authorization": f"Bearer {KEY}"})
            r = c.getresponse()
            body = r.read()
            if done(r.status, body):
                c.close()
                return body
    return net["client"].call(turns)


def wait_until(net, what):
    """Until what(topology) holds; that topology."""
    return json.loads(poll(net, "/v1/topology", lambda _, body: what(json.loads(body))))


def wait_for_coverage(net, status):
    poll(net, "/v1/health?coverage=full", lambda got, _: got == status)


def states(topology):
    return {r["layer_start"]: [x["state"] for x in r["replicas"]] for r in topology["routes"]}


def test_whole_model_over_four_hosts(net, synthetic):
    """Text through a router and two shards, each on a host of its own, equals text without them."""
    words = ["--prompt", "abc", "-n", "12", "-q"]
    with start_shard(net, "a", synthetic, "0-3"), start_shard(net, "b", synthetic, "4-7"), start_router(net, "--shards", table(net)):
        assert json.loads(get(net, "/v1/health")[2])["coverage"]["live"] == 8
        done = net["client"].run([grid.program("larql"), "run", synthetic, "--ffn", url(net, "router"), "--wire", "f32", *words])
        assert done.returncode == 0, done.stderr
        assert done.stdout == grid.larql("run", synthetic, "--ffn", "local", *words).stdout


def test_loopback_is_not_the_network(net, synthetic):
    """A shard that listens on its own loopback is none to the router of another host."""
    with net["b"].start([grid.program("larql-shard"), synthetic, "--layers", "4-7"], "shard"), \
            start_router(net, "--shards", f"4-7={url(net, 'b')}"):
        status, _, body = ask(net)
        assert status == 502 and b"10.77.0.3" in body, body


def test_host_whose_cable_is_pulled(net, synthetic):
    """No answer but an error, within the deadline, and the grid mends itself when it is back."""
    with start_shard(net, "a", synthetic, "0-3"), start_shard(net, "b", synthetic, "4-7"), start_router(net, "--shards", table(net)):
        good = json.loads(ask(net)[2])["output"]
        net["b"].link(False)
        for _ in range(3):
            status, _, body = ask(net, headers={"X-Larql-Deadline-Ms": "2000"})
            assert status in (502, 504) and "error" in json.loads(body), body
        assert json.loads(ask_layer(net, 1)[2])["output"]
        net["b"].link(True)
        wait_until(net, lambda t: states(t)[4] == ["up"])
        assert json.loads(ask(net)[2])["output"] == good


def ask_layer(net, layer):
    body = json.dumps({**json.loads(ASK), "layer": layer}).encode()
    return net["client"].call(grid.post, url(net, "router"), "/v1/walk-ffn", body, {"Content-Type": "application/json"})


@pytest.mark.skipif(WHY_NOT is None and not netns.has_option("larql-router", "--hedge"), reason="this router waits for a silent replica until the deadline")
def test_replica_on_another_host_answers_when_one_is_cut_off(net, synthetic):
    with start_shard(net, "a", synthetic, "0-7"), start_shard(net, "b", synthetic, "0-7"), \
            start_router(net, "--shards", f"0-7={url(net, 'a')},0-7={url(net, 'b')}", "--deadline-ms", "20000"):
        good = json.loads(ask(net)[2])["output"]
        net["a"].link(False)
        for _ in range(8):
            status, _, body = ask(net)
            assert status == 200 and json.loads(body)["output"] == good, body


def test_thin_line_carries_i8_at_a_fifth_of_f32(net, big_synthetic):
    """10 Mbit/s between the regions: what leaves each host is shaped. Times are told, bytes are judged."""
    if not all(net[n].shape("tbf", "rate", f"{REGION_KBIT}kbit", "burst", "32kb", "latency", "400ms") for n in ("a", "router")):
        pytest.skip("this kernel has no token bucket (sch_tbf)")
    sent = {}
    with start_shard(net, "a", big_synthetic, "0-1"), start_router(net, "--shards", f"0-1={url(net, 'a')}"):
        for wire in ("f32", "f16", "i8"):
            stats = os.path.join(grid.LOGS, f"netns-{os.getpid()}-{wire}.json")
            begin = time.monotonic()
            done = net["client"].run([grid.program("larql"), "run", big_synthetic, "--ffn", url(net, "router"), "--wire", wire, "--prompt",
                                      "abcdefgh" * 4, "-n", "8", "-q", "--stats-json", stats])
            assert done.returncode == 0, done.stderr
            with open(stats, encoding="utf-8") as f:
                s = json.load(f)
            os.unlink(stats)
            sent[wire] = s["bytes_up"] + s["bytes_down"]
            print(f"{wire}: {sent[wire]} bytes, {time.monotonic() - begin:.2f} s")
    assert sent["f16"] < 0.55 * sent["f32"] and sent["i8"] < 0.3 * sent["f32"]


def test_far_region(net, synthetic):
    """A shard 50 ms and 10 Mbit/s away: a deadline shorter than the way is an error, a sane one an answer."""
    net.far("a", REGION_RTT_MS, REGION_KBIT)
    with start_shard(net, "a", synthetic, "0-7"), start_router(net, "--shards", f"0-7={url(net, 'a')}"):
        assert ask(net)[0] == 200
        assert ask(net, headers={"X-Larql-Deadline-Ms": "10"})[0] == 504
        replica = json.loads(get(net, "/v1/topology")[2])["routes"][0]["replicas"][0]
        assert replica["latency_ms"] >= REGION_RTT_MS * 0.9
        words = ["--prompt", "abc", "-n", "3", "-q"]
        done = net["client"].run([grid.program("larql"), "run", synthetic, "--ffn", url(net, "router"), "--wire", "f32", *words])
        assert done.returncode == 0 and done.stdout == grid.larql("run", synthetic, "--ffn", "local", *words).stdout, done.stderr


def test_line_that_is_cut_between_regions(net, synthetic):
    """What is on the way is lost; nobody waits for longer than the deadline."""
    net.far("a", REGION_RTT_MS, REGION_KBIT)
    with start_shard(net, "a", synthetic, "0-7"), start_router(net, "--shards", f"0-7={url(net, 'a')}"):
        assert ask(net)[0] == 200
        net["a"].link(False)
        assert ask(net, headers={"X-Larql-Deadline-Ms": "1000"})[0] in (502, 504)
        net["a"].link(True)
        wait_until(net, lambda t: states(t)[0] == ["up"])
        assert any(ask(net)[0] == 200 for _ in range(5))  # the first may still meet what was broken


# ---- membership: shards that join over the network ------------------------------

joins = pytest.mark.skipif(WHY_NOT is None and not netns.has_option("larql-shard", "--join"), reason="these programs cannot join a grid")


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "grid.key"
    path.write_text(f"# a test's\n{KEY}\n")
    path.chmod(0o600)
    return str(path)


def join_args(net, name, key, public=None):
    return ["--join", f"{net['router'].address}:50052", "--public-url", public or url(net, name), "--grid-key-file", key]


@joins
def test_shards_of_other_hosts_join(net, synthetic, key):
    with start_router(net, "--grid-port", "50052", "--grid-key-file", key), \
            start_shard(net, "a", synthetic, "0-3", *join_args(net, "a", key)), \
            start_shard(net, "b", synthetic, "4-7", *join_args(net, "b", key)) as b:
        wait_for_coverage(net, 200)
        assert ask(net)[0] == 200
        b.kill()
        wait_until(net, lambda t: 4 not in states(t) or "up" not in states(t)[4])
        assert ask(net)[0] in (502, 503)


@joins
def test_loopback_url_of_another_host_is_refused_with_the_reason(net, synthetic, key):
    with start_router(net, "--grid-port", "50052", "--grid-key-file", key), \
            start_shard(net, "a", synthetic, "0-7", *join_args(net, "a", key, public="http://127.0.0.1:8080")) as shard:
        wait_until(net, lambda _: "join_rejected" in shard.log_text())
        assert "http://127.0.0.1:8080, an address of its own machine" in shard.log_text()
        assert ask(net)[0] in (400, 503)


@joins
def test_joined_host_whose_cable_is_pulled_leaves_the_table(net, synthetic, key):
    """Silent for 25 s, or found dead by the router's probes before: never in the table for longer."""
    with start_router(net, "--grid-port", "50052", "--grid-key-file", key), \
            start_shard(net, "a", synthetic, "0-7", *join_args(net, "a", key)):
        wait_for_coverage(net, 200)
        net["a"].link(False)
        assert ask(net, headers={"X-Larql-Deadline-Ms": "2000"})[0] in (502, 503, 504)
        wait_for_coverage(net, 503)
        net["a"].link(True)
        wait_for_coverage(net, 200)
        assert ask(net)[0] == 200
