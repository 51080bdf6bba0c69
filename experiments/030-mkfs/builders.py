#!/usr/bin/env python3
"""Compares `extant mkfs` with `mke2fs -d` and genext2fs: what a tree costs, and what arrives of it.

    builders.py --extant PROGRAM --tree DIRECTORY --work DIRECTORY --output DIRECTORY [--rounds N]

Cost: rounds in which each makes an image of the tree with its own defaults, in an order that turns, from a warm page
cache, and ends when the file is on disk; medians.

Kept: of the tree of trees.py, how many names have another mode, other attributes and so on in the image, as the
kernel's driver shows it. "time" has nanoseconds, "second" has none.

The rest is tried, each with what the program offers for it:

same bytes      two images of one tree, with what fixes UUID, hash seed and time; its files were read in between
of a copy       and one of a copy of the tree, whose directory lists its entries in another order
without root    made by a user who is not root
tar, OCI        made from a tar archive, from an OCI image layout
own size        made without a size
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

from measure import ATTRIBUTES, DATE, PROCESSORS, census, environment, first_line, layout, run
from trees import listing, make_tree, mounted, set_sparse

UUID = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"
PARTS = ["mode", "owner", "time", "second", "links", "target", "device", "content", "attributes", "holes"]
NOBODY = 65534


def makers(extant, blocks):
    """By name: the command without its source, how each kind of source is given, and what fixes its bytes."""
    size, fixed = f"{blocks * 4}k", ["-U", UUID, "-E", f"hash_seed={UUID}"]
    own = {"sources": {"directory": ["-d"], "tar": ["--from"], "oci": ["--from"]}, "fixed": ["-U", "content"],
           "size": ["--size", "auto"], "none": ["--size", "auto"], "at_end": False}
    return {
        "extant, ext4": {"argv": [extant, "mkfs", "-q", "-F", "-t", "ext4"], **own},
        "extant, ext2": {"argv": [extant, "mkfs", "-q", "-F", "-t", "ext2"], **own},
        "mke2fs, ext4": {"argv": ["mke2fs", "-q", "-F", "-t", "ext4"], "sources": dict.fromkeys(("directory", "tar", "oci"), ["-d"]),
                         "fixed": fixed, "size": [size], "none": [], "at_end": True},
        "genext2fs, ext2": {"argv": ["genext2fs", "-z", "-B", "4096", "-N", str(blocks)], "fixed": ["-f"], "at_end": False,
                            "sources": {"directory": ["-d"], "tar": ["-a"], "oci": ["-a"]}, "size": ["-b", str(blocks)], "none": []},
    }


def command(maker, image, kind, source, fixed=False, size="size"):
    argv = maker["argv"] + (maker["fixed"] if fixed else []) + maker["sources"][kind] + [source]
    return argv + ([image] + maker[size] if maker["at_end"] else maker[size] + [image])


def remove(image):
    if os.path.exists(image):
        os.remove(image)


def works(argv, image, user=None):
    """Whether an image comes of it that e2fsck finds clean and that has the tree."""
    done = subprocess.run(argv, user=user, group=user, extra_groups=[] if user else None, capture_output=True, check=False,
                          env={"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": DATE, "E2FSPROGS_FAKE_TIME": DATE})
    good = done.returncode == 0 and os.path.exists(image) and \
        subprocess.run(["e2fsck", "-fn", image], capture_output=True, check=False).returncode == 0 and \
        subprocess.run(["debugfs", "-R", "cat /199", image], capture_output=True, check=False).stdout == b"199"
    remove(image)
    return "yes" if good else "no"


def bytes_of(argv, image):
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": DATE, "E2FSPROGS_FAKE_TIME": DATE})
    with open(image, "rb") as f:
        made = f.read()
    os.remove(image)
    return made


def cost(args, table):
    image, around = f"{args.work}/made", environment(args.extant)
    around["tools"]["genext2fs"] = first_line(["genext2fs", "-V"])
    entries, _, data = census(args.tree)
    who = makers(args.extant, data * 13 // 10 + (64 << 20) >> 12)
    trials = {label: [] for label in who}
    subprocess.run(["tar", "-C", args.tree, "-cf", image, "."], check=True)
    os.remove(image)
    with open(f"{args.output}/trials.ndjson", "w", encoding="utf-8") as f:
        for n in range(args.rounds):
            labels = list(who)
            for place, label in enumerate(labels[n % len(labels):] + labels[:n % len(labels)]):
                subprocess.run(["sync"], check=True)
                argv = command(who[label], image, "directory", args.tree)
                seconds, cpu = run(f"{subprocess.list2cmdline(argv)}; sync {image}")
                disk = os.stat(image).st_blocks * 512
                os.remove(image)
                trials[label].append((seconds, cpu, disk))
                f.write(json.dumps({
                    "schema": 1, "round": n, "place": place, "started_s": int(time.time()),
                    "workload": {"name": "builders", "scale": 1.0, "seed": 0, "parameters": {}, "headline": "make"},
                    "contestant": {"label": label, "kind": "command", "options": "", "policies": {}},
                    "environment": around, "outcome": {"state": "unchecked"}, "latency": {},
                    "phases": [{"name": "make", "seconds": seconds, "operations": entries, "bytes": data}],
                    "measures": {"cpu_s": cpu, "disk_bytes": disk},
                }) + "\n")
            print(f"builders: round {n + 1} of {args.rounds}", file=sys.stderr)
    table.write(f"{entries} entries, {data} bytes of data in whole blocks; processors {PROCESSORS}, {args.rounds} rounds\n")
    table.write(f"{'':16} {'seconds':>8} {'CPU':>8} {'MiB on disk':>12}\n")
    for label, found in trials.items():
        median = [sorted(column)[len(column) // 2] for column in zip(*found)]
        table.write(f"{label:16} {median[0]:8.2f} {median[1]:8.2f} {median[2] / (1 << 20):12.1f}\n")


def with_seconds(tree):
    for about in tree.values():
        about["second"] = about["time"] // 10**9
    return tree


def kept(args, table):
    top, image = f"{args.work}/tree", f"{args.work}/made"
    os.mkdir(top)
    make_tree(top)
    set_sparse(top, 1 << 30)
    tree = with_seconds(listing(top))
    table.write(f"\nOf {len(tree)} names, others in the image:\n{'':16} {'names':>8}")
    table.write("".join(f" {part:>10}" for part in PARTS) + "\n")
    for label, maker in makers(args.extant, 32768).items():
        subprocess.run(command(maker, image, "directory", top), check=True, capture_output=True)
        with mounted(image, f"{args.work}/kernel") as where:
            found = with_seconds(listing(where))
        os.remove(image)
        counts = [len(tree.keys() ^ found.keys())] + [
            sum(about.get(part) != found[path].get(part) for path, about in tree.items() if path in found) for part in PARTS]
        table.write(f"{label:16} {counts[0]:8}" + "".join(f" {count:10}" for count in counts[1:]) + "\n")


@contextlib.contextmanager
def two_orders(where):
    """Two directories of the same files on a tmpfs, which lists those first that were made last."""
    os.mkdir(where)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noatime", "none", where], check=True)
    try:
        for name, numbers in (("one", range(200)), ("other", range(199, -1, -1))):
            os.mkdir(f"{where}/{name}")
            for n in numbers:
                with open(f"{where}/{name}/{n}", "w", encoding="ascii") as f:
                    f.write(f"{n}")
            for path in [f"{where}/{name}/{n}" for n in numbers] + [f"{where}/{name}"]:
                os.utime(path, (1_000_000_000, 1_000_000_000))
        yield f"{where}/one", f"{where}/other"
    finally:
        subprocess.run(["umount", where], check=True)


def tried(args, table):
    image, users = f"{args.work}/made", f"{args.work}/users"
    os.mkdir(users)
    os.chown(users, NOBODY, NOBODY)
    os.chmod(args.work, 0o755)
    table.write(f"\n{'':16} {'same bytes':>10} {'of a copy':>10} {'without root':>13} {'tar':>5} {'OCI':>5} {'own size':>9}\n")
    with two_orders(f"{args.work}/memory") as (top, other):
        tar, oci = f"{args.work}/top.tar", f"oci:{layout(args.work, top)}"
        subprocess.run(["tar", "-C", top, *ATTRIBUTES.split(), "-cf", tar, "."], check=True)
        for day, (label, maker) in enumerate(makers(args.extant, 32768).items()):
            first = bytes_of(command(maker, image, "directory", top, fixed=True), image)
            # A read leaves other access times, a copy other change times, which count whole seconds in some images.
            time.sleep(1.1)
            for n in range(200):
                os.utime(f"{top}/{n}", (1_500_000_000 + 86_400 * day, 1_000_000_000))
            again = "yes" if bytes_of(command(maker, image, "directory", top, fixed=True), image) == first else "no"
            copy = "yes" if bytes_of(command(maker, image, "directory", other, fixed=True), image) == first else "no"
            user = works(command(maker, f"{users}/made", "directory", top), f"{users}/made", NOBODY)
            archive, layers = (works(command(maker, image, kind, source), image) for kind, source in (("tar", tar), ("oci", oci)))
            own = works(command(maker, image, "directory", top, size="none"), image)
            table.write(f"{label:16} {again:>10} {copy:>10} {user:>13} {archive:>5} {layers:>5} {own:>9}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("extant", "tree", "work", "output"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.makedirs(args.output, exist_ok=True)
    with open(f"{args.output}/table.txt", "w", encoding="utf-8") as table:
        cost(args, table)
        kept(args, table)
        tried(args, table)


if __name__ == "__main__":
    main()
