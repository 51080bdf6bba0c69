#!/usr/bin/env python3
"""The speed of Extant beside the kernel's ext4, fuse2fs and FUSE alone, on the same work.

    sudo scripts/bench.py [--targets kernel,fuse2fs,extant,extant@uring,fuse] [--work untar,find,...] [--rounds 5]
                          [--minutes 15] [--quick] [--json FILE] [--table FILE] [--readme README.md]

Each round runs every target once, one after the other and in turning order, so that a drift of the machine touches all
alike. Each work has a fresh image; those of the tree share one, since each needs what untar made. The ratio to the first
target is taken round by round; medians are printed. After each work the image is unmounted and `e2fsck -fn` must find it
clean, or the run counts as failed. A round begins only if it can be expected to end within `--minutes`.

`extant` gets its requests through /dev/fuse, `extant@uring` through io_uring (root: switched on for the run).
"FUSE alone" (`fuse`, `fuse@uring`) is a file system in memory behind Extant's own transport, mounted with Extant's options.
It has no image. Its distance to the kernel is the price of FUSE; the distance from there to Extant over the same transport
(column "of FUSE") is Extant's. `--extant-old PATH` adds the target `old`, another binary of Extant (also `old@uring`).

untar and rmtree end when the image is unmounted, its server gone and the image file fsynced: anything earlier would
flatter a server that still has data in memory. sync and nosync are rates of the calls themselves. readtree and find start
cold: remounted, page cache dropped.

Without root there is no kernel mount and no cold cache; what is left is compared with fuse2fs.
"""
import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
IS_ROOT = os.geteuid() == 0


class Failed(Exception):
    """A command that failed; what it said is the message."""


def sh(*command, limit=1800, shell=False):
    """Runs a command, returns its output."""
    command = command[0] if shell else list(command)
    try:
        done = subprocess.run(command, shell=shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=limit, stdin=subprocess.DEVNULL)
    except FileNotFoundError as e:
        raise Failed(str(e)) from e
    except subprocess.TimeoutExpired as e:
        raise Failed(f"longer than {limit} s: {command}") from e
    if done.returncode != 0:
        raise Failed(f"exit {done.returncode}: {command}: {done.stdout.strip()[-300:]}")
    return done.stdout


def drop_caches():
    sh("sync")
    if IS_ROOT:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3")


def wait_for(condition, what, limit=120.0):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"{what}: nothing after {limit:.0f} s")
        time.sleep(0.01)


def in_use(path):
    return subprocess.run(["fuser", "-s", path], stderr=subprocess.DEVNULL, check=False).returncode == 0


class Target:
    """A way to mount the image."""
    has_image = True

    def end(self):
        """Ends what is left of a run."""


class Kernel(Target):
    """The kernel's driver through a loop device."""
    name, title = "kernel", "kernel ext4"

    def mount(self, image, directory):
        sh("mount", "-o", "loop", image, directory)

    def unmount(self, image, directory):
        sh("umount", directory)


class Fuse2fs(Target):
    """The FUSE server of e2fsprogs."""
    name, title = "fuse2fs", "fuse2fs"

    def mount(self, image, directory):
        sh("fuse2fs", *(["-o", "allow_other"] if IS_ROOT else []), image, directory)

    def unmount(self, image, directory):
        sh(*(["umount"] if IS_ROOT else ["fusermount3", "-u"]), directory)
        # It returns before its server has written everything.
        wait_for(lambda: not in_use(image), "the end of fuse2fs")


class Extant(Target):
    """`extant mount` and `extant unmount`."""

    def __init__(self, name, title, binary, transport, options):
        self.name, self.title, self.binary = name, title, os.path.abspath(binary)
        self.options = ",".join(filter(None, ["allow_other" if IS_ROOT else "", f"transport={transport}", options]))

    def mount(self, image, directory):
        sh(self.binary, "mount", *(["-o", self.options] if self.options else []), image, directory)

    def unmount(self, image, directory):
        sh(self.binary, "unmount", directory)


class FuseAlone(Target):
    """A server that answers each request from memory. One process serves all mounts of a run."""
    has_image = False

    def __init__(self, name, title, binary, transport):
        self.name, self.title = name, title
        self.command, self.transport = [os.path.abspath(binary)], [transport]
        self.server = None

    def expect(self, word):
        said = self.server.stdout.readline().strip()
        if said != word:
            raise Failed(f"{self.command[0]}: {said!r} instead of {word!r}")

    def mount(self, image, directory):
        if self.server is None:
            self.server = subprocess.Popen(self.command + [directory] + self.transport, stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True)
        else:
            self.server.stdin.write("\n")
            self.server.stdin.flush()
        self.expect("mounted")

    def unmount(self, image, directory):
        sh(*(["umount"] if IS_ROOT else ["fusermount3", "-u"]), directory)
        self.expect("unmounted")

    def end(self):
        if self.server is None:
            return
        with contextlib.suppress(OSError):
            self.server.stdin.close()
        try:
            self.server.wait(30)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self.server.stdout.close()
        self.server = None


class Run:
    """One target on one fresh image; what the workloads work on."""

    def __init__(self, bench, target):
        self.bench, self.target = bench, target
        self.mnt, self.image, self.tar = bench.mnt, bench.image, bench.tar
        self.unpacked = False

    def mount(self):
        self.target.mount(self.image, self.mnt)
        wait_for(lambda: os.path.ismount(self.mnt), "the mount", 30)

    def unmount(self):
        self.target.unmount(self.image, self.mnt)
        wait_for(lambda: not os.path.ismount(self.mnt), "the unmount", 30)

    def mounted(self):
        return os.path.ismount(self.mnt)

    def cold_tree(self):
        """Mounted, with the tree, and nothing of it in memory."""
        if not self.unpacked:
            if not self.mounted():
                self.mount()
            self.unpack()
        if self.mounted():
            self.unmount()
        drop_caches()
        self.mount()

    def durable(self):
        self.unmount()
        sh("sync", self.image)

    def unpack(self):
        sh("tar", "xf", self.tar, "-C", self.mnt)
        self.unpacked = True

    @staticmethod
    def seconds(*steps):
        start = time.monotonic()
        for step in steps:
            step()
        return time.monotonic() - start

    # The workloads. Each returns its figure.

    def untar(self):
        self.mount()
        return self.seconds(self.unpack, self.durable)

    def find(self):
        self.cold_tree()
        return self.seconds(lambda: sh(f"find {self.mnt} -printf '%s\\n' >/dev/null", shell=True))

    def readtree(self):
        self.cold_tree()
        return self.seconds(lambda: sh(f"tar cf - -C {self.mnt} . | cat >/dev/null", shell=True))

    def rmtree(self):
        self.cold_tree()
        self.unpacked = False
        return self.seconds(lambda: sh(f"rm -rf {self.mnt}/*", shell=True), self.durable)

    def small(self, count, sync, batch):
        self.mount()
        out = sh(self.bench.smallfiles, "16", str(count), "22528", self.mnt, str(sync), str(batch))
        return float(out.split("files/s")[1].split()[0])

    def sync(self):
        return self.small(40 if self.bench.args.quick else 200, 1, 1)

    def nosync(self):
        return self.small(100 if self.bench.args.quick else 400, 0, 100)

    def fio(self, mode, block, *extra):
        self.mount()
        out = sh("fio", "--name=job", f"--directory={self.mnt}", f"--size={self.bench.fio_size}", "--time_based",
                 f"--runtime={self.bench.fio_seconds}", "--group_reporting", "--numjobs=2", "--ioengine=psync",
                 f"--rw={mode}", f"--bs={block}", "--output-format=json", *extra)
        job = json.loads(out[out.index("{"):out.rindex("}") + 1])["jobs"][0]
        return job["read" if "read" in mode else "write"]["bw"] / 1024.0

    def seqwrite(self):
        return self.fio("write", "1M", "--end_fsync=1")

    def seqread(self):
        return self.fio("read", "1M")

    def randread(self):
        return self.fio("randread", "4k")

    def randwrite(self):
        return self.fio("randwrite", "4k")

    def randsync(self):
        return self.fio("randwrite", "4k", "--fsync=1")


# What each target is called; `@uring` behind a name chooses the transport.
TARGETS = {"kernel": "kernel ext4", "fuse2fs": "fuse2fs", "extant": "Extant", "old": "Extant before", "fuse": "FUSE alone"}
OVER_URING = ("extant", "old", "fuse")
TREE = ("untar", "find", "readtree", "rmtree")
ENABLE_URING = "/sys/module/fuse/parameters/enable_uring"

# name: unit, higher is better, what it is, the ratio to the kernel that Extant should reach
WORK = {
    "untar": ("s", False, "unpack a tree, unmount, image durable", 0.4),
    "find": ("s", False, "list the tree with sizes, cold", 0.4),
    "readtree": ("s", False, "read every file of the tree, cold", 0.4),
    "rmtree": ("s", False, "delete the tree, unmount, image durable", 0.4),
    "sync": ("files/s", True, "16 processes: create 22 KiB, fsync, delete", 0.7),
    "nosync": ("files/s", True, "the same without fsync, 100 at a time", 0.25),
    "seqwrite": ("MiB/s", True, "two writers, 1 MiB each time, fsync at the end", 0.15),
    "seqread": ("MiB/s", True, "two readers, 1 MiB each time", 0.7),
    "randread": ("MiB/s", True, "two readers, 4 KiB at random", 0.8),
    "randwrite": ("MiB/s", True, "two writers, 4 KiB at random", 0.2),
    "randsync": ("MiB/s", True, "the same, fsync after each", 0.7),
}


class Bench:
    """The directory, the rounds, the results."""

    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="extant-bench.", dir=args.dir)
        self.mnt = os.path.join(self.dir, "mnt")
        self.image = os.path.join(self.dir, "disk.img")
        self.tar = os.path.join(self.dir, "tree.tar")
        os.mkdir(self.mnt)
        self.smallfiles = os.path.abspath(args.smallfiles)
        self.fio_seconds, self.fio_size = (2, "64M") if args.quick else (3, "256M")
        self.targets = [self.target(name) for name in args.targets.split(",")]
        self.work = args.work.split(",")
        self.rounds = 0
        self.figures = {w: {t.name: [] for t in self.targets} for w in self.work}
        self.failures = []

    def target(self, name):
        kind, _, transport = name.partition("@")
        title = TARGETS[kind] + (", io_uring" if transport else "")
        transport = transport or "dev"
        if kind in ("extant", "old"):
            binary = self.args.extant if kind == "extant" else self.args.extant_old
            return Extant(name, title, binary, transport, self.args.options)
        if kind == "fuse":
            return FuseAlone(name, title, self.args.memory_server, transport)
        return {"kernel": Kernel, "fuse2fs": Fuse2fs}[kind]()

    def clean_up(self):
        if os.path.ismount(self.mnt):
            subprocess.run(["umount", "-l", self.mnt], check=False)
        for target in self.targets:
            target.end()
        with contextlib.suppress(OSError):
            shutil.rmtree(self.dir)

    def fresh_image(self, target):
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.image)
        with open(self.image, "wb") as f:
            f.truncate(self.args.size << 20)
        if not target.has_image:
            return
        owner = [] if IS_ROOT else [f"root_owner={os.getuid()}:{os.getgid()}"]
        options = ",".join(["lazy_itable_init=0", "lazy_journal_init=0"] + owner)
        sh("mke2fs", "-q", "-F", "-t", "ext4", "-E", options, self.image)
        sh("sync", self.image)

    def some(self, works, target):
        """The works of one image, in their order: a figure each, None where it failed."""
        self.fresh_image(target)
        run, figures = Run(self, target), {}
        try:
            for work in works:
                drop_caches()
                figures[work] = self.one(run, work)
        finally:
            target.end()
        return figures

    def one(self, run, work):
        target = run.target
        try:
            figure = getattr(run, work)()
            if run.mounted():
                run.unmount()
            if target.has_image:
                sh("e2fsck", "-fn", self.image)
            return figure
        except (Failed, OSError, ValueError, KeyError, IndexError) as e:
            self.failures.append(f"{work} {target.name}: {e}")
            print(f"    {work} {target.name}: FAILED: {e}", flush=True)
            subprocess.run(["umount", "-l", self.mnt], stderr=subprocess.DEVNULL, check=False)
            time.sleep(1)
            self.fresh_image(target)
            run.unpacked = False
            return None

    def groups(self):
        """The works of a round, those of the tree together and in the order in which they need each other."""
        tree = [w for w in TREE if w in self.work]
        return ([tree] if tree else []) + [[w] for w in self.work if w not in TREE]

    def round(self, number):
        turn = number % len(self.targets)
        for works in self.groups():
            for target in self.targets[turn:] + self.targets[:turn]:
                for work, figure in self.some(works, target).items():
                    self.figures[work][target.name].append(figure)
                    if figure is not None:
                        print(f"round {number + 1} {work:9} {target.name:12} {figure:10.2f} {WORK[work][0]}", flush=True)

    def run(self):
        tree = self.args.tree
        sh("tar", "cf", self.tar, "-C", tree, ".")
        self.files = int(sh(f"tar tf {self.tar} | wc -l", shell=True))
        self.tree_mib = os.path.getsize(self.tar) / 2**20
        start = time.monotonic()
        longest = 0.0
        for number in range(self.args.rounds):
            begin = time.monotonic()
            if number and begin + longest > start + self.args.minutes * 60:
                print(f"{number} of {self.args.rounds} rounds: another one would take longer than {self.args.minutes} minutes"
                      " in all (--minutes)", flush=True)
                break
            self.round(number)
            self.rounds += 1
            longest = max(longest, time.monotonic() - begin)

    def row(self, work):
        """Per target: median figure and median ratio to the first target; None where a round failed."""
        cells = {}
        for target in self.targets:
            got = self.figures[work][target.name]
            if not got or any(x is None for x in got):
                cells[target.name] = None
                continue
            cells[target.name] = (statistics.median(got), self.ratio(work, target.name, self.targets[0].name))
        return cells

    def ratio(self, work, name, base):
        """The median of the speeds of one target relative to another's in the same round; None without such rounds."""
        figures = self.figures[work]
        pairs = [(x, b) for x, b in zip(figures.get(name, []), figures.get(base, [])) if x and b]
        return statistics.median(x / b if WORK[work][1] else b / x for x, b in pairs) if pairs else None

    def has_of_fuse(self, target):
        return target.name.startswith("extant") and self.alone(target) in (t.name for t in self.targets)

    @staticmethod
    def alone(target):
        """The target that is FUSE alone over the same transport."""
        return target.name.replace("extant", "fuse")

    def of_fuse(self, work, target):
        return self.ratio(work, target.name, self.alone(target))

    def machine(self):
        model, memory = platform.machine(), ""
        with contextlib.suppress(OSError):
            with open("/proc/cpuinfo", encoding="utf-8") as f:
                model = next((l.split(":", 1)[1].strip() for l in f if l.startswith("model name")), model)
            with open("/proc/meminfo", encoding="utf-8") as f:
                memory = f", {int(f.readline().split()[1]) / 2**20:.0f} GiB"
        return f"{os.cpu_count()} cores ({model}){memory}, Linux {platform.release().split('-')[0]}"

    def commit(self):
        with contextlib.suppress(Failed):
            head = sh("git", "-C", ROOT, "rev-parse", "--short=10", "HEAD").strip()
            dirty = sh("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no").strip()
            return head + (" with changes" if dirty else "")
        return "unknown"

    def text(self):
        lines = [f"medians of {self.rounds} rounds; in brackets the speed relative to {self.targets[0].name}"
                 " (above 1: faster); * below its goal"]
        lines.append(f"{'work':10}{'unit':9}" + "".join(
            f"{t.name:>21}" + (f"{'of FUSE':>10}" if self.has_of_fuse(t) else "") for t in self.targets))
        for work in self.work:
            unit, _, _, goal = WORK[work]
            line = f"{work:10}{unit:9}"
            for target in self.targets:
                cell = self.row(work)[target.name]
                if cell is None:
                    line += f"{'FAILED':>21}"
                else:
                    figure, ratio = cell
                    below = target.name.startswith("extant") and self.targets[0].name == "kernel" and ratio and ratio < goal
                    line += f"{figure:12.2f}" + (f" ({ratio:5.2f}x){'*' if below else ' '}" if ratio else " " * 9)
                if self.has_of_fuse(target):
                    of_fuse = self.of_fuse(work, target) if cell else None
                    line += f"{of_fuse:9.2f}x" if of_fuse else " " * 10
            lines.append(line.rstrip())
        return "\n".join(lines)

    def markdown(self):
        titles = [title for t in self.targets for title in [t.title] + ["of FUSE"] * self.has_of_fuse(t)]
        lines = ["| work | | " + " | ".join(titles) + " |", "|---|---|" + "---:|" * len(titles)]
        for work in self.work:
            unit, _, what, _ = WORK[work]
            cells = self.row(work)
            line = f"| {work} | {what} |"
            for i, target in enumerate(self.targets):
                if cells[target.name] is None:
                    line += " failed |"
                else:
                    figure, ratio = cells[target.name]
                    shown = f"{figure:.2f}" if figure < 100 else f"{figure:.0f}"
                    line += f" {shown} {unit}" + (f" ({ratio:.2f}x)" if i and ratio else "") + " |"
                if self.has_of_fuse(target):
                    of_fuse = self.of_fuse(work, target) if cells[target.name] else None
                    line += f" {of_fuse:.2f}x |" if of_fuse else " |"
            lines.append(line)
        date = datetime.date.today().isoformat()
        alone = ""
        if any(self.has_of_fuse(t) for t in self.targets):
            alone = ("\"FUSE alone\": a file system in memory behind Extant's transport; \"of FUSE\": Extant's speed "
                     "relative to it. ")
        lines += ["", f"Medians of {self.rounds} rounds, in brackets the speed relative to the kernel's (above 1: "
                  f"faster). \"failed\": `e2fsck -fn` rejected the image afterwards, or the work did not end. "
                  f"{alone}Tree: {self.files} names, {self.tree_mib:.0f} MiB. Image: {self.args.size} MiB, `mke2fs -t ext4`. "
                  f"Machine: {self.machine()}. {date}, commit {self.commit()}, by `make bench`."]
        return "\n".join(lines) + "\n"


def put_into(path, table):
    """Replaces what stands between the two marks."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{path}: no marks {BEGIN} … {END}")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{before}{BEGIN}\n{table}{END}{after}")


def can_switch_uring():
    return IS_ROOT and os.access(ENABLE_URING, os.W_OK)


def default_targets():
    if not IS_ROOT:
        return "fuse2fs,extant"
    return "kernel,fuse2fs,extant," + ("extant@uring," if can_switch_uring() else "") + "fuse"


@contextlib.contextmanager
def uring_enabled(wanted):
    """Requests through io_uring are possible while this lasts, if they are wanted and this user may switch them on."""
    if not (wanted and can_switch_uring()):
        yield
        return
    with open(ENABLE_URING, encoding="ascii") as f:
        before = f.read()
    try:
        with open(ENABLE_URING, "w", encoding="ascii") as f:
            f.write("Y")
        yield
    finally:
        with open(ENABLE_URING, "w", encoding="ascii") as f:
            f.write(before)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--extant", default=os.path.join(ROOT, "target/release/extant"), help="the binary to measure")
    p.add_argument("--extant-old", help="another binary, as the target `old` in the same rounds")
    p.add_argument("--memory-server", default=os.path.join(ROOT, "target/release/examples/memory_server"),
                   help="the server of the target `fuse`")
    p.add_argument("--smallfiles", default=os.path.join(ROOT, "target/release/smallfiles"))
    p.add_argument("--options", default="", help="more mount options for Extant")
    p.add_argument("--targets", default=default_targets())
    p.add_argument("--work", default=",".join(WORK))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--minutes", type=float, default=15, help="no round begins that would end later than this")
    p.add_argument("--size", type=int, default=8192, help="size of the image in MiB; it is sparse")
    p.add_argument("--tree", default="/usr/share/doc", help="the tree that untar and its like use")
    p.add_argument("--dir", default="/var/tmp", help="where the image lies")
    p.add_argument("--quick", action="store_true", help="one round, less of everything: a first look, no figures to quote")
    p.add_argument("--json", help="write figures and ratios to this file")
    p.add_argument("--table", help="write a Markdown table to this file")
    p.add_argument("--readme", help="put that table between the marks of this file")
    args = p.parse_args()
    if args.quick:
        args.rounds = 1
    targets, work = args.targets.split(","), args.work.split(",")
    if args.extant_old and "old" not in targets:
        targets.append("old")
        args.targets = ",".join(targets)
    known_targets = [*TARGETS, *(f"{name}@uring" for name in OVER_URING)]
    for what, words, known in (("work", work, WORK), ("target", targets, known_targets)):
        unknown = [w for w in words if w not in known]
        if unknown:
            p.error(f"no such {what}: {', '.join(unknown)}")
    kinds = [name.partition("@")[0] for name in targets]
    if "old" in kinds and not args.extant_old:
        p.error("the target `old` needs --extant-old")
    needed = {"extant": args.extant, "old": args.extant_old, "fuse": args.memory_server, "sync": args.smallfiles,
              "nosync": args.smallfiles}
    for name in (path for word, path in needed.items() if word in kinds + work):
        if not os.path.exists(name):
            p.error(f"{name} does not exist: run `make bench`, which builds it")
    return args


def main():
    args = arguments()
    bench = Bench(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with uring_enabled("@uring" in args.targets):
            bench.run()
        print("\n" + bench.text())
        if args.json:
            rows = {w: {"unit": WORK[w][0], "figures": bench.figures[w], "median_and_ratio": bench.row(w),
                        "of_fuse": {t.name: bench.of_fuse(w, t) for t in bench.targets if bench.has_of_fuse(t)}}
                    for w in bench.work}
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump({"date": datetime.datetime.now().isoformat(timespec="seconds"), "machine": bench.machine(),
                           "commit": bench.commit(), "rounds": bench.rounds, "work": rows,
                           "failures": bench.failures}, f, indent=1)
        for path, write in ((args.table, None), (args.readme, put_into)):
            if path and write:
                write(path, bench.markdown())
            elif path:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(bench.markdown())
    finally:
        bench.clean_up()
    return 1 if any(" extant" in f.split(":")[0] for f in bench.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
