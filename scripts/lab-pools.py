#!/usr/bin/env python3
"""Record the pools of A/A trials that crates/lab/tests/trials/resampling.rs draws from.

    scripts/lab-pools.py [--extant PATH] [--trials 200] [--dir DIR] [memory] [file]

One contestant, again and again, with nothing recorded beside the clock. Writes crates/lab/tests/data/pool-NAME.json; the test
says afterwards whether the judge keeps its promises on it. Takes a quarter of an hour; what else the machine does
meanwhile is in the pool, and its load at the start and at the end is noted.
"""
import argparse, datetime, json, os, shutil, statistics, subprocess, sys, tempfile, math

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
POOLS = {
    "memory": ("the image is in memory", "engine:e.img,io=memory", ["--scale", "1", "--size", "512M"]),
    "file": ("the image is a file on a disk", "engine:e.img", ["--scale", "0.1", "--size", "256M"]),
}

def record(name, extant, trials, base):
    about, target, how = POOLS[name]
    work = tempfile.mkdtemp(prefix="lab-pool-", dir=base)
    command = ["lab", "run", "small-files", "--target", target, *how, "--rounds", str(trials), "--warmup", "3",
               "--record", "none", "--quiet", "-o", name]
    load = [os.getloadavg()[0]]
    try:
        subprocess.run([extant, *command], cwd=work, check=True, stdout=subprocess.DEVNULL)
        load.append(os.getloadavg()[0])
        with open(os.path.join(work, name, "trials.ndjson")) as f:
            lines = [json.loads(line) for line in f]
    finally:
        shutil.rmtree(work)
    bad = [t["outcome"] for t in lines if t["outcome"]["state"] == "failed"]
    if bad:
        sys.exit(f"lab-pools: {len(bad)} trials failed, the first: {bad[0]['why']}")
    first = lines[0]
    headline = first["workload"]["headline"]
    seconds = [p["seconds"] for t in lines for p in t["phases"] if p["name"] == headline]
    machine = first["environment"]
    pool = {
        "about": f"Seconds of the headline phase of {trials} trials of one contestant; {about}. "
                 f"Load of the machine before and after: {load[0]:.1f}, {load[1]:.1f}.",
        "command": " ".join(["extant", *command]),
        "date": datetime.date.today().isoformat(),
        "commit": machine["commit"],
        "kernel": machine["kernel"], "cpu": machine["cpu"], "cores": machine["cores"], "device": machine["device"],
        "workload": first["workload"],
        "seconds": seconds,
    }
    text = json.dumps({k: v for k, v in pool.items() if k != "seconds"}, indent=1)
    path = os.path.join(ROOT, "crates/lab/tests/data", f"pool-{name}.json")
    with open(path, "w") as f:
        f.write(text[:-2] + ',\n "seconds": ' + json.dumps(seconds) + "\n}\n")
    spread = statistics.stdev(math.log(s) for s in seconds)
    print(f"{os.path.relpath(path, ROOT)}: {len(seconds)} trials, median {statistics.median(seconds):.4f} s, "
          f"standard deviation of the logarithms {spread:.3f}")

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pools", nargs="*", default=[], help="memory, file; both unless given")
    p.add_argument("--extant", default=os.path.join(ROOT, "target/release/extant"))
    p.add_argument("--trials", type=int, default=200, help="the test wants 200")
    p.add_argument("--dir", default="/var/tmp", help="where the image of `file` lies")
    a = p.parse_args()
    for name in a.pools or POOLS:
        if name not in POOLS:
            sys.exit(f"lab-pools: no pool {name}; there are: {', '.join(POOLS)}")
        record(name, os.path.abspath(a.extant), a.trials, a.dir)

if __name__ == "__main__":
    main()
