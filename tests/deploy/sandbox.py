#!/usr/bin/python3
"""sandbox.py UNIT COMMAND...: runs COMMAND under what of UNIT's hardening one process can put on itself.

SystemCallFilter= (by libseccomp, with systemd's own sets), MemoryDenyWriteExecute= (by the
kernel's switch) and NoNewPrivileges=. So the programs meet these without a running systemd.
"""
import ctypes
import os
import subprocess
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 38, 65
SCMP_ACT_ALLOW, SCMP_ACT_EPERM = 0x7FFF0000, 0x00050001


def settings(path):
    """{name: [values]} of the [Service] section."""
    found, section = {}, ""
    with open(path, encoding="utf-8") as f:
        for line in f:
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and not line.startswith("#"):
                name, value = line.split("=", 1)
                found.setdefault(name, []).append(value)
    return found


def sets():
    """{"@name": its members} as this machine's systemd has them."""
    out = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter"], check=True, capture_output=True, text=True).stdout
    found, name = {}, None
    for line in out.splitlines():
        if line.startswith("@"):
            name = line.strip()
            found[name] = []
        elif line.startswith("#") or not line.strip():
            name = None if line.startswith("#") else name
        elif name and not line.strip().startswith("#"):
            found[name].append(line.strip())
    return found


def calls(word, table):
    return {c for member in table[word] for c in calls(member, table)} if word.startswith("@") else {word}


def allowed(unit):
    table, names = sets(), calls("@default", sets())
    for line in settings(unit)["SystemCallFilter"]:
        members = {c for word in line.lstrip("~").split() for c in calls(word, table)}
        names = names - members if line.startswith("~") else names | members
    return names


def confine(unit):
    """False: this kernel lacks the switch for writable and executable memory."""
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    names = allowed(unit)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    has_mdwe = libc.prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0
    context = ctypes.c_void_p(seccomp.seccomp_init(SCMP_ACT_EPERM))
    for name in sorted(names):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            assert seccomp.seccomp_rule_add(context, SCMP_ACT_ALLOW, number, 0) == 0, name
    assert seccomp.seccomp_load(context) == 0
    return has_mdwe


if __name__ == "__main__":
    if not confine(sys.argv[1]):
        print("sandbox: no PR_SET_MDWE in this kernel", file=sys.stderr)
    os.execvp(sys.argv[2], sys.argv[2:])
