#!/usr/bin/env python3
"""The time of single operations, in microseconds, and the FUSE requests that each sends.

Targets: the kernel's ext4 on a loop device; "FUSE alone", a server that answers from memory (memory_server); Extant.
The last two over /dev/fuse and over io_uring. The difference between Extant and "FUSE alone" is Extant's own time, and
between "FUSE alone" and the kernel it is the price of FUSE. Requests are counted by perf(1), if it is there (event
fuse:fuse_request_send), in a run of their own.

Needs root. Switches /sys/module/fuse/parameters/enable_uring, and restores it.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARAMETER = "/sys/module/fuse/parameters/enable_uring"


def sh(*words, **more):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def create(directory, n):
    for i in range(n):
        os.mknod(f"{directory}/c{i}", 0o644)


def lookup(directory, n):
    for i in range(n):
        os.stat(f"{directory}/l{i}")


def unlink(directory, n):
    for i in range(n):
        os.unlink(f"{directory}/u{i}")


def write(directory, n):
    with open(f"{directory}/w", "wb", buffering=0) as f:
        for i in range(n):
            os.pwrite(f.fileno(), BLOCK, i * 4096)


def sync(directory, n):
    with open(f"{directory}/s", "wb", buffering=0) as f:
        for i in range(n):
            os.pwrite(f.fileno(), BLOCK, 0)
            os.fsync(f.fileno())


def read(directory, n):
    with open(f"{directory}/r", "rb", buffering=0) as f:
        for i in range(n):
            os.pread(f.fileno(), 1 << 20, (i % 64) << 20)


BLOCK = b"x" * 4096
# name: what runs, how often, and the files that it needs before a remount
WORK = {
    "create a file": (create, 5000, None),
    "look a name up": (lookup, 5000, "l"),
    "unlink a file": (unlink, 5000, "u"),
    "write 4 KiB": (write, 5000, None),
    "write 4 KiB, fsync": (sync, 200, None),
    "read 1 MiB, cold": (read, 64, "r"),
}


class Kernel:
    def __init__(self, args, directory):
        self.image, self.dir = os.path.join(directory, "disk.img"), os.path.join(directory, "mnt")
        with open(self.image, "wb") as f:
            f.truncate(2 << 30)
        sh("mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image)

    def mount(self):
        sh("mount", "-o", "loop", self.image, self.dir)

    def unmount(self):
        sh("umount", self.dir)

    def end(self):
        pass


class Extant(Kernel):
    def __init__(self, args, directory, transport):
        super().__init__(args, directory)
        self.binary, self.transport = args.extant, transport

    def mount(self):
        sh(self.binary, "mount", "-o", f"allow_other,transport={self.transport}", self.image, self.dir)

    def unmount(self):
        sh(self.binary, "unmount", self.dir)


class FuseAlone:
    def __init__(self, args, directory, transport):
        self.dir = os.path.join(directory, "mnt")
        command = [args.memory_server, self.dir, transport]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.server.stdout.readline()
        self.mounted = True

    def mount(self):
        if not self.mounted:
            self.server.stdin.write("\n")
            self.server.stdin.flush()
            self.server.stdout.readline()
            self.mounted = True

    def unmount(self):
        sh("umount", self.dir)
        self.server.stdout.readline()  # "unmounted"
        self.mounted = False

    def end(self):
        self.server.stdin.close()
        self.server.wait()


TARGETS = {
    "kernel": lambda args, d: Kernel(args, d),
    "FUSE alone, device": lambda args, d: FuseAlone(args, d, "dev"),
    "Extant, device": lambda args, d: Extant(args, d, "dev"),
    "FUSE alone, io_uring": lambda args, d: FuseAlone(args, d, "uring"),
    "Extant, io_uring": lambda args, d: Extant(args, d, "uring"),
}


def prepare(directory, prefix):
    if prefix == "r":
        with open(f"{directory}/r", "wb") as f:
            f.write(os.urandom(1 << 20) * 64)
    elif prefix:
        for i in range(5000):
            os.mknod(f"{directory}/{prefix}{i}", 0o644)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="utf-8") as f:
        f.write("3")


def one(args, target, name, counted):
    """Microseconds an operation, or requests an operation."""
    work, times, prefix = WORK[name]
    directory = tempfile.mkdtemp(prefix="extant-requests.", dir=args.dir)
    os.mkdir(os.path.join(directory, "mnt"))
    t = TARGETS[target](args, directory)
    try:
        t.mount()
        if prefix:
            prepare(t.dir, prefix)
            t.unmount()
            drop_caches()
            t.mount()
        if counted:
            inner = [sys.executable, os.path.abspath(__file__), "--inner", name, t.dir]
            done = subprocess.run(["perf", "stat", "-x,", "-a", "-e", "fuse:fuse_request_send", "--", *inner],
                                  check=True, stderr=subprocess.PIPE, text=True)
            count = next(l.split(",")[0] for l in done.stderr.splitlines() if "fuse_request_send" in l)
            result = float(count) / times
        else:
            start = time.perf_counter()
            work(t.dir, times)
            result = (time.perf_counter() - start) / times * 1e6
        t.unmount()
        return result
    finally:
        subprocess.run(["umount", "-l", t.dir], stderr=subprocess.DEVNULL, check=False)
        t.end()
        shutil.rmtree(directory, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--extant", default=os.path.join(ROOT, "target/release/extant"))
    p.add_argument("--memory-server", default=os.path.join(ROOT, "target/release/examples/memory_server"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dir", default="/var/tmp")
    p.add_argument("--inner", nargs=2, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.inner:
        work, times, _ = WORK[args.inner[0]]
        return work(args.inner[1], times)
    with open(PARAMETER, encoding="utf-8") as f:
        before = f.read()
    try:
        with open(PARAMETER, "w", encoding="utf-8") as f:
            f.write("Y")
        names = list(TARGETS)
        figures = {name: {target: [] for target in names} for name in WORK}
        for number in range(args.rounds):
            for name in WORK:
                turn = number % len(names)
                for target in names[turn:] + names[:turn]:
                    figures[name][target].append(one(args, target, name, False))
        print("| operation | requests | " + " | ".join(names) + " |")
        print("|---|---:|" + "---:|" * len(names))
        for name in WORK:
            count = f"{one(args, 'Extant, device', name, True):.2f}" if shutil.which("perf") else "?"
            cells = (f"{statistics.median(figures[name][t]):.1f}" for t in names)
            print(f"| {name} | {count} | " + " | ".join(cells) + " |", flush=True)
        print(f"\nMicroseconds an operation: medians of {args.rounds} rounds, the targets in turn. One client.")
    finally:
        with open(PARAMETER, "w", encoding="utf-8") as f:
            f.write(before)
    return None


if __name__ == "__main__":
    sys.exit(main())
