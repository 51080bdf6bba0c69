#!/bin/sh
# The long tests: everything marked `#[ignore]`, in release, with tens of thousands of files and many seeds.
# EXTANT_SEEDS sets how many seeds the differential soak takes.
set -eu
cd "$(dirname "$0")/.."
export EXTANT_SEEDS="${EXTANT_SEEDS:-50}" EXTANT_SOAK=1
cargo build --locked --release -p extant-cli
# Thousands of damaged images of every kind.
cargo test --locked --release -p extant-fs --test hostile
exec cargo test --locked --release --workspace --no-fail-fast -- --ignored --test-threads=1
