#!/bin/sh
# Everything that must hold before a change lands: lint, the tests of every crate, the demonstration.
# The last line adds up what cargo test counted.
set -u
cd "$(dirname "$0")/.."

make --no-print-directory lint || exit 1

mkdir -p target
log=target/test.log
: >"$log"
status=0
run() {
    { "$@" 2>&1; echo "exit $?" >target/test.status; } | tee -a "$log"
    [ "$(cat target/test.status)" = "exit 0" ] || status=1
}
# --no-fail-fast: one failure must not hide the others.
run cargo test --locked --workspace --no-fail-fast
# What a newcomer runs first, up to the speeds.
run env EXTANT="${CARGO_TARGET_DIR:-target}/debug/extant" scripts/demo.sh --no-speeds

awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     END { printf "%d passed, %d failed, %d ignored\n", passed, failed, ignored }' "$log"
exit $status
