"""Shards that die, freeze and come back under 16 clients that accept no failed and no wrong
answer (tests/tools/chaos_load.c). One fault at a time in each layer range: the next one
waits until all its replicas are up again. LQ_CHAOS_KILLS: how many faults, 500 by default."""
import contextlib
import faulthandler
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from collections import Counter

import pytest

import grid
from test_join import F32, GridRouter, single, wait_for

FAULTS = int(os.environ.get("LQ_CHAOS_KILLS", "500"))
STATIC_FAULTS = FAULTS // 10  # a static shard waits for its probe, up to a second
RANGES = ("0-1", "2-3", "4-5", "6-7")
CLIENTS = 16
LAYERS, HIDDEN = 8, 6  # of the synthetic model
# Many kills for one freeze: that takes seconds to be found out.
KINDS = ["kill"] * 14 + ["restart"] * 4 + ["hiccup"] * 2 + ["freeze"]


@pytest.fixture(autouse=True)
def limit():
    """conftest's limit, for this many faults."""
    faulthandler.dump_traceback_later((300 + FAULTS) * grid.TIMEOUT_X, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Slot:
    """One replica's place: the process in it changes. port 0: another one each time."""

    def __init__(self, model, layers, *args, port=0):
        self.command = [grid.program("larql-shard"), model, "--layers", layers, *args]
        self.layers, self.port, self.process, self.url = layers, port, None, None
        os.makedirs(grid.LOGS, exist_ok=True)
        self.log_path = os.path.join(grid.LOGS, f"{next(grid._number):04d}-slot-{layers}.log")
        self.start()

    def start(self):
        """Again and again while somebody's connection has the port for its own end."""
        while True:
            with open(self.log_path, "ab") as log:
                self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stdout=subprocess.PIPE, stderr=log,
                                                text=True)
            line = self.process.stdout.readline()
            if line.startswith("ready url="):
                self.url = line.split("=", 1)[1].strip()
                return
            self.end(signal.SIGKILL)
            assert self.port and "Address already in use" in self.log_text(), self.log_text()[-2000:]

    def keep_port(self):
        self.port = int(self.url.rsplit(":", 1)[1])

    def log_text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def end(self, how):
        self.process.send_signal(how)
        code = self.process.wait(60 * grid.TIMEOUT_X)
        self.process.stdout.close()
        assert how == signal.SIGKILL or code == 0, f"exit code {code}: {self.log_text()[-2000:]}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.end(signal.SIGTERM if kind is None else signal.SIGKILL)
        assert kind or "Sanitizer" not in self.log_text(), self.log_text()[-6000:]


class Load:
    """chaos_load, running until .end()."""

    def __init__(self, url, clients, *args):
        self.process = subprocess.Popen([os.path.join(grid.BUILD, "tests", "chaos_load"), url, str(clients), str(LAYERS),
                                         str(HIDDEN), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.mu = threading.Lock()
        assert self.process.stdout.readline() == "ready\n"

    def asked(self):
        with self.mu:
            self.process.stdin.write("?\n")
            self.process.stdin.flush()
            return int(self.process.stdout.readline().split()[1])

    def end(self):
        out, _ = self.process.communicate(timeout=200 * grid.TIMEOUT_X)
        return json.loads(out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Chaos:
    """Faults at random in all ranges at once, one at a time in each."""

    def __init__(self, router, load, slots, faults):
        self.router, self.load, self.slots, self.left = router, load, slots, faults
        self.mu, self.done, self.wrong = threading.Lock(), Counter(), []

    def states(self, layers):
        """url -> state, of the range's shards that the router knows."""
        first = int(layers.split("-")[0])
        shards = json.loads(grid.get(self.router.url, "/v1/topology")[2])["shards"]
        return {s["url"]: s["state"] for s in shards if s["layer_start"] == first}

    def wait_whole(self, layers, slots):
        """Both are up, and nobody else is there."""
        want = {s.url: "up" for s in slots}
        wait_for(lambda: self.states(layers) == want, f"{want} never came: {self.states(layers)}", 60)

    def fault(self, kind, slot):
        if kind == "kill":
            slot.end(signal.SIGKILL)
            slot.start()
        elif kind == "restart":  # which drains
            slot.end(signal.SIGTERM)
            slot.start()
        else:
            slot.process.send_signal(signal.SIGSTOP)
            try:
                if kind == "freeze":
                    wait_for(lambda: self.states(slot.layers)[slot.url] == "down", "a frozen shard stayed up", 60)
                else:
                    goal = self.load.asked() + 100
                    wait_for(lambda: self.load.asked() > goal, "a frozen shard stopped all clients", 60)
            finally:
                slot.process.send_signal(signal.SIGCONT)

    def run_range(self, layers, rng):
        slots = [s for s in self.slots if s.layers == layers]
        while not self.wrong and self.load.process.poll() is None:
            with self.mu:
                if self.left == 0:
                    return
                self.left -= 1
            kind = rng.choice(KINDS)
            try:
                self.fault(kind, rng.choice(slots))
                self.wait_whole(layers, slots)
            except BaseException as e:  # of a thread: told by run()
                self.wrong.append(f"{kind} in {layers}: {e!r}")
            self.done[kind] += 1

    def run(self):
        for layers in RANGES:
            self.wait_whole(layers, [s for s in self.slots if s.layers == layers])
        threads = [threading.Thread(target=self.run_range, args=(layers, random.Random(i))) for i, layers in enumerate(RANGES)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not self.wrong, self.wrong


def metric(url, name):
    lines = grid.get(url, "/metrics")[2].decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if re.split("[{ ]", x)[0] == name)


def all_hell(router, slots, faults, what):
    """The faults, and the numbers of it on standard output."""
    wait_for(lambda: grid.get(router.url, "/v1/health?coverage=full")[0] == 200)
    begin = time.monotonic()
    with Load(router.url, CLIENTS) as load:
        chaos = Chaos(router, load, slots, faults)
        chaos.run()
        told = load.end()
    text = ", ".join(f"{n} {kind}" for kind, n in sorted(chaos.done.items()))
    counts = {n: int(metric(router.url, f"larql_router_{n}_total")) for n in ("retries", "retry_budget_spent", "ejections", "cut_answers")}
    print(f"\n{what}: {faults} faults ({text}) in {time.monotonic() - begin:.0f} s; {told}; {counts}")
    assert told["failed"] == told["wrong"] == told["refused"] == 0 and sum(chaos.done.values()) == faults
    assert counts["retry_budget_spent"] == 0 and counts["retries"] > 0


def two_each(stack, model, *args):
    return [stack.enter_context(Slot(model, layers, *args)) for layers in RANGES for _ in range(2)]


def test_joined_shards_that_die_cost_no_answer(synthetic):
    with GridRouter("--threads", "4") as r, contextlib.ExitStack() as stack:
        all_hell(r, two_each(stack, synthetic, "--join", r.join), FAULTS - STATIC_FAULTS, "joined")


def test_static_shards_that_die_cost_no_answer(synthetic):
    with contextlib.ExitStack() as stack:
        slots = two_each(stack, synthetic)
        for s in slots:
            s.keep_port()
        with grid.router(",".join(f"{s.layers}={s.url}" for s in slots)) as r:
            all_hell(r, slots, STATIC_FAULTS, "static")


def test_one_replica_says_no_within_the_deadline(synthetic):
    """Never a short answer, never a late one: 502, 503 or 504 (chaos_load --outage)."""
    with contextlib.ExitStack() as stack:
        slots = [stack.enter_context(Slot(synthetic, layers)) for layers in RANGES]
        for s in slots:
            s.keep_port()
        with grid.router(",".join(f"{s.layers}={s.url}" for s in slots)) as r:
            with Load(r.url, CLIENTS, "--outage", "1000") as load:
                def more():
                    goal = load.asked() + 3 * CLIENTS
                    wait_for(lambda: load.asked() > goal, "nobody is answered", 60)
                for i in range(20):
                    s = slots[i % len(slots)]
                    how = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)[i % 3]
                    if how == signal.SIGSTOP:
                        s.process.send_signal(how)
                        more()
                        s.process.send_signal(signal.SIGCONT)
                    else:
                        s.end(how)
                        more()
                        s.start()
                    more()
                told = load.end()
            print(f"\none replica: {told}")
            assert told["failed"] == told["wrong"] == told["late"] == 0 and told["refused"] > 0


def test_400_restarts_between_requests_of_one_connection(synthetic):
    """The router's own kept connection is dead each time, and it knows nothing of that."""
    with Slot(synthetic, "0-7") as s:
        s.keep_port()
        with grid.router(f"0-7={s.url}") as r:
            where = urllib.parse.urlsplit(r.url)
            client = http.client.HTTPConnection(where.hostname, where.port, timeout=60 * grid.TIMEOUT_X)
            statuses = Counter()
            for i in range(400):
                client.request("POST", "/v1/walk-ffn", single(i % 8), {"Content-Type": F32})
                answer = client.getresponse()
                answer.read()
                statuses[answer.status] += 1
                s.end(signal.SIGKILL if i % 2 else signal.SIGTERM)
                s.start()
            client.close()
            assert statuses == {200: 400}, statuses


def router_at(port, grid_port, *args):
    """A router on these ports, which another has just left."""
    while True:
        try:
            return grid.Proc([grid.program("larql-router"), "--port", str(port), "--grid-port", str(grid_port), *args], "router")
        except AssertionError as e:
            if "Address already in use" not in str(e):
                raise


@pytest.mark.parametrize("how", ["static", "joined"])
def test_larql_run_goes_on_when_its_router_is_restarted(synthetic, how):
    """The text is the one of an undisturbed run; two restarts in the middle of it."""
    def command(url):
        return [grid.program("larql"), "run", synthetic, "--ffn", url, "--prompt", "abc", "-n", "1000", "--ignore-eos", "-q"]
    with contextlib.ExitStack() as stack:
        port, grid_port = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        ports = [s.getsockname()[1] for s in (port, grid_port)]
        port.close()
        grid_port.close()
        args = ["--join", f"127.0.0.1:{ports[1]}"] if how == "joined" else []
        slots = [stack.enter_context(Slot(synthetic, layers, *args)) for layers in RANGES]
        table = ["--shards", ",".join(f"{s.layers}={s.url}" for s in slots)] if how == "static" else []
        router = router_at(*ports, *table)
        wait_for(lambda: grid.get(router.url, "/v1/health?coverage=full")[0] == 200)
        undisturbed = subprocess.run(command(router.url), capture_output=True, check=True, timeout=100 * grid.TIMEOUT_X).stdout
        run = subprocess.Popen(command(router.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text = b""
        for _ in range(2):
            text += run.stdout.read(20)
            assert run.poll() is None
            router.kill()
            router.process.stdout.close()
            router = router_at(*ports, *table)
        rest, why = run.communicate(timeout=100 * grid.TIMEOUT_X)
        assert run.returncode == 0, why
        assert text + rest == undisturbed
        assert metric(router.url, "larql_router_requests_total") > 0
        router.stop()
        router.process.stdout.close()
