#!/bin/sh
# Installs what the tests, the demo and the bench need, where it is missing: a Rust toolchain and packages of the distribution.
# Prints nothing if everything is there. A toolchain is installed after a question, which EXTANT_RUST=yes or =no answers.
# With --build, only what a build needs.
set -u
cd "$(dirname "$0")/.."

say() { echo "install-deps: $*" >&2; }

rust_min=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

# Whether version $1 is $rust_min or newer.
new_enough() {
    printf '%s\n%s\n' "$rust_min" "$1" | sort -V | head -n 1 | grep -qxF "$rust_min"
}

cargo_version() { cargo --version 2>/dev/null | cut -d ' ' -f 2; }

# Runs a command as root; its output is shown only if it fails.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        quietly "$@"
    elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        quietly sudo "$@"
    else
        say "needs root: $*"
        return 1
    fi
}

quietly() {
    log=$(mktemp) || return 1
    "$@" >"$log" 2>&1
    status=$?
    [ $status -eq 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $status
}

apt_install() {
    as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# The version of a package that the distribution would install.
candidate() {
    command -v apt-cache >/dev/null 2>&1 || return 0
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][^ ]*\).*/\1/p'
}

# Of three ways to a toolchain, the first that this machine has.
install_rust() {
    if command -v rustup >/dev/null 2>&1; then
        say "installing the stable toolchain with rustup"
        quietly rustup toolchain install stable --profile default && quietly rustup default stable
    elif [ -n "$(candidate rustup)" ]; then
        say "installing the package rustup, and the stable toolchain with it"
        apt_install rustup && quietly rustup default stable
    elif new_enough "$(candidate rustc)"; then
        say "installing the packages rustc, cargo, rustfmt and rust-clippy"
        apt_install rustc cargo rustfmt rust-clippy
    else
        say "installing the stable toolchain with the installer of https://rustup.rs into ${CARGO_HOME:-${HOME:-}/.cargo}"
        command -v curl >/dev/null 2>&1 || apt_install curl ca-certificates || return 1
        installer=$(mktemp) || return 1
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$installer" &&
            quietly sh "$installer" -y --no-modify-path --default-toolchain stable
        status=$?
        rm -f "$installer"
        return $status
    fi
}

PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
version=$(cargo_version)
if [ -z "$version" ] || ! new_enough "$version"; then
    found="no Rust toolchain"
    [ -z "$version" ] || found="the Rust toolchain is $version"
    answer=${EXTANT_RUST:-}
    if [ -z "$answer" ] && [ -t 0 ]; then
        printf 'install-deps: %s; %s or newer is needed. Install it now? [y/N] ' "$found" "$rust_min" >&2
        read -r answer || answer=no
    fi
    case $answer in
    y* | Y*) install_rust || { say "could not install a Rust toolchain; see https://rustup.rs"; exit 1; } ;;
    *)
        say "$found; $rust_min or newer is needed. EXTANT_RUST=yes in front of the command installs it; or see https://rustup.rs"
        exit 1
        ;;
    esac
    version=$(cargo_version)
    if [ -z "$version" ] || ! new_enough "$version"; then
        say "installed, but cargo is ${version:-not found}; $rust_min or newer is needed"
        exit 1
    fi
fi

# command:Debian package
wanted="mke2fs:e2fsprogs e2fsck:e2fsprogs debugfs:e2fsprogs fusermount3:fuse3 fuse2fs:fuse2fs fio:fio fuser:psmisc
setfattr:attr setfacl:acl cc:build-essential python3:python3 tar:tar losetup:mount findmnt:util-linux sfdisk:fdisk sgdisk:gdisk fakeroot:fakeroot strace:strace
qemu-nbd:qemu-utils nbdkit:nbdkit pkg-config:pkg-config valgrind:valgrind"

[ "${1:-}" != --build ] || wanted="cc:build-essential"

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
say "installing $packages"
apt_install $packages
packages=$(missing_packages)
if [ -n "$packages" ]; then
    say "could not install: $packages; as root: apt-get install $packages"
    exit 1
fi
