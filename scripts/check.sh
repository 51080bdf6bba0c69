#!/bin/sh
# What one wants to know again and again while writing: format, the rules of the house, clippy, and the tests of the
# packages that have changed since BASE (a commit; without it, since the branch left its upstream, or HEAD). Tests that
# took more than ten seconds the last time are left out and named, as are the packages above. `make test` runs all.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
BASE=${BASE:-$(git merge-base HEAD "@{upstream}" 2>/dev/null || echo HEAD)}

# Packages with files that differ from BASE, those included that git does not know yet.
changed=$({ git diff --name-only "$BASE" --; git ls-files --others --exclude-standard; } |
    sed -n -e 's|^crates/\([^/]*\)/.*|\1|p' -e 's|^xtask/.*|xtask|p' | sort -u)
# One that was removed is no package any more.
packages=
folders=
for name in $changed; do
    manifest=crates/$name/Cargo.toml
    [ "$name" != xtask ] || manifest=xtask/Cargo.toml
    [ -e "$manifest" ] || continue
    packages="$packages --package $(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)"
    folders="$folders,$name"
done

$CARGO fmt --all --check
$CARGO xtask tidy
if [ -z "$packages" ]; then
    echo "check: no package has changed since $BASE"
    exit 0
fi
# Word splitting is wanted: each is an argument.
# shellcheck disable=SC2086
$CARGO clippy --locked $packages --all-targets -- -D warnings
log=target/check.log
scripts/repeat.py --once --only "${folders#,}" --shorter 10 >"$log" 2>&1 || { cat "$log"; exit 1; }
sed -n '/ of a processor$/,$p' "$log"
