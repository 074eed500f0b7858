#!/bin/bash
# pack.sh STAGE VERSION OUT: each folder of STAGE, as `make install` filled it, becomes
# OUT/NAME_VERSION_ARCH.deb. Only dpkg's own tools: there is nothing here that debhelper
# would have to find out. Fields and scripts are in deploy/deb/NAME/.
set -euo pipefail
export LC_ALL=C
stage=$1 version=$2 out=$3
here=$(dirname "$0")
arch=$(dpkg --print-architecture)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH=$epoch

# What a Debian package has besides: compressed manuals and changelog, the licence as a reference.
debian_docs() {
    local doc=$1/usr/share/doc/$2
    mkdir -p "$doc"
    rm -f "$doc/LICENSE"
    {
        cat "$here/copyright"
        # llhttp's C sources are compiled in: its notice comes along.
        [ ! -r /usr/share/doc/node-llhttp/copyright ] || { echo; echo "llhttp, part of the programs:"; echo; cat /usr/share/doc/node-llhttp/copyright; }
    } >"$doc/copyright"
    {
        echo "larql-grid ($version) unstable; urgency=medium"
        echo
        echo "  * See CHANGELOG.md.gz for what is new in this version."
        echo
        echo " -- larql-grid <larql-grid@localhost>  $(date -u -R -d "@$epoch")"
    } | gzip -9n >"$doc/changelog.gz"
    if [ -d "$1/usr/share/man" ]; then find "$1/usr/share/man" -name "*.1" -exec gzip -9n {} +; fi
    if [ -e "$doc/CHANGELOG.md" ]; then gzip -9n "$doc/CHANGELOG.md"; fi
}

# The packages of the libraries that the programs of $1 were linked with.
library_packages() {
    local work elf
    work=$(mktemp -d)
    mkdir "$work/debian"
    printf 'Source: larql-grid\n\nPackage: larql-grid\nArchitecture: any\n' >"$work/debian/control"
    mapfile -t elf < <(find "$1" -type f \( -path '*/bin/*' -o -name '*.so.*' \) -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
    (cd "$work" && dpkg-shlibdeps -O "${elf[@]/#/-e}" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
    rm -rf "$work"
}

for root in "$stage"/*; do
    name=$(basename "$root")
    root=$(realpath "$root")
    debian_docs "$root" "$name"
    find "$root" -type f -path '*/bin/*' -exec sh -c 'head -c 4 "$1" | grep -q ELF && strip --strip-all -R .comment "$1"' _ {} \;
    find "$root" -type f -name '*.so.*' -exec strip --strip-unneeded -R .comment {} +
    find "$root" -type f -name '*.a' -exec strip --strip-debug --enable-deterministic-archives {} +

    libraries=$(library_packages "$root")
    [ -n "$libraries" ] || { echo "pack.sh: no libraries found for $name" >&2; exit 1; }
    mkdir "$root/DEBIAN"
    sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$(du -k -s --exclude=DEBIAN "$root" | cut -f1)/; s/@LIBRARIES@/$libraries/" \
        "$here/$name/control" >"$root/DEBIAN/control"
    for script in "$here/$name"/{postinst,prerm,postrm}; do
        if [ -e "$script" ]; then install -m 755 "$script" "$root/DEBIAN"; fi
    done
    if [ -e "$here/$name/triggers" ]; then install -m 644 "$here/$name/triggers" "$root/DEBIAN"; fi
    (cd "$root" && { [ ! -d etc ] || find etc -type f; } | sed 's|^|/|' | sort >DEBIAN/conffiles)
    [ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    chmod -R u=rwX,go=rX "$root"
    chmod 755 "$root"/DEBIAN/p[or]* 2>/dev/null || true
    find "$root" -newermt "@$epoch" -exec touch -h -d "@$epoch" {} +
    dpkg-deb --root-owner-group --build "$root" "$out/${name}_${version}_$arch.deb" >/dev/null
    echo "$out/${name}_${version}_$arch.deb"
done
