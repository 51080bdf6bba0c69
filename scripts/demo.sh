#!/bin/bash
# What Extant does, in three minutes: an image from a real tree, a mount, work in it, the power cut, a mount that replays
# the journal, every fsynced byte still there, e2fsck satisfied, and speeds beside the kernel's and fuse2fs's.
# As root all of it; as an ordinary user whatever needs no loop mount. Leaves nothing behind. --no-speeds: without the last.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
NAMES_MAX=7000

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
note() { printf '   %s\n' "$*"; }
die() { cat "${log:-/dev/null}" >&2; printf '   FAILED: %s\n' "$*" >&2; exit 1; }
summary=()
shown() { note "$1"; summary+=("$1"); }

# EXTANT=path: that binary instead of one that is built here.
if [ -n "${EXTANT:-}" ]; then
    extant=$(realpath "$EXTANT")
else
    say "Building"
    cargo build --locked --release -p extant-cli -p extant-testkit --bins
    extant=$(realpath "${CARGO_TARGET_DIR:-target}")/release/extant
fi
start=$SECONDS

work=$(mktemp -d /var/tmp/extant-demo.XXXXXX)
mnt=$work/mnt
img=$work/disk.img
log=$work/server.log
: >"$log"
server=
mkdir "$mnt"

clean_up() {
    set +e
    if mountpoint -q "$mnt" || grep -qs " $mnt " /proc/self/mounts; then
        timeout 20 "$extant" unmount "$mnt" >/dev/null 2>&1
        grep -qs " $mnt " /proc/self/mounts && { umount -l "$mnt" || fusermount3 -u -z "$mnt"; } 2>/dev/null
    fi
    [ -n "$server" ] && kill "$server" 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# Serves in the foreground, as a child, so that its process id is known for certain. mountpoint(1) asks stat(2), which
# may still be answered from what is cached of a mount whose server was killed; statfs(2) is not.
serve() {
    "$extant" mount -f "$img" "$mnt" >>"$log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        mountpoint -q "$mnt" && stat -f "$mnt" >/dev/null 2>&1 && return
        kill -0 "$server" 2>/dev/null || die "the server ended"
        sleep 0.1
    done
    die "no mount after 30 s"
}

# The first tree of this machine with a few hundred to $NAMES_MAX names.
pick_tree() {
    local d n
    for d in /usr/share/doc /usr/include /usr/share/man /usr/share/zoneinfo /usr/share /usr/lib/python3 /etc; do
        [ -d "$d" ] || continue
        n=$( (find "$d" -xdev 2>/dev/null || true) | wc -l)
        if [ "$n" -ge 300 ] && [ "$n" -le "$NAMES_MAX" ]; then
            echo "$d"
            return
        fi
    done
    # Too large, all of them: this repository.
    echo "$PWD/crates"
}

# What a tree looks like: names, types, contents.
same_tree() { diff -r --no-dereference -q "$1" "$2" >"$work/difference" 2>&1; }

can_mount=no
if (: <>/dev/fuse) 2>/dev/null; then
    can_mount=yes
fi

say "An image made from a real tree"
tree=$(pick_tree)
kib=$( (du -sk "$tree" 2>/dev/null || true) | cut -f1)
names=$( (find "$tree" -xdev 2>/dev/null || true) | wc -l)
size=$((kib / 1024 * 2 + 512))
"$extant" mkfs -q -d "$tree" "$img" "${size}M"
shown "extant mkfs made a $size MiB image with $tree: $names names, $((kib / 1024)) MiB"
"$extant" info "$img" | sed -n '1,11s/^/   | /p'

say "Without mounting"
"$extant" ls "$img" / | sed -n '1,5s/^/   | /p'
echo "put there by extant cp" >"$work/note"
"$extant" cp "$work/note" "$img:/note"
"$extant" cp "$img:/note" "$work/note.back"
cmp "$work/note" "$work/note.back" || die "the note came back changed"
shown "extant info, ls, cp: into the image and out again, no mount and no root needed"

if [ "$can_mount" = no ]; then
    e2fsck -fn "$img" >"$work/fsck" 2>&1 || { cat "$work/fsck"; die "e2fsck"; }
    shown "e2fsck -fn: clean"
    note "/dev/fuse cannot be opened by $(id -un): the mount, the power cut and the speeds need it. Skipped."
else
    say "Mounting, and copying a tree in"
    serve
    if [ "$(id -u)" -eq 0 ]; then
        same_tree "$tree" "$mnt" || true
        # lost+found and the note are only in the image.
        extra=$(grep -vE ": (lost\+found|note)$" "$work/difference" || true)
        [ -z "$extra" ] || { echo "$extra" | head; die "the mounted tree differs from $tree"; }
        shown "the mount shows $tree exactly as it is"
    fi
    into=$mnt/copied
    mkdir "$into"
    cp -r crates xtask docs "$into/"
    shown "copied $(find "$into" | wc -l) names of this repository into the mount"

    say "fsync, then the power cut"
    mkdir "$mnt/precious"
    for i in $(seq 1 40); do
        head -c $((i * 3001)) /dev/urandom >"$mnt/precious/file-$i"
        sync "$mnt/precious/file-$i"
    done
    (cd "$mnt/precious" && sha256sum file-*) >"$work/sums"
    # Work that nobody fsyncs, in full swing, for longer than the commit interval of 5 s.
    (i=0; while echo "$i" >"$mnt/unsynced-$i"; do i=$((i + 1)); echo "$i" >"$work/written"; sleep 0.01; done) 2>/dev/null &
    writer=$!
    sleep 8
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    server=
    wait "$writer" 2>/dev/null || true
    dumpe2fs -h "$img" 2>/dev/null | grep -q needs_recovery && state="needs recovery" || state="already clean"
    shown "kill -9 for the server with 40 fsynced files and a writer at work; the image: $state"

    say "Mounting again replays the journal"
    serve
    (cd "$mnt/precious" && sha256sum --quiet -c "$work/sums") || die "fsynced files changed"
    survived=$(find "$mnt" -maxdepth 1 -name 'unsynced-*' | wc -l)
    shown "all 40 fsynced files are whole; of the $(cat "$work/written") files that nobody fsynced, $survived made it"
    same_tree crates "$into/crates" && note "the copied tree is whole too" || note "the copied tree was not fsynced, and is not all there"
    "$extant" unmount "$mnt"
    wait "$server" 2>/dev/null || true
    server=
    e2fsck -fn "$img" >"$work/fsck" 2>&1 || { cat "$work/fsck"; die "e2fsck"; }
    shown "unmounted; e2fsck -fn: clean"

    if [ "$(id -u)" -eq 0 ] && mount -o loop,ro "$img" "$mnt" 2>/dev/null; then
        (cd "$mnt/precious" && sha256sum --quiet -c "$work/sums") || die "the kernel sees other bytes"
        umount "$mnt"
        shown "the kernel's ext4 mounts the image and sees the same bytes"
    fi
    rm -f "$img"
fi

if [ "$can_mount" = yes ] && [ "${1:-}" != --no-speeds ]; then
    say "Speeds, on this machine, once (make bench measures properly)"
    targets=fuse2fs,extant
    [ "$(id -u)" -ne 0 ] || targets=kernel,$targets
    python3 scripts/bench.py --quick --targets "$targets" --size 2048 --tree "$tree" --dir "$work" \
        --extant "$extant" --work untar,find,readtree,rmtree,sync,nosync,seqread,randread >"$work/bench" || true
    # Why a row is missing, before the table.
    sed -n 's/^.*FAILED: /failed: /p' "$work/bench" | sed 's/^/   /'
    sed -n '/^medians/,$p' "$work/bench" | sed '1s/.*/speed relative to the first (above 1: faster)/; s/\*//; s/^/   /'
fi

say "What was shown, in $((SECONDS - start)) s"
for line in "${summary[@]}"; do
    note "- $line"
done
say "The binary is $extant (make install puts it, its manual pages and mount helpers in place)"
