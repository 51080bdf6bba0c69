#!/bin/sh
# Everything that must hold before a change lands: lint, the tests of every crate, the demonstration.
# The last lines add up what cargo test counted, and say which tests passed without having tried anything, and why.
set -u
cd "$(dirname "$0")/.."

begun=$(date +%s)
make --no-print-directory lint || exit 1
times="lint $(($(date +%s) - begun)) s"

mkdir -p target
log=target/test.log
: >"$log"
status=0
# run NAME COMMAND...
run() {
    name=$1 begun=$(date +%s)
    shift
    { "$@" 2>&1; echo "exit $?" >target/test.status; } | tee -a "$log" | without_successes
    [ "$(cat target/test.status)" = "exit 0" ] || status=1
    times="$times, $name $(($(date +%s) - begun)) s"
}
# The log has the output of tests that passed; on the terminal it would hide everything else.
without_successes() {
    awk '/^successes:$/ { quiet = 1 } /^failures:$|^test result:/ { quiet = 0 } !quiet { print; fflush() }'
}
# Programs side by side: most of them wait for a device, a timer or another program some of the time. Beside them: the library with
# the calls that every system has, and the Python package, whose wheel is built, installed and used.
run programs scripts/repeat.py --once --portable extant --also "python/wheel=scripts/python.sh --test"
run documentation cargo test --locked --workspace --no-fail-fast --doc
# Tests that mount, once more with requests through io_uring, where the kernel has it and this user may switch it on.
uring=/sys/module/fuse/parameters/enable_uring
if [ -w "$uring" ] && [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)" = 0 ]; then
    before=$(cat "$uring")
    trap 'echo "$before" >"$uring"' EXIT INT TERM
    echo Y >"$uring"
    # Not every program that mounts, because the whole must end within half an hour.
    run io_uring scripts/repeat.py --once --programs filesystem,pauses,stress,mount,mounting,sandbox,trouble
    echo "$before" >"$uring"
else
    echo "skipped: mounts over io_uring: $uring is missing or not writable, or io_uring is forbidden" | tee -a "$log"
fi
# What a newcomer runs first, up to the speeds.
run demonstration env EXTANT="${CARGO_TARGET_DIR:-target}/debug/extant" scripts/demo.sh --no-speeds

awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     /^---- .* stdout ----$/ { name = $2 }
     /^skipped/ { if (!(name in seen)) { seen[name]; skipped++; why[$0] = why[$0] " " name } }
     END {
         for (reason in why) printf "%s:%s\n", reason, why[reason]
         printf "%d passed, %d failed, %d ignored, %d of the passed skipped\n", passed, failed, ignored, skipped
     }' "$log"
echo "$times"
exit $status
