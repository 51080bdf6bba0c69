#!/usr/bin/env python3
"""Runs every test of the workspace again and again, and says which of them fail by chance.

    scripts/repeat.py                     50 times
    scripts/repeat.py --times 20 --load 3 beside three processes that spin
    scripts/repeat.py --only fuse,cli     tests of these packages
    scripts/repeat.py --skip schedules    without these test programs

All programs run once, then all once more: a busy hour of the machine meets all of them. What a failing one printed is in
target/repeat. Exit status: 0 none failed, 1 some did, 2 they could not be built.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAILED = re.compile(r"^test (\S+) .*\.\.\. FAILED$", re.M)


def programs(profile):
    """(name, package, program, folder) of each test program."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics", *profile]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(2)
    for line in built.stdout.splitlines():
        made = json.loads(line)
        if made.get("reason") == "compiler-artifact" and made["profile"]["test"] and made.get("executable"):
            folder = pathlib.Path(made["manifest_path"]).parent
            yield made["target"]["name"], folder.name, made["executable"], folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--load", type=int, default=0, help="processes that spin beside it")
    parser.add_argument("--only", default="", help="packages, with commas")
    parser.add_argument("--skip", default="", help="test programs, with commas")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--release", action="store_true", help="optimised, as `make soak`")
    args = parser.parse_args()

    only, skip = (set(filter(None, names.split(","))) for names in (args.only, args.skip))
    profile = ["--release"] if args.release else []
    wanted = [p for p in programs(profile) if (not only or p[1] in only) and p[0] not in skip]
    # Asked to end, it ends what it has started, and says what was found until then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logs = ROOT / "target" / "repeat"
    logs.mkdir(parents=True, exist_ok=True)
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.load)]
    failures, runs, rounds, start = {}, 0, 0, time.monotonic()
    try:
        for rounds in range(1, args.times + 1):
            for name, package, program, folder in wanted:
                if time.monotonic() - start > args.seconds:
                    rounds -= 1
                    break
                log = logs / f"{package}-{name}-{rounds}.log"
                with open(log, "wb") as out:
                    code = subprocess.run([program], cwd=folder, stdout=out, stderr=subprocess.STDOUT).returncode
                runs += 1
                if code == 0:
                    log.unlink()
                    continue
                text = log.read_text(errors="replace")
                found = FAILED.findall(text) or [f"exit status {code}"]
                for test in found:
                    failures.setdefault(f"{package}/{name}: {test}", []).append(log.name)
            else:
                print(f"round {rounds} of {args.times}, {time.monotonic() - start:.0f} s, "
                      f"{len(failures)} tests have failed", flush=True)
                continue
            break
    finally:
        for s in spinners:
            s.kill()
            s.wait()
    for test, times in sorted(failures.items()):
        print(f"{test}: {len(times)} times ({times[0]})")
    print(f"{len(wanted)} programs, {rounds} whole rounds, {runs} runs, {args.load} processes beside them: "
          f"{len(failures)} tests failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
