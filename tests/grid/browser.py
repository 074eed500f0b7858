"""Headless Chromium for tests: the DevTools protocol over a pair of pipes (messages end with a NUL), so
that neither a driver nor a WebSocket library is needed."""
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

import grid

PROGRAMS = ("chromium-headless-shell", "chromium")
ARGS = ("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--no-proxy-server", "--disable-background-networking", "--disable-component-update",
        "--force-color-profile=srgb", "--hide-scrollbars")


def high(fd):
    """The same file, on a number that is none of the child's 3 and 4."""
    up = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return up


class Browser:
    """One tab. requests: URLs that it asked for; complaints: console errors, exceptions, refusals by policy."""

    def __init__(self, width=1280, height=800):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        assert program, f"none of {PROGRAMS} is here: deploy/packages.sh test"
        self.requests, self.complaints = [], []
        self._folder = tempfile.TemporaryDirectory(prefix="lq-browser", ignore_cleanup_errors=True)
        self._number, self._buffer = 0, b""
        (theirs_in, ours_out), (ours_in, theirs_out) = ([high(fd) for fd in os.pipe()] for _ in range(2))
        os.makedirs(grid.LOGS, exist_ok=True)
        log = os.path.join(grid.LOGS, "browser.log")
        self._pid = os.posix_spawn(
            program, [program, *ARGS, f"--user-data-dir={self._folder.name}"], os.environ, file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2)], setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._session = ours_in, ours_out, None
        target = self.call("Target.createTarget", url="about:blank", width=width, height=height)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def _message(self, end):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            got = os.read(self._in, 1 << 20)
            assert got, "the browser is gone: see browser.log"
            self._buffer += got
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _on_event(self, name, p):
        if name == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.complaints.append(str(p["exceptionDetails"]))
        elif name == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.complaints.append(f'{p["entry"]["text"]} {p["entry"].get("url", "")}')
        elif name == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert", "warning"):
            self.complaints.append(str(p["args"]))

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60 * grid.TIMEOUT_X
        while True:
            got = self._message(end)
            if got.get("id") == self._number:
                assert "error" not in got, got
                return got["result"]
            self._on_event(got.get("method"), got.get("params"))

    def js(self, expression):
        """Its value; of a promise, what it comes to."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def open(self, url):
        self.call("Page.navigate", url=url)

    def wait(self, condition, limit_s=30):
        """Until the expression is true; its value."""
        end = time.monotonic() + limit_s * grid.TIMEOUT_X
        while time.monotonic() < end:
            if got := self.js(condition):
                return got
            time.sleep(0.02)
        raise AssertionError(f"never true: {condition}\n{self.js('document.body.innerText')}\n{self.complaints}")

    def screenshot(self, path):
        import base64
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self._pid, signal.SIGKILL)  # its helpers too
        os.waitpid(self._pid, 0)
        os.close(self._out)
        while os.read(self._in, 1 << 20):  # they hold the other end: until the last one is gone
            pass
        os.close(self._in)
        self._folder.cleanup()
