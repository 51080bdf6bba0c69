#!/usr/bin/env python3
"""Has `extant mkfs` and its rivals make images of one tree, and looks at what they made.

    measure.py speed|bytes|memory|cold --extant PROGRAM --tree DIRECTORY --work DIRECTORY --output DIRECTORY
               [--rounds N] [--scale F]

speed    Rounds in which each contestant makes one file, on two processors, from a warm page cache, and ends when the file
         is durable. The order turns. `disk_bytes` is what the file takes on disk. Trials have the form of `extant lab
         run`, so that `extant lab compare` judges them; tar is the baseline.
bytes    SHA-256 of images that must be the same: 1, 2 and 8 threads; the directory, its tar, its tar in random order, and
         two OCI layers that share it out.
memory   The most memory that was resident: many files (a million at scale 1), and a sparse file of 100 GiB.
cold     What the kernel's driver asks the device for, on the image of each maker, after a mount with an empty page cache:
         for a find(1) that stats, and for a tar(1) that reads. Requests and their bytes; seeks, which are requests
         that do not begin where the one before ended; those of them that go backwards; and how far all lead together.
         `room.txt` says what an image takes besides the data.
"""
import argparse
import gzip
import hashlib
import json
import os
import platform
import random
import re
import resource
import shlex
import subprocess
import sys
import tarfile
import time

DATE = "1700000000"
PROCESSORS = "0,1"
ATTRIBUTES = "--format=pax --xattrs --acls --numeric-owner"


def first_line(argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[0]


def environment(extant):
    # "extant VERSION (COMMIT, PROFILE)".
    version, commit, profile = re.match(r"extant (\S+) \((\S+), (\S+)\)", first_line([extant, "--version"])).groups()
    model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo", encoding="utf-8").read())
    return {
        "version": version, "commit": commit, "profile": profile,
        "tools": {"mke2fs": first_line(["mke2fs", "-V"]), "tar": first_line(["tar", "--version"])},
        "load": os.getloadavg()[0], "kernel": platform.release(), "cpu": model.group(1) if model else "unknown",
        "cores": os.cpu_count(), "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "device": "image file", "mkfs": "", "image_bytes": 0, "features": [], "command": ["experiments/030-mkfs/run"],
    }


def census(tree):
    """Entries, the bytes of their names, and the bytes of data in whole blocks, links counted once, holes left out."""
    entries = names = data = 0
    seen = set()
    for where, directories, files in os.walk(tree):
        for name in directories + files:
            status = os.lstat(os.path.join(where, name))
            entries, names = entries + 1, names + len(os.fsencode(name))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                whole = -(-status.st_size // 4096) * 4096
                data += min(whole, status.st_blocks * 512) if name in files else 4096
    return entries, names, data


def run(command, environ=None):
    """Seconds, seconds of processor time, bytes of memory at most of a shell's command."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["taskset", "-c", PROCESSORS, "sh", "-ec", command], check=False, stdout=subprocess.DEVNULL,
                          env={**os.environ, **(environ or {})})
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{command}: status {done.returncode}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak(argv, work):
    """The most memory that a command had resident, and its seconds. time(1) lies between, for what this process has in
    memory would count as the child's."""
    said = f"{work}/peak"
    begin = time.monotonic()
    subprocess.run(["time", "-o", said, "-f", "%M", *argv], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": DATE})
    seconds = time.monotonic() - begin
    with open(said, encoding="utf-8") as f:
        return int(f.read().split()[-1]) << 10, seconds


def contestants(args, image):
    """What makes `image`. Each ends with it on disk. mke2fs is given a size, for it has none of its own."""
    extant, tree = shlex.quote(args.extant), shlex.quote(args.tree)
    kib = census(args.tree)[2] * 13 // 10 + (64 << 20) >> 10
    return {
        "tar": f"tar -C {tree} {ATTRIBUTES} -cf {image} .; sync {image}",
        "extant-dir": f"{extant} mkfs -q -t ext4 -d {tree} --size auto {image}; sync {image}",
        "extant-stream": f"tar -C {tree} {ATTRIBUTES} -c . | {extant} mkfs -q -t ext4 --from - --size auto {image}; sync {image}",
        "mke2fs": f"mke2fs -q -F -t ext4 -d {tree} {image} {kib}k; sync {image}",
    }


def speed(args):
    image = f"{args.work}/made"
    who = contestants(args, image)
    around = environment(args.extant)
    entries, _, data = census(args.tree)
    run(who["tar"])
    os.remove(image)
    trials = []
    with open(f"{args.output}/trials.ndjson", "w", encoding="utf-8") as f:
        for n in range(args.rounds):
            labels = list(who)
            for place, label in enumerate(labels[n % len(labels):] + labels[:n % len(labels)]):
                subprocess.run(["sync"], check=True)
                seconds, cpu = run(who[label])
                disk = os.stat(image).st_blocks * 512
                os.remove(image)
                trials.append((label, seconds, disk))
                f.write(json.dumps({
                    "schema": 1, "round": n, "place": place, "started_s": int(time.time()),
                    "workload": {"name": "mkfs", "scale": 1.0, "seed": 0, "parameters": {}, "headline": "make"},
                    "contestant": {"label": label, "kind": "command", "options": "", "policies": {}},
                    "environment": around, "outcome": {"state": "unchecked"}, "latency": {},
                    "phases": [{"name": "make", "seconds": seconds, "operations": entries, "bytes": data}],
                    "measures": {"cpu_s": cpu, "disk_bytes": disk},
                }) + "\n")
                f.flush()
            print(f"speed: round {n + 1} of {args.rounds}", file=sys.stderr)
    median = {label: sorted(s for l, s, _ in trials if l == label)[args.rounds // 2] for label in who}
    with open(f"{args.output}/ratios.txt", "w", encoding="utf-8") as f:
        f.write(f"{entries} entries, {data} bytes of data in whole blocks\n")
        f.write(f"{'':14} {'seconds':>8} {'by tar':>7} {'by mke2fs':>9} {'on disk':>13} {'by data':>8}\n")
        for label in who:
            disk = max(d for l, _, d in trials if l == label)
            f.write(f"{label:14} {median[label]:8.3f} {median[label] / median['tar']:7.2f} "
                    f"{median['mke2fs'] / median[label]:8.1f}x {disk:13} {disk / max(data, 1):8.4f}\n")


def layout(work, tree, options=()):
    """The tree as an OCI image layout of two layers, with options of tar; files with several names are all in the first."""
    paths = ["."]
    for where, directories, files in os.walk(tree):
        relative = os.path.relpath(where, tree)
        paths += [os.path.normpath(os.path.join(relative, name)) for name in directories + files]
    linked = {p for p in paths if not os.path.isdir(f"{tree}/{p}") and os.lstat(f"{tree}/{p}").st_nlink > 1}
    first = [p for n, p in enumerate(paths) if n % 2 == 0 or p in linked]
    second = [p for n, p in enumerate(paths) if n % 2 == 1 and p not in linked]
    top = f"{work}/oci"
    blobs = f"{top}/blobs/sha256"
    os.makedirs(blobs)

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        with open(f"{blobs}/{digest}", "wb") as f:
            f.write(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layers, plain = [], []
    for paths in (first, second):
        listed = "\0".join(paths).encode("utf-8", "surrogateescape")
        tar = subprocess.run(["tar", "-C", tree, *ATTRIBUTES.split(), *options, "--no-recursion", "--null", "-T", "-", "-c"],
                             input=listed, check=True, stdout=subprocess.PIPE).stdout
        plain.append("sha256:" + hashlib.sha256(tar).hexdigest())
        layers.append(blob(gzip.compress(tar, 1, mtime=0), "layer.v1.tar+gzip"))
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": plain}}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": blob(json.dumps(config).encode(), "config.v1+json"), "layers": layers}
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")]}
    for name, content in (("index.json", index), ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
        with open(f"{top}/{name}", "w", encoding="utf-8") as f:
            json.dump(content, f)
    return top


def same_bytes(args):
    plain, shuffled = f"{args.work}/plain.tar", f"{args.work}/shuffled.tar"
    subprocess.run(["tar", "-C", args.tree, *ATTRIBUTES.split(), "-cf", plain, "."], check=True)
    # A link must follow the file that it names; other entries come in any order.
    with tarfile.open(plain) as read:
        members = read.getmembers()
        random.Random(1).shuffle(members)
        members.sort(key=lambda member: member.islnk())
        with tarfile.open(shuffled, "w", format=tarfile.PAX_FORMAT) as write:
            for member in members:
                write.addfile(member, read.extractfile(member) if member.isreg() else None)
    sources = {f"directory, {n} threads": ["-d", args.tree, "--threads", str(n)] for n in (1, 2, 8)}
    sources["tar"] = ["--from", plain]
    sources["tar in random order"] = ["--from", shuffled]
    sources["two OCI layers"] = ["--from", "oci:" + layout(args.work, args.tree)]
    digests = {}
    with open(f"{args.output}/table.txt", "w", encoding="utf-8") as f:
        for label, source in sources.items():
            image = f"{args.work}/same.img"
            subprocess.run([args.extant, "mkfs", "-q", "-t", "ext4", "-U", "content", "--size", "auto", *source, image],
                           check=True, env={**os.environ, "SOURCE_DATE_EPOCH": DATE})
            with open(image, "rb") as made:
                digests[label] = hashlib.file_digest(made, "sha256").hexdigest()
            os.remove(image)
            f.write(f"{digests[label]}  {label}\n")
        f.write(f"{len(set(digests.values()))} different\n")


def memory(args):
    count = max(1, int(1_000_000 * args.scale))
    many, large = f"{args.work}/many", f"{args.work}/large"
    for n in range(count):
        if n % 1000 == 0:
            os.makedirs(f"{many}/{n // 1000:04}")
        os.close(os.open(f"{many}/{n // 1000:04}/a-name-of-some-length-{n:07}", os.O_CREAT | os.O_WRONLY, 0o644))
    os.mkdir(large)
    with open(f"{large}/file", "wb") as f:
        for at in range(0, 100 << 30, 1 << 30):
            f.seek(at)
            f.write(b"x" * 4096)
        f.truncate(100 << 30)
    subprocess.run(["tar", "-C", many, "-cf", f"{args.work}/many.tar", "."], check=True)
    image = f"{args.work}/memory.img"
    with open(f"{args.output}/table.txt", "w", encoding="utf-8") as f:
        f.write(f"{'':30} {'entries':>9} {'peak MiB':>9} {'bound MiB':>9} {'seconds':>8}\n")
        for label, tree, source in (("files in directories", many, ["-d", many]),
                                    ("the same as a tar", many, ["--from", f"{args.work}/many.tar"]),
                                    ("one sparse file of 100 GiB", large, ["-d", large])):
            entries, names, _ = census(tree)
            argv = [args.extant, "mkfs", "-q", "-t", "ext4", "--size", "auto", *source, image]
            bytes_, seconds = peak(argv, args.work)
            os.remove(image)
            bound = (64 << 20) + 400 * entries + names
            f.write(f"{label:30} {entries:9} {bytes_ / (1 << 20):9.1f} {bound / (1 << 20):9.1f} {seconds:8.2f}\n")


class Trace:
    """The requests that the kernel issues to a device, in their order."""
    TOP = "/sys/kernel/tracing"
    MINE = f"{TOP}/instances/extant-030"

    def __init__(self, device):
        if not os.path.isdir(f"{self.TOP}/instances"):
            subprocess.run(["mount", "-t", "tracefs", "tracefs", self.TOP], check=True)
        with open(f"/sys/block/{device}/dev", encoding="ascii") as f:
            major, minor = map(int, f.read().split(":"))
        os.makedirs(self.MINE, exist_ok=True)
        self.set("buffer_size_kb", 65536)
        self.set("events/block/block_rq_issue/filter", f"dev == {major << 20 | minor}")
        self.set("events/block/block_rq_issue/enable", 1)

    def set(self, name, value):
        with open(f"{self.MINE}/{name}", "w", encoding="ascii") as f:
            f.write(str(value))

    def end(self):
        """Of all reads, the first sector and the sectors."""
        self.set("events/block/block_rq_issue/enable", 0)
        issued = re.compile(r"block_rq_issue: \S+ R\S* \d+ \(.*?\) (\d+) \+ (\d+)")
        with open(f"{self.MINE}/trace", encoding="utf-8") as f:
            found = [tuple(map(int, match.groups())) for match in map(issued.search, f) if match]
        for cpu in os.listdir(f"{self.MINE}/per_cpu"):
            with open(f"{self.MINE}/per_cpu/{cpu}/stats", encoding="ascii") as f:
                if re.search(r"^(overrun|dropped events): [1-9]", f.read(), re.M):
                    sys.exit("the trace lost requests; make its buffer larger")
        os.rmdir(self.MINE)
        return found


def room(image, data, work):
    """What the image takes besides the data: inodes, and blocks of directories beyond the one that the data counts."""
    where = f"{work}/mnt"
    os.makedirs(where, exist_ok=True)
    subprocess.run(["mount", "-o", "loop,ro,noatime", image, where], check=True)
    try:
        files = os.statvfs(where)
        directories = sum(os.lstat(at).st_size - files.f_bsize for at, _, _ in os.walk(where))
    finally:
        subprocess.run(["umount", where], check=True)
    inodes = (files.f_files - files.f_ffree) * 256
    more = os.stat(image).st_blocks * 512 - data
    return f"{more} bytes besides the data: {inodes} inodes, {directories} directories, {more - inodes - directories} others"


def requests(image, command, work):
    """The reads that the device got from a command in the mounted image, and its seconds."""
    where = f"{work}/mnt"
    os.makedirs(where, exist_ok=True)
    subprocess.run(["sync"], check=True)
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
        f.write("3")
    subprocess.run(["mount", "-o", "loop,ro,noatime", image, where], check=True)
    try:
        source = subprocess.run(["findmnt", "-n", "-o", "SOURCE", where], check=True, capture_output=True, text=True)
        trace, begin = Trace(os.path.basename(source.stdout.strip())), time.monotonic()
        try:
            subprocess.run(["sh", "-ec", command], cwd=where, check=True)
            seconds = time.monotonic() - begin
        finally:
            reads = trace.end()
    finally:
        subprocess.run(["umount", where], check=True)
    return reads, seconds


def cold(args):
    image = f"{args.work}/cold.img"
    who, data = contestants(args, image), census(args.tree)[2]
    rooms = open(f"{args.output}/room.txt", "w", encoding="utf-8")
    with rooms, open(f"{args.output}/table.txt", "w", encoding="utf-8") as f:
        f.write(f"{'':12} {'command':8} {'requests':>9} {'MiB':>9} {'seeks':>9} {'backwards':>9} {'GiB far':>9} {'seconds':>8}\n")
        for label in ("mke2fs", "extant-dir"):
            run(who[label])
            rooms.write(f"{label:12} {room(image, data, args.work)}\n")
            for name, command in (("find", "find . -printf '%s %p\\n' >/dev/null"), ("tar", "tar -cf - . | cat >/dev/null")):
                reads, seconds = requests(image, command, args.work)
                bytes_ = sum(sectors for _, sectors in reads) * 512
                # The way from the end of each request to the beginning of the next one.
                ways = [to - (at + sectors) for (at, sectors), (to, _) in zip(reads, reads[1:]) if to != at + sectors]
                back, far = sum(way < 0 for way in ways), sum(map(abs, ways)) * 512
                f.write(f"{label:12} {name:8} {len(reads):9} {bytes_ / (1 << 20):9.1f} {len(ways):9} {back:9} "
                        f"{far / (1 << 30):9.1f} {seconds:8.2f}\n")
            os.remove(image)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"speed": speed, "bytes": same_bytes, "memory": memory, "cold": cold}
    parser.add_argument("part", choices=parts)
    for name in ("extant", "tree", "work", "output"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    os.makedirs(args.output, exist_ok=True)
    parts[args.part](args)


if __name__ == "__main__":
    main()
