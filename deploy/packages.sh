#!/bin/sh
# packages.sh GROUP...: installs what a group of make targets needs on Debian 12
# and asks for root only when something is missing. Groups: build, demo, test,
# clang, fuzz, arm64, valgrind, golden, bench, deb, deploy, container.
set -eu

want=
for group; do
    case $group in
    build)
        want="$want gcc libc6-dev make pkg-config libevent-dev libjansson-dev libblis-serial-dev node-llhttp libpcre2-dev"
        want="$want libssl-dev libcurl4-openssl-dev libnghttp2-dev libprotobuf-c-dev protobuf-c-compiler" ;;
    demo) want="$want python3 python3-venv curl" ;;
    test)
        want="$want openssl curl python3 python3-venv python3-pytest python3-prometheus-client check libsubunit-dev"
        want="$want python3-grpcio python3-protobuf python3-jsonschema protobuf-compiler iproute2 chromium-headless-shell" ;;
    clang) want="$want clang" ;;
    fuzz) want="$want clang libclang-rt-14-dev" ;;
    arm64) want="$want gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" ;;
    valgrind) want="$want valgrind" ;;
    deb) want="$want dpkg-dev" ;;
    deploy) want="$want dpkg-dev lintian mmdebstrap systemd pkg-config iproute2 libseccomp2 man-db" ;;
    container) want="$want buildah" ;;
    bench) want="$want python3 nginx-light haproxy"
        command -v npm >/dev/null || want="$want npm" ;;
    golden) # an npm of another origin will do, and conflicts with the package
        want="$want python3 python3-venv"
        command -v npm >/dev/null || want="$want npm" ;;
    *) echo "packages.sh: unknown group '$group'" >&2; exit 2 ;;
    esac
done

missing=
for p in $want; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "packages.sh: no apt-get here; install what these Debian packages hold:$missing" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "packages.sh: run as root: apt-get install -y$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# A list that is old or absent is the usual reason for a failed install.
$sudo apt-get update -q >/dev/null
# shellcheck disable=SC2086  # a list of words
$sudo apt-get install -y -q --no-install-recommends $missing >/dev/null
