#!/usr/bin/env python3
"""The tables of the README, from results/: `table.py [DIRECTORY]`. Ranges are at half, at once and at twice the costs."""
import json
import os
import sys

LI_BEFORE = {1: 295287, 2: 70665, 4: 33865, 8: 19387, 16: 10104, 32: 5588, 64: 3588}


def load(directory, name):
    with open(os.path.join(directory, name, "trials.ndjson")) as file:
        for trial in map(json.loads, file):
            if trial["outcome"]["state"] != "failed":
                policy = next(iter(trial["contestant"]["policies"].values()))
                yield policy, int(trial["point"]["processors"]), trial


def three(measures, name):
    stem, unit = name
    return [measures[f"{stem}{at}_{unit}"] for at in ("_at_half_costs", "", "_at_twice_costs")]


def allocators(directory, name):
    found = {(policy, n): trial["measures"] for policy, n, trial in load(directory, name)}
    processors = sorted({n for _, n in found})
    policies = list(dict.fromkeys(p for p, _ in found))
    print(f"\n{name}: speed of one thread beside others, in percent of one alone\n")
    print("| processors | " + " | ".join(f"`{p}`" for p in policies) + " | Linux before |")
    print("|---" * (len(policies) + 2) + "|")
    for n in processors:
        cells = []
        for policy in policies:
            alone, crowd = three(found[policy, 1], ("operation", "ns")), three(found[policy, n], ("operation", "ns"))
            parts = [100 * a / c for a, c in zip(alone, crowd)]
            cells.append(f"{parts[1]:.1f} ({parts[2]:.1f} to {parts[0]:.1f})")
        li = f"{100 * LI_BEFORE[n] / LI_BEFORE[1]:.1f}" if n in LI_BEFORE else "-"
        print(f"| {n} | " + " | ".join(cells) + f" | {li} |")
    print(f"\n{name}: ns an operation, waiting, its causes, extents a file\n")
    for n in processors:
        for policy in policies:
            m = found[policy, n]
            causes = {k.split(".", 1)[1]: v for k, v in m.items() if k.startswith("waiting_percent.")}
            causes = ", ".join(f"{k} {v:.0f} %" for k, v in sorted(causes.items(), key=lambda kv: -kv[1]))
            low, middle, high = three(m, ("operation", "ns"))
            extents = f"{m.get('extents_per_file', 0):.1f} (at most {m.get('extents_per_file_max', 0):.0f})"
            print(f"| {n} | `{policy}` | {middle:.0f} ({low:.0f} to {high:.0f}) | {m['waiting_percent']:.0f} % | {causes} | {extents} |")
    for n in (64, 96):
        before, after = found.get(("optimize-scan", n)), found.get(("ordered-groups", n))
        if before and after:
            ratio = [b / a for b, a in zip(three(before, ("operation", "ns")), three(after, ("operation", "ns")))]
            plain = [b / a for b, a in zip(three(found["vanilla", n], ("operation", "ns")), three(after, ("operation", "ns")))]
            print(f"{n}: ordered-groups is {ratio[1]:.1f} times optimize-scan ({min(ratio):.1f} to {max(ratio):.1f}), "
                  f"{plain[1]:.1f} times vanilla ({min(plain):.1f} to {max(plain):.1f})")


def engine(directory, name):
    found = {n: trial["measures"] for _, n, trial in load(directory, name)}
    for n, m in sorted(found.items()):
        parts = [100 * a / c for a, c in zip(three(found[1], ("operation", "ns")), three(m, ("operation", "ns")))]
        causes = ", ".join(f"{k.split('.', 1)[1]} {v:.0f} %" for k, v in m.items() if k.startswith("waiting_percent."))
        print(f"| {n} | {m['operation_ns']:.0f} | {parts[1]:.1f} ({parts[2]:.1f} to {parts[0]:.1f}) | {m['waiting_percent']:.0f} % | {causes} |")


def others(directory, name, figure, unit):
    for policy, n, trial in load(directory, name):
        m = trial["measures"]
        causes = ", ".join(f"{k.split('.', 1)[1]} {v:.0f} %" for k, v in m.items() if k.startswith("waiting_percent."))
        low, middle, high = three(m, (figure, unit))
        print(f"| {n} | `{policy}` | {middle:.0f} ({low:.0f} to {high:.0f}) | {m['waiting_percent']:.0f} % | {causes} |")


if __name__ == "__main__":
    results = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
    for each in ("fallocate", "append"):
        allocators(results, each)
    for each in ("es-63",):
        print(f"\n{each}: 99.9th percentile of a lookup, ns\n")
        others(results, each, "lookup_p999", "ns")
    for each in ("engine-create", "engine-fsync", "engine-read"):
        print(f"\n{each}: ns an operation, speed of one thread beside others in percent of one alone, waiting, its causes\n")
        engine(results, each)
    print("\ntags: requests a virtual second\n")
    others(results, "tags", "requests", "per_s")
