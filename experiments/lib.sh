# Sourced by the `run` of each experiment: finds the binary, makes room for images, and leaves of each `lab run` its trials, its
# table and its report, with no path of this machine in them.
#
#     run [DIRECTORY]        results go there; else into results/ beside the script
#
# ROUNDS and SCALE change the committed numbers (to try the script out); EXTANT names another binary, TMPDIR another place
# for the images.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
extant=${EXTANT:-$root/target/release/extant}
out=${1:-$here/results}

[ -x "$extant" ] || { echo "no $extant: cargo build --release -p extant-cli" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/var/tmp}/extant-experiment.XXXXXX")
# The last lines name the results, or nothing does: an experiment that failed has none.
named() {
    [ "$1" -ne 0 ] || { echo "results:"; find "$out" -name table.txt -o -name report.html | sort | sed 's/^/    /'; } >&2
}
trap 'status=$?; rm -rf "$work"; named "$status"' EXIT
trap 'exit 130' INT TERM

# experiment NAME ARGUMENTS...: one `lab run` into $out (NAME: .) or $out/NAME. Images lie in $work. $figures, if it is set:
# `--figure`s, which the table judges as it does the headline.
experiment() {
    case $* in *kernel:*) [ "$(id -u)" -eq 0 ] || { echo "the kernel's driver is mounted: run this as root" >&2; exit 1; } ;; esac
    name=$1
    shift
    title=$(basename "$here")
    [ "$name" = . ] || title=$title-$name
    mkdir -p "$out/$name"
    # A trial that failed is in the results and in the table: both are wanted then, too.
    status=0
    (cd "$work" && "$extant" lab run "$@" --output "$work/raw-$title") || status=$?
    [ "$status" -eq 0 ] || [ "$status" -eq 8 ] || exit "$status"
    mkdir -p "$work/$title"
    sed -e "s|$extant|extant|g" -e "s|$work/raw-||g" -e "s|$work/||g" -e "s|$work|.|g" -e "s|$root/||g" "$work/raw-$title/trials.ndjson" >"$work/$title/trials.ndjson"
    # 3: something is worse than the baseline. That is a result.
    # shellcheck disable=SC2086
    (cd "$work" && { "$extant" lab compare ${figures:-} "$title" || [ $? -eq 3 ]; }) >"$out/$name/table.txt"
    (cd "$work" && "$extant" lab report "$title") >/dev/null
    cp "$work/$title/trials.ndjson" "$work/$title/report.html" "$out/$name/"
}

# model NAME MODEL ARGUMENTS...: one `lab model` into $out/NAME: counts, and times in ministat's form.
model() {
    name=$1
    shift
    mkdir -p "$out/$name"
    (cd "$work" && "$extant" lab model "$@" --output "$work/$name") >"$out/$name/table.txt"
    sed -e "s|$extant|extant|g" -e "s|$work/||g" -e "s|$work|.|g" "$work/$name/trials.ndjson" >"$out/$name/trials.ndjson"
}

# sweep NAME ARGUMENTS...: one `lab sweep` of a model that depends on the seed alone into $out/NAME. Its trials have no path of this machine, and
# the same bytes on all.
sweep() {
    name=$1
    shift
    mkdir -p "$out/$name"
    "$extant" lab sweep "$@" --jobs "$(nproc)" --quiet --output "$work/$name"
    cp "$work/$name/trials.ndjson" "$work/$name/report.html" "$out/$name/"
}
