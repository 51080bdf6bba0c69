#!/usr/bin/env python3
"""Fills 16 GiB of ext3 to 85 % with files of one size, and asks where their indirect blocks lie and what a check takes."""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import modelled  # noqa: E402

POLICIES = ["vanilla", "inline", "metacluster", "zones"]
GROUPS = 128


def main():
    parser = argparse.ArgumentParser()
    for name in ("extant", "directory", "output", "sizes"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    text = os.path.join(arguments.output, "table.md")
    if os.path.exists(text):
        os.remove(text)
    image = os.path.join(arguments.directory, "sizes.img")
    rows = []
    with open(os.path.join(arguments.output, "figures.ndjson"), "w") as record, \
            open(os.path.join(arguments.output, "trials.ndjson"), "w") as kept:
        for kib in (int(k) for k in arguments.sizes.split(",")):
            settings = ["sizes=fixed", f"mean_bytes={kib << 10}"]
            points = {}
            for policy in POLICIES:
                modelled.make(image, 16 << 30, ["-t", "ext3"])
                points[policy] = modelled.work(arguments.extant, image, "--fill", "85", "--turnovers", "0", "--check-on", "hdd-2007",
                                               options=[f"meta_policy={policy}"], settings=settings)[-1]
                record.write(json.dumps({"policy": policy, "kib": kib, **points[policy]}) + "\n")
            # The same again for what the allocator counts.
            counted = modelled.trials(arguments.extant, arguments.directory, "age", "store=metadata,exact", ["metacluster", "zones"], "16G",
                                      "-t ext3", ["turnovers=0", "fill=85", "image_bytes=17179869184", *settings], kept)
            overflow = {}
            for policy, phases in counted.items():
                hits, over = (phases["trial"][f"mballoc_zone_{what}"] for what in ("hits", "overflows"))
                overflow[policy] = f"{100 * over / (hits + over):.1f} %" if hits + over else "-"
            size = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
            blocks = points["vanilla"]["layout"]["map_blocks"]
            rows.append([size, f"{blocks / GROUPS:.1f}", overflow["metacluster"], overflow["zones"],
                         *(f"{points[p]['layout']['map_runs']}" for p in POLICIES), *(f"{points[p]['check']['e2fsck']:.1f}" for p in POLICIES),
                         *(f"{points[p]['check']['extant']:.1f}" for p in POLICIES)])
    os.remove(image)
    head = ["files of", "indirect blocks a group", "outside of metaclusters", "of zones"]
    head += [f"{what}, `{p}`" for what in ("runs", "e2fsck", "extant fsck") for p in POLICIES]
    modelled.table(text, "16 GiB, 85 % full; checks in seconds on `hdd-2007`:", head, rows)


if __name__ == "__main__":
    main()
