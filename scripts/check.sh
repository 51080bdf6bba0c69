#!/bin/sh
# What one wants to know again and again while writing: format, the rules of the house, clippy, and the unit tests of
# the packages that have changed since BASE (a commit; without it, since the branch left its upstream, or HEAD).
# `make test` says everything.
set -eu
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
BASE=${BASE:-$(git merge-base HEAD "@{upstream}" 2>/dev/null || echo HEAD)}

# Packages with files that differ from BASE, those included that git does not know yet.
changed=$({ git diff --name-only "$BASE" --; git ls-files --others --exclude-standard; } |
    sed -n -e 's|^crates/\([^/]*\)/.*|extant-\1|p' -e 's|^xtask/.*|xtask|p' | sort -u)
# One that was removed is no package any more.
packages=
for name in $changed; do
    if [ -e "crates/${name#extant-}/Cargo.toml" ] || [ "$name" = xtask ]; then
        packages="$packages --package $name"
    fi
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
# shellcheck disable=SC2086
$CARGO test --locked $packages --lib --bins --quiet
