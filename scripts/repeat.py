#!/usr/bin/env python3
"""Runs every test of the workspace again and again, and says which of them fail by chance.

    scripts/repeat.py                     50 times
    scripts/repeat.py --times 20 --load 3 beside three processes that spin
    scripts/repeat.py --only fuse,cli     tests of these packages
    scripts/repeat.py --skip schedules    without these test programs
    scripts/repeat.py --lanes 2           two programs at a time, each beside whatever the other one happens to be
    scripts/repeat.py --once --only fs --shorter 10
                                          as `make check` does: tests that took at most ten seconds the last time; says which it leaves out
    scripts/repeat.py --once              one round, two lanes for each processor, and the whole output of each program when it has
                                          ended; a program runs one test at a time, so that the time of a test says something
    scripts/repeat.py --once --portable extant --also "python/wheel=scripts/python.sh --test"
                                          as `make test` does: the programs of one package once more with the calls that every system
                                          has, and a command of another kind as one more program

All programs run once, then all once more: a busy hour of the machine meets all of them. A round begins with what took longest the
last time; where nothing is known, with what is known to be long (LONG). Temporary files lie in memory where there is plenty (TMPDIR
chooses another place): most tests make images, and on a disk they wait for each fsync. What a failing one printed is in
target/repeat. In the end: how long each took, and how long a processor worked for it (medians), and the slowest tests. Exit status:
0 none failed, 1 some did, 2 they could not be built, 128 and the signal if one cut it short before any failed.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Each program has a mount namespace of its own, if this user may make one. Otherwise these programs run beside nothing: they make
# namespaces, which have copies of what others have mounted, and an unmount waits for those, but not for long.
UNSHARE = ["unshare", "--mount"]
ISOLATED = os.geteuid() == 0 and shutil.which("unshare") and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0
# `transport` always does: it switches a parameter of the whole kernel, and a mount that is just being made fails at that.
APART = {"transport"} | (set() if ISOLATED else {"kernel_vs_kernel", "mount", "mounting", "namespaces", "sandbox"})
# Begun first in a tree without times: what begins last should be short.
LONG = {"schedules", "crash", "differential", "bombs", "compared", "table", "changes", "images", "wheel"}
FAILED = re.compile(r"^test (\S+) .*\.\.\. FAILED(?: <.*>)?$", re.M)
# The harness prints times only for those who ask with an option that it calls unstable.
TIMED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. \S+ <([0-9.]+)s>$", re.M)
WITH_TIMES = ["-Z", "unstable-options", "--report-time"]


CARGO = os.environ.get("CARGO", "cargo")


@dataclass(frozen=True)
class Program:
    """One test program, or a command that counts as one."""

    package: str
    name: str
    command: tuple
    folder: pathlib.Path
    environment: dict = field(default_factory=dict, hash=False)
    harness: bool = True

    @property
    def whole(self):
        return f"{self.package}/{self.name}"


def packages():
    """By folder: the package's name, and the folders of the packages of the workspace that it depends on."""
    said = subprocess.run([CARGO, "metadata", "--locked", "--no-deps", "--format-version=1"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return {pathlib.Path(p["manifest_path"]).parent.name:
            (p["name"], {pathlib.Path(d["path"]).name for d in p["dependencies"] if d.get("path")})
            for p in json.loads(said.stdout)["packages"]}


def dependents(folders):
    """Folders of the packages that depend on one of these, directly or not."""
    needs = {folder: wanted for folder, (_, wanted) in packages().items()}
    reached = set(folders)
    while more := {folder for folder, wanted in needs.items() if wanted & reached} - reached:
        reached |= more
    return sorted(reached - set(folders))


def programs(profile, folders):
    """Each test program of these packages, or of all."""
    known = packages() if folders else {}
    if unknown := set(folders) - set(known):
        sys.exit(f"repeat.py: no package in the folders {', '.join(sorted(unknown))}")
    which = [word for folder in sorted(folders) for word in ("--package", known[folder][0])] or ["--workspace"]
    command = [CARGO, "test", "--locked", *which, "--no-run", "--message-format=json-render-diagnostics", *profile]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(2)
    for line in built.stdout.splitlines():
        made = json.loads(line)
        if made.get("reason") == "compiler-artifact" and made["profile"]["test"] and made.get("executable"):
            folder = pathlib.Path(made["manifest_path"]).parent
            yield Program(folder.name, made["target"]["name"], (made["executable"],), folder)


@contextmanager
def files_in_memory():
    """TMPDIR is a folder of a tmpfs while this lasts, if that has room for the images of the tests."""
    memory = pathlib.Path("/dev/shm")
    room = 8 << 30
    if "TMPDIR" in os.environ or not memory.is_dir() or shutil.disk_usage(memory).free < room or available_memory() < room:
        yield
        return
    folder = tempfile.mkdtemp(prefix="extant-test.", dir=memory)
    os.chmod(folder, 0o1777)  # tests take the place of ordinary users
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        # A mount that a test has left behind is not to be emptied.
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False)


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as f:
        return next((int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:")), 0)


class Repetition:
    """The runs to come, and what those that ended said. One lock: `lanes` threads take runs from it, in the order of the rounds."""

    def __init__(self, wanted, times, seconds, logs, once, left_out=()):
        self.lock, self.start, self.seconds = threading.Lock(), time.monotonic(), seconds
        self.left_out = left_out
        self.wanted, self.times, self.logs, self.once = wanted, times, logs, once
        self.runs = ((r, program) for apart in (True, False) for r in range(1, times + 1) for program in wanted
                     if (program.name in APART) == apart)
        self.left, self.whole, self.ran, self.failures, self.took, self.tests = {}, 0, 0, {}, {}, {}
        self.turn, self.running, self.apart, self.apart_wait = threading.Condition(), 0, False, 0
        self.signal = None

    def end(self, number, _frame):
        self.seconds, self.signal = 0, number

    def next(self):
        with self.lock:
            return next(self.runs, None) if time.monotonic() - self.start < self.seconds else None

    def lane(self):
        while run := self.next():
            number, program = run
            log = self.logs / f"{program.package}-{program.name}-{number}.log"
            skipped = [test for whole, test in self.left_out if whole == program.whole]
            options = [*WITH_TIMES, *(["--show-output"] if self.once else []), *(["--exact"] if skipped else []),
                       *(f"--skip={test}" for test in skipped)] if program.harness else []
            environment = os.environ | {"RUSTC_BOOTSTRAP": "1"} | ({"RUST_TEST_THREADS": "1"} if self.once else {}) \
                if program.harness else os.environ
            self.take_turn(program.name in APART)
            begun = time.monotonic()
            with open(log, "wb") as out:
                # In a session of its own: a Ctrl-C is not for the test.
                child = subprocess.Popen([*(UNSHARE if ISOLATED else []), *program.command, *options], cwd=program.folder, stdout=out,
                                         stderr=subprocess.STDOUT, start_new_session=True, env=environment | program.environment)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            self.end_turn()
            with self.lock:
                took = time.monotonic() - begun
                self.took.setdefault(program.whole, []).append((took, used.ru_utime + used.ru_stime))
                self.ended(number, program, log, child.returncode)

    def take_turn(self, apart):
        with self.turn:
            self.apart_wait += apart
            self.turn.wait_for(lambda: not self.apart and (not self.running if apart else not self.apart_wait))
            self.apart_wait -= apart
            self.running, self.apart = self.running + 1, apart

    def end_turn(self):
        with self.turn:
            self.running, self.apart = self.running - 1, False
            self.turn.notify_all()

    def ended(self, number, program, log, code):
        self.ran += 1
        said = log.read_text(errors="replace")
        for test, seconds in TIMED.findall(said):
            self.tests.setdefault(f"{program.whole}: {test}", []).append(float(seconds))
        if self.once:
            print(f"     Running {program.whole}", said, sep="\n", flush=True)
        if code:
            for test in FAILED.findall(said) or [f"exit status {code}"]:
                self.failures.setdefault(f"{program.whole}: {test}", []).append(log.name)
        else:
            log.unlink()
        self.left[number] = self.left.get(number, len(self.wanted)) - 1
        if self.left[number] == 0:
            self.whole += 1
            self.once or print(f"round {number} of {self.times}, {time.monotonic() - self.start:.0f} s, "
                  f"{len(self.failures)} tests have failed", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--load", type=int, default=0, help="processes that spin beside it")
    parser.add_argument("--lanes", type=int, default=0, help="programs at a time (1; with --once two for each processor)")
    parser.add_argument("--once", action="store_true", help="one round, with the output of all")
    parser.add_argument("--only", default="", help="packages, with commas")
    parser.add_argument("--programs", default="", help="test programs, with commas")
    parser.add_argument("--shorter", type=float, default=float("inf"), help="leave out tests that took longer than so many seconds")
    parser.add_argument("--skip", default="", help="test programs, with commas")
    parser.add_argument("--portable", default="", help="packages whose programs run once more with EXTANT_ENGINE=portable, with commas")
    parser.add_argument("--also", action="append", default=[], metavar="PACKAGE/NAME=COMMAND", help="a command as one more program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--release", action="store_true", help="optimised, as `make soak`")
    args = parser.parse_args()
    if args.once:
        args.times = 1
    # A test waits much of its time: for devices, timers, and what other programs do for it.
    args.lanes = args.lanes or (len(os.sched_getaffinity(0)) * 2 if args.once else 1)

    only, named, skip = (set(filter(None, names.split(","))) for names in (args.only, args.programs, args.skip))
    profile = ["--release"] if args.release else []
    wanted = [p for p in programs(profile, only) if p.name in (named or {p.name}) - skip]
    wanted += [replace(p, name=f"{p.name}-portable", environment={"EXTANT_ENGINE": "portable"})
               for p in wanted if p.package in args.portable.split(",")]
    for extra in args.also:
        whole, command = extra.split("=", 1)
        wanted.append(Program(*whole.split("/", 1), tuple(shlex.split(command)), ROOT, harness=False))
    logs = ROOT / "target" / "repeat"
    logs.mkdir(parents=True, exist_ok=True)
    times = logs / "times.json"
    last = json.loads(times.read_text()) if times.exists() else {}
    took = lambda p: last.get(p.whole, 60 if p.name in LONG else 0)
    left_out = {tuple(test.split(": ", 1)): seconds for test, seconds in last.items() if ": " in test and seconds > args.shorter}
    wanted = sorted(wanted, key=lambda p: -took(p))
    repetition = Repetition(wanted, args.times, args.seconds, logs, args.once, left_out)
    # Asked to end, it begins nothing more, and says what was found: a test that is killed may leave a mount behind that
    # nobody can unmount, as its own server ended before the last request was answered.
    for asked in signal.SIGTERM, signal.SIGINT:
        signal.signal(asked, repetition.end)
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.load)]
    try:
        with files_in_memory(), tempfile.TemporaryDirectory(prefix="extant-images.") as images, \
                ThreadPoolExecutor(args.lanes) as pool:
            # Programs share the damaged images that they make: see crates/testkit/src/damage/image.rs.
            os.environ["EXTANT_IMAGE_FOLDER"] = images
            for lane in [pool.submit(repetition.lane) for _ in range(args.lanes)]:
                lane.result()
    finally:
        for s in spinners:
            s.kill()
            s.wait()
    for test, failed in sorted(repetition.failures.items()):
        print(f"{test}: {len(failed)} times ({failed[0]})")
    medians = {name: [statistics.median(column) for column in zip(*runs)] for name, runs in repetition.took.items()}
    slowest = sorted(medians.items(), key=lambda m: -m[1][0])
    lines = [f"{name:40} {wall:7.1f} s {busy:7.1f} s of a processor" for name, (wall, busy) in slowest]
    print(*lines[: 10 if args.once else None], sep="\n")
    tests = {name: statistics.median(seconds) for name, seconds in repetition.tests.items()}
    # Of a program without its long tests, the time is not that of the next whole run.
    whole = {name: wall for name, (wall, _) in medians.items() if all(program != name for program, _ in left_out)}
    times.write_text(json.dumps(last | whole | tests, indent=0))
    by_time = [f"{seconds:7.1f} s  {name}" for name, seconds in sorted(tests.items(), key=lambda t: -t[1])]
    print("the slowest tests:", *by_time[:10], sep="\n")
    if not (args.only or args.programs or args.skip):
        # For `cargo xtask tidy --slow`.
        (logs / "tests.txt").write_text("\n".join(by_time) + "\n")
        (logs / "programs.txt").write_text("\n".join(lines) + "\n")
    if args.shorter < float("inf"):
        ran = {p.whole for p in wanted}
        long = [f"{program}: {test} ({seconds:.0f} s)" for (program, test), seconds in left_out.items() if program in ran]
        print(f"left out because they are long: {', '.join(long) or 'none'}")
        print(f"left out because only what they depend on has changed: {', '.join(dependents(only)) or 'none'}")
    print(f"{len(wanted)} programs, {repetition.whole} whole rounds, {repetition.ran} runs, {args.lanes} at a time, "
          f"{args.load} processes beside them: {len(repetition.failures)} tests failed")
    sys.exit(1 if repetition.failures else 128 + repetition.signal if repetition.signal else 0)


if __name__ == "__main__":
    main()
