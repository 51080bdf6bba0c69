#!/bin/sh
# install.sh BINARY DESTDIR PREFIX SBINDIR: the binary, its manual pages, completions and the helpers of mount(8) and umount(8).
# install.sh --remove DESTDIR PREFIX SBINDIR: takes them away again.
set -eu
# Everybody is to read it, whatever the caller makes his own files.
umask 022

what=$1 dest=$2 prefix=$3 sbin=$4
bin=$dest$prefix/bin man=$dest$prefix/share/man share=$dest$prefix/share
helpers="mount.fuse.extant mount.fuseblk.extant umount.fuse.extant umount.fuseblk.extant"

if [ "$what" = --remove ]; then
    rm -f "$bin/extant" "$man"/man1/extant.1 "$man"/man1/extant-*.1 "$share/bash-completion/completions/extant" \
        "$share/zsh/site-functions/_extant" "$share/fish/vendor_completions.d/extant.fish"
    for name in $helpers; do rm -f "$dest$sbin/$name" "$man/man8/$name.8"; done
    exit 0
fi

install -D -m 755 "$what" "$bin/extant"
# Debug information is four fifths of it. Without binutils it stays.
strip --strip-unneeded "$bin/extant" 2>/dev/null || true
mkdir -p "$dest$sbin" "$man/man1" "$man/man8"
for name in $helpers; do
    ln -sf "$prefix/bin/extant" "$dest$sbin/$name"
done
"$what" man "$man/man1"
mv "$man/man1/mount.fuse.extant.8" "$man/man8/"
for name in mount.fuseblk.extant umount.fuse.extant umount.fuseblk.extant; do
    echo ".so man8/mount.fuse.extant.8" > "$man/man8/$name.8"
done
for shell in bash zsh fish; do
    case $shell in
    bash) to=bash-completion/completions/extant ;;
    zsh) to=zsh/site-functions/_extant ;;
    fish) to=fish/vendor_completions.d/extant.fish ;;
    esac
    mkdir -p "$share/${to%/*}"
    "$what" completions $shell > "$share/$to"
done
