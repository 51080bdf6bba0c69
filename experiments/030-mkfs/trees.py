#!/usr/bin/env python3
"""Makes images of one tree from every kind of source, and compares what each reader finds in them with the tree.

    trees.py --extant PROGRAM --work DIRECTORY --output DIRECTORY [--scale F]

The tree has everything that an image can hold. For each type and block size, and each kind of source, a line says of
each check "yes", or the number of a note with the first difference:

fsck     `extant fsck -n` finds nothing
e2fsck   `e2fsck -fn` finds nothing
kernel   the image as the kernel's driver mounts it shows the tree: names, types, modes, owners, times with nanoseconds,
         links, targets, device numbers, attributes (ACLs and capabilities among them), contents, and where data is
extant   the same, as `extant mount` shows it
export   the same, of what tar(1) unpacks of `extant export`
index    each directory of more than one block has an index, and debugfs finds its way through it
mke2fs   the image of `mke2fs -d` shows the same names, types, modes, owners, links, targets, device numbers and
         contents; this does not depend on the source

A tar carries no sockets, and tar(1) does not notice that a FIFO has several names. Both are expected of its archives.

Two more lines are of 70,000 subdirectories, and of a directory of a million names (at scale 1). Of the archive, only the
names are looked at there; `mke2fs -d` is left out, which searches a directory from its start for each name.
"""
import argparse
import contextlib
import hashlib
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys

from measure import ATTRIBUTES, layout

CHECKS = ["fsck", "e2fsck", "kernel", "extant", "export", "index", "mke2fs"]
SPARSE = "d/sparse"
# The blocks of pointers of smaller blocks reach as far as this; what is not listed holds a TiB.
SPARSE_BYTES = {("ext2", 1024): 16 << 30, ("ext3", 1024): 16 << 30, ("ext2", 2048): 256 << 30, ("ext3", 2048): 256 << 30}
TYPES = [(kind, block) for kind in ("ext2", "ext3", "ext4") for block in (1024, 2048, 4096)]
# What `mke2fs -d` is asked for. A note says what else it loses.
PLAIN = ["mode", "owner", "links", "target", "device", "size", "content"]
# What debugfs says of each index without checksums, the kernel's own as well.
NOT_MEANT = "htree_dump_int_block: Directory block does not have space for checksum while calculating checksum for htree root"


def pattern(n, size):
    """Bytes without zeros, so that no block is taken for a hole."""
    block = hashlib.sha256(str(n).encode()).hexdigest().encode()
    return (block * (size // len(block) + 1))[:size]


def acl(*entries):
    """The value of an ACL: tag, permissions, number."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def make_tree(top):
    none = 0xffffffff
    for path in ("d/deep/er", "one block", "many", "long", "empty", "kinds", "levels"):
        os.makedirs(f"{top}/{path}")

    def file(path, content):
        with open(f"{top}/{path}", "wb") as f:
            f.write(content)

    for n in range(5):
        file(f"one block/{n}", pattern(n, 100 * n))
    for n in range(3000):
        file(f"many/{'n' * (n % 50)}-{n}", b"" if n % 3 else pattern(n, n))
    for n in range(200):
        file(f"long/{n:03}" + "x" * 252, b"")
    for name in ("with space", "line\nbreak", "\udcff\udcfe", "-dash", "ä"):
        file(f"d/{name}", b"odd")
    # The last block of each level of pointers, and the first of the next.
    for blocks in (11, 12, 13, 267, 268, 269, 1035, 1036, 1037):
        file(f"levels/{blocks}", pattern(blocks, blocks * 1024 - blocks % 3))
    file("levels/4k", pattern(4, 5 << 20))
    with open(f"{top}/d/holes", "wb") as f:
        for n in range(700):
            f.seek(n * 8192)
            f.write(pattern(n, 4096))
    for n in range(3):
        os.link(f"{top}/one block/1", f"{top}/d/deep/hard {n}")
    for size in (1, 59, 60, 900):
        os.symlink("t" * size, f"{top}/kinds/link {size}")
    os.mkfifo(f"{top}/kinds/fifo", 0o600)
    os.mknod(f"{top}/kinds/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(f"{top}/kinds/disk", 0o640 | stat.S_IFBLK, os.makedev(300, 70000))
    with socket.socket(socket.AF_UNIX) as listening:
        # The address of a socket is at most 107 bytes long.
        here = os.getcwd()
        os.chdir(f"{top}/kinds")
        listening.bind("socket")
        os.chdir(here)
    os.link(f"{top}/kinds/fifo", f"{top}/kinds/fifo again")

    def attribute(path, name, value):
        os.setxattr(f"{top}/{path}", name, value, follow_symlinks=False)

    attribute("one block/1", "user.small", b"in the inode")
    attribute("d", "user.binary", b"\0\n\xff=")
    for n in (2, 3, 4):
        attribute(f"one block/{n}", "user.large", pattern(7, 600))
    attribute("d/deep", "trusted.overlay.x", b"y")
    attribute("levels/11", "security.capability", struct.pack("<IIIII", 0x02000001, 0x2000, 0, 0, 0))
    entries = (1, 6, none), (2, 4, 1234), (4, 4, none), (8, 1, 99), (16, 5, none), (32, 0, none)
    attribute("levels/12", "system.posix_acl_access", acl(*entries))
    attribute("empty", "system.posix_acl_default", acl((1, 7, none), (2, 7, 1234), (4, 5, none), (16, 7, none), (32, 5, none)))
    attribute("kinds/link 59", "trusted.of.a.link", b"l")
    os.chown(f"{top}/kinds/link 60", 5, 6, follow_symlinks=False)
    os.chown(f"{top}/d/deep", 4_000_000_000, 3_000_000_000)
    os.chown(f"{top}/levels/13", 1000, 100)
    os.chmod(f"{top}/levels/13", 0o6755)
    os.chmod(f"{top}/empty", 0o1777)
    seconds = [-86_400, 1, 1_000_000_000, (1 << 31) + 5, 7_000_000_000]
    for n, name in enumerate(["one block/0", "d/holes", "kinds/link 60", "levels/13", "one block/2", "kinds/fifo", "empty"]):
        set_time(f"{top}/{name}", seconds[n % len(seconds)] * 10**9 + 123_456_789)


def set_time(path, nanoseconds):
    os.utime(path, ns=(nanoseconds, nanoseconds), follow_symlinks=False)


def set_sparse(top, size):
    """The sparse file gets another size, with data in the middle and at the end."""
    path = f"{top}/{SPARSE}"
    with open(path, "wb") as f:
        for at in (0, size // 2, size - 4096):
            f.seek(at)
            f.write(pattern(at, 4096))
    set_time(path, 1_234_567_890_987_654_321)
    set_time(f"{top}/d", 1_000_000_007_000_000_009)


def data(path, size):
    """Where a file has data, and a digest of it."""
    ranges, digest = [], hashlib.sha256()
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        at = 0
        while at < size:
            try:
                at = os.lseek(file, at, os.SEEK_DATA)
            except OSError:
                break
            end = min(os.lseek(file, at, os.SEEK_HOLE), size)
            if ranges and ranges[-1][1] == at:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((at, end))
            digest.update(f"{at} ".encode())
            while at < end:
                piece = os.pread(file, min(end - at, 1 << 20), at)
                if not piece:
                    raise OSError(f"{path}: ends at byte {at}")
                digest.update(piece)
                at += len(piece)
    finally:
        os.close(file)
    return ranges, digest.hexdigest()


def listing(top, contents=True):
    """By path, what a tree shows. "links" is the count of the inode and all paths that lead to it."""
    found, first = {}, {}
    waiting = [""]
    while waiting:
        where = waiting.pop()
        paths = [f"{where}/{name}" for name in os.listdir(top + where)] + ([""] if not where else [])
        for path in paths:
            if path == "/lost+found":
                continue
            full = top + path
            status = os.lstat(full)
            kind = stat.S_IFMT(status.st_mode)
            about = {"mode": oct(status.st_mode), "owner": (status.st_uid, status.st_gid), "time": status.st_mtime_ns}
            if kind == stat.S_IFDIR:
                if path:
                    waiting.append(path)
            else:
                about["links"] = (status.st_nlink, first.setdefault(status.st_ino, []))
                first[status.st_ino].append(path)
                about["size"] = status.st_size
            if kind == stat.S_IFLNK:
                about["target"] = os.readlink(full)
            if kind in (stat.S_IFCHR, stat.S_IFBLK):
                about["device"] = (os.major(status.st_rdev), os.minor(status.st_rdev))
            if contents:
                names = os.listxattr(full, follow_symlinks=False)
                about["attributes"] = {name: os.getxattr(full, name, follow_symlinks=False) for name in sorted(names)}
                if kind == stat.S_IFREG:
                    about["holes"], about["content"] = data(full, status.st_size)
            found[path or "/"] = about
    for about in found.values():
        if "links" in about:
            about["links"] = (about["links"][0], tuple(sorted(about["links"][1])))
    return found


def without_sockets(tree):
    return {path: about for path, about in tree.items() if not stat.S_ISSOCK(int(about["mode"], 8))}


def as_tar_stores_it(tree):
    plain = without_sockets(tree)
    for path, about in plain.items():
        if stat.S_ISFIFO(int(about["mode"], 8)):
            plain[path] = {**about, "links": (1, (path,))}
    return plain


def difference(expected, found, parts=None):
    """"yes", or the first of what differs."""
    wrong = []
    for path in sorted(expected.keys() | found.keys()):
        if path not in found or path not in expected:
            wrong.append(f"{path!a} {'is missing' if path in expected else 'is too much'}")
            continue
        for part in parts or expected[path]:
            want, got = expected[path].get(part), found[path].get(part)
            if want != got:
                wrong.append(f"{path!a}: {part} {str(got)[:60]} instead of {str(want)[:60]}")
    return "yes" if not wrong else f"{wrong[0]} ({len(wrong)} in all)"


def run(argv, **how):
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, **how)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def clean(argv):
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    return "yes" if done.returncode == 0 else f"status {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"


@contextlib.contextmanager
def mounted(image, where, extant=None):
    os.makedirs(where, exist_ok=True)
    run([extant, "mount", "-o", "ro", image, where] if extant else ["mount", "-o", "loop,ro", image, where])
    try:
        yield where
    finally:
        run([extant, "unmount", where] if extant else ["umount", where])


def index(image, top, block):
    """The mounted file system's directories of several blocks, as debugfs sees them."""
    seen, wrong = 0, []
    for where, _, _ in os.walk(top):
        status = os.lstat(where)
        if status.st_size <= block or where == f"{top}/lost+found":
            continue
        seen += 1
        done = subprocess.run(["debugfs", "-R", f"htree_dump <{status.st_ino}>", image], capture_output=True, check=False)
        said = done.stderr.decode(errors="replace").split("\n", 1)[1].replace(NOT_MEANT, "").strip()
        leaves = done.stdout.count(b"Reading directory block")
        nodes = done.stdout.count(b"Number of entries (count)")
        if said or leaves + nodes != status.st_size // block:
            wrong.append(f"{where[len(top):]}: {said or f'{leaves} leaves and {nodes} nodes of {status.st_size // block} blocks'}")
    return wrong[0] if wrong else "yes" if seen else "no directory has several blocks"


class Line:
    """A line of the table: what each check said of one image."""

    def __init__(self, args, label):
        self.extant, self.work, self.label, self.said = args.extant, args.work, label, {}

    def look(self, image, expected, block, contents=True):
        self.said["fsck"] = clean([self.extant, "fsck", "-n", image])
        self.said["e2fsck"] = clean(["e2fsck", "-fn", image])
        with mounted(image, f"{self.work}/kernel") as top:
            self.said["kernel"] = difference(expected, listing(top, contents))
            self.said["index"] = index(image, top, block)
        with mounted(image, f"{self.work}/fuse", self.extant) as top:
            self.said["extant"] = difference(expected, listing(top, contents))
        tar = f"{self.work}/export.tar"
        run([self.extant, "export", "-o", tar, image])
        if contents:
            unpacked = f"{self.work}/unpacked"
            os.mkdir(unpacked)
            run(["tar", "-C", unpacked, "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-xpf", tar])
            self.said["export"] = difference(without_sockets(expected), listing(unpacked))
            shutil.rmtree(unpacked)
        else:
            names = subprocess.run(["tar", "-tf", tar], check=True, capture_output=True, text=True).stdout.splitlines()
            found = {name[1:].rstrip("/") or "/" for name in names} - {"/lost+found"}
            wrong = found ^ expected.keys()
            self.said["export"] = "yes" if not wrong and len(names) == len(found) + 1 else f"{len(wrong)} names differ"
        os.remove(tar)

    def write(self, table, notes):
        cells = []
        for said in (self.said.get(check, "-") for check in CHECKS):
            if said not in ("yes", "-"):
                if said not in notes:
                    notes.append(said)
                said = f"[{notes.index(said) + 1}]"
            cells.append(f"{said:8}")
        table.write(f"{self.label:42} {''.join(cells)}".rstrip() + "\n")
        table.flush()
        print(f"trees: {self.label}", file=sys.stderr)


def by_mke2fs(args, top, expected, kind, block, lost):
    image = f"{args.work}/mke2fs.img"
    done = subprocess.run(["mke2fs", "-q", "-F", "-t", kind, "-b", str(block), "-d", top, image, "96M"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"status {done.returncode}: {done.stderr.strip().splitlines()[-1]}"
    with mounted(image, f"{args.work}/kernel") as where:
        found = listing(where)
    os.remove(image)
    for part in ("time", "attributes", "holes"):
        lost[part] = max(lost.get(part, 0), sum(about.get(part) != found.get(path, {}).get(part) for path, about in expected.items()))
    return difference(expected, found, PLAIN)


def pairs(args, table, notes):
    top, image = f"{args.work}/tree", f"{args.work}/made.img"
    os.mkdir(top)
    make_tree(top)
    size, lost = None, {}
    for kind, block in sorted(TYPES, key=lambda pair: SPARSE_BYTES.get(pair, 1 << 40)):
        if size != SPARSE_BYTES.get((kind, block), 1 << 40):
            size = SPARSE_BYTES.get((kind, block), 1 << 40)
            set_sparse(top, size)
            tree = listing(top)
            plain = as_tar_stores_it(tree)
            tar = f"{args.work}/tree.tar"
            run(["tar", "-C", top, "-S", *ATTRIBUTES.split(), "-cf", tar, "."])
            run(["zstd", "-q", "-f", tar, "-o", f"{tar}.zst"])
            shutil.rmtree(f"{args.work}/oci", ignore_errors=True)
            oci = layout(args.work, top, ["-S"])
        theirs = by_mke2fs(args, top, tree, kind, block, lost)
        sources = (("directory", ["-d", top], tree), ("PAX tar", ["--from", tar], plain),
                   ("tar.zst, streamed", ["--from", "-"], plain), ("OCI, two layers", ["--from", f"oci:{oci}"], plain))
        for label, source, expected in sources:
            line = Line(args, f"{kind}, {block}, {label}")
            line.said["mke2fs"] = theirs if label == "directory" else "-"
            with open(f"{tar}.zst", "rb") as stream:
                run([args.extant, "mkfs", "-q", "-F", "-t", kind, "-b", str(block), "--size", "auto", *source, image], stdin=stream)
            line.look(image, expected, block)
            line.write(table, notes)
            os.remove(image)
    shutil.rmtree(top)
    losses = ", ".join(f"{part} of {count}" for part, count in lost.items())
    notes.append(f"The tree has {len(tree)} names. Of them the image of mke2fs -d has another {losses}.")


def extremes(args, table, notes):
    image = f"{args.work}/made.img"
    both = ("subdirectories", 70_000, os.mkdir), ("names in a directory", 1_000_000, os.mknod)
    for label, count, make in both:
        count = int(count * args.scale)
        top = f"{args.work}/extreme"
        os.makedirs(f"{top}/all")
        for n in range(count):
            make(f"{top}/all/name-{n}")
        line = Line(args, f"ext4, 4096, {count} {label}")
        run([args.extant, "mkfs", "-q", "-F", "-t", "ext4", "-b", "4096", "--size", "auto", "-d", top, image])
        line.look(image, listing(top, contents=False), 4096, contents=False)
        line.write(table, notes)
        os.remove(image)
        shutil.rmtree(top)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("extant", "work", "output"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    os.makedirs(args.output, exist_ok=True)
    with open(f"{args.output}/table.txt", "w", encoding="utf-8") as table:
        table.write(f"{'type, block size, source':42} {''.join(f'{check:8}' for check in CHECKS)}".rstrip() + "\n")
        notes = []
        pairs(args, table, notes)
        extremes(args, table, notes)
        table.writelines(f"[{n}] {note}\n" for n, note in enumerate(notes, 1))


if __name__ == "__main__":
    main()
