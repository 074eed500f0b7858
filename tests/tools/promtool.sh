#!/bin/sh
# promtool.sh DIR: puts promtool into DIR, out of Debian's prometheus package, which is
# not installed: it would bring a server that listens where a router does. Where that
# cannot be had the test that asks it is skipped, and says so.
set -eu
dir=$1
[ -x "$dir/promtool" ] && exit 0
mkdir -p "$dir/unpack"
if (cd "$dir/unpack" && apt-get download -q prometheus >/dev/null 2>&1 && dpkg -x prometheus_*.deb .); then
    mv "$dir/unpack/usr/bin/promtool" "$dir/promtool"
else
    echo "promtool.sh: no prometheus package to be had here" >&2
fi
rm -rf "$dir/unpack"
