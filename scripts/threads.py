#!/usr/bin/env python3
"""Makes docs/threads.md, its five pictures, that of docs/lab.md and docs/letter-mballoc.md from the trials that the experiments keep: threads.py [--check]

A figure of a thread is written here once, with its source in the text beside it; a figure of Extant is never written here, it is
computed. With --check nothing is written, and the exit status is 1 if a file is not what would be made.
"""
import json
import math
import re
import statistics
import sys

from letter import letter
from threads_data import EXPERIMENTS, ROOT, by_round, change, median, number, of_kernel, phase, rate, table, trials

STYLE = """text{font:14px sans-serif;fill:#1f2328}.s{font-size:12px}.e{text-anchor:end}.m{text-anchor:middle}
.old{fill:#cf222e;stroke:#cf222e}.new{fill:#bf8700;stroke:#bf8700}.later{fill:#8250df;stroke:#8250df}.own{fill:#0969da;stroke:#0969da}
.thread{fill:#8c959f;stroke:#8c959f}.grid{stroke:#8c959f;stroke-width:1;stroke-dasharray:2 4}
.line{fill:none;stroke-width:2.5}.bar{stroke:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.old{fill:#ff7b72;stroke:#ff7b72}.new{fill:#d29922;stroke:#d29922}
.later{fill:#bc8cff;stroke:#bc8cff}.own{fill:#58a6ff;stroke:#58a6ff}.thread{fill:#8b949e;stroke:#8b949e}}"""


def svg(width, height, title, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>{title}</title>\n'
            f"<style>{STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n")


def legend(items, x, y, step):
    out = []
    for i, (kind, name) in enumerate(items):
        at = x + i * step
        out.append(f'<rect class="{kind} bar" x="{at}" y="{y - 11}" width="12" height="12"/><text x="{at + 18}" y="{y}">{name}</text>')
    return out


class LogAxis:
    """Powers of ten between two, upwards from `floor` to `top`."""

    def __init__(self, low, high, floor, top):
        self.low, self.high, self.floor, self.top = math.log10(low), math.log10(high), floor, top

    def at(self, value):
        return self.floor - (math.log10(value) - self.low) / (self.high - self.low) * (self.floor - self.top)

    def grid(self, left, right, name):
        out = []
        for power in range(math.ceil(self.low), math.floor(self.high) + 1):
            y = self.at(10**power)
            out.append(f'<path class="grid" d="M{left} {y:.0f}H{right}"/><text class="s e" x="{left - 8}" y="{y + 4:.0f}">{name(power)}</text>')
        return out


def extent_status():
    delayed = [("0", "behind-0"), ("100,000", "behind-1e5"), ("1,000,000", "behind-1e6"), ("10,000,000", "behind-1e7")]
    policies = [("vanilla", "old"), ("evictable-list", "new"), ("round-robin", "later"), ("leaf-ring", "own")]
    call = lambda where, p, what: median(t["latency"]["call"][what] / 1e3 for t in trials(f"004-es-shrink/results/{where}", es_policy=p))
    axis = LogAxis(0.1, 1e6, 330, 70)
    name = lambda power: {-1: "0.1 us", 0: "1 us", 1: "10 us", 2: "0.1 ms", 3: "1 ms", 4: "10 ms", 5: "0.1 s", 6: "1 s"}[power]
    body = ['<text x="12" y="20">One call of the shrinker (128 entries), median, by the delayed entries in front of what can go</text>']
    body += legend([(k, n) for n, k in policies], 12, 48, 150) + axis.grid(70, 740, name)
    for policy, kind in policies:
        points = [(130 + i * 180, axis.at(call(where, policy, "p50_ns"))) for i, (_, where) in enumerate(delayed)]
        body.append(f'<polyline class="{kind} line" style="fill:none" points="' + " ".join(f"{x},{y:.1f}" for x, y in points) + '"/>')
        body += [f'<circle class="{kind}" cx="{x}" cy="{y:.1f}" r="4"/>' for x, y in points]
    body += [f'<text class="m" x="{130 + i * 180}" y="352">{text}</text>' for i, (text, _) in enumerate(delayed)]

    def job(policy, operation):
        all_trials = trials("005-es-memory/results/thread-delayed-90", es_policy=policy)
        r = [t["latency"][operation] for t in all_trials]
        return f'{median(x["mean_ns"] for x in r) / 1e3:.2f}, {median(x["max_ns"] for x in r) / 1e3:.0f}'

    theirs = {"shrink": ("es_shrink_scan", "278, 1,872", "95.1, 339"), "insert": ("es_insert_extent", "4.11, 1,270", "3.09, 440"),
              "lookup": ("es_lookup_extent", "1.61, 104", "1.62, 168"), "find-delayed": ("es_find_delayed_extent_range", "1.03, 54", "1.01, 140")}
    rows = [[f"{theirs[o][0]}, us: average, longest", theirs[o][1], theirs[o][2]] + [job(p, o) for p, _ in policies] for o in theirs]
    size = lambda p: median(t["measures"]["memory_bytes"] / t["measures"]["entries_kept"] for t in trials("005-es-memory/results/thread", es_policy=p))
    rows.append(["bytes an entry", "44.0", "60.2"] + [f"{size(p):.1f}" for p, _ in policies])
    rows += [[f"one call, {text} delayed in front, us: median, p99", "", ""] + [f'{number(call(w, p, "p50_ns"))}, {number(call(w, p, "p99_ns"))}' for p, _ in policies]
             for text, w in delayed]
    of_linux = {label: [t for t in trials("037-linux/results/es") if t["contestant"]["label"] == f"delayed={label.replace(',', '')}"] for label, _ in delayed}
    linux = f'Linux {".".join(of_linux["0"][0]["environment"]["kernel"].split(".")[:2])}'
    in_linux = lambda label, what: median(t["latency"]["call"][what] / 1e3 for t in of_linux[label])
    for row, (label, _) in zip(rows[-len(delayed):], delayed):
        row.append(f'{number(in_linux(label, "p50_ns"))}, {number(in_linux(label, "p99_ns"))}' if of_linux[label] else "")
    in_vain = lambda label: median(t["measures"]["es_shrinks_in_vain"] / t["measures"]["es_shrinks"] for t in of_linux[label])
    rows[:-len(delayed)] = [row + [""] for row in rows[:-len(delayed)]]
    head = ["", "thread: 3.12", "thread: the patch", "`vanilla`", "`evictable-list`", "`round-robin` (Linux 3.19)", "`leaf-ring` (ours)", linux]
    ten_million = call("behind-1e7", "vanilla", "p50_ns") / 1e3
    insert = lambda p, what: number(median(t["latency"]["insert"][what] for t in trials("005-es-memory/results/thread-delayed-90", es_policy=p)) / 1e3)
    text = f"""## 1. Extent-status cache: delayed entries must not cost a scan

*"ext4: improve extents status tree shrinker to avoid scanning delayed entries", Zheng Liu, 2013.* The thread suspected that a call of the
shrinker stalls because it steps over delayed entries, and could not reproduce it. Extant reproduces it: with ten million of them in front, one call
of `vanilla` takes {number(ten_million)} ms. `round-robin`, Linux's choice since then, visits a bounded number of entries, and may free
none. `leaf-ring` never visits delayed entries, and an entry takes {size("leaf-ring"):.1f} bytes where the thread's took 44.

![One call of the shrinker by the number of delayed entries](threads/extent-status.svg)

{table(head, rows)}

{linux} was measured in the kernel itself, with blocks of 1 KiB and a hole beside each delayed block ([037](../experiments/037-linux/README.md)). With
1,000,000 delayed, {100 * in_vain("1,000,000"):.0f} % of its calls free nothing, with 100,000 {100 * in_vain("100,000"):.0f} %, with none {100 * in_vain("0"):.0f} %. The longest takes {number(in_linux("1,000,000", "max_ns") / 1e3)} ms.

The job is the thread's (250 files, 718,000 entries), nine of ten runs delayed. Figures are medians of five rounds, also of the longest times. The thread's
machine was another, so only ratios compare.

**Worse.** An insert takes {insert("leaf-ring", "mean_ns")} us with `leaf-ring` and {insert("vanilla", "mean_ns")} with `vanilla`, at p99.9 {insert("leaf-ring", "p999_ns")} and {insert("vanilla", "p999_ns")}. In most set-ups of
a whole file system no difference is shown, and in some the slowest reads are slower: [007](../experiments/007-es-stack/README.md).

**Not here.** Ten million delayed entries in Linux take more dirty memory than the machine has. No fio and no file system: {len(trials("005-es-memory/results/thread", es_policy="vanilla"))} rounds of one thread on trees in a process. Experiments
[004](../experiments/004-es-shrink/README.md), [005](../experiments/005-es-memory/README.md); the effect on a whole file system:
[007](../experiments/007-es-stack/README.md), [011](../experiments/011-es-thread/README.md).
"""
    return "extent-status.svg", svg(760, 366, "One call of the shrinker by delayed entries", body), text


def allocator():
    thread = {
        "mb_optimize_scan=0 (thread)": [49, 81, 113, 97, 17, 33, 113, 49, 81, 33, 97, 113, 81, 1, 17, 33, 33, 81, 1, 113, 97, 17, 113, 113, 33, 33, 97, 81, 49, 81, 17, 49],
        "mb_optimize_scan=1 (thread)": [127, 126, 126, 125, 126, 127, 125, 126, 127, 124, 123, 124, 122, 122, 121, 120, 119, 118, 117, 116, 115, 116, 114, 113, 111, 110, 109, 108, 107, 106, 105, 104, 104],
    }
    policies = [("vanilla", "old"), ("optimize-scan", "new"), ("goal-first", "later"), ("ordered-groups", "later"), ("sure-fit", "own")]
    rows = [(name, "thread", chunks) for name, chunks in thread.items()]
    for policy, kind in policies:
        rows.append((policy, kind, trials("008-mballoc-locality/results/chunks", mb_policy=policy)[0]["chunks"][:32]))
    body = ['<text x="12" y="20">Block groups (0 to 135, left to right) of the first 32 chunks for small files</text>']
    left, right = 214, 745
    for i, (name, kind, chunks) in enumerate(rows):
        y = 46 + i * 34
        body.append(f'<text class="s e" x="{left - 10}" y="{y + 14}">{name}</text><path class="grid" d="M{left} {y + 20}H{right}"/>')
        for group in sorted(set(chunks)):
            height = 4 + 2 * min(8, chunks.count(group))
            body.append(f'<rect class="{kind} bar" x="{left + group / 136 * (right - left):.1f}" y="{y + 20 - height}" width="4" height="{height}"/>')
    body.append(f'<text class="s" x="12" y="{46 + len(rows) * 34 + 16}">A bar is a group, its height how many chunks came from it.</text>')
    bitmaps = lambda p: trials("008-mballoc-locality/results/chunks", mb_policy=p)[0]["measures"]["bitmaps_per_transaction"]
    of32 = lambda p: trials("008-mballoc-locality/results/chunks", mb_policy=p)[0]["measures"]["locality_groups_of_32"]
    rates = lambda where, p, name: by_round(trials(f"031-mballoc-time/results/{where}", mb_policy=p), lambda t: rate(t, name))
    against = lambda where, p, name: "" if p == "vanilla" else change(rates(where, p, name), rates(where, "vanilla", name))
    some = [p for p, _ in policies if p in ("vanilla", "optimize-scan", "sure-fit")]
    cell = lambda where, p, name: (number(median(rates(where, p, name))) + (f" ({against(where, p, name)})" if p != "vanilla" else "")) if p in some or where == "small-files" else ""
    device = lambda where, p: number(median(phase(t, "files")["measures"]["device_seconds"] for t in trials(f"031-mballoc-time/results/{where}", mb_policy=p)))
    untar = lambda p: number(median(phase(t, "untar")["measures"]["device_seconds"] for t in trials("028-spread/results/hdd-new-untar", mb_policy=p)))
    names = [p for p, _ in policies]
    rows = [
        ["small synced files, files/s", "", ""] + [cell("small-files", p, "files") for p in names],
        ["reaim-disk, 321 processes, jobs/s", "", "10 to 20 % fewer"] + [cell("reaim", p, "disk-321") for p in names],
        ["a tree read cold, files/s", "", ""] + [cell("kernel-tree", p, "read") for p in names],
        ["small synced files on a disk, seconds of the model", "", ""] + [device("hdd", p) for p in names],
        ["the same on flash", "", ""] + [device("flash", p) for p in names],
        ["bitmaps in a transaction", "", "more"] + [number(bitmaps(p)) for p in names],
        ["groups of 32 chunks", *(str(len(set(chunks[:32]))) for chunks in thread.values())] + [f"{of32(p):.0f}" for p in names],
    ]
    head = ["", "thread: off", "thread: on"] + [f"`{p}`" + {"goal-first": " (6.1)", "ordered-groups": " (6.17)", "sure-fit": " (ours)"}.get(p, "") for p in names]
    of_018, linux = of_kernel("018-mballoc-workloads/results/reaim")
    by_scan = [[t for t in of_018 if t["contestant"]["options"] == f"mb_optimize_scan={n}"] for n in (0, 1)]
    engine = [t for t in trials("018-mballoc-workloads/results/reaim") if t["contestant"]["kind"] == "engine"]
    kernel_rows = [[f"reaim-disk, {n} processes, jobs/s"] + [f'{median(rate(t, f"disk-{n}") for t in group):,.0f}' for group in (*by_scan, engine)]
                   for n in (1, 41, 81, 161, 321)]
    kernel_head = ["", f"{linux}, `mb_optimize_scan=0`", f"{linux}, `mb_optimize_scan=1`", "Extant's engine"]
    text = f"""## 2. Block allocator: the choice of group

*"Ext4 mballoc behavior with mb_optimize_scan=1", Jan Kara, 2022.* With the new search each chunk for small files came from another group. So
a transaction dirtied more bitmaps, and reaim lost 10 to 20 %. Extant measures files a second against `vanilla`. A cold read of a tree
changes by {against("kernel-tree", "optimize-scan", "read")} where `optimize-scan` has spread it, and by {against("kernel-tree", "sure-fit", "read")} where `sure-fit` has placed it. (`sure-fit` takes
the nearest group that surely has room, and one home for synced files.) Small synced files change by {against("small-files", "optimize-scan", "files")} and {against("small-files", "sure-fit", "files")}.
Against the policy of Linux 6.17, `sure-fit` makes {change(rates("small-files", "sure-fit", "files"), rates("small-files", "ordered-groups", "files"))} files a second.
[A letter](letter-mballoc.md) to ext4's developers says what a patch would be.

![Groups of the first 32 chunks by policy](threads/allocator.svg)

{table(head, rows)}

In brackets: against `vanilla`, paired rounds, 95 % interval. The kernel's own driver with both of its searches, in another run
([018](../experiments/018-mballoc-workloads/README.md)):

{table(kernel_head, kernel_rows)}

**Not reproduced.** The loss of 10 to 20 % in reaim: at 321 processes no difference is shown, and at 81 `optimize-scan` makes
{against("reaim", "optimize-scan", "disk-81")}.

**Worse.** On the model of a new disk `sure-fit` unpacks a tree in {untar("sure-fit")} s and `vanilla` in {untar("vanilla")}: [028](../experiments/028-spread/README.md).
`copy-beside` regressed in the matrix: [018](../experiments/018-mballoc-workloads/README.md).

Experiments [031](../experiments/031-mballoc-time/README.md) (time),
[008](../experiments/008-mballoc-locality/README.md) (places), [009](../experiments/009-mballoc-search/README.md) (the cost of a search),
[018](../experiments/018-mballoc-workloads/README.md), [028](../experiments/028-spread/README.md). The groups of the thread are counted
in its two sequences.
"""
    return "allocator.svg", svg(760, 46 + 7 * 34 + 30, "Groups of the first 32 chunks by policy", body), text


def reclaim():
    sizes = ["0M", "715M", "2385M", "4055M"]
    theirs = [("thread: 3.9", [23117, 23774, 4208, 4104]), ("thread: mmotm", [22780, 23299, 24154, 25130]),
              ("thread: the series", [22763, 22934, 23765, 24614])]
    policies = [("vanilla", "old"), ("proportional", "new"), ("stall-once", "later"), ("used-once", "own")]
    ours = {}
    for t in trials("021-reclaim-machine/results/nominal"):
        m = t["measures"]
        ours[t["contestant"]["policies"]["reclaim_policy"]] = [m["memcachetest_ops_" + s] * 4e9 / m["elapsed_ns"] for s in sizes]
    beside = lambda p, size, name, what: median(phase(t, name)["measures"][what] for t in trials(f"022-copy-beside/results/policies-{size}", reclaim_policy=p))
    speed = lambda p, size: median(2**30 / 2**20 / phase(t, "copy")["seconds"] for t in trials(f"022-copy-beside/results/policies-{size}", reclaim_policy=p))
    top, floor = 70, 300
    body = ['<text x="12" y="20">Left: reads of the device during a copy of 1 GiB beside hot data (1,024 are the copy’s own)</text>',
            '<text x="12" y="40">Right: MiB/s of that copy, with the hot operations between its pieces</text>']
    axis = LogAxis(100, 1e5, floor, top)
    body += axis.grid(70, 380, lambda power: f"{10**power:,}")
    most = max(speed(p, 64) for p, _ in policies)
    for i, (policy, kind) in enumerate(policies):
        reads, mib = beside(policy, 64, "copy", "device_reads"), speed(policy, 64)
        y, x = axis.at(reads), 90 + i * 72
        body.append(f'<rect class="{kind} bar" x="{x}" y="{y:.1f}" width="44" height="{floor - y:.1f}"/><text class="s m" x="{x + 22}" y="{y - 5:.1f}">{reads:,.0f}</text>')
        height, x = mib / most * (floor - top - 20), 440 + i * 76
        body.append(f'<rect class="{kind} bar" x="{x}" y="{floor - height:.1f}" width="44" height="{height:.1f}"/>'
                    f'<text class="s m" x="{x + 22}" y="{floor - height - 5:.1f}">{mib:.0f}</text>')
    body += legend([(k, n) for n, k in policies], 12, 332, 150)
    newer = ["workingset", "generations"]
    order = ["vanilla", "proportional", "stall-once", *newer, "used-once"]
    rows = [[f"memcached operations/s beside {s}"] + [f"{t[1][n]:,}" for t in theirs] + [f"{ours[p][n]:,.0f}" if p in ours else "" for p in order] + [""]
            for n, s in enumerate(sizes)]
    kernels = {size: of_kernel(f"022-copy-beside/results/policies-{size}") for size in (64, 256)}
    linux = kernels[64][1]

    def row(title, size, name, of):
        """A row of the measured copy: each policy, and the kernel."""
        groups = [trials(f"022-copy-beside/results/{'linux' if p in newer else 'policies'}-{size}", reclaim_policy=p) for p in order] + [kernels[size][0]]
        return [title, "", "", ""] + [f"{median(of(phase(t, name)) for t in group):,.0f}" for group in groups]

    again = lambda p: (p["measures"]["device_read_bytes"] - 2**30) / 4096
    rows += [row("reads during the copy, 64 MiB of cache", 64, "copy", lambda p: p["measures"]["device_reads"]),
             row("blocks that the copy did not need", 64, "copy", again),
             row("the same, 256 MiB", 256, "copy", again),
             row("reads after it, 64 MiB", 64, "after", lambda p: p["measures"]["device_reads"])]
    equal = lambda label, policy=None: median(
        again(phase(t, "copy")) for t in trials("022-copy-beside/results/equal")
        if label in t["contestant"]["label"] and t["contestant"]["policies"].get("reclaim_policy") == policy)
    with_54 = {p: equal("cache=58M", p) for p in ("vanilla", "workingset")}
    linux_54 = equal("kernel,memory=66M")
    rows.insert(-2, ["the same, some 54 MiB of pages of files each", "", "", ""] + [f"{with_54[p]:,.0f}" if p in with_54 else "" for p in order] + [f"{linux_54:,.0f}"])
    speeds = row("the copy, MiB/s", 64, "copy", lambda p: 2**30 / 2**20 / p["seconds"])
    # The newer ones ran on a busy machine: their counts hold, and their times do not.
    rows.append([cell if of not in newer else "" for cell, of in zip(speeds, ["", "", "", "", *order, "kernel"])])
    head = ["", *[t[0] for t in theirs], "`vanilla`", "`proportional`", "`stall-once`", "`workingset` (3.15)", "`generations` (6.1)", "`used-once` (ours)",
            f"{linux}, group of 66 MiB"]
    tables = (EXPERIMENTS / "021-reclaim-machine/results/tables.md").read_text(encoding="utf-8")
    *within, of = re.search(r"factor of two, of (\d+)\*\* \| \| \| \| (\d+) \| (\d+) \| (\d+)", tables).group(2, 3, 4, 1)
    within.append(of)
    means = (EXPERIMENTS / "020-reclaim-traces/results/seed-1.txt").read_text(encoding="utf-8")
    misses = {p: re.search(rf"^{p} +(\d+\.\d+) +\d+\.\d+ +\d+\.\d+  ", means, re.M).group(1) for p in (*order, "w-tinylfu")}
    rows.append(["misses on made-up traces, mean, %", "", "", ""] + [misses[p] for p in order] + [""])
    recorded = {}
    for t in (t for path in sorted((EXPERIMENTS / "036-reclaim-recorded/results").glob("*-50")) for t in trials(path.relative_to(EXPERIMENTS))):
        recorded.setdefault(t["contestant"]["policies"]["reclaim_policy"], []).append(100 * t["measures"]["misses"] / t["measures"]["accesses"])
    recorded = {p: f"{statistics.fmean(each):.2f}" for p, each in recorded.items()}
    rows.append(["misses on recorded traces, room for a half, mean, %", "", "", ""] + [recorded.get(p, "") for p in order] + [""])
    text = f"""## 3. Page reclaim that neither stalls nor swaps the application out

*"Reduce system disruption due to kswapd", Mel Gorman, 2013.* A large write beside memcached cost it five sixths of its operations on Linux 3.9, and
none after the series. The first rows come from a model of that machine, the last ones from Extant's own cache. With `used-once`, a copy beside hot data reads
{beside("used-once", 64, "copy", "device_reads"):,.0f} times from the device, of which 1,024 are the copy's own. With the lists of 2013 it reads {beside("vanilla", 64, "copy", "device_reads"):,.0f} times
([022](../experiments/022-copy-beside/README.md)). {linux} does the same work in a control group of 66 MiB, which
has some 54 MiB of pages of files. An engine with as many reads {with_54["vanilla"]:,.0f} blocks again with `vanilla`, and Linux {linux_54:,.0f}.

![Reads of the device during a copy, and its speed, by policy](threads/reclaim.svg)

{table(head, rows)}

[021](../experiments/021-reclaim-machine/results/tables.md) compares the model with each of the thread's rows. For the three generations {within[0]}, {within[1]} and {within[2]} of {within[3]} rows are within
a factor of two. `workingset` has every figure of `stall-once` there, because the model reads no file. `generations` keeps all operations, too, so this
machine shows no advantage of `used-once` over it.

**Worse.** Over the traces of [020](../experiments/020-reclaim-traces/README.md), `used-once` misses {misses["used-once"]} % and W-TinyLFU, which no cache of Linux is, {misses["w-tinylfu"]}.
[036](../experiments/036-reclaim-recorded/README.md) has recorded traces of programs, with room for a half of their pages. There `used-once` misses {recorded["used-once"]} %, about as many as
Linux's lists, and W-TinyLFU {recorded["w-tinylfu"]}.

Medians of five rounds: [022](../experiments/022-copy-beside/README.md). `workingset` and `generations` ran later, on a busy machine, so they have counts and no speed.
Which frames stay: [020](../experiments/020-reclaim-traces/README.md).
"""
    return "reclaim.svg", svg(760, 346, "A copy beside hot data by policy of reclaim", body), text


def metaclusters():
    points = {}
    with open(EXPERIMENTS / "025-age/results/points.ndjson", encoding="utf-8") as file:
        for line in file:
            p = json.loads(line)
            if p["seed"] == 1 and p["fill"] == 90 and (p["phase"] == "fill" or p["phase"].startswith("turn-")):
                points.setdefault(p["policy"], []).append((0.0 if p["phase"] == "fill" else float(p["phase"][5:]), p["check"]["e2fsck"]))
    policies = [("inline", "old"), ("metacluster", "new"), ("vanilla", "later"), ("zones", "own")]
    last = max(t for line in points.values() for t, _ in line)
    most = max(s for line in points.values() for _, s in line)
    step = 20 if most < 120 else 50
    top = step * math.ceil(most / step)
    place = lambda t, s: (70 + t / last * 660, 320 - s / top * 250)
    body = ['<text x="12" y="20">Seconds of e2fsck -fn on the disk of 2007 (model), as 16 GiB of ext3, 90 % full, age by turnovers</text>']
    body += legend([(k, {"inline": "inline (ext3)", "vanilla": "vanilla (mballoc)"}.get(n, n)) for n, k in policies], 12, 48, 170)
    for s in range(0, top + 1, step):
        y = place(0, s)[1]
        body.append(f'<path class="grid" d="M70 {y:.0f}H740"/><text class="s e" x="62" y="{y + 4:.0f}">{s}</text>')
    body += [f'<text class="s m" x="{place(t, 0)[0]:.0f}" y="340">{t}</text>' for t in range(int(last) + 1)]
    for policy, kind in policies:
        line = [place(t, s) for t, s in sorted(points[policy])]
        body.append(f'<polyline class="{kind} line" style="fill:none" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) + '"/>')
    mail = {"write": "189.0 → 186.1", "read": "194.5 → 194.5", "512": "236.4 → 231.4", "512k": "286.3 → 284.4", "fsck": "738 → 287"}
    e2fsck, jumps = {}, {}
    with open(EXPERIMENTS / "024-metaclusters/results/figures.ndjson", encoding="utf-8") as file:
        for line in file:
            figure = json.loads(line)
            policy = figure.get("options", "").rpartition("meta_policy=")[2]
            e2fsck[policy] = figure["check"]["e2fsck"]
            jumps[policy] = figure["layout"]["map_jumps"] if policy else 0
    rows_of = {"write": ("stream", None, "write"), "read": ("stream", None, "read"), "512": ("random-read", 512, "read"), "512k": ("random-read", 524288, "read")}

    def seconds(policy, workload, block, name):
        those = [t for t in trials("024-metaclusters/results", meta_policy=policy)
                 if t["workload"]["name"] == workload and t["workload"]["parameters"].get("block_bytes") == block]
        return phase(those[0], name)["measures"]["device_seconds"]

    names = ["inline", "metacluster", "vanilla", "zones"]
    rows = [[text, *mail[key].split(" → "), *(number(seconds(n, *rows_of[key])) for n in names)] for text, key in ROWS_024]
    rows.append(["e2fsck of the thread's files", *mail["fsck"].split(" → "), *(number(e2fsck[n]) for n in names)])
    end = lambda p: sorted(points[p])[-1][1]
    head = ["seconds", "thread: ext3", "thread: the patch", "`inline` (ext3)", "`metacluster`", "`vanilla` (mballoc)", "`zones` (ours)"]
    text = f"""## 4. Indirect blocks clustered so that fsck does not seek

*"Clustering indirect blocks in Ext3", Abhishek Rai, 2007.* Indirect blocks in front of their data cost a check of 400 GiB {jumps["inline"]:,} jumps, in
metaclusters {jumps["metacluster"]:,} and in `zones` {jumps["zones"]:,}. The model of that disk gives the thread's ratio. `zones` answer Andrew Morton's question about ageing. After {last:.0f} turnovers
at 90 % full, a check takes {number(end("zones"))} s with them, {number(end("metacluster"))} with the patch's metaclusters and {number(end("inline"))} with ext3's layout.

![Modelled time of a check as the disk ages](threads/metaclusters.svg)

{table(head, rows)}

Times are a model's, the same in every run; the picture has one seed. The rows of `inline` after the first were fitted to the mail's, the check was not.

**Worse.** On the aged disk a check takes {number(end("metacluster"))} s with the patch's metaclusters and {number(end("vanilla"))} s where `vanilla` places blocks, hardly more. Random reads of 512 KB take
{number(seconds("zones", *rows_of["512k"]))} s with `zones` and {number(seconds("inline", *rows_of["512k"]))} with `inline`; postmark loses, too ([029](../experiments/029-matrix/README.md)). So `zones` are not the default.
Linux 6.18 itself is not here. Its ext4 places mapping blocks as `vanilla` does, and only the engine runs on the model of the disk of 2007.

Experiments [024](../experiments/024-metaclusters/README.md),
[025](../experiments/025-age/README.md), [027](../experiments/027-file-sizes/README.md), [023](../experiments/023-check/README.md).
"""
    return "metaclusters.svg", svg(760, 352, "Modelled time of a check as the disk ages", body), text


def fsync():
    theirs = [29938.0, 28023.7, 23704.6, 16976.8, 21858.3]
    rounds = {p: trials("013-fsync-many/results/iterations", tag_policy=p) for p in ("percpu-ida", "wake-all", "wake-exclusive", "hand-off")}
    name = lambda what, i: what if i == 1 else f"{what}-{i}"
    written = lambda p, i: median(rate(t, name("write", i)) for t in rounds[p])
    durable = lambda t, i: phase(t, name("write", i))["operations"] / (phase(t, name("write", i))["seconds"] + phase(t, name("fsync", i))["seconds"])
    both = lambda p, i: median(durable(t, i) for t in rounds[p])
    requests = {}
    for where, label in (("16-threads", "kernel, 16 threads"), ("64-threads", "kernel, 64 threads")):
        requests[label] = median(t["measures"]["device_writes"] for t in trials(f"013-fsync-many/results/{where}") if t["contestant"]["kind"] == "kernel")
    requests["kernel, syncfs"] = median(t["measures"]["device_writes"] for t in trials("013-fsync-many/results/syncfs") if t["contestant"]["kind"] == "kernel")
    requests["Extant, one call"] = median(t["measures"]["device_writes"] for t in trials("013-fsync-many/results") if "direct" not in t["contestant"]["label"])
    body = ['<text x="12" y="20">Left: files/s of each iteration, of the second’s. Right: writes to the device for 50,000 files, all fsynced</text>']
    body += legend([("thread", "thread, 3.16-rc"), ("old", "percpu-ida"), ("new", "wake-all"), ("later", "wake-exclusive"), ("own", "hand-off (ours)")], 12, 48, 146)
    for percent in (0, 25, 50, 75, 100, 125):
        y = 310 - percent * 1.8
        body.append(f'<path class="grid" d="M60 {y:.0f}H420"/><text class="s e" x="54" y="{y + 4:.0f}">{percent} %</text>')
    lines = [("thread", [100 * x / theirs[1] for x in theirs])]
    lines += [(k, [100 * both(p, i) / both(p, 2) for i in range(1, 11)]) for p, k in (("percpu-ida", "old"), ("wake-all", "new"), ("wake-exclusive", "later"), ("hand-off", "own"))]
    for kind, line in lines:
        place = [(80 + i * 36, 310 - y * 1.8) for i, y in enumerate(line)]
        body.append(f'<polyline class="{kind} line" style="fill:none" points="' + " ".join(f"{x},{y:.1f}" for x, y in place) + '"/>')
    body += [f'<text class="s m" x="{80 + i * 36}" y="330">{i + 1}</text>' for i in range(10)]
    axis = LogAxis(100, 1e5, 310, 85)
    body += axis.grid(510, 745, lambda power: f"{10**power:,}")
    for i, (label, n) in enumerate(requests.items()):
        x, y = 522 + i * 58, axis.at(n)
        kind = "own" if label.startswith("Extant") else "old"
        body.append(f'<rect class="{kind} bar" x="{x}" y="{y:.1f}" width="40" height="{310 - y:.1f}"/><text class="s m" x="{x + 20}" y="{y - 5:.1f}">{n:,.0f}</text>')
        one, _, two = label.partition(", ")
        body.append(f'<text class="s m" style="font-size:10.5px" x="{x + 20}" y="328">{one},</text><text class="s m" style="font-size:10.5px" x="{x + 20}" y="344">{two}</text>')
    def fsynced(where, kind):
        """Files a second until all are durable, and writes to the device."""
        those = [t for t in trials(f"013-fsync-many/results{where}") if t["contestant"]["kind"] == kind and "direct" not in t["contestant"]["label"]]
        return [f"{median(durable(t, 1) for t in those):,.0f}", f'{median(t["measures"]["device_writes"] for t in those):,.0f}']

    linux = of_kernel("013-fsync-many/results/16-threads")[1]
    ways = [("16 threads that wait", "/16-threads"), ("64 threads that wait", "/64-threads"), ("one syncfs(2)", "/syncfs")]
    kernel_rows = [[text, *fsynced(where, "kernel"), *fsynced(where, "engine")] for text, where in ways]
    kernel_head = ["50,000 files", f"{linux}, files/s", f"{linux}, writes", "Extant's engine, files/s", "Extant's engine, writes"]
    single = lambda p: [100 * (min(durable(t, i) for i in range(2, 11)) / durable(t, 2) - 1) for t in rounds[p]]
    falls = lambda p: f"{-max(single(p)):.0f} to {-min(single(p)):.0f}"
    worst = lambda p: 100 * (min(both(p, i) for i in range(2, 11)) / both(p, 2) - 1)
    rows = [[i, f"{theirs[i - 1]:,.0f}" if i <= 5 else ""] + [f"{written('hand-off', i):,.0f}"] + [f"{both(p, i):,.0f}" for p in rounds] for i in range(1, 11)]
    head = ["iteration", "thread: 3.16-rc", "`hand-off` (ours), written", "durable: `percpu-ida` (3.15)", "`wake-all` (3.16-rc)", "`wake-exclusive` (the patch)", "`hand-off` (ours)"]
    drop = 100 * (min(theirs[2:]) / theirs[1] - 1)
    text = f"""## 5. Request tags and fsync of many files

*"xfs: wire up aio_fsync method", Dave Chinner and Jens Axboe, 2014.* The thread's test has 800,000 fsyncs at once; its files a second fell by up to {-drop:.0f} % when memory was
full. Extant takes {requests["Extant, one call"]:,.0f} writes for 50,000 files where the kernel's ext4 takes {requests["kernel, 64 threads"]:,.0f} to {requests["kernel, 16 threads"]:,.0f}
with threads that wait, and {requests["kernel, syncfs"]:,.0f} with one syncfs(2). With `hand-off`, the median of durable files a second falls over ten iterations
by at most {-worst("hand-off"):.0f} % against the second. With the thread's three policies it falls by {-worst("percpu-ida"):.0f}, {-worst("wake-all"):.0f} and {-worst("wake-exclusive"):.0f} %.
In single runs, of which the thread had one, it falls by {falls("hand-off")} % with `hand-off`.

![Files a second by iteration, and writes for 50,000 files](threads/fsync.svg)

Files a second by iteration, medians of {len(rounds["hand-off"])} rounds:

{table(head, rows)}

The kernel's own driver has no call for many fsyncs, so threads wait, or one call writes all:

{table(kernel_head, kernel_rows)}

**Worse.** In single runs, `hand-off` ({falls("hand-off")} %) is no steadier than `wake-all` ({falls("wake-all")} %). In whole workloads we could show no gain
([013](../experiments/013-fsync-many/README.md), [017](../experiments/017-direct/README.md)). It was not run there beside `sbitmap`, Linux's policy since 2014.

*Written*: until the last write has returned; *durable*: until the last fsync has, too. 50,000 files an iteration, where the thread had
800,000. Experiments [013](../experiments/013-fsync-many/README.md), [012](../experiments/012-tags/README.md) (what a tag costs under each
policy), [014](../experiments/014-fsync-ahead/README.md) to [017](../experiments/017-direct/README.md).
"""
    return "fsync.svg", svg(760, 356, "Files a second by iteration, and requests", body), text


def first_run():
    """The picture of the tutorial: every trial of a run as a dot, the median as a bar."""
    policies = [("vanilla", "old"), ("optimize-scan", "new"), ("sure-fit", "own")]
    runs = {p: by_round(trials("031-mballoc-time/results/small-files", mb_policy=p), lambda t: rate(t, "files")) for p, _ in policies}
    most = max(max(r) for r in runs.values())
    place = lambda v: 150 + v / most * 580
    body = [f'<text x="12" y="20">small-files, files/s: {len(runs["vanilla"])} rounds in turn, a dot a trial, the bar is the median</text>']
    for i, (policy, kind) in enumerate(policies):
        y = 52 + i * 44
        body.append(f'<text class="e" x="140" y="{y + 5}">{policy}</text>')
        body += [f'<circle class="{kind}" style="stroke:none;fill-opacity:.35" cx="{place(v):.1f}" cy="{y + 6 * (n % 3 - 1)}" r="3"/>' for n, v in enumerate(runs[policy])]
        body.append(f'<rect class="{kind} bar" x="{place(median(runs[policy])) - 2:.1f}" y="{y - 14}" width="4" height="28"/>')
    step = 5000 if most < 30000 else 10000
    for v in range(0, int(most) + 1, step):
        body.append(f'<path class="grid" d="M{place(v):.0f} 34V168"/><text class="s m" x="{place(v):.0f}" y="184">{v:,}</text>')
    return svg(760, 194, "Files a second by policy", body)


ROWS_024 = [("write 10 GB", "write"), ("read 10 GB", "read"), ("random reads of 512 B", "512"), ("random reads of 512 KB", "512k")]


def main():
    made = {}
    texts = []
    for part in (extent_status, allocator, reclaim, metaclusters, fsync):
        name, picture, text = part()
        made[ROOT / "docs/threads" / name] = picture
        texts.append(text)
    made[ROOT / "docs/lab-first-run.svg"] = first_run()
    made[ROOT / "docs/letter-mballoc.md"] = letter()
    made[ROOT / "docs/threads.md"] = """# The five threads

Extant began with five public discussions of Linux storage. Each of them measured an old mechanism against a new one. This page shows their
figures beside Extant's, which implements both sides of each and a third of its own. `make threads` makes this page from the trials in
[experiments/](../experiments/README.md); every row of the threads is in [sources.md](sources.md).

""" + "\n".join(texts)
    stale = [p for p, text in made.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: not what `make threads` makes from the trials", file=sys.stderr)
        return 1 if stale else 0
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
