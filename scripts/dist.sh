#!/bin/sh
# dist.sh BINARY DIRECTORY: a tarball to be unpacked in /usr/local, and the binary alone.
set -eu

binary=$1 out=$2
version=$("$binary" --version | awk '{print $2}')
name=extant-$version-$(uname -m)
mkdir -p "$out"
cp "$binary" "$out/extant"
strip "$out/extant" 2>/dev/null || true
rm -rf "${out:?}/$name"
"$(dirname "$0")/install.sh" "$out/extant" "$out/$name" "" /sbin
# Where it is unpacked is not known.
for link in "$out/$name"/sbin/*; do ln -sf ../bin/extant "$link"; done
cp "$(dirname "$0")"/../LICENSE-* "$(dirname "$0")/../README.md" "$out/$name/"
tar -C "$out" --owner=0 --group=0 -czf "$out/$name.tar.gz" "$name"
rm -rf "${out:?}/$name"
ln -sf extant "$out/mount.fuse.extant"
