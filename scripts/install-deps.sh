#!/bin/sh
# Installs what the tests, the demo and the bench need, where it is missing. Says nothing when all is there.
set -u

say() { echo "install-deps: $*" >&2; }

if ! command -v cargo >/dev/null 2>&1; then
    if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        say "cargo is in ${CARGO_HOME:-$HOME/.cargo}/bin, which is not in PATH: add it"
    else
        say "no Rust toolchain: install one with rustup (https://rustup.rs), stable 1.88 or newer"
    fi
    exit 1
fi

# command:Debian package
wanted="mke2fs:e2fsprogs e2fsck:e2fsprogs debugfs:e2fsprogs fusermount3:fuse3 fuse2fs:fuse2fs fio:fio fuser:psmisc
setfattr:attr setfacl:acl cc:build-essential python3:python3 tar:tar losetup:mount findmnt:util-linux"

PATH="$PATH:/usr/sbin:/sbin"
missing_packages() {
    for pair in $wanted; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair#*:}"
    done | sort -u | tr '\n' ' '
}

packages=$(missing_packages)
if [ -z "$packages" ]; then
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    say "missing: $packages(names of Debian packages); install what your system calls them"
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=sudo
else
    say "missing: $packages- as root: apt-get install $packages"
    exit 1
fi

say "installing $packages"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $packages; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
fi
packages=$(missing_packages)
if [ -n "$packages" ]; then
    say "could not install: $packages"
    exit 1
fi
