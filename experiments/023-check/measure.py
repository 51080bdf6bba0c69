#!/usr/bin/env python3
"""Makes the images of this experiment, and has both checkers read them.

    measure.py image NAME IMAGE [--scale F]
    measure.py rounds NAME IMAGE --extant PROGRAM --rounds N --output DIRECTORY

Each round runs every contestant once with a warm page cache and once with a cold one, in an order that turns. Processor
time is what wait4 says of the process, the most memory what time(1) says. What is read is counted in a run of its own
under strace. Trials have the form of `extant lab run`, so that `extant lab compare` judges them.
"""
import argparse
import collections
import contextlib
import ctypes
import errno
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time

KEEP_SIZE, PUNCH_HOLE = 1, 2
OPTIONS = {
    "small-files": ["-t", "ext4", "-b", "4096", "-N", "700000"],
    "extents": ["-t", "ext4", "-b", "1024", "-N", "4096"],
    "pointers": ["-t", "ext3", "-b", "4096", "-N", "100000"],
}
BYTES = {"small-files": 4 << 30, "extents": 8 << 30, "pointers": 400 << 30}


def command(name, image):
    """What makes the empty image."""
    return ["mke2fs", "-q", "-F", *OPTIONS[name], "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", image,
            str(BYTES[name] >> 10) + "k"]


@contextlib.contextmanager
def mounted(image):
    """The image under the kernel's driver."""
    where = image + ".d"
    os.mkdir(where)
    subprocess.run(["mount", "-o", "loop,noatime", image, where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)
        os.rmdir(where)


def small_files(where, scale):
    """600 directories of 1,000 files; a fifth has an attribute too large for the inode."""
    for d in range(max(1, int(600 * scale))):
        directory = f"{where}/{d:04}"
        os.mkdir(directory)
        for n in range(1000):
            path = f"{directory}/a-name-of-some-length-{n:05}"
            fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
            if n % 5 == 0:
                os.setxattr(fd, "user.note", f"{d}-{n}".encode() * 20)
            else:
                os.write(fd, b"contents")
            os.close(fd)


def extents(where, scale):
    """Files of which every second block is a hole: 2.1 million extents."""
    libc = ctypes.CDLL(None, use_errno=True)

    def fallocate(fd, mode, offset, length):
        if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            e = ctypes.get_errno()
            raise OSError(e, errno.errorcode[e])

    for n in range(max(1, int(21 * scale))):
        fd = os.open(f"{where}/{n}", os.O_CREAT | os.O_RDWR, 0o644)
        fallocate(fd, 0, 0, 200_000 << 10)
        for block in range(1, 200_000, 2):
            fallocate(fd, KEEP_SIZE | PUNCH_HOLE, block << 10, 1 << 10)
        os.close(fd)


def pointers(where, scale):
    """The thread's set in outline: files of 1 GiB whose every pointer block is there, with one block of data each."""
    for n in range(max(1, int(368 * scale))):
        fd = os.open(f"{where}/{n}", os.O_CREAT | os.O_RDWR, 0o644)
        for at in range(0, 1 << 30, 4 << 20):
            os.pwrite(fd, b"x" * 4096, at + (1 << 20))
        os.close(fd)


def make(name, image, scale):
    with contextlib.suppress(FileNotFoundError):
        os.remove(image)
    subprocess.run(command(name, image), check=True)
    with mounted(image) as where:
        {"small-files": small_files, "extents": extents, "pointers": pointers}[name](where, scale)
    subprocess.run(["sync", image], check=True)


def contestants(extant, image):
    return {
        "e2fsck": ["e2fsck", "-fn", image],
        "extant,threads=1": [extant, "fsck", "-fn", "--threads", "1", image],
        "extant,threads=2": [extant, "fsck", "-fn", "--threads", "2", image],
    }


def run(argv):
    """Seconds, seconds of processor time, bytes of memory at most. The image must be found sound."""
    # What this process has in memory would count as the child's, were there no other process in between.
    with tempfile.NamedTemporaryFile("r") as peak:
        command = ["time", "-o", peak.name, "-f", "%M", *argv]
        begin = time.monotonic()
        pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)])
        _, status, usage = os.wait4(pid, 0)
        seconds = time.monotonic() - begin
        if status != 0:
            sys.exit(f"{argv}: status {os.waitstatus_to_exitcode(status)}")
        return seconds, usage.ru_utime + usage.ru_stime, int(peak.read()) << 10


def drop_caches():
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("3")


def first_line(argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0]


def environment(extant, name, image):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    commit = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty=-modified", "--abbrev=40"],
                            capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    cpuinfo = open("/proc/cpuinfo", encoding="utf-8").read()
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    listed = subprocess.run(["dumpe2fs", "-h", image], capture_output=True, text=True, check=False).stdout
    features = re.search(r"Filesystem features:\s*(.*)", listed)
    return {
        "version": first_line([extant, "--version"]).split()[1], "commit": commit, "profile": "release",
        "tools": {"e2fsck": first_line(["e2fsck", "-V"])}, "load": os.getloadavg()[0], "kernel": platform.release(),
        "cpu": model.group(1) if model else "unknown", "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "device": "image file",
        "mkfs": " ".join(command(name, "IMAGE")), "image_bytes": os.path.getsize(image),
        "features": features.group(1).split() if features else [], "command": ["experiments/023-check/run"],
    }


def requests(argv, image):
    """Reads of the image, their bytes, and bytes that were read more than once, in a run under strace. With one thread
    every call ends on the line that it begins on."""
    trace = image + ".trace"
    subprocess.run(["strace", "-f", "-y", "-s", "0", "-e", "trace=pread64,preadv,preadv2,read,lseek", "-o", trace, *argv],
                   check=True, stdout=subprocess.DEVNULL)
    reads = total = again = at = 0
    seen = collections.Counter()
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if f"<{image}>" not in line:
                continue
            sought = re.search(r"lseek\(.*SEEK_SET\)\s*= (\d+)$", line)
            if sought:
                at = int(sought.group(1))
                continue
            got = re.search(r"(pread64|preadv2?|read)\(.*= (\d+)$", line)
            if not got:
                continue
            length = int(got.group(2))
            offset = re.search(r", (\d+)(?:, 0)?\)\s*= \d+$", line)
            begin = at if got.group(1) == "read" else int(offset.group(1))
            at = begin + length if got.group(1) == "read" else at
            reads, total = reads + 1, total + length
            for block in range(begin >> 10, (begin + length + 1023) >> 10):
                again += 1 if seen[block] else 0
                seen[block] += 1
    os.remove(trace)
    return reads, total, again << 10


def rounds(name, image, extant, count, output):
    os.makedirs(output)
    who = contestants(extant, image)
    with open(f"{output}/requests.txt", "w", encoding="utf-8") as f:
        f.write(f"{'':18} {'reads':>9} {'MiB':>9} {'MiB again':>9}\n")
        for label in ("e2fsck", "extant,threads=1"):
            reads, total, again = requests(who[label], image)
            f.write(f"{label:18} {reads:9} {total / (1 << 20):9.1f} {again / (1 << 20):9.1f}\n")
    around = environment(extant, name, image)
    for argv in who.values():
        run(argv)
    with open(f"{output}/trials.ndjson", "w", encoding="utf-8") as f:
        for n in range(count):
            labels = list(who)
            order = labels[n % len(labels):] + labels[:n % len(labels)]
            warm, cold = {}, {}
            for label in order:
                run(who[label])
                warm[label] = run(who[label])
            for label in order:
                drop_caches()
                cold[label] = run(who[label])
            for place, label in enumerate(order):
                trial = {
                    "schema": 1, "round": n, "place": place, "started_s": int(time.time()),
                    "workload": {"name": f"check-{name}", "scale": 1.0, "seed": 0, "parameters": {}, "headline": "warm"},
                    "contestant": {"label": label, "kind": "command", "options": "", "policies": {}},
                    "environment": around, "outcome": {"state": "unchecked"}, "latency": {},
                    "phases": [{"name": "warm", "seconds": warm[label][0], "operations": 1, "bytes": 0},
                               {"name": "cold", "seconds": cold[label][0], "operations": 1, "bytes": 0}],
                    "measures": {"cpu_s": warm[label][1], "peak_bytes": warm[label][2]},
                }
                f.write(json.dumps(trial) + "\n")
                f.flush()
            print(f"{name}: round {n + 1} of {count}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("image", "rounds"):
        sub = verbs.add_parser(verb)
        sub.add_argument("name", choices=OPTIONS)
        sub.add_argument("image")
        if verb == "image":
            sub.add_argument("--scale", type=float, default=1.0)
        else:
            sub.add_argument("--extant", required=True)
            sub.add_argument("--rounds", type=int, default=7)
            sub.add_argument("--output", required=True)
    args = parser.parse_args()
    if args.verb == "image":
        make(args.name, args.image, args.scale)
    else:
        rounds(args.name, args.image, args.extant, args.rounds, args.output)


if __name__ == "__main__":
    main()
