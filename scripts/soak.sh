#!/bin/sh
# The long tests: damaged images by the thousand, and every ignored test whose name contains "soak" (tens of thousands of
# files, many seeds, many crash states, the bounds of memory), in release.
# EXTANT_SEEDS: seeds of the differential tests; EXTANT_CRASH_ROUNDS: workloads of the crash explorer.
set -eu
cd "$(dirname "$0")/.."
export EXTANT_SEEDS="${EXTANT_SEEDS:-50}" EXTANT_SOAK=1
cargo build --locked --release -p extant-cli
# Thousands of damaged images of every kind.
cargo test --locked --release -p extant-fs --test hostile
exec cargo test --locked --release --workspace --no-fail-fast -- --ignored --test-threads=1 soak
