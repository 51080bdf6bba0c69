#!/bin/sh
# deb.sh BINARY DIRECTORY: a Debian package of what install.sh installs.
set -eu
# Everybody is to read it, whatever the caller makes his own files.
umask 022

binary=$1 out=$2
top=$(dirname "$0")/..
version=$("$binary" --version | awk '{print $2}')
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
# Where Debian has it whether / and /usr are one or not.
"$top/scripts/install.sh" "$binary" "$stage" /usr /usr/sbin
find "$stage/usr/share/man" -name '*.[18]' -exec gzip -9n {} +
doc=$stage/usr/share/doc/extant
mkdir -p "$doc" "$stage/DEBIAN"
cat "$top/LICENSE-MIT" "$top/LICENSE-APACHE" > "$doc/copyright"
gzip -9nc "$top/CHANGELOG.md" > "$doc/changelog.gz"
chmod 644 "$doc"/*
# What the binary is linked against says which C library it needs.
libc=$(objdump -T "$binary" 2>/dev/null | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
cat > "$stage/DEBIAN/control" <<END
Package: extant
Version: $version
Architecture: $arch
Maintainer: Extant developers <extant@localhost>
Installed-Size: $(du -sk "$stage/usr" | cut -f 1)
Depends: fuse3, libc6 (>= ${libc:-2.31}), libgcc-s1
Recommends: e2fsprogs
Section: admin
Priority: optional
Description: mount and inspect ext2/3/4 images in user space
 Mounts ext2, ext3 and ext4 images and devices through FUSE, read and write,
 with a real journal and without root; lists, reads and copies files in images
 without mounting them.
END
(cd "$stage" && find usr -type f -exec md5sum {} + > DEBIAN/md5sums)
mkdir -p "$out"
dpkg-deb --root-owner-group --build "$stage" "$out/extant_${version}_$arch.deb"
