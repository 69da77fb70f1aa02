#!/usr/bin/env bash
# In the launcher's pod of an MPIJob: start COMMAND on every slot, and stop all in order at SIGTERM.
#
#   launch.sh COMMAND...
#
# mpirun kills its ranks at SIGTERM, but hands SIGUSR1 on to them: they stop after their step with a
# checkpoint and return 0. This returns 143 then, so that Kubernetes does not call the job done.
set -uo pipefail

# The keys of the pods are new in every job, so no known_hosts has them.
ssh='-o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'
mpirun --allow-run-as-root --bind-to none --map-by slot --mca plm_rsh_args "$ssh" \
    --mca pml ob1 --mca btl ^openib -x PATH -x LD_LIBRARY_PATH -x PYTHONUNBUFFERED -x SOURCE_REVISION "$@" &
mpirun=$!
stopped=
trap 'stopped=1; kill -USR1 "$mpirun"' TERM
while kill -0 "$mpirun" 2>/dev/null; do wait "$mpirun"; done # a trap ends wait, not mpirun
wait "$mpirun"
code=$?
[[ -z $stopped || $code != 0 ]] || code=143
exit "$code"
