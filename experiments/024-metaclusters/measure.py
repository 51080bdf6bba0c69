#!/usr/bin/env python3
"""Rows 1 to 5 of the mail of 2007, for each layout, on the disk that rows 2 to 4 of its vanilla ext3 gave the constants."""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import modelled  # noqa: E402

LAYOUTS = ["vanilla", "inline", "metacluster", "metacluster-begin", "metacluster-end", "metacluster-4", "zones"]
GIB = 1 << 30
# The mail's table, in seconds: vanilla, which put each indirect block in front of its data, and metaclusters.
THREAD = {"1": (189.0, 186.1), "2": (194.5, 194.5), "3": (236.4, 231.4), "4": (286.3, 284.4), "5": (738.1, 287.0)}
# Of row 5, user and system time: the model has none.
CPU = (34.2, 33.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--extant", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--policies", default=",".join(LAYOUTS))
    arguments = parser.parse_args()
    layouts = arguments.policies.split(",")
    lines = os.path.join(arguments.output, "figures.ndjson")
    text = os.path.join(arguments.output, "table.md")
    for path in (lines, text):
        if os.path.exists(path):
            os.remove(path)
    rows = {layout: {} for layout in layouts}
    shape = {}
    with open(lines, "w") as record, open(os.path.join(arguments.output, "trials.ndjson"), "w") as kept:
        image = os.path.join(arguments.directory, "set.img")
        modelled.make(image, 400 * GIB, ["-t", "ext3"])
        empty = modelled.check(arguments.extant, image, "hdd-2007")
        record.write(json.dumps({"row": 5, "layout": "no files", "check": empty}) + "\n")
        for layout in layouts:
            modelled.make(image, 400 * GIB, ["-t", "ext3"])
            point = modelled.work(arguments.extant, image, "--workload", "ext3-2007", "--scale", "0.92", "--check-on", "hdd-2007",
                                  options=[f"meta_policy={layout}"])[-1]
            record.write(json.dumps({"row": 5, "layout": layout, **point}) + "\n")
            rows[layout]["5, e2fsck"] = point["check"]["e2fsck"]
            rows[layout]["5, extant fsck"] = point["check"]["extant"]
            shape[layout] = point["layout"]
        os.remove(image)
        target = "device=hdd-2007,store=metadata,cache=1G"

        def run(workload, settings):
            return modelled.trials(arguments.extant, arguments.directory, workload, target, layouts, "400G", "-t ext3",
                                   ["processes=1", *settings], kept)

        for layout, phases in run("stream", [f"file_bytes={10 * GIB}"]).items():
            rows[layout]["1"] = phases["write"]["device_seconds"]
            rows[layout]["2"] = phases["read"]["device_seconds"]
        # 5 MB in reads of 512 bytes; 1 % of the file in reads of 512 KiB.
        for row, block, reads in (("3", 512, 10_240), ("4", 524_288, 6_144)):
            for layout, phases in run("random-read", [f"file_bytes={300 * GIB}", f"block_bytes={block}",
                                                      f"reads_per_process={reads}"]).items():
                rows[layout][row] = phases["read"]["device_seconds"]
    order = ["1", "2", "3", "4", "5, e2fsck", "5, extant fsck"]
    body = [["the mail: vanilla", *(f"{THREAD[r[0]][0]:.1f}" for r in order[:5]), ""],
            ["the mail: metaclusters", *(f"{THREAD[r[0]][1]:.1f}" for r in order[:5]), ""]]
    body.append(["no files", "", "", "", "", f"{empty['e2fsck']:.1f}", f"{empty['extant']:.1f}"])
    body += [[f"`{layout}`", *(f"{rows[layout][r]:.1f}" for r in order)] for layout in layouts]
    modelled.table(text, "Seconds, of the mail with its processor time and of the model without:",
                   ["layout", "1: write 10 GB", "2: read 10 GB", "3: random 512 B", "4: random 512 KB", "5: e2fsck", "5: `extant fsck`"],
                   body)
    if "inline" in rows and "metacluster" in rows:
        predicted = [(name, rows[layout]["5, e2fsck"] + cpu, THREAD["5"][i])
                     for i, (name, layout, cpu) in enumerate((("vanilla ext3", "inline", CPU[0]), ("metaclusters", "metacluster", CPU[1])))]
        modelled.table(text, "Row 5 as predicted, the mail's processor time added:", ["", "predicted", "the mail", "off"],
                       [[name, f"{p:.1f}", f"{t:.1f}", f"{100 * (p / t - 1):+.1f} %"] for name, p, t in predicted])
    modelled.table(text, "Where the map blocks of row 5's files lie:", ["layout", "map blocks", "runs", "runs a block", "jumps", "most in a group"],
                   [[f"`{layout}`", s["map_blocks"], s["map_runs"], f"{s['map_runs_per_block']:.3f}", s["map_jumps"], s["map_blocks_per_group_max"]]
                    for layout, s in shape.items()])


if __name__ == "__main__":
    main()
