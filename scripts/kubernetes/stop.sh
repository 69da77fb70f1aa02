#!/usr/bin/env bash
# Before a worker's pod ends: ask its ranks to stop in order, and wait until they have.
#
# One rank is enough, because all stop after the same step. The oldest process is one; others are what
# a rank has started. They are found by a word of their command line, without procps.
set -uo pipefail

ranks() {
    grep -lsxz '[a]mp_xla' /proc/[0-9]*/cmdline | sed 's|/cmdline$||; s|.*/||' | sort -n
}

first=$(ranks | head -n 1)
[[ -n $first ]] || exit 0
kill -TERM "$first"
while [[ -n $(ranks) ]]; do sleep 1; done
