#!/usr/bin/env python3
"""Modelled check time over turnovers, a line a policy, a panel a fill: draw.py POINTS.ndjson OUT.svg"""
import json
import sys

COLOURS = {"vanilla": "#6b7280", "inline": "#b45309", "metacluster": "#2563eb", "zones": "#059669"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 210, 170, 44, 46, 26


def main():
    points = {}
    with open(sys.argv[1]) as file:
        for line in file:
            p = json.loads(line)
            if p["seed"] == 1 and (p["phase"] == "fill" or p["phase"].startswith("turn-")):
                at = 0.0 if p["phase"] == "fill" else float(p["phase"][5:])
                points.setdefault((p["fill"], p["policy"]), []).append((at, p["check"]["e2fsck"]))
    fills = sorted({fill for fill, _ in points})
    policies = [p for p in COLOURS if any(name == p for _, name in points)]
    most = max(s for line in points.values() for _, s in line)
    last = max(t for line in points.values() for t, _ in line)
    step = next(s for s in (10, 20, 50, 100, 200) if most / s <= 6)
    top = step * (int(most / step) + 1)
    width = LEFT + len(fills) * (WIDTH + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 44}" font-family="sans-serif" font-size="11">',
           "<style>.t{fill:#111827}.g{stroke:#d1d5db}@media(prefers-color-scheme:dark){.t{fill:#e5e7eb}.g{stroke:#374151}}</style>",
           '<text class="t" x="4" y="14" font-size="13">e2fsck -fn on the disk of 2007, seconds (model), as 16 GiB of ext3 age</text>']
    x = LEFT
    for policy in policies:
        out.append(f'<line x1="{x}" y1="28" x2="{x + 18}" y2="28" stroke="{COLOURS[policy]}" stroke-width="2.5"/>')
        out.append(f'<text class="t" x="{x + 23}" y="32">{policy}</text>')
        x += 40 + 7 * len(policy)
    for panel, fill in enumerate(fills):
        x0 = LEFT + panel * (WIDTH + GAP)
        place = lambda t, s: (x0 + t / last * WIDTH, TOP + HEIGHT * (1 - s / top))  # noqa: B023, E731
        for s in range(0, top + 1, step):
            y = place(0, s)[1]
            out.append(f'<line class="g" x1="{x0}" y1="{y:.1f}" x2="{x0 + WIDTH}" y2="{y:.1f}" stroke-width="0.7"/>')
            if panel == 0:
                out.append(f'<text class="t" x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{s}</text>')
        for t in range(int(last) + 1):
            out.append(f'<text class="t" x="{place(t, 0)[0]:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{t}</text>')
        out.append(f'<text class="t" x="{x0 + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">turnovers, {fill} % full</text>')
        for policy in policies:
            line = sorted(points.get((fill, policy), []))
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(t, s) for t, s in line))
            out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[policy]}" stroke-width="2"/>')
    out.append("</svg>")
    with open(sys.argv[2], "w") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
