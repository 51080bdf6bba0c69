#!/bin/sh
# What recording costs: instructions an operation under callgrind, the engine on an image in memory, one process.
#
#     scripts/lab-cost.sh [EXTANT]
#
# Each figure is the difference of a long and a short run, so that starting, mounting and the end of a trial drop out. It does not
# mind what else the machine does; when threads run in another order, though, commits hold other things, and a run may be some
# per cent off: each figure is the median of REPEAT. What it cannot see: the instructions of the kernel, and those of the clock
# in the vdso (valgrind reads it by a system call). Latencies are read off the time stamp counter; on a machine that has none
# that is fit, CLOCK=62 adds what two readings of the vdso's clock an operation cost.
set -eu
cd "$(dirname "$0")/.."
extant=${1:-target/release/extant}
short=${SHORT:-500}
long=${LONG:-4500}
clock=${CLOCK:-0}
repeat=${REPEAT:-3}
[ -x "$extant" ] || { echo "lab-cost: no $extant: cargo build --release -p extant-cli" >&2; exit 1; }
command -v valgrind >/dev/null || { echo "lab-cost: needs valgrind" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# instructions WORKLOAD FILES PARTS SETTINGS...
instructions() {
    workload=$1 files=$2 parts=$3
    shift 3
    rm -rf "$dir/result"
    # commit=: valgrind is slow, and a commit every five seconds would be one every few hundred operations.
    # toggle-collect: the calibration of the counter, once in a process, takes a time and not a number of instructions.
    valgrind --tool=callgrind --toggle-collect='std::sync::once::Once::call_once_force::{{closure}}' --collect-atstart=yes \
        --callgrind-out-file="$dir/out" "$extant" lab run "$workload" \
        --target "engine:$dir/e.img,io=memory,commit=600" --size 256M --rounds 1 --quiet --record "$parts" \
        --set processes=1 --set "$files" "$@" --output "$dir/result" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
    awk '/^(summary|totals):/ { print $2; exit }' "$dir/out"
}

# median FUNCTION ARGUMENTS...
median() {
    for _ in $(seq "$repeat"); do "$@"; done | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# row TITLE WORKLOAD COUNTER CALLS_A_FILE SETTINGS...
row() {
    title=$1 workload=$2 counter=$3 calls=$4
    shift 4
    none=
    for parts in none latency locks events latency,locks latency,locks,events; do
        a=$(median instructions "$workload" "$counter=$short" "$parts" "$@")
        b=$(median instructions "$workload" "$counter=$long" "$parts" "$@")
        case $parts in latency*) readings=2 ;; *) readings=0 ;; esac
        one=$(awk -v a="$a" -v b="$b" -v files=$((long - short)) -v calls="$calls" -v more=$((readings * clock)) \
            'BEGIN { printf "%.1f", (b - a) / files / calls + more }')
        none=${none:-$one}
        awk -v title="$title" -v parts="$parts" -v one="$one" -v none="$none" \
            'BEGIN { printf "%-22s %-22s %9.0f %+7.2f %%\n", title, parts, one, (one / none - 1) * 100 }'
    done
}

echo "work                   recorded               instructions an operation"
row "fsmark" fsmark files_per_process 6
row "small-files fsync=0" small-files count 4 --set fsync=0 --set batch=100
