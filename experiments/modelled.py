"""What the experiments on modelled devices have in common: images, runs of `extant lab`, tables.

Images keep metadata alone, so that a disk of 400 GiB is a file of less than 1 GB. Device times are the model's: they follow
from the requests, are the same in every run, and do not depend on what else the machine does.
"""
import json
import os
import subprocess

UUID = "8f7e2a44-0d5c-4c7e-9a51-2007a11c0de5"


def sh(*command, **more):
    return subprocess.run([str(c) for c in command], check=True, text=True, **more)


def make(image, size, mkfs):
    """An empty image, the same bytes each time as far as where things go."""
    if os.path.exists(image):
        os.remove(image)
    with open(image, "wb") as file:
        file.truncate(size)
    sh("mke2fs", "-q", "-F", *mkfs, "-U", UUID, "-E", f"hash_seed={UUID},lazy_itable_init=0", image)


def work(extant, image, *arguments, options=(), settings=()):
    """`extant lab age` on the image: its points."""
    out = image + ".ndjson"
    command = [extant, "lab", "age", image, "--quiet", "--store", "metadata", "--json", out, *arguments]
    command += [a for o in options for a in ("--option", o)] + [a for s in settings for a in ("--set", s)]
    sh(*command, stdout=subprocess.DEVNULL)
    with open(out) as file:
        points = [json.loads(line) for line in file]
    os.remove(out)
    return points


def check(extant, image, device):
    """Seconds that the device would take for a check by e2fsck and by Extant."""
    command = [extant, "lab", "check-time", image, "--device", device, "--e2fsck", "--json"]
    said = json.loads(sh(*command, stdout=subprocess.PIPE).stdout)
    return {who: said[who]["device_seconds"] for who in ("e2fsck", "extant")}


def trials(extant, directory, workload, target, policies, size, mkfs, settings, record):
    """`extant lab run`, one round: times of the model need no second one. The figures of each policy's phases, and of the trial."""
    out = os.path.join(directory, "run")
    image = os.path.join(directory, "e.img")
    sh(extant, "lab", "run", workload, "--target", f"engine:{image},{target}", "--policy", "meta_policy=" + ",".join(policies),
       "--mkfs", mkfs, "--size", size, "--rounds", "1", "--warmup", "0", "--quiet", "--record", "none", "--output", out,
       *[a for s in settings for a in ("--set", s)], stdout=subprocess.DEVNULL)
    found = {}
    with open(os.path.join(out, "trials.ndjson")) as file:
        for line in file:
            trial = json.loads(line)
            if trial["outcome"]["state"] != "checked":
                raise SystemExit(f"{workload}: {trial['outcome']}")
            policy = trial["contestant"]["label"].rsplit("meta_policy=", 1)[1]
            found[policy] = {p["name"]: p.get("measures", {}) for p in trial["phases"]} | {"trial": trial["measures"]}
            record.write(line.replace(directory + "/", ""))
    sh("rm", "-r", out)
    return found


def table(path, title, head, rows):
    """A table in Markdown."""
    with open(path, "a") as file:
        file.write(f"{title}\n\n| " + " | ".join(head) + " |\n|---|" + "---:|" * (len(head) - 1) + "\n")
        for row in rows:
            file.write("| " + " | ".join(str(c) for c in row) + " |\n")
        file.write("\n")
