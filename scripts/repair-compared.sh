#!/bin/sh
# Makes docs/repair-compared.md: 120 damaged images, repaired beside e2fsck. EXTANT_IMAGES=N takes N of each of the
# twelve kinds instead of 10,
# and the file says how many it has.
set -eu
cd "$(dirname "$0")/.."
EXTANT_SUMMARY="$PWD/docs/repair-compared.md" exec "${CARGO:-cargo}" test --locked -p extant-repair --test compared -- --ignored soak
