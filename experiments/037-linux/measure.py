#!/usr/bin/env python3
"""Measures two parts of the kernel that `extant lab run` cannot ask for: its shrinker of extent status, and its request tags. Needs root.

    measure.py es   WORK --rounds N --output DIRECTORY
    measure.py tags WORK --rounds N --output DIRECTORY

WORK is a folder for images. `es`: a file with 100,000 entries that can go, behind another one with delayed entries; then the kernel is asked to
give back what its shrinkers hold (drop_caches), and each call is recorded (ext4_es_shrink, in a trace instance of its own). Blocks have 1 KiB, so that
a page carries two delayed entries. `tags`: fio's threads read a loop device whose depth is set. Trials have the form of `extant lab run`. What is
mounted, attached, traced or set is undone in any case.
"""
import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

KIB = 1024
CLEAN = 100_000
DELAYED = (0, 100_000, 1_000_000)
DEPTHS = (8, 64, 128)
THREADS = (64, 256)
REQUESTS = 40_000


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def put(path, value):
    with open(path, "w", encoding="ascii") as f:
        f.write(str(value))


def get(path):
    with open(path, encoding="ascii", errors="replace") as f:
        return f.read()


@contextlib.contextmanager
def attached(image):
    """A loop device on the image; its name without /dev/."""
    device = run("losetup", "--find", "--show", image)
    try:
        yield device.removeprefix("/dev/")
    finally:
        run("losetup", "--detach", device)


@contextlib.contextmanager
def mounted(device):
    where = tempfile.mkdtemp(prefix="extant-linux-")
    run("mount", "-t", "ext4", f"/dev/{device}", where)
    try:
        yield where
    finally:
        run("umount", where)
        os.rmdir(where)


@contextlib.contextmanager
def tracefs():
    """The place of a tracefs; mounted for this time where none is."""
    for line in get("/proc/self/mounts").splitlines():
        if line.split()[2] == "tracefs":
            yield line.split()[1]
            return
    where = tempfile.mkdtemp(prefix="extant-trace-")
    run("mount", "-t", "tracefs", "tracefs", where)
    try:
        yield where
    finally:
        run("umount", where)
        os.rmdir(where)


@contextlib.contextmanager
def recorded(events):
    """A trace instance with these events."""
    with tracefs() as top:
        instance = f"{top}/instances/extant-linux-{os.getpid()}"
        os.mkdir(instance)
        try:
            put(f"{instance}/buffer_size_kb", 16 << 10)
            for event in events:
                put(f"{instance}/events/{event}/enable", 1)
            yield instance
        finally:
            put(f"{instance}/events/enable", 0)
            os.rmdir(instance)


@contextlib.contextmanager
def writeback_later():
    """Nothing is written back because of its amount or age in this time: delayed entries stay delayed."""
    names = ("dirty_background_bytes", "dirty_bytes", "dirty_background_ratio", "dirty_ratio", "dirty_expire_centisecs")
    before = {name: get(f"/proc/sys/vm/{name}").strip() for name in names}
    put("/proc/sys/vm/dirty_bytes", 8 << 30)
    put("/proc/sys/vm/dirty_background_bytes", 7 << 30)
    put("/proc/sys/vm/dirty_expire_centisecs", 60_000)
    try:
        yield
    finally:
        for name in names:
            # Of bytes and ratio, the one that is not zero is in force. Zero bytes cannot be written.
            if before[name] != "0":
                put(f"/proc/sys/vm/{name}", before[name])


def every_second_block(path, count):
    """So many entries of extent status: one block, one hole, and so on."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    block = b"x" * KIB
    for n in range(count):
        os.pwrite(fd, block, 2 * n * KIB)
    return fd


def es_trial(image, delayed):
    """The calls of the shrinker: (entries freed, nanoseconds), in order."""
    run("mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-E", "lazy_itable_init=0,lazy_journal_init=0", image, "8G")
    # Open files would keep the mount busy, also after a failure.
    with attached(image) as device, mounted(device) as where, writeback_later(), contextlib.ExitStack() as files:
        first = every_second_block(f"{where}/delayed", delayed)
        files.callback(os.close, first)
        second = every_second_block(f"{where}/clean", CLEAN)
        files.callback(os.close, second)
        os.fsync(second)
        number = get(f"/sys/block/{device}/dev").strip().replace(":", ",")
        objects = int(re.search(r"(\d+) objects", get(f"/proc/fs/ext4/{device}/es_shrinker_info")).group(1))
        # fsync of one file leaves the other's blocks delayed: its size on the disk is what was allocated.
        if os.fstat(first).st_blocks != 2 * delayed or objects < delayed:
            sys.exit(f"es: {delayed} blocks should be delayed, and st_blocks is {os.fstat(first).st_blocks}, objects {objects}")
        with recorded(["ext4/ext4_es_shrink"]) as instance:
            put("/proc/sys/vm/drop_caches", 2)
            put(f"{instance}/tracing_on", 0)
            trace = get(f"{instance}/trace")
            for cpu in os.listdir(f"{instance}/per_cpu"):
                lost = re.findall(r"(?:^|\n)(?:overrun|dropped events): (\d+)", get(f"{instance}/per_cpu/{cpu}/stats"))
                if any(int(n) for n in lost):
                    sys.exit("es: the trace has lost events")
        left = int(re.search(r"(\d+) reclaimable objects", get(f"/proc/fs/ext4/{device}/es_shrinker_info")).group(1))
        os.truncate(f"{where}/delayed", 0)
    pattern = re.compile(rf"ext4_es_shrink: dev {number} nr_shrunk (\d+), scan_time (\d+)")
    # The kernel prints microseconds.
    return [(int(freed), int(us) * 1000) for freed, us in pattern.findall(trace)], left


def latency(ns):
    ordered = sorted(ns)
    at = lambda share: ordered[min(len(ordered) - 1, int(len(ordered) * share))]
    return {"count": len(ns), "mean_ns": statistics.fmean(ns), "p50_ns": at(0.5), "p99_ns": at(0.99), "p999_ns": at(0.999), "max_ns": ordered[-1]}


def es(work):
    """(label, measures, latencies) of one round."""
    image = f"{work}/es.img"
    for delayed in DELAYED:
        calls, left = es_trial(image, delayed)
        os.remove(image)
        if not calls:
            sys.exit("es: the kernel did not call its shrinker")
        measures = {"es_shrinks": len(calls), "es_shrinks_in_vain": sum(not freed for freed, _ in calls),
                    "es_reclaimed": sum(freed for freed, _ in calls), "entries_left": left}
        yield f"delayed={delayed}", measures, {"call": latency([ns for _, ns in calls])}


def tags(work):
    image = f"{work}/tags.img"
    with open(image, "wb") as f:
        for _ in range(512):
            f.write(b"x" * (1 << 20))
    with attached(image) as device:
        put(f"/sys/block/{device}/queue/scheduler", "none")
        for depth in DEPTHS:
            put(f"/sys/block/{device}/queue/nr_requests", depth)
            for threads in THREADS:
                said = run("fio", "--name=tags", f"--filename=/dev/{device}", "--direct=1", "--ioengine=psync", "--rw=randread", "--bs=4k",
                           "--thread", f"--numjobs={threads}", f"--number_ios={REQUESTS // threads}", "--group_reporting", "--output-format=json")
                job = json.loads(said)["jobs"][0]
                requests = job["read"]["total_ios"]
                measures = {"requests": requests, "switches_per_request": job["ctx"] * 1.0 / requests,
                            "requests_per_s": job["read"]["iops"], "longest_ms": job["read"]["clat_ns"]["max"] / 1e6}
                yield f"threads={threads},depth={depth}", measures, {}
    os.remove(image)


def environment():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    commit = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty=-modified", "--abbrev=40"],
                            capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    model = re.search(r"model name\s*: (.*)", get("/proc/cpuinfo"))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"version": "none", "commit": commit, "profile": "release", "tools": {"fio": run("fio", "--version")},
            "load": os.getloadavg()[0], "kernel": platform.release(), "cpu": model.group(1) if model else "unknown", "cores": os.cpu_count(),
            "memory_bytes": memory, "device": "loop device", "mkfs": "", "image_bytes": 0, "features": [], "command": ["experiments/037-linux/run"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("es", "tags"))
    parser.add_argument("work")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("measure.py: the kernel's driver and its trace need root")
    os.makedirs(args.output, exist_ok=True)
    measure, headline = {"es": (es, "es_shrinks_in_vain"), "tags": (tags, "switches_per_request")}[args.what]
    around = environment()
    rows = {}
    with open(f"{args.output}/trials.ndjson", "w", encoding="utf-8") as f:
        for n in range(args.rounds):
            for place, (label, measures, latencies) in enumerate(measure(args.work)):
                trial = {
                    "schema": 1, "round": n, "place": place, "started_s": int(time.time()),
                    "workload": {"name": f"linux-{args.what}", "scale": 1.0, "seed": 0, "parameters": {}, "headline": headline},
                    "contestant": {"label": label, "kind": "command", "options": "", "policies": {}},
                    "environment": around, "outcome": {"state": "unchecked"}, "latency": latencies, "phases": [], "measures": measures,
                }
                f.write(json.dumps(trial) + "\n")
                f.flush()
                figures = measures | {f"{name}_{part}": value for name, parts in latencies.items() for part, value in parts.items()}
                for name, value in figures.items():
                    rows.setdefault(label, {}).setdefault(name, []).append(value)
            print(f"{args.what}: round {n + 1} of {args.rounds}", file=sys.stderr)
    with open(f"{args.output}/table.txt", "w", encoding="utf-8") as f:
        f.write(f"medians of {args.rounds} rounds (lowest, highest); Linux {platform.release().split('-')[0]}\n")
        for label, figures in rows.items():
            f.write(f"\n{label}\n")
            for name, values in figures.items():
                f.write(f"    {name:24} {statistics.median(values):14,.2f}  ({min(values):,.2f}, {max(values):,.2f})\n")


if __name__ == "__main__":
    main()
