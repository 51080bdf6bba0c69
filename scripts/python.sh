#!/bin/sh
# python.sh: builds the wheel of the Python package into target/python/dist. python.sh --test: and runs its tests.
# maturin and fsspec go into an environment below target/. Where Python or the network is missing, it says so and skips.
set -eu
cd "$(dirname "$0")/.."

top=${CARGO_TARGET_DIR:-target}/python
venv=$top/venv
skip() {
    echo "skipped: the Python package: $1"
    exit 0
}

command -v python3 >/dev/null 2>&1 || skip "no python3"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >/dev/null 2>&1 || skip "python3 has no module venv (package python3-venv)"
if ! "$venv/bin/python" -c 'import fsspec' 2>/dev/null || ! [ -x "$venv/bin/maturin" ]; then
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9.4,<2' fsspec >"$top/pip.log" 2>&1 ||
        skip "pip cannot install maturin (see $top/pip.log)"
fi

rm -rf "$top/dist"
profile=${PYTHON_PROFILE:-dev}
"$venv/bin/maturin" build --quiet --locked --profile "$profile" --manifest-path crates/python/Cargo.toml --out "$top/dist"
ls "$top"/dist/*.whl
[ "${1:-}" = --test ] || exit 0

"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$top"/dist/*.whl
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$venv/bin/python" crates/python/tests/t.py "$folder"
