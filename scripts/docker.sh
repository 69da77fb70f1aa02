#!/usr/bin/env bash
# Build an image and run commands in it with docker, podman or apptainer. `make docker-*` calls it.
#
#   docker.sh build
#   docker.sh train --recipe NAME -- FLAGS OF THE RECIPE
#   docker.sh shell [-- COMMAND]
#
# Variables: RUNTIME (auto, tf1, tf2), BASE_IMAGE, IMAGE (name of the image to build), GPUS (all, none,
# or indices like 0,1), DATA (folders to mount read-only at the same path), RUNS (folder for runs;
# default: runs), NP (number of ranks), ENGINE (docker, podman, apptainer; default: docker, else podman).
#
# Files after --train, --dev, --bert, --vocab, --data, --file, --corpus or --warm-start, and the file of
# an own recipe, are mounted read-only at the same path, and the folder after --out writable. RUNS is
# always mounted.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
repository=nvcr.io/nvidia/tensorflow
tf1_image=$repository:23.03-tf1-py3
tf2_image=$repository:25.02-tf2-py3
workspace=/workspace/amp_xla
# Settings of TensorFlow, CUDA, NCCL and Horovod. Not every TF_*, as Terraform stores secrets there.
settings='^(AMP_XLA_[A-Z_]+|TF_(CPP|XLA|ENABLE|DISABLE|GPU|CUDNN|FORCE_GPU|NUM|USE|DETERMINISTIC)_\w+'
settings+='|TF_(AUTO_MIXED_PRECISION\w*|KERAS|CONFIG)|XLA_FLAGS|NVIDIA_TF32_OVERRIDE'
settings+='|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|CACHE_\w+|LAUNCH_BLOCKING)|(NCCL|HOROVOD|KMP|OMP)_\w+)$'
stop_seconds=300 # for writing a checkpoint; that of BERT-large has 4 GB

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '  %s\n' "$@" >&2
    exit 2
}

choose_engine() { # sets engine
    engine=${ENGINE:-docker}
    if [[ -z ${ENGINE:-} ]] && ! command -v docker >/dev/null && command -v podman >/dev/null; then
        engine=podman
    fi
    [[ $engine =~ ^(docker|podman|apptainer)$ ]] ||
        fail "ENGINE=$engine is unknown. Allowed: docker, podman, apptainer."
    local page=https://docs.docker.com/engine/install/
    [[ $engine != podman ]] || page=https://podman.io/docs/installation
    [[ $engine != apptainer ]] || page=https://apptainer.org/docs/admin/main/installation.html
    command -v "$engine" >/dev/null ||
        fail "$engine is not installed: $page" \
            "Without it: make train; docs/servers.md has podman, Apptainer and enroot."
}

choose_image() { # sets runtime, base_image and image
    runtime=${RUNTIME:-auto} base_image=${BASE_IMAGE:-}
    local of_name=
    [[ $base_image != *tf1* ]] || of_name=tf1
    [[ $base_image != *tf2* ]] || of_name=tf2
    [[ $runtime =~ ^(auto|tf1|tf2)$ ]] ||
        fail "RUNTIME=$runtime is unknown in a container. Allowed: auto, tf1, tf2."
    [[ $runtime == auto || -z $of_name || $of_name == "$runtime" ]] ||
        fail "RUNTIME=$runtime, but BASE_IMAGE=$base_image is a $of_name image." \
            "Give RUNTIME=$of_name, or leave BASE_IMAGE out."
    if [[ $runtime == auto ]]; then # auto stays if the image name does not show it; no image: tf1
        [[ -n $base_image ]] && runtime=${of_name:-auto} || runtime=tf1
    fi
    [[ -n $base_image ]] || { [[ $runtime == tf2 ]] && base_image=$tf2_image || base_image=$tf1_image; }
    image=${IMAGE:-amp_xla:$runtime}
    check_name BASE_IMAGE "$base_image"
    check_name IMAGE "$image"
}

check_name() { # check_name VARIABLE IMAGE: refuse what docker could read as an option
    [[ $2 =~ ^[A-Za-z0-9][A-Za-z0-9._/:@-]*$ ]] ||
        fail "$1=$2 is not an image's name. Names look like $tf1_image."
}

check_recipe() { # check_recipe RECIPE: extends readable; sets recipe to the path in the container
    if [[ $1 == *.py ]]; then
        [[ -f $1 ]] || fail "RECIPE=$1: there is no such file."
        recipe=$(realpath -s -- "$1")
        if [[ $recipe == "$root"/recipes/* ]]; then recipe=${recipe#"$root"/}; else readable+=("$recipe"); fi
        return
    fi
    [[ -f $root/recipes/$1.py && $1 != _* ]] && return
    local known=() file
    for file in "$root"/recipes/[!_]*.py; do known+=("$(basename "$file" .py)"); done
    fail "RECIPE=$1 is unknown. Recipes: ${known[*]:-none}."
}

check_engine() {
    [[ $engine != apptainer ]] || return 0 # it has no daemon
    local message
    message=$("$engine" info 2>&1 >/dev/null) && return
    [[ $engine == docker ]] || fail "$engine does not answer: ${message##*$'\n'}" "Without it: make train"
    [[ $message != *"permission denied"* ]] ||
        fail "this user may not use Docker." \
            "Next: sudo usermod -aG docker ${USER:-\$USER}, log in again, the same command." \
            "If that is not allowed: ENGINE=podman, or docs/servers.md."
    fail "$engine does not answer: ${message##*$'\n'}" \
        "Next: sudo systemctl start docker, then the same command. Without it: make train"
}

build() {
    local revision name
    revision=$(git -C "$root" describe --always --dirty=+ --abbrev=10 --match= 2>/dev/null || echo unknown)
    if [[ $engine == apptainer ]]; then
        build_sif "$revision"
        return
    fi
    # The second tag has the revision, which a run's run.json also has. A tag cannot contain +.
    name=${image%@*}
    [[ ${name##*/} != *:* ]] || name=${name%:*}
    printf 'building %s from %s (its first download is about 6 GB) ...\n' "$image" "$base_image" >&2
    "$engine" build --build-arg "BASE_IMAGE=$base_image" --build-arg "RUNTIME=$runtime" \
        --build-arg "REVISION=$revision" \
        --tag "$image" --tag "$name:$runtime-${revision//+/-changed}" "$root" ||
        fail "$engine build failed; its message is above." \
            "If it could not pull $base_image: $engine pull $base_image"
}

build_sif() { # build_sif REVISION: builds a file once per base and revision; sets image
    image=$root/.cache/apptainer/$runtime-$(basename "${base_image//[:@]/-}")-$1.sif
    [[ $1 == *+ || $1 == unknown || ! -e $image ]] || return 0
    mkdir -p "${image%/*}"
    printf 'building %s from %s (its first download is about 6 GB) ...\n' "$image" "$base_image" >&2
    (cd "$root" && apptainer build --force --build-arg "BASE_IMAGE=$base_image" \
        --build-arg "RUNTIME=$runtime" --build-arg "REVISION=$1" "$image" scripts/apptainer.def) ||
        fail "apptainer build failed; its message is above." \
            "If it may not create user namespaces: build on another machine, and copy $image."
}

gpu_options() { # sets gpus
    local device
    case ${GPUS:-all} in
        none) gpus=() ;;
        all) [[ $engine == podman ]] && gpus=(--device nvidia.com/gpu=all) || gpus=(--gpus all) ;;
        *[!0-9,]*) fail "GPUS=$GPUS is unknown. Allowed: all, none, or indices as in 0,1." ;;
        *)
            gpus=(--gpus "\"device=$GPUS\"") # Docker reads CSV, so a list needs quotes
            [[ $engine == podman ]] || return 0
            gpus=()
            for device in ${GPUS//,/ }; do gpus+=(--device "nvidia.com/gpu=$device"); done
            ;;
    esac
}

check_gpus() {
    ((${#gpus[@]})) || return 0
    local probe=("$engine" run --rm "${gpus[@]}" --entrypoint nvidia-smi "$image" -L) message
    [[ $engine != apptainer ]] || probe=(apptainer exec --nv "$image" nvidia-smi -L)
    message=$("${probe[@]}" 2>&1) && printf '%s\n' "$message" >&2 && return
    printf '%s\n' "$message" >&2
    case $message in
        *"could not select device driver"* | *"nvidia-container-cli"* | *"unresolvable CDI"*)
            local setup="runtime configure --runtime=docker && sudo systemctl restart docker"
            [[ $engine != podman ]] || setup="cdi generate --output=/etc/cdi/nvidia.yaml"
            fail "$engine cannot use an NVIDIA GPU." \
                "Next: install the NVIDIA Container Toolkit, then" "sudo nvidia-ctk $setup" \
                "On a machine without a GPU: GPUS=none"
            ;;
        *) fail "nvidia-smi failed in $image (above). Next: nvidia-smi on the host; or GPUS=none" ;;
    esac
}

data_folders() { # adds DATA to readable
    local folders=() folder
    if [[ -e ${DATA:-} ]]; then # one folder, whose name may have spaces
        folders=("$DATA")
    else
        read -r -d '' -a folders <<<"${DATA:-}" || true
    fi
    for folder in "${folders[@]}"; do
        [[ -e $folder ]] || fail "DATA=$folder does not exist."
        readable+=("$(realpath -- "$folder")")
    done
}

place_files() { # place_files ARGUMENT...: sets arguments with paths of the container; extends readable and writable
    local word flag=''
    for word in "$@"; do
        if [[ $word == --*=* ]]; then
            place_file "${word%%=*}" "${word#*=}"
            arguments+=("${word%%=*}=$placed")
            flag=
        elif [[ $word == --* ]]; then
            flag=$word
            arguments+=("$word")
        else
            place_file "$flag" "$word"
            arguments+=("$placed")
        fi
    done
}

place_file() { # place_file FLAG VALUE: sets placed, the path in the container
    placed=$2
    [[ $1 =~ ^--(train|dev|bert|vocab|data|file|corpus|warm-start|out)$ && -n $2 && $2 != - ]] || return 0
    local path
    path=$(realpath -m -- "$2")
    placed=$path
    if [[ $path == "$runs" || $path == "$runs"/* ]]; then
        placed=$workspace/runs${path#"$runs"}
    elif [[ $1 == --out ]]; then
        mkdir -p -- "$path"
        writable+=("$path")
    else
        [[ -e $path ]] ||
            fail "$1 $2: no such file or folder here, so it cannot be mounted." \
                "DATA=<folder> mounts other folders."
        readable+=("$path")
    fi
}

run_sif() { # run_sif COMMAND...: runs in the image as this user, with settings as its only variables
    local options=(--cleanenv --pwd "$workspace" --bind "$runs:$workspace/runs") path name
    ((${#gpus[@]} == 0)) || options+=(--nv)
    for path in "${readable[@]}"; do options+=(--bind "$path:$path:ro"); done
    for path in "${writable[@]}"; do options+=(--bind "$path:$path"); done
    for name in "${passed[@]}"; do options+=(--env "$name=${!name}"); done
    exec apptainer exec "${options[@]}" "$image" "$@"
}

run() { # run COMMAND...: runs in the image as this user
    local passed=() name folder
    [[ $engine != apptainer || ! ${GPUS:-all} =~ ^[0-9] ]] || export CUDA_VISIBLE_DEVICES=$GPUS
    while IFS= read -r name; do
        [[ ! $name =~ $settings ]] || passed+=("$name")
    done < <(compgen -e)
    [[ $engine != apptainer ]] || run_sif "$@"
    local options=(
        --rm --init "${gpus[@]}"
        --ipc=host # shared memory for data loaders, as NVIDIA recommends
        --stop-timeout "$stop_seconds"
        --user "$(id -u):$(id -g)"
    )
    if [[ $engine == podman ]] && (($(id -u) != 0)); then
        options+=(--userns keep-id) # otherwise files would belong to an unknown user
    else
        options+=(--ulimit memlock=-1 --ulimit stack=67108864) # for pinned buffers
    fi
    options+=(--volume "$runs:$workspace/runs")
    for folder in "${readable[@]}"; do options+=(--volume "$folder:$folder:ro"); done
    for folder in "${writable[@]}"; do options+=(--volume "$folder:$folder"); done
    for name in "${passed[@]}"; do options+=(--env "$name"); done
    [[ ! -t 0 ]] || options+=(--interactive)
    [[ ! -t 0 || ! -t 1 ]] || options+=(--tty)
    exec "$engine" run "${options[@]}" "$image" "$@"
}

action=${1:-} recipe=
[[ $# -eq 0 ]] || shift
if [[ ${1:-} == --recipe ]]; then
    recipe=${2:-}
    shift 2
fi
[[ ${1:-} != -- ]] || shift

[[ $action =~ ^(build|train|shell)$ ]] || fail "docker.sh ${action:-without an action}. Allowed: build, train, shell."
arguments=() readable=() writable=()
[[ $action != train ]] || check_recipe "$recipe"
choose_engine
gpu_options
choose_image
runs=$(realpath -m -- "${RUNS:-$root/runs}")
data_folders
place_files "$@"
for path in "$runs" "${readable[@]}" "${writable[@]}"; do
    [[ $path != *[:,]* ]] || fail "$path: a container cannot mount names with a colon or a comma."
done
check_engine
build
[[ $action != build ]] || exit 0
check_gpus
mkdir -p -- "$runs"
if [[ $action == shell ]]; then
    ((${#arguments[@]})) || arguments=(bash)
    run "${arguments[@]}"
fi
command=(./amp-xla train)
[[ -z ${NP:-} ]] || command=(./amp-xla ranks --np "$NP")
run "${command[@]}" --runtime "$runtime" --recipe "$recipe" -- "${arguments[@]}"
