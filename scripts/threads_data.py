"""The kept trials of the experiments, and figures of them as a page prints them: for `threads.py` and `letter.py`."""

import gzip
import json
import math
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = ROOT / "experiments"


def trials(path, **policies):
    """The usable trials of a result, those of the policies named."""
    plain, packed = (EXPERIMENTS / path / name for name in ("trials.ndjson", "trials.ndjson.gz"))
    with gzip.open(packed, "rt", encoding="utf-8") if packed.exists() else open(plain, encoding="utf-8") as file:
        every = [json.loads(line) for line in file]
    usable = [t for t in every if t["outcome"]["state"] in ("checked", "unchecked")]
    return [t for t in usable if all(t["contestant"]["policies"].get(k) == v for k, v in policies.items())]


def phase(trial, name):
    return next(p for p in trial["phases"] if p["name"] == name)


def rate(trial, name):
    p = phase(trial, name)
    return p["operations"] / p["seconds"]


def median(values):
    values = list(values)
    return statistics.median(values)


def number(x):
    """Three digits at least, thousands apart."""
    if x == 0:
        return "0"
    if abs(x) >= 100:
        return f"{x:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(x))))
    return f"{x:.{digits}f}"


def of_kernel(path):
    """The usable trials of the kernel's own driver, and its name and version."""
    those = [t for t in trials(path) if t["contestant"]["kind"] == "kernel"]
    versions = {".".join(t["environment"]["kernel"].split(".")[:2]) for t in those}
    return those, f"Linux {', '.join(sorted(versions))}"


def change(new, old):
    """Change of a rate in percent with a 95 % interval of the paired rounds' logarithms."""
    pairs = [math.log(a / b) for a, b in zip(new, old)]
    n = len(pairs)
    mean, sd = statistics.fmean(pairs), statistics.stdev(pairs)
    t = {5: 2.776, 10: 2.262, 20: 2.093, 30: 2.045, 40: 2.023, 120: 1.980}[n]
    low, high = mean - t * sd / math.sqrt(n), mean + t * sd / math.sqrt(n)
    percent = [f"{100 * (math.exp(x) - 1):+.1f}" for x in (mean, low, high)]
    return f"{percent[0]} % [{percent[1]}, {percent[2]}]"


def by_round(all_trials, of):
    return [of(t) for t in sorted(all_trials, key=lambda t: t["round"])]


def table(head, rows):
    align = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join(["| " + " | ".join(head) + " |", align] + ["| " + " | ".join(map(str, r)) + " |" for r in rows])
