#!/usr/bin/python3
"""run.py BUILD BENCH...: runs bench programs, prints one table, writes BUILD/bench.json and the
same as BUILD/bench.md, for docs/performance.md.

A missed bar is shown and counted; only a program that could not measure fails the run,
or any missed bar with BENCH_STRICT=1.
"""
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys


def first_line(*command):
    if not shutil.which(command[0], path=os.environ.get("PATH", "") + ":/usr/sbin"):
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin"})
    text = (done.stdout + done.stderr).strip()
    return text.splitlines()[0].split(" - ")[0] if text else None


def machine():
    cpu = None
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "cpu": cpu,
            "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "compiler": first_line(os.environ.get("CC") or "cc", "--version"), "nginx": first_line("nginx", "-v"),
            "haproxy": first_line("haproxy", "-v")}


def bar_text(r):
    sign = {"lower": "<=", "higher": ">="}[r["better"]]
    return "" if r["bar"] is None else f"{sign} {r['bar']:g}"


def mark_text(r):
    return "" if r["bar"] is None else "ok" if r["ok"] else "MISSED"


def markdown(path, host, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{host['date'][:10]}, {host['cpus']} CPUs of {host['cpu']}, Linux {host['kernel']}, {host['compiler']}, "
                f"{host['nginx']}, {host['haproxy']}.\n\n")
        last = None
        for r in rows:
            if r["bench"] != last:
                f.write(f"\n### {r['bench']}\n\n| case | value | bar | | note |\n|---|---|---|---|---|\n")
                last = r["bench"]
            unit = "" if r["unit"] == "ratio" else " " + r["unit"]
            f.write(f"| {r['case']} | {r['value']:.3g}{unit} | {bar_text(r)} | {mark_text(r)} | {r['note']} |\n")


def main():
    build, names = sys.argv[1], sys.argv[2:]
    rows, failed = [], []
    for name in names:
        print(f"== {name}", flush=True)
        script = os.path.join(os.path.dirname(__file__), name + ".py")
        program = [sys.executable, script] if os.path.exists(script) else [os.path.join(build, "bench", name)]
        done = subprocess.run([*program, "--json"], stdout=subprocess.PIPE, text=True, check=False)
        try:
            new = json.loads(done.stdout or "[]")
        except ValueError:
            new = []
            failed.append(f"{name}: no JSON on stdout")
        if done.returncode != 0 or not new:
            failed.append(f"{name}: exit status {done.returncode}, {len(new)} rows")
        for r in new:
            print(f"  {r['case']:<48.48} {r['value']:>10.4g} {r['unit']:<6} {bar_text(r):<9} {mark_text(r):<6} {r['note']}", flush=True)
        rows += new
    host = machine()
    missed = [r for r in rows if r["bar"] is not None and not r["ok"]]
    path = os.path.join(build, "bench.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"machine": host, "rows": rows, "failed": failed}, f, indent=1)
        f.write("\n")
    markdown(os.path.join(build, "bench.md"), host, rows)
    print(f"{len(rows)} rows in {path}; {len(missed)} of {sum(r['bar'] is not None for r in rows)} bars missed")
    for why in failed:
        print(f"FAILED: {why}", file=sys.stderr)
    return 1 if failed or (missed and os.environ.get("BENCH_STRICT") == "1") else 0


if __name__ == "__main__":
    sys.exit(main())
