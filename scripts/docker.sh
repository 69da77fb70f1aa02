#!/usr/bin/env bash
# docker build and docker run for this project: what `make docker-*` calls.
#
#   docker.sh build
#   docker.sh train --recipe NAME -- ARGUMENTS OF THE RECIPE
#   docker.sh test -- ARGUMENTS OF PYTEST
#   docker.sh shell [-- COMMAND]
#
# From the environment: RUNTIME (auto, tf1, tf2), BASE_IMAGE, IMAGE (its name when built), GPUS (all,
# none, or indices: 0,1), DATA (folders to mount read-only, at the same path), RUNS (default: runs).
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
repository=nvcr.io/nvidia/tensorflow
tf1_image=$repository:23.03-tf1-py3
tf2_image=$repository:25.02-tf2-py3
workspace=/workspace/amp_xla

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '  %s\n' "$@" >&2
    exit 2
}

choose_image() { # sets runtime, base_image and image
    runtime=${RUNTIME:-auto}
    base_image=${BASE_IMAGE:-}
    local named=
    case $base_image in
        *tf1*) named=tf1 ;;
        *tf2*) named=tf2 ;;
    esac
    case $runtime in
        auto)
            # An image whose name doesn't say is taken as it comes; no image means tf1's.
            [[ -n $base_image ]] || named=tf1
            runtime=${named:-auto}
            ;;
        tf1 | tf2)
            [[ -z $named || $named == "$runtime" ]] ||
                fail "RUNTIME=$runtime, but BASE_IMAGE=$base_image is a $named image." \
                    "Say RUNTIME=$named, or leave BASE_IMAGE out."
            ;;
        *) fail "RUNTIME=$runtime is unknown in a container. Allowed: auto, tf1, tf2." ;;
    esac
    if [[ -z $base_image ]]; then
        base_image=$tf1_image
        [[ $runtime != tf2 ]] || base_image=$tf2_image
    fi
    image=${IMAGE:-amp_xla:$runtime}
}

check_docker() {
    command -v docker >/dev/null ||
        fail "docker is not installed: https://docs.docker.com/engine/install/" \
            "Without it: make train"
    local message
    if ! message=$(docker info 2>&1 >/dev/null); then
        case $message in
            *"permission denied"*)
                fail "this user may not talk to Docker." \
                    "Next: sudo usermod -aG docker ${USER:-\$USER}, log in again, the same command."
                ;;
            *)
                fail "Docker's daemon does not answer: ${message##*$'\n'}" \
                    "Next: sudo systemctl start docker, then the same command. Without it: make train"
                ;;
        esac
    fi
}

build() {
    printf 'building %s from %s (its first download is about 6 GB) ...\n' "$image" "$base_image" >&2
    docker build --build-arg "BASE_IMAGE=$base_image" --build-arg "RUNTIME=$runtime" \
        --tag "$image" "$root" ||
        fail "docker build failed; its message is above." \
            "If it could not pull $base_image: docker pull $base_image"
}

check_recipe() {
    [[ -f $root/recipes/$1.py && $1 != _* ]] && return
    local known=() file
    for file in "$root"/recipes/[!_]*.py; do
        [[ ! -f $file ]] || known+=("$(basename "$file" .py)")
    done
    fail "RECIPE=$1 is unknown. Recipes: ${known[*]:-none}."
}

gpu_options() { # sets gpus
    case ${GPUS:-all} in
        none) gpus=() ;;
        all) gpus=(--gpus all) ;;
        # Docker reads this value as CSV, so a list of devices needs quotes of its own.
        *[!0-9,]*) fail "GPUS=$GPUS is not understood. Allowed: all, none, or indices as in 0,1." ;;
        *) gpus=(--gpus "\"device=$GPUS\"") ;;
    esac
}

check_gpus() {
    ((${#gpus[@]})) || return 0
    local message
    if message=$(docker run --rm "${gpus[@]}" --entrypoint nvidia-smi "$image" -L 2>&1); then
        printf '%s\n' "$message" >&2
        return
    fi
    printf '%s\n' "$message" >&2
    case $message in
        *"could not select device driver"* | *"nvidia-container-cli"* | *"unresolvable CDI"*)
            fail "Docker can't reach an NVIDIA GPU." \
                "Next: install the NVIDIA Container Toolkit, then" \
                "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker" \
                "On a machine without a GPU: GPUS=none"
            ;;
        *) fail "nvidia-smi failed in $image (above). Next: nvidia-smi on the host; or GPUS=none" ;;
    esac
}

run() { # run COMMAND...: in the image, as this user
    local options=(
        --rm --init "${gpus[@]}"
        # Data loaders' shared memory and pinned buffers: what NVIDIA's images ask for.
        --ipc=host --ulimit memlock=-1 --ulimit stack=67108864
        --user "$(id -u):$(id -g)"
        --volume "$runs:$workspace/runs"
    )
    local folder name
    for folder in ${DATA:-}; do
        [[ -e $folder ]] || fail "DATA=$folder does not exist."
        folder=$(realpath "$folder")
        options+=(--volume "$folder:$folder:ro")
    done
    # Settings travel; `--env NAME` takes the value from here.
    while IFS= read -r name; do
        case $name in
            AMP_XLA_* | TF_* | XLA_FLAGS | NVIDIA_TF32_OVERRIDE | CUDA_VISIBLE_DEVICES)
                options+=(--env "$name")
                ;;
        esac
    done < <(compgen -e)
    [[ ! -t 0 ]] || options+=(--interactive)
    [[ ! -t 0 || ! -t 1 ]] || options+=(--tty)
    exec docker run "${options[@]}" "$image" "$@"
}

action=${1:-}
[[ $# -eq 0 ]] || shift
recipe=
if [[ ${1:-} == --recipe ]]; then
    recipe=${2:-}
    shift 2
fi
[[ ${1:-} != -- ]] || shift

case $action in
    build | train | test | shell) ;;
    *) fail "docker.sh ${action:-without an action}: build, train, test or shell." ;;
esac
[[ $action != train ]] || check_recipe "$recipe"
gpu_options
choose_image
check_docker
build
[[ $action != build ]] || exit 0
check_gpus
runs=$(realpath -m "${RUNS:-$root/runs}")
mkdir -p "$runs"
launch=(python3 -m scripts.environment run --runtime "$runtime")
case $action in
    train) run "${launch[@]}" --recipe "$recipe" -- "$@" ;;
    test) run "${launch[@]}" -- -m pytest -p no:cacheprovider "$@" ;;
    shell)
        if (($#)); then run "$@"; else run bash; fi
        ;;
esac
