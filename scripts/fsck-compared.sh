#!/bin/sh
# Makes docs/fsck-compared.md: 6,300 damaged images, checked beside e2fsck.
set -eu
cd "$(dirname "$0")/.."
EXTANT_SUMMARY="$PWD/docs/fsck-compared.md" exec "${CARGO:-cargo}" test --locked -p extant-check --test compared -- --ignored soak
