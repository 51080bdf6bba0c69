#!/usr/bin/env python3
"""One table of the parts of 028: mean device seconds and seeks of the headline phase, policy by policy."""
import json
import os
import statistics
import sys

HEADLINES = {"small-files": "files", "reaim-disk": "disk-321", "untar": "untar"}


def main():
    out = sys.argv[1]
    rows, policies = {}, []
    for device in ("hdd", "flash"):
        for workload, headline in HEADLINES.items():
            for state in ("new", "aged"):
                seconds, seeks = {}, {}
                with open(os.path.join(out, f"{device}-{state}-{workload}", "trials.ndjson")) as file:
                    for line in file:
                        trial = json.loads(line)
                        if trial["outcome"]["state"] != "checked":
                            raise SystemExit(f"{workload}: {trial['outcome']}")
                        policy = trial["contestant"]["label"].rsplit("mb_policy=", 1)[1]
                        phase = next(p for p in trial["phases"] if p["name"] == headline)["measures"]
                        seconds.setdefault(policy, []).append(phase["device_seconds"])
                        seeks.setdefault(policy, []).append(phase["device_seeks"])
                policies = policies or sorted(seconds)
                for policy in seconds:
                    rows.setdefault(policy, {})[device, workload, state] = f"{statistics.mean(seconds[policy]):.3g} ({statistics.mean(seeks[policy]):.0f})"
    columns = [(d, w, s) for d in ("hdd", "flash") for w in HEADLINES for s in ("new", "aged")]
    print("Device seconds of the headline phase (seeks), mean of the rounds:\n")
    print("| policy | " + " | ".join(f"`{d}`, {w}, {s}" for d, w, s in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for policy in policies:
        print(f"| `{policy}` | " + " | ".join(rows[policy][c] for c in columns) + " |")


if __name__ == "__main__":
    main()
