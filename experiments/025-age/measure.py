#!/usr/bin/env python3
"""Ages an image of 16 GiB under each policy, and asks after each half turnover where map blocks lie and what a check takes.

At 90 % each seed runs, at the other fills the first alone.
"""
import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import modelled  # noqa: E402

READS = ["read_files_bytes=1073741824", "random_reads=1024"]


def main():
    parser = argparse.ArgumentParser()
    for name in ("extant", "directory", "output", "policies", "fills", "seeds", "turnovers"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    policies, fills = arguments.policies.split(","), arguments.fills.split(",")
    seeds = arguments.seeds.split(",")
    image = os.path.join(arguments.directory, "age.img")
    points = {}
    with open(os.path.join(arguments.output, "points.ndjson"), "w") as record:
        for fill in fills:
            for seed in seeds if fill == "90" else seeds[:1]:
                for policy in policies:
                    modelled.make(image, 16 << 30, ["-t", "ext3"])
                    found = modelled.work(arguments.extant, image, "--fill", fill, "--turnovers", arguments.turnovers, "--seed", seed,
                                          "--check-on", "hdd-2007", options=[f"meta_policy={policy}", "device=hdd-2007"], settings=READS)
                    for point in found:
                        line = {"policy": policy, "fill": int(fill), "seed": int(seed), **point}
                        record.write(json.dumps(line) + "\n")
                    record.flush()
                    points[policy, fill, seed] = {p["phase"]: p for p in found}
    os.remove(image)
    text = os.path.join(arguments.output, "table.md")
    if os.path.exists(text):
        os.remove(text)
    last = f"{float(arguments.turnovers):.1f}"

    def of(policy, fill, get):
        runs = [p for (a, b, _), p in points.items() if (a, b) == (policy, fill)]
        values = [get(run) for run in runs]
        low, high = min(values), max(values)
        mid = statistics.mean(values)
        return f"{mid:.3g}" if len(values) == 1 else f"{mid:.3g} ({low:.3g} to {high:.3g})"

    new, old = "fill", "turn-" + last
    for fill in fills:
        head = ["policy", "runs a map block, new", "aged", "e2fsck, new", "aged", "aged / new", "extant fsck, new", "aged",
                "files read, new", "aged", "random reads, new", "aged", "writing while it ages"]
        rows = []
        for policy in policies:
            check = lambda who, at: lambda run: run[at]["check"][who]  # noqa: E731
            seconds = lambda phase: lambda run: run[phase]["device"]["device_seconds"]  # noqa: E731
            turns = [f"turn-{n / 2:.1f}" for n in range(1, 2 * int(arguments.turnovers) + 1)]
            rows.append([f"`{policy}`",
                         of(policy, fill, lambda run: run[new]["layout"]["map_runs_per_block"]),
                         of(policy, fill, lambda run: run[old]["layout"]["map_runs_per_block"]),
                         of(policy, fill, check("e2fsck", new)), of(policy, fill, check("e2fsck", old)),
                         of(policy, fill, lambda run: run[old]["check"]["e2fsck"] / run[new]["check"]["e2fsck"]),
                         of(policy, fill, check("extant", new)), of(policy, fill, check("extant", old)),
                         of(policy, fill, seconds("read-0.0")), of(policy, fill, seconds("read-" + last)),
                         of(policy, fill, seconds("random-0.0")), of(policy, fill, seconds("random-" + last)),
                         of(policy, fill, lambda run: sum(run[t]["device"]["device_seconds"] for t in turns))])
        modelled.table(text, f"{fill} % full, {arguments.turnovers} turnovers; seconds on `hdd-2007`, mean and range of the seeds:", head, rows)


if __name__ == "__main__":
    main()
