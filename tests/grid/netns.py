"""Several hosts on this machine: a network namespace each, with an address of its own, at one switch.

    with netns.Net("router", "shard") as net:
        with net["shard"].start([program, ...], "shard") as s: ...
        net["router"].call(grid.get, "http://10.77.0.2:8080", "/v1/health")

The switch is a bridge in one namespace more, so that nothing of it shows outside. Needs root
and `ip` (iproute2); missing() says why it cannot be had. Ports are the programs' own defaults:
nobody else is in there.
"""
import collections
import ctypes
import fcntl
import os
import select
import shutil
import struct
import subprocess
import threading
import time

import grid

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME_BYTES, QUEUE_S = 65536, 2.0
PREFIX = "10.77.0."
_libc = ctypes.CDLL(None, use_errno=True)


def _ip(*words, check=True):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done


def missing():
    """Why there can be no hosts here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "no ip here (iproute2)"
    try:
        with Net("probe"):
            return None
    except OSError as why:
        return f"no network namespaces here: {why}"


def has_option(program, option):
    text = subprocess.run([grid.program(program), "--help"], capture_output=True, text=True, check=True).stdout
    return option in text.split()


def off_loopback(program):
    """The words that let a program listen for other hosts without key and TLS."""
    return ["--host", "0.0.0.0", *(["--insecure"] if has_option(program, "--insecure") else [])]


def inside(namespace, fn, *args):
    """fn(*args) in a namespace: a thread of ours joins it for that."""
    out = {}

    def body():
        try:
            fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
            joined = _libc.setns(fd, CLONE_NEWNET)
            os.close(fd)
            if joined != 0:
                raise OSError(ctypes.get_errno(), "setns")
            out["value"] = fn(*args)
        except BaseException as why:  # pylint: disable=broad-except
            out["error"] = why

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if "error" in out:
        raise out["error"]
    return out["value"]


class Host:
    """One namespace. address is how the others reach it."""

    def __init__(self, name, number):
        self.name = name
        self.namespace = f"lq{os.getpid()}-{name}"
        self.address = f"{PREFIX}{number}"

    def words(self, args):
        """The command line that runs args there; the process keeps its id."""
        return ["ip", "netns", "exec", self.namespace, *args]

    def start(self, args, name, env=None):
        return grid.Proc(self.words(args), f"{self.name}-{name}", env)

    def run(self, args, **how):
        return subprocess.run(self.words(args), capture_output=True, text=True, errors="replace", check=False, **how)

    def call(self, fn, *args):
        """fn(*args) as a process on this host would."""
        return inside(self.namespace, fn, *args)

    def link(self, up):
        """The cable: in, or pulled without a word to anybody."""
        _ip("-n", self.namespace, "link", "set", "eth0", "up" if up else "down")

    def shape(self, *qdisc):
        """tc's words for what leaves this host; False: this kernel lacks that discipline (netem often)."""
        done = subprocess.run(["tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", *qdisc], capture_output=True,
                              text=True, check=False)
        if "unknown" in done.stderr or "No such file" in done.stderr:
            return False
        assert done.returncode == 0, done.stderr
        return True


class FarLine:
    """Frames between two taps, later by delay_s and no faster than kbit: for kernels without netem."""

    def __init__(self, a, b, delay_s, kbit):
        self.bytes_per_s = kbit * 125
        self.delay_s = delay_s
        self.ways = {a: b, b: a}
        self.queues = {a: collections.deque(), b: collections.deque()}  # by where from: (when it arrives, frame)
        self.free_at = {a: 0.0, b: 0.0}  # when the last frame is on the line
        self.stop_r, self.stop_w = os.pipe()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _take(self, fd):
        frame, now = os.read(fd, FRAME_BYTES), time.monotonic()
        begin = max(now, self.free_at[fd])
        if begin - now > QUEUE_S:
            return  # as a router's full queue: dropped
        self.free_at[fd] = begin + len(frame) / self.bytes_per_s
        self.queues[fd].append((self.free_at[fd] + self.delay_s, frame))

    def _give(self):
        now = time.monotonic()
        for fd, queue in self.queues.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(self.ways[fd], queue.popleft()[1])
                except OSError:
                    pass  # that end is down: lost
        return min((q[0][0] for q in self.queues.values() if q), default=None)

    def _run(self):
        while True:
            soonest = self._give()
            wait_s = None if soonest is None else max(0.0, soonest - time.monotonic())
            ready, _, _ = select.select([*self.ways, self.stop_r], [], [], wait_s)
            if self.stop_r in ready:
                return
            for fd in ready:
                self._take(fd)

    def close(self):
        os.write(self.stop_w, b"x")
        self.thread.join()
        for fd in [*self.ways, self.stop_r, self.stop_w]:
            os.close(fd)


def _tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def _sweep():
    """Takes away what a run that was killed has left."""
    for line in _ip("netns", "list", check=False).stdout.splitlines():
        name = line.split()[0] if line.strip() else ""
        pid = name[2:].split("-")[0]
        if name.startswith("lq") and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _ip("netns", "delete", name, check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


class Net:
    """Hosts by name, in order: the first has address 10.77.0.1."""

    def __init__(self, *names):
        self.hosts = {n: Host(n, i + 1) for i, n in enumerate(names)}
        self.switch = f"lq{os.getpid()}-switch"
        self.lines = []

    def far(self, name, rtt_ms, kbit):
        """Moves a host to another region: its cable becomes a line of that round trip and rate."""
        h, port = self.hosts[name], f"far{len(self.lines)}"
        _ip("-n", h.namespace, "link", "delete", "eth0")
        ends = h.call(_tap, "eth0"), inside(self.switch, _tap, port)
        self.lines.append(FarLine(*ends, rtt_ms / 2000, kbit))
        _ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", h.namespace, "address", "add", f"{h.address}/24", "dev", "eth0")
        _ip("-n", h.namespace, "link", "set", "eth0", "up")

    def name_hosts(self):
        """Every host knows the others by name: ip-netns lays this file over /etc/hosts for what start() and run() run."""
        lines = "127.0.0.1 localhost\n" + "".join(f"{h.address} {n}\n" for n, h in self.hosts.items())
        for h in self.hosts.values():
            os.makedirs(f"/etc/netns/{h.namespace}", exist_ok=True)
            with open(f"/etc/netns/{h.namespace}/hosts", "w", encoding="utf-8") as f:
                f.write(lines)

    def __getitem__(self, name):
        return self.hosts[name]

    def __enter__(self):
        _sweep()
        try:
            _ip("netns", "add", self.switch)
            _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "br0", "up")
            for i, h in enumerate(self.hosts.values()):
                _ip("netns", "add", h.namespace)
                _ip("link", "add", "eth0", "netns", h.namespace, "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
                _ip("-n", self.switch, "link", "set", f"port{i}", "master", "br0", "up")
                _ip("-n", h.namespace, "address", "add", f"{h.address}/24", "dev", "eth0")
                _ip("-n", h.namespace, "link", "set", "lo", "up")
                _ip("-n", h.namespace, "link", "set", "eth0", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def _remove(self):
        for line in self.lines:
            line.close()
        for name in [*(h.namespace for h in self.hosts.values()), self.switch]:
            _ip("netns", "delete", name, check=False)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)

    def __exit__(self, *_):
        self._remove()
