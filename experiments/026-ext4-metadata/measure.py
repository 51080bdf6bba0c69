#!/usr/bin/env python3
"""Whether ext4 gains from zones: checks of a new and an aged image, and a cold walk through a tree, on modelled devices."""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import modelled  # noqa: E402

POLICIES = ["vanilla", "zones", "zones-all"]
DEVICES = ["hdd", "net-5ms"]
# A tree of 21,000 files; its names are looked at, and then its files read, cold and by one process.
TREE = ["processes=1", "files=21000"]


def main():
    parser = argparse.ArgumentParser()
    for name in ("extant", "directory", "output"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    text = os.path.join(arguments.output, "table.md")
    if os.path.exists(text):
        os.remove(text)
    image = os.path.join(arguments.directory, "ext4.img")
    rows = []
    with open(os.path.join(arguments.output, "figures.ndjson"), "w") as record:
        for policy in POLICIES:
            for turnovers in ("0", "4"):
                modelled.make(image, 16 << 30, ["-t", "ext4"])
                point = modelled.work(arguments.extant, image, "--fill", "90", "--turnovers", turnovers, options=[f"meta_policy={policy}"])[-1]
                checks = {device: modelled.check(arguments.extant, image, device) for device in DEVICES}
                record.write(json.dumps({"policy": policy, **point, "checks": checks}) + "\n")
                layout = point["layout"]
                seconds = [f"{checks[d][who]:.2f}" for d in DEVICES for who in ("e2fsck", "extant")]
                rows.append([f"`{policy}`, " + ("aged" if turnovers == "4" else "new"), layout["map_blocks"],
                             f"{layout['map_runs_per_block']:.2f}", layout["directory_blocks"], layout["directory_runs"], *seconds])
    os.remove(image)
    head = ["policy", "extent nodes", "runs a node", "blocks of directories", "runs"]
    head += [f"{who}, `{device}`" for device in DEVICES for who in ("e2fsck", "`extant fsck`")]
    modelled.table(text, "ext4, 16 GiB, 90 % full, four turnovers; checks in seconds:", head, rows)
    walks = {policy: [] for policy in POLICIES}
    with open(os.path.join(arguments.output, "trials.ndjson"), "w") as kept:
        for device in DEVICES:
            found = modelled.trials(arguments.extant, arguments.directory, "kernel-tree", f"device={device},store=metadata,cache=256M",
                                    POLICIES, "8G", "-t ext4", TREE, kept)
            for policy, phases in found.items():
                for phase in ("stat", "read"):
                    measures = phases[phase]
                    walks[policy] += [f"{measures['device_seconds']:.2f}", f"{measures['device_requests']:.0f}"]
    head = ["policy"] + [f"{what}, `{device}`" for device in DEVICES for what in ("`find`, s", "requests", "read, s", "requests")]
    modelled.table(text, "A tree of 21,000 files, cold, by one process:", head, [[f"`{p}`", *walks[p]] for p in POLICIES])


if __name__ == "__main__":
    main()
