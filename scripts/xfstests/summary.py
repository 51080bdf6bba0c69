#!/usr/bin/env python3
"""What a run of xfstests gave: counts, who made the mounts, what failed and how, and what was not run and why."""
import collections
import pathlib
import re
import sys

HEADS = {"Ran: ": "passed", "Not run: ": "not run", "Failures: ": "failed"}  # each overrules those before it


def main():
    results = pathlib.Path(sys.argv[1])
    named = (results / "named").read_text().split()
    state = dict.fromkeys(named, "without a result")
    for worker in sorted(results.glob("worker*.*")):
        lines = worker.read_text(errors="replace").splitlines()
        for head, verdict in HEADS.items():
            for line in lines:
                if line.startswith(head):
                    state.update(dict.fromkeys(line[len(head):].split(), verdict))
    of = collections.defaultdict(list)
    for test in named:
        of[state[test]].append(test)

    reasons = collections.defaultdict(list)
    for test in of["not run"]:
        said = next(iter(results.glob(f"tests*/{test}.notrun")), None)
        why = re.sub(r"/dev/loop\d+", "DEV", said.read_text(errors="replace").strip()) if said else "?"
        reasons[why].append(test.split("/")[1])
    for why, tests in sorted(reasons.items(), key=lambda r: -len(r[1])):
        print(f"{len(tests):4} not run: {why}: {' '.join(tests)}")
    for test in of["failed"]:
        print(f"\n{test} failed; it said:")
        ours = next(iter(results.glob(f"tests*/{test}.out.bad")), None)
        print("\n".join(ours.read_text(errors="replace").splitlines()[:12]) if ours else "   ?")
    made = collections.Counter()
    if (results / "mounts").exists():
        for line in (results / "mounts").read_text(errors="replace").splitlines():
            _, by, status, *_ = line.split("\t")
            made[by, "made" if status == "0" else "refused"] += 1
    print("\nmounts:", ", ".join(f"{n} {what} by {by}" for (by, what), n in sorted(made.items())))
    ran = len(of["passed"]) + len(of["failed"])
    counts = ", ".join(f"{len(of[s])} {s}" for s in ("passed", "failed", "not run", "without a result"))
    print(f"{len(named)} tests: {counts}; of those that ran {100 * len(of['failed']) / max(ran, 1):.2f} % failed")
    if of["without a result"]:
        print("without a result:", *of["without a result"])
    sys.exit(8 if of["failed"] or of["without a result"] else 0)


main()
