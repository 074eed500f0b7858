"""A Debian with nothing in it but what Debian itself needs: made once by mmdebstrap, from the mirror
of this machine's own apt, and kept as a tar file outside the source tree."""
import glob
import os
import shutil
import subprocess

import pytest

import tree

SUITE = "bookworm"


def run(*args, **how):
    done = subprocess.run(args, capture_output=True, text=True, errors="replace", check=False, **how)
    assert done.returncode == 0, f"{' '.join(args)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def base_tar():
    """Its path; skips with the reason where it cannot be made."""
    path = os.path.join(tree.CACHE, f"{SUITE}.tar")
    if os.path.exists(path):
        return path
    if os.geteuid() != 0:
        pytest.skip("a root file system needs root")
    if not shutil.which("mmdebstrap"):
        pytest.skip("no mmdebstrap here")
    sources = glob.glob("/etc/apt/sources.list.d/debian.sources") + [p for p in glob.glob("/etc/apt/sources.list") if os.path.getsize(p)]
    if not sources:
        pytest.skip("this machine's apt names no Debian mirror")
    os.makedirs(tree.CACHE, exist_ok=True)
    done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--format=tar", SUITE, path + ".new", sources[0]],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mmdebstrap cannot reach a mirror: {done.stderr.strip()[-200:]}")
    os.rename(path + ".new", path)
    return path


class Root:
    """One such system, unpacked into a folder."""

    def __init__(self, path):
        self.path = str(path)
        run("tar", "-C", self.path, "-xpf", base_tar())
        shutil.copy("/etc/resolv.conf", f"{self.path}/etc/resolv.conf")

    def do(self, *args):
        """A command in there that may look at /proc, as dpkg's scripts do."""
        script = 'mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"'
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        return run("unshare", "--mount", "--", "sh", "-c", script, self.path, *args, env=env)

    def words(self, user, *args):
        """The command line of a program in there, as that user; it keeps its process id."""
        return ["chroot", f"--userspec={user}:{user}", self.path, *args]

    def all_paths(self):
        """Every path but what package tools keep about themselves."""
        out = set()
        for top, dirs, names in os.walk(self.path):
            where = top[len(self.path):] or "/"
            if where.startswith(("/proc", "/dev", "/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/tmp", "/run")):
                dirs.clear()
                continue
            out |= {os.path.join(where, n) for n in dirs + names}
        return out
