#!/usr/bin/env bash
# Build this project's image on a stand-in base, and train, stop and resume in it, as root and as a user.
#
#   scripts/standin_test.sh tf1|tf2
#
# scripts/standin_base.sh says what it needs, and makes the base if it is not there. What Docker itself
# does (mounts, users, signals) is buildah's here: chroot isolation, no daemon.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
runtime=${1:-}
image=localhost/amp_xla:$runtime-standin

buildah inspect --type image "localhost/standin:$runtime" >/dev/null 2>&1 ||
    scripts/standin_base.sh "$runtime"
revision=$(git describe --always --dirty=+ --abbrev=10 --match= 2>/dev/null || echo unknown)
buildah build --isolation chroot --layers=false --format docker \
    --build-arg "BASE_IMAGE=localhost/standin:$runtime" --build-arg "RUNTIME=$runtime" \
    --build-arg "REVISION=$revision" --tag "$image" .
container=$(buildah from "$image")
runs=$(mktemp -d)
trap 'rm -rf "$runs"; buildah rm "$container" >/dev/null' EXIT

# In the container: train until the first line of metrics, SIGTERM, resume, check, predict.
read -r -d '' lifetime <<'INSIDE' || true
set -eu
amp_xla() { python3 -m scripts.environment run --runtime "$RUNTIME" -- "$@"; }
train() {
    exec python3 -m scripts.environment run --runtime "$RUNTIME" --recipe classification -- \
        --layers 1 --hidden 64 --max-length 32 --epochs 3 --train-fraction 0.2 --log-every 1 \
        --name "$NAME" "$@"
}
(train) &
until [ -s "runs/classification/$NAME/metrics.jsonl" ]; do
    kill -0 $! || { echo "training ended before its first step" >&2; exit 1; }
    sleep 0.2
done
kill -TERM $!
code=0
wait $! || code=$?
[ $code = 143 ] || { echo "SIGTERM: exit $code, not 143" >&2; exit 1; }
(train --resume) 2>&1 | tee /tmp/resumed
grep -q "resumed from step-" /tmp/resumed
rm -f /tmp/resumed
amp_xla -m amp_xla verify --run "runs/classification/$NAME"
echo "Return the absolute path of a file." |
    amp_xla -m amp_xla predict --run "runs/classification/$NAME" --file /dev/stdin
INSIDE

for user in 0:0 12345:12345; do
    name=user-${user%:*}
    folder=$runs/$name
    mkdir -p "$folder"
    chown "$user" "$folder"
    chmod 755 "$runs"
    echo "== $image as $user" >&2
    buildah run --isolation chroot --user "$user" --env "NAME=$name" --env "RUNTIME=$runtime" \
        --env TF_CPP_MIN_LOG_LEVEL=2 --volume "$folder:/workspace/amp_xla/runs" "$container" \
        -- bash -c "$lifetime"
    run=$folder/classification/$name
    grep -q "\"revision\": \"$revision\"" "$run/run.json" ||
        { echo "error: run.json does not name revision $revision" >&2 && exit 1; }
    owners=$(find "$folder" -mindepth 1 -printf '%U\n' | sort -u)
    [[ $owners == "${user%:*}" ]] || { echo "error: files of users $owners" >&2 && exit 1; }
done
echo "standin $runtime: built, trained, stopped, resumed, verified, predicted as root and as a user"
