"""The table of README.md, from the kept trials: ranges over the three sittings of each sitting's medians.

Run in this folder. The longest wait is the longest of a sitting.
"""

import collections
import json
import statistics

SITTINGS = (1, 2, 3)
POLICIES = ["percpu-ida", "wake-all", "wake-exclusive", "sbitmap", "hand-off"]
ROWS = {
    "8 on 2": "8-on-2",
    "64 on 2": "64-on-2",
    "64 on 8": "64-on-8",
    "64 on 8, one wait queue": "64-on-8-1-queue",
    "1,000 on 2": "1000-on-2",
    "1,000 on 2, herds": "1000-on-2-herds",
    "1,000 on 8": "1000-on-8",
    "1,000 on 8, herds": "1000-on-8-herds",
    "1,000 on 8, one wait queue": "1000-on-8-1-queue",
    "1,000 on 64": "1000-on-64",
    "1,000 on 64, one wait queue": "1000-on-64-1-queue",
    "1,000 on 256": "1000-on-256",
}
COUNTS = ["switches_per_request", "wakes_per_request", "wakes_in_vain_per_request", "overtakings_per_request"]


def trials(sitting, row):
    with open(f"results/sitting-{sitting}/{row}/trials.ndjson") as lines:
        return [json.loads(line) for line in lines]


def figures(sitting, row):
    """For each policy: the medians of COUNTS, the longest wait in ms, the median of requests a second."""
    by_policy = collections.defaultdict(list)
    for trial in trials(sitting, row):
        request = next(phase for phase in trial["phases"] if phase["name"] == "request")
        counts = [trial["measures"][name] for name in COUNTS]
        wait, rate = trial["measures"]["longest_wait_ns"] / 1e6, request["operations"] / request["seconds"]
        by_policy[trial["contestant"]["policies"]["tag_policy"]].append((counts, wait, rate))
    return {
        policy: (
            [statistics.median(counts[i] for counts, _, _ in all_) for i in range(len(COUNTS))],
            max(wait for _, wait, _ in all_),
            statistics.median(rate for _, _, rate in all_),
        )
        for policy, all_ in by_policy.items()
    }


def digits(x):
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:,.0f}"


def span(values, form=digits):
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low}–{high}"


def cell(of_sittings):
    counts, waits, rates = zip(*of_sittings)
    switches, wakes, vain, overtakings = (span(values) for values in zip(*counts))
    return f"{switches}; {wakes}, {vain}; {overtakings}; {span(waits)} ms; {span(rates, lambda x: f'{x:,.0f}')}"


print("| threads on tags | " + " | ".join(f"`{policy}`" for policy in POLICIES) + " |")
print("|---" * (len(POLICIES) + 1) + "|")
for title, row in ROWS.items():
    sittings = [figures(sitting, row) for sitting in SITTINGS]
    links = ", ".join(f"[{n}](results/sitting-{n}/{row}/table.txt)" for n in SITTINGS)
    cells = [cell([s[policy] for s in sittings]) if policy in sittings[0] else "" for policy in POLICIES]
    print(f"| {title} ({links}) | " + " | ".join(cells) + " |")
for n in SITTINGS:
    waits = [trial["measures"]["longest_wait_ns"] / 1e6 for trial in trials(n, "1000-on-8-hand-off")]
    print(f"\nhand-off, 1,000 on 8, ten trials of sitting {n}: the longest wait is {min(waits):.1f} to {max(waits):.1f} ms")
