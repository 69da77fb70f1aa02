#!/usr/bin/env bash
# Before a worker's pod ends: stop its ranks with a checkpoint, and wait until they have ended.
#
# A signal to one rank is enough, because all ranks stop after the same step. The oldest process is a
# rank; later ones may be its children. The image has no procps, so /proc is searched.
set -uo pipefail

ranks() {
    grep -lsxz '[a]mp_xla' /proc/[0-9]*/cmdline | sed 's|/cmdline$||; s|.*/||' | sort -n
}

first=$(ranks | head -n 1)
[[ -n $first ]] || exit 0
kill -TERM "$first"
while [[ -n $(ranks) ]]; do sleep 1; done
