#!/usr/bin/env python3
"""How old the kept results of each experiment are: experiments_age.py [--stamp | --check]

Prints for each experiment the commits of its trials and how many commits since have changed the code that it is about. --stamp writes the
line "**Run.** ..." of each README from its trials: commit, machine, date. --check: exit status 1 if such a line is not true, or a kept result is
not named in its README.
"""
import datetime
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The code that an experiment is about. What is not here is about all of what a mount runs.
EVERYTHING = ["crates/fs", "crates/es", "crates/cache", "crates/journal", "crates/mballoc", "crates/block"]
ABOUT = {
    "004": ["crates/es", "crates/fs/src/map/es"], "005": ["crates/es", "crates/fs/src/map/es"], "006": ["crates/es", "crates/fs/src/map/es"],
    "007": ["crates/es", "crates/fs/src/map", "crates/cache"], "008": ["crates/mballoc"], "009": ["crates/mballoc"], "010": ["crates/mballoc"],
    "012": ["crates/block/src/queue"], "018": ["crates/mballoc", "crates/fs"], "019": ["crates/mballoc"], "020": ["crates/cache"],
    "021": ["crates/lab/src/model/reclaim"], "022": ["crates/cache", "crates/fs"], "023": ["crates/check", "crates/ondisk"],
    "024": ["crates/mballoc", "crates/check", "crates/block/src/device"], "025": ["crates/mballoc", "crates/check"],
    "026": ["crates/mballoc"], "027": ["crates/mballoc"], "028": ["crates/mballoc"], "030": ["crates/build", "crates/ondisk"], "031": ["crates/mballoc", "crates/fs"],
    "037": ["experiments/037-linux"],
    "032": ["crates/block/src/queue", "crates/base/src/sim"], "034": ["crates/block/src/queue", "crates/base/src/sim"], "036": ["crates/cache"],
}


def git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()


def runs(folder):
    """(commit, machine, date) of every kept trial, each once, in order of time."""
    seen = {}
    for path in sorted(folder.glob("results/**/*.ndjson*")):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for line in file:
                trial = json.loads(line)
                environment = trial.get("environment")
                if not environment or not environment.get("commit"):
                    continue
                if not trial["started_s"]:
                    # A merged trial of a sweep of models: the same bytes on every machine.
                    seen[(environment["commit"][:10], "no machine in particular", "modelled")] = 0
                    continue
                machine = f"{environment['cores']} cores of an {environment['cpu']}, {round(environment['memory_bytes'] / 2**30)} GiB, Linux {environment['kernel'].split('-')[0]}"
                date = datetime.datetime.fromtimestamp(trial["started_s"], datetime.timezone.utc).strftime("%Y-%m-%d")
                key = (environment["commit"][:10], machine.replace("(R)", "").replace(" Processor", ""), date)
                seen[key] = min(trial["started_s"], seen.get(key, trial["started_s"]))
    return sorted(seen, key=seen.get)


def stamp(folder):
    """The line that says so; empty if no trial is kept."""
    machines = {}
    for commit, machine, date in runs(folder):
        machines.setdefault((machine, date), []).append(commit)
    each = [f"commit {', '.join(commits)} on {machine}, {date}" for (machine, date), commits in machines.items()]
    return f"**Run.** {'; '.join(each)}." if each else ""


def uncited(folder, text):
    """Kept results that the README does not name."""
    if re.search(r"results/[A-Z]", text):
        return []
    # What the README's own tables name is named.
    text += "".join(p.read_text(encoding="utf-8") for p in folder.glob("results/*.md"))
    results = sorted(p.name for p in (folder / "results").glob("*") if p.is_dir())
    return [name for name in results if f"results/{name}" not in text and f"`{name}" not in text and f"| {name}" not in text]


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    wrong = 0
    for folder in sorted((ROOT / "experiments").glob("[0-9][0-9][0-9]-*")):
        readme = folder / "README.md"
        line = stamp(folder)
        text = readme.read_text(encoding="utf-8") if readme.exists() else ""
        if mode in ("--stamp", "--check"):
            for name in uncited(folder, text):
                wrong += 1
                print(f"{readme.relative_to(ROOT)}: does not say what results/{name} shows")
            pattern = re.compile(r"^\*\*Run\.\*\* .*$\n\n?", re.MULTILINE)
            without = pattern.sub("", text)
            want = without.replace("**Verdict", f"{line}\n\n**Verdict", 1) if line else without
            if want != text:
                wrong += 1
                print(f"{readme.relative_to(ROOT)}: {'written' if mode == '--stamp' else 'its line **Run.** is not what its trials say'}")
                if mode == "--stamp":
                    readme.write_text(want, encoding="utf-8")
            continue
        about = ABOUT.get(folder.name[:3], EVERYTHING)
        commits = [commit for commit, *_ in runs(folder)]
        if not commits:
            print(f"{folder.name}: no trial says at which commit it was made")
            continue
        since = git("rev-list", "--count", f"{commits[-1]}..HEAD", "--", *about)
        print(f"{folder.name}: {commits[-1]}, {since or 'an unknown number of'} commits since in {', '.join(about)}")
    return 1 if mode == "--check" and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
