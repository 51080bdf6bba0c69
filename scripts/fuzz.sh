#!/bin/sh
# Runs each fuzz target for FUZZ_SECONDS (60), or only those named as arguments. With cargo-fuzz and a nightly toolchain
# through these; otherwise the targets are built with the stable compiler's own coverage instrumentation.
set -eu
cd "$(dirname "$0")/../fuzz"
seconds=${FUZZ_SECONDS:-60}
targets=$*
[ -n "$targets" ] || targets=$(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v '^extant-fuzz$')

mkdir -p artifacts
if cargo fuzz --version >/dev/null 2>&1 && cargo +nightly --version >/dev/null 2>&1; then
    for t in $targets; do
        cargo +nightly fuzz run "$t" -- -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048
    done
    exit 0
fi

host=$(rustc -vV | sed -n 's/^host: //p')
# --target keeps the instrumentation out of build scripts.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --release --target "$host" --bins
failed=
for t in $targets; do
    echo "== $t, $seconds s"
    mkdir -p "corpus/$t"
    # Its output goes to a file: the images complain about themselves on standard error, and that is what they should do.
    if ! "target/$host/release/$t" "corpus/$t" -artifact_prefix="artifacts/$t-" -max_total_time="$seconds" \
            -timeout=60 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 >"artifacts/$t.log" 2>&1; then
        failed="$failed $t"
        grep -a -A5 'panicked at\|ERROR: libFuzzer' "artifacts/$t.log" | head -n 20
    fi
    grep -a '^stat::number_of_executed_units' "artifacts/$t.log" || true
done
if [ -n "$failed" ]; then
    echo "fuzz: findings in:$failed (fuzz/artifacts)"
    exit 1
fi
echo "fuzz: no findings"
