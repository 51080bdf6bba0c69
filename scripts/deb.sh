#!/bin/sh
# deb.sh BINARY DIRECTORY: Debian packages of what install.sh installs, and of the C library if cargo has built it beside the
# binary.
set -eu
# Everybody is to read it, whatever the caller makes his own files.
umask 022

binary=$1 out=$2
top=$(dirname "$0")/..
version=$("$binary" --version | awk '{print $2}')
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$out"

# The highest version of the C library that a file is linked against.
libc() {
    objdump -T "$1" 2>/dev/null | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1
}

# package NAME FOLDER: the rest of the control file is standard input.
package() {
    chmod 755 "$2"
    mkdir -p "$2/usr/share/doc/$1" "$2/DEBIAN"
    cat "$top/LICENSE-MIT" "$top/LICENSE-APACHE" > "$2/usr/share/doc/$1/copyright"
    gzip -9nc "$top/CHANGELOG.md" > "$2/usr/share/doc/$1/changelog.gz"
    chmod 644 "$2/usr/share/doc/$1"/*
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$1" "$version" "$arch"
        printf 'Maintainer: Extant developers <extant@localhost>\nInstalled-Size: %s\n' "$(du -sk "$2/usr" | cut -f 1)"
        cat
    } > "$2/DEBIAN/control"
    (cd "$2" && find usr -type f -exec md5sum {} + > DEBIAN/md5sums)
    dpkg-deb --root-owner-group --build "$2" "$out/$1_${version}_$arch.deb"
}

program=$stage/program
mkdir "$program"
# Where Debian has it whether / and /usr are one or not.
"$top/scripts/install.sh" "$binary" "$program" /usr /usr/sbin
find "$program/usr/share/man" -name '*.[18]' -exec gzip -9n {} +
needed=$(libc "$binary")
package extant "$program" <<END
Depends: fuse3, libc6 (>= ${needed:-2.31}), libgcc-s1
Recommends: e2fsprogs
Section: admin
Priority: optional
Description: mount and inspect ext2/3/4 images in user space
 Mounts ext2, ext3 and ext4 images and devices through FUSE, read and write,
 with a real journal and without root; lists, reads and copies files in images
 without mounting them.
END

built=$(dirname "$binary")
[ -e "$built/libextant_capi.so" ] || exit 0
library=$stage/library
mkdir "$library"
"$top/scripts/install-lib.sh" "$built" "$library" /usr "/usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH 2>/dev/null || cc -dumpmachine)"
needed=$(libc "$built/libextant_capi.so")
package libextant-dev "$library" <<END
Depends: libc6 (>= ${needed:-2.31}), libgcc-s1
Section: libdevel
Priority: optional
Description: ext2/3/4 images in user space: library and header for C
 libextant opens, reads, writes, makes and checks ext2, ext3 and ext4 images
 without root and without a mount. Programs find it with pkg-config.
END
