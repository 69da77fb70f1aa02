#!/usr/bin/env bash
# In the launcher's pod of an MPIJob: start COMMAND on each slot; at SIGTERM, stop all with a checkpoint.
#
#   launch.sh COMMAND...
#
# mpirun kills its ranks at SIGTERM, but forwards SIGUSR1 to them: they stop after their step with a
# checkpoint and return 0. This script then returns 143, so that Kubernetes starts the job again.
set -uo pipefail

# Each job has new host keys, which no known_hosts file can have.
ssh='-o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'
mpirun --allow-run-as-root --bind-to none --map-by slot --mca plm_rsh_args "$ssh" \
    --mca pml ob1 --mca btl ^openib -x PATH -x LD_LIBRARY_PATH -x PYTHONUNBUFFERED -x SOURCE_REVISION "$@" &
mpirun=$!
stopped=
trap 'stopped=1; kill -USR1 "$mpirun"' TERM
while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun"; done # a signal interrupts wait, not mpirun
wait "$mpirun"
code=$?
[[ -z $stopped || $code != 0 ]] || code=143
exit "$code"
