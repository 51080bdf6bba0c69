"""Makes docs/letter-mballoc.md, for `threads.py`: a proposal to the developers of ext4, whose figures are computed from kept trials."""

import re

from threads_data import EXPERIMENTS, by_round, change, median, number, phase, rate, table, trials


def letter():
    files = lambda p: by_round(trials("031-mballoc-time/results/small-files", mb_policy=p), lambda t: rate(t, "files"))
    cold = lambda p: by_round(trials("031-mballoc-time/results/kernel-tree", mb_policy=p), lambda t: rate(t, "read"))
    locality = lambda p, what: number(trials("008-mballoc-locality/results/chunks", mb_policy=p)[0]["measures"][what])
    search = lambda where, p, what: f'{max(t["measures"][what] for t in trials(f"009-mballoc-search/results/{where}", mb_policy=p)):,.0f}'
    extents = lambda where, p: f'{median(t["measures"]["extents"] for t in trials(f"010-mballoc-append/results/{where}", mb_policy=p)):,.0f}'
    threads = lambda work, p: " and ".join(
        number(median(t["measures"]["operation_ns"] for t in trials(f"019-mballoc-scale/results/{work}-{n}", mb_policy=p))) for n in (1, 2))
    untar = lambda where, p: number(median(phase(t, "untar")["measures"]["device_seconds"] for t in trials(f"028-spread/results/{where}", mb_policy=p)))
    matrix = (EXPERIMENTS / "018-mballoc-workloads/results/matrix/table.txt").read_text(encoding="utf-8")
    copy = re.search(r"^copy-beside +REGRESSED +\S+ (\S+ % \[.*?\])", matrix, re.M).group(1)
    today, ours = "ordered-groups", "sure-fit"
    rows = [
        ["small synced files, files/s ([031](../experiments/031-mballoc-time/README.md))", number(median(files(today))), f"{number(median(files(ours)))} ({change(files(ours), files(today))})"],
        ["bitmaps in a transaction ([008](../experiments/008-mballoc-locality/README.md))", locality(today, "bitmaps_per_transaction"), locality(ours, "bitmaps_per_transaction")],
        ["groups searched by one request, at most: nothing fits ([009](../experiments/009-mballoc-search/README.md))", search("none-fits", today, "groups_searched_max"), search("none-fits", ours, "groups_searched_max")],
        ["the same, where two runs are left in each group", search("two-runs", today, "groups_searched_max"), search("two-runs", ours, "groups_searched_max")],
        ["groups visited by one request, at most: room only in front of flex groups", search("flex-front", today, "groups_visited_max"), search("flex-front", ours, "groups_visited_max")],
        ["extents of 64 files that grow in turn, empty disk ([010](../experiments/010-mballoc-append/README.md))", extents("empty", today), extents("empty", ours)],
        ["extents after ten turnovers at 90 %", extents("turnovers", today), extents("turnovers", ours)],
        ["ns a small file, one thread and two ([019](../experiments/019-mballoc-scale/README.md))", threads("small-files", today), threads("small-files", ours)],
        ["ns an append, one thread and two", threads("append", today), threads("append", ours)],
        ["a tree unpacked on an aged disk, seconds of a model ([028](../experiments/028-spread/README.md))", untar("hdd-aged-untar", today), untar("hdd-aged-untar", ours)],
        ["the same on a new disk", untar("hdd-new-untar", today), untar("hdd-new-untar", ours)],
    ]
    return f"""# A letter to linux-ext4: finding a group in one step

This page describes a possible kernel patch, and is not a patch. All figures are of Extant's engine in user space, on two processors. `make threads`
makes this page from the kept trials.

**Subject: [RFC 0/4] ext4: mballoc: find a group that surely fits**

Since 6.17 the allocator walks an xarray for each order and goes forward from the goal. It is much better than the lists of 5.13. Three costs are left:

- An order is a power of two, and the largest free *buddy* of a group says little about its longest *run*. A group that has two runs of 300
  blocks is in the xarray of order 8. A request for 512 tries it, fails, and tries the next one.
- A walk by order visits groups that the request does not want: those at the end of the disk, or those that another thread holds.
- Each CPU has a locality group, each with a chunk near the directory at hand. Sixteen processes that sync small files dirty as many bitmaps in a
  transaction.

The series replaces the walk with a lookup:

1. **A byte a group.** `ext4_mb_generate_buddy` and each change of a buddy already know the free runs. They publish the length of a run that the group
   surely has, in classes: exact below 8 blocks, to an eighth above. The byte is stored under the group's lock, which is held in any case.
2. **A tree of maxima over the bytes**, 64 children a node, in `ext4_sb_info`. A change touches one byte, and a node above only when the largest child
   changes. A search for "the nearest group from the goal on with at least this class" looks at a node or two on each level. Two trees, see 3, take 2.1 bytes a
   group. They replace the xarrays, `CR_POWER2_ALIGNED`, `CR_GOAL_LEN_FAST` and `CR_BEST_AVAIL_LEN`.
3. **Groups that were never read.** A second tree has the run that each could have, by its descriptor. A request reads the bitmaps of one flex group when
   that is nearer than what is known. It does not guess again and again on a disk that is worn everywhere.
4. **One home for synced small files.** Chunks for files that an fsync waits for come from one group of the disk. It moves on when the group is full. A
   transaction journals one bitmap, and freed blocks are soon used again.

The last one stands by itself, and could be first.

## Figures

`ordered-groups` is Extant's version of 6.17, with the same engine around it.

{table(["", "`ordered-groups` (6.17)", "`sure-fit`"], rows)}

In brackets: against `ordered-groups`, paired rounds, 95 % interval. In a tree that was built in, cold reads change by {change(cold(ours), cold("vanilla"))} against `vanilla` (5.13).

## What speaks against it

- On the model of a new disk, a tree is unpacked in {untar("hdd-new-untar", ours)} s, with `vanilla` in {untar("hdd-new-untar", "vanilla")}. It takes more requests to write; the cause is not known.
- A copy beside reads of a hot file regressed against `vanilla`: {copy} ([018](../experiments/018-mballoc-workloads/README.md)).
- On a cold, worn disk where nothing fits, a thousand requests read bitmaps {search("cold-none-fits", ours, "reads")} times, with `ordered-groups` {search("cold-none-fits", today, "reads")}.
- Where every file is synced, a modelled disk shows no difference between policies: the arm goes to the journal and back in any case.
- Room for growing files (32 times their size) is a part of the figures of extents. It is a change of its own, and not in this series.
- Nothing was measured in the kernel, and nothing on more than two real processors. The byte of a group is stored with its lock held, so the tree's nodes are
  the only lines that processors share. Whether that holds on 96 of them is a question for a real machine.
- `mb_stats` counts by criterion. With two criteria gone, the lines for them would have to stay, with zeros.

## How to try it without a kernel

```sh
extant lab run small-files --target engine:e.img,mb_locality_groups=16 --policy mb_policy=ordered-groups,sure-fit --size 4G --rounds 20
extant lab model group-search --set groups=16384 --set run_blocks=300 --set fill=98 --set known=1 --policy ordered-groups,sure-fit
```

The rules are in [policies](policies.md#sure-fit), the code is `crates/mballoc/src/group_choice/policy/sure_fit.rs` and `maxima.rs` beside it.
"""
