#!/bin/sh
# arm64_sysroot.sh FOLDER: unpacks Debian's arm64 builds of Check and jansson into
# FOLDER, for tests cross-built and run under qemu. The machine's own package lists
# and architectures are left alone: apt gets a state of its own in FOLDER.
set -eu
dir=$(mkdir -p "$1" && cd "$1" && pwd)
[ -f "$dir/ready" ] && exit 0

mkdir -p "$dir/state/lists/partial" "$dir/cache/archives/partial"
: >"$dir/state/status"
arm64() {
    apt-get -q -o Dir::State="$dir/state" -o Dir::State::status="$dir/state/status" -o Dir::Cache="$dir/cache" \
        -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root "$@"
}
arm64 update >/dev/null
cd "$dir/cache"
arm64 download check libjansson4 libjansson-dev libsubunit0 libsubunit-dev >/dev/null
for deb in ./*.deb; do dpkg-deb -x "$deb" "$dir/root"; done
touch "$dir/ready"
