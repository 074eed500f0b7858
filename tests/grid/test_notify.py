"""What a service manager hears: READY, STATUS with the coverage, STOPPING, WATCHDOG."""
import json
import os
import socket

import pytest

import grid


class Manager:
    """The socket of $NOTIFY_SOCKET, with every line that came through it."""

    def __init__(self, where):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(where.replace("@", "\0", 1) if where.startswith("@") else where)
        self.socket.settimeout(60 * grid.TIMEOUT_X)
        self.env = {"NOTIFY_SOCKET": where}
        self.lines = []

    def wait_for(self, wanted):
        """Until a line that begins so comes; that line."""
        while True:
            text = self.socket.recv(4096).decode()
            self.lines += text.split("\n")
            for line in text.split("\n"):
                if line.startswith(wanted):
                    return line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    where = f"@larql-grid-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with Manager(where) as m:
        yield m


def test_shard_tells_ready_status_and_stopping(manager, synthetic):
    with grid.shard(synthetic, "2-5", "--model-id", "a\nREADY=0", env=manager.env) as s:
        manager.wait_for("READY=1")  # no later than the ready line, which was read
        assert manager.wait_for("STATUS=") == "STATUS=layers 2-5 of 8 of a READY=0"
        assert s.stop() == 0
        manager.wait_for("STOPPING=1")
    assert manager.lines.count("READY=1") == 1 and manager.lines.count("STOPPING=1") == 1


@pytest.mark.parametrize("threads", ["1", "3"])
def test_router_tells_its_coverage(tmp_path, synthetic, threads):
    with Manager(str(tmp_path / "n")) as manager, grid.shard(synthetic, "0-3") as a, grid.shard(synthetic, "4-7") as b:
        with grid.router(f"0-3={a.url},4-7={b.url}", "--threads", threads, env=manager.env) as r:
            manager.wait_for("READY=1")
            if not any("8 of 8 layers" in line for line in manager.lines):
                manager.wait_for("STATUS=8 of 8 layers have a live shard, 2 of 2 shards are up")
            b.kill()
            ask = json.dumps({"layer": 5, "residual": [0.5] * 6, "full_output": True}).encode()
            assert grid.post(r.url, "/v1/walk-ffn", ask, {"Content-Type": "application/json"})[0] == 502
            manager.wait_for("STATUS=4 of 8 layers have a live shard, 1 of 2 shards are up")
            assert r.stop() == 0
            manager.wait_for("STOPPING=1")
        assert manager.lines.count("STOPPING=1") == 1
        assert "WATCHDOG=1" not in manager.lines


@pytest.mark.parametrize("watchdog_us", ["400000", "4000"])  # 4000: a beat is due at every moment, also of the end
def test_watchdog_is_fed_until_the_end(tmp_path, synthetic, watchdog_us):
    with Manager(str(tmp_path / "n")) as manager, grid.shard(synthetic, "0-7") as a, \
            grid.shard(synthetic, "0-7", env={**manager.env, "WATCHDOG_USEC": watchdog_us}):
        env = {**manager.env, "WATCHDOG_USEC": watchdog_us}
        with grid.router(f"0-7={a.url}", "--threads", "2", env=env):
            for _ in range(3):
                manager.wait_for("WATCHDOG=1")


def test_manager_that_is_gone_stops_nobody(tmp_path, synthetic):
    with grid.shard(synthetic, "0-7", env={"NOTIFY_SOCKET": str(tmp_path / "none")}) as s:
        assert grid.get(s.url, "/v1/health")[0] == 200
    assert "notify_failed" in s.log_text()
