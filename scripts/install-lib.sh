#!/bin/sh
# install-lib.sh FOLDER DESTDIR PREFIX LIBDIR: the C library that cargo has built in FOLDER, its header and extant.pc.
# install-lib.sh --remove DESTDIR PREFIX LIBDIR: takes them away again.
set -eu
# Every user is to read it, whatever the umask of the caller is.
umask 022

top=$(dirname "$0")/..
what=$1 dest=$2 prefix=$3 lib=$4
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' "$top/Cargo.toml")
# As in crates/capi/build.rs.
soname=libextant.so.0
to=$dest$lib

if [ "$what" = --remove ]; then
    rm -f "$to/libextant.so" "$to/$soname" "$to/$soname.$version" "$to/libextant.a" "$to/pkgconfig/extant.pc" \
        "$dest$prefix/include/extant.h"
    exit 0
fi

install -D -m 644 "$top/crates/capi/include/extant.h" "$dest$prefix/include/extant.h"
install -D -m 755 "$what/libextant_capi.so" "$to/$soname.$version"
install -D -m 644 "$what/libextant_capi.a" "$to/libextant.a"
# Without binutils, debug information stays.
strip --strip-unneeded "$to/$soname.$version" 2>/dev/null || true
strip --strip-debug "$to/libextant.a" 2>/dev/null || true
ln -sf "$soname.$version" "$to/$soname"
ln -sf "$soname" "$to/libextant.so"
mkdir -p "$to/pkgconfig"
cat > "$to/pkgconfig/extant.pc" <<END
prefix=$prefix
libdir=$lib
includedir=\${prefix}/include

Name: extant
Description: ext2, ext3 and ext4 images in user space
Version: $version
Libs: -L\${libdir} -lextant
Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
Cflags: -I\${includedir}
END
