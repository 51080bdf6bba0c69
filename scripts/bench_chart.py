#!/usr/bin/env python3
"""Draws the README's chart from a result of `make bench`: scripts/bench_chart.py docs/bench.json docs/speed.svg

Bars are median speeds relative to the kernel's ext4 in the same rounds, longer is faster, from zero. Four rows of the table,
chosen before they were measured: a tree unpacked, a tree listed cold, small files with fsync, a large file read.
"""
import json
import sys

ROWS = [("untar", "unpack a tree"), ("find", "list a tree, cold"), ("sync", "small files with fsync"), ("seqread", "read large files")]
TARGETS = [("kernel", "kernel ext4", "k"), ("extant", "Extant", "e"), ("fuse2fs", "fuse2fs", "f")]
WIDTH, LEFT, RIGHT, BAR, GAP = 720, 180, 70, 16, 14
STYLE = """text{font:14px sans-serif;fill:#1f2328}.k{fill:#8c959f}.e{fill:#1f6feb}.f{fill:#d4a72c}.axis{stroke:#8c959f}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.k{fill:#6e7681}.e{fill:#58a6ff}.f{fill:#d29922}}"""


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        result = json.load(f)
    ratio = lambda row, name: (result["work"][row]["median_and_ratio"][name] or [None, None])[1]
    longest = max(ratio(row, name) or 0 for row, _ in ROWS for name, _, _ in TARGETS)
    scale = (WIDTH - LEFT - RIGHT) / longest
    out, y = [], 34
    for i, (_, title, kind) in enumerate(TARGETS):
        x = LEFT + i * 150
        out.append(f'<rect class="{kind}" x="{x}" y="8" width="12" height="12"/><text x="{x + 18}" y="19">{title}</text>')
    top = y
    for row, title in ROWS:
        out.append(f'<text x="{LEFT - 12}" y="{y + BAR * 1.5 + 5:.0f}" text-anchor="end">{title}</text>')
        for name, _, kind in TARGETS:
            r = ratio(row, name)
            width = (r or 0) * scale
            shown = "failed" if r is None else f"{r:.2f}x"
            out.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}"/>'
                       f'<text x="{LEFT + width + 6:.1f}" y="{y + 12}">{shown}</text>')
            y += BAR
        y += GAP
    out.append(f'<path class="axis" d="M{LEFT} {top - 4}V{y - GAP + 2}"/>')
    note = f'Speed relative to the kernel’s ext4, longer is faster; medians of {result["rounds"]} rounds, commit {result["commit"]}'
    out.append(f'<text x="12" y="{y + 12}">{note}</text>')
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 22}" role="img">\n'
                f"<title>Speed relative to the kernel's ext4</title>\n<style>{STYLE}</style>\n" + "\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    main()
