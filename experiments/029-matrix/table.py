#!/usr/bin/env python3
"""The lines of all matrices as one table: workloads by image and policy."""
import glob
import os
import re
import sys

LINE = re.compile(r"(\S+)\s+(REGRESSED|undecided|no regression)\s+\S+ ([+-][\d.]+) %")
MARK = {"REGRESSED": " **regressed**", "undecided": " ?", "no regression": ""}


def main():
    rows, columns = {}, []
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.txt"))):
        fill, seed, policy = os.path.basename(path)[:-4].split("-", 2)
        columns.append(f"`{policy}`, {fill} %, seed {seed}")
        with open(path) as file:
            for found in filter(None, map(LINE.match, file)):
                rows.setdefault(found[1], {})[columns[-1]] = found[3] + MARK[found[2]]
    print("Device seconds of the headline phase beside `vanilla`, per cent, + is faster; ?: undecided.\n")
    print("| workload | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for workload, row in rows.items():
        print(f"| {workload} | " + " | ".join(row[c] for c in columns) + " |")


if __name__ == "__main__":
    main()
