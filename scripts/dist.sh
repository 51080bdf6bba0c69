#!/bin/sh
# dist.sh BINARY DIRECTORY: a tarball, whose one folder can be unpacked anywhere, and the binary alone. mount(8) looks for its
# helpers in /sbin only: link them there.
set -eu
# Everybody is to read it, whatever the caller makes his own files.
umask 022

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
install -m 644 "$(dirname "$0")"/../LICENSE-* "$(dirname "$0")/../README.md" "$out/$name/"
tar -C "$out" --owner=0 --group=0 -czf "$out/$name.tar.gz" "$name"
rm -rf "${out:?}/$name"
ln -sf extant "$out/mount.fuse.extant"
