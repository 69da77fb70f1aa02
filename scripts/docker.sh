#!/usr/bin/env bash
# Build an image and run in it, with docker, podman or apptainer: what `make docker-*` and `make
# apptainer-train` call.
#
#   docker.sh build
#   docker.sh train --recipe NAME -- ARGUMENTS OF THE RECIPE
#   docker.sh run -- COMMAND OF amp_xla AND ITS FLAGS
#   docker.sh test -- ARGUMENTS OF PYTEST
#   docker.sh shell [-- COMMAND]
#
# From the environment: RUNTIME (auto, tf1, tf2), BASE_IMAGE, IMAGE (its name when built), GPUS (all,
# none, or indices: 0,1), DATA (a folder, or several with spaces between, to mount read-only at the
# same path), RUNS (default: runs), ENGINE (docker, podman or apptainer;
# default: docker or podman, whichever is installed).
#
# Files that the arguments name after --train, --dev, --bert, --vocab, --data, --file, --corpus or
# --warm-start are mounted by themselves, read-only, at their own path; the folder after --out too, to
# be written. A path below RUNS is there anyway.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
repository=nvcr.io/nvidia/tensorflow
tf1_image=$repository:23.03-tf1-py3
tf2_image=$repository:25.02-tf2-py3
workspace=/workspace/amp_xla
# Names of TensorFlow's, CUDA's, NCCL's and Horovod's that are settings. Not every TF_*: Terraform keeps
# its secrets there.
settings='^(AMP_XLA_[A-Z_]+|TF_(CPP|XLA|ENABLE|DISABLE|GPU|CUDNN|FORCE_GPU|NUM|USE|DETERMINISTIC)_\w+'
settings+='|TF_(AUTO_MIXED_PRECISION\w*|KERAS|CONFIG)|XLA_FLAGS|NVIDIA_TF32_OVERRIDE'
settings+='|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|CACHE_\w+|LAUNCH_BLOCKING)|(NCCL|HOROVOD|KMP|OMP)_\w+)$'
stop_seconds=300 # an orderly stop ends its step and writes a checkpoint: BERT-large's is 4 GB

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
    check_name BASE_IMAGE "$base_image"
    check_name IMAGE "$image"
}

check_name() { # check_name VARIABLE IMAGE: a name, which docker can't take for an option
    [[ $2 =~ ^[A-Za-z0-9][A-Za-z0-9._/:@-]*$ ]] ||
        fail "$1=$2 is not an image's name. Names look like $tf1_image."
}

mount() { # mount FOLDER PLACE [ro]: adds it to `options`
    local mode=${3:-} source=${1//\"/\"\"} target=${2//\"/\"\"}
    if [[ $1$2 != *[:,\"]* ]]; then
        options+=(--volume "$1:$2${mode:+:ro}")
    else # --volume would cut at the colon; --mount reads CSV
        options+=(--mount "type=bind,\"source=$source\",\"target=$target\"${mode:+,readonly}")
    fi
}

choose_engine() { # sets engine, and rootless where podman runs as a user
    engine=${ENGINE:-docker}
    if [[ -z ${ENGINE:-} ]] && ! command -v docker >/dev/null && command -v podman >/dev/null; then
        engine=podman
    fi
    rootless=
    case $engine in
        docker | apptainer) ;;
        podman) (($(id -u) == 0)) || rootless=1 ;;
        *) fail "ENGINE=$engine is unknown. Allowed: docker, podman, apptainer." ;;
    esac
    command -v "$engine" >/dev/null ||
        fail "$engine is not installed: https://docs.docker.com/engine/install/" \
            "Without it: make train; docs/servers.md has podman, Apptainer and enroot."
}

check_engine() {
    [[ $engine != apptainer ]] || return 0 # it has no daemon to ask
    local message
    if ! message=$("$engine" info 2>&1 >/dev/null); then
        case $message in
            *"permission denied"*)
                fail "this user may not talk to Docker." \
                    "Next: sudo usermod -aG docker ${USER:-\$USER}, log in again, the same command." \
                    "Where that is not allowed: ENGINE=podman, or docs/servers.md."
                ;;
            *)
                fail "$engine does not answer: ${message##*$'\n'}" \
                    "Next: sudo systemctl start docker, then the same command. Without it: make train"
                ;;
        esac
    fi
}

source_revision() {
    git -C "$root" describe --always --dirty=+ --abbrev=10 --match= 2>/dev/null || echo unknown
}

build() {
    local revision name
    revision=$(source_revision)
    if [[ $engine == apptainer ]]; then
        build_sif "$revision"
        return
    fi
    # The same image under the name of its source: a run's run.json leads back to it. Tags take no +.
    name=${image%@*}
    [[ ${name##*/} != *:* ]] || name=${name%:*}
    printf 'building %s from %s (its first download is about 6 GB) ...\n' "$image" "$base_image" >&2
    "$engine" build --build-arg "BASE_IMAGE=$base_image" --build-arg "RUNTIME=$runtime" \
        --build-arg "REVISION=$revision" \
        --tag "$image" --tag "$name:$runtime-${revision//+/-changed}" "$root" ||
        fail "$engine build failed; its message is above." \
            "If it could not pull $base_image: $engine pull $base_image"
}

build_sif() { # build_sif REVISION: sets image, a file named by what is in it; made once
    image=$root/.cache/apptainer/$runtime-$(basename "${base_image//[:@]/-}")-$1.sif
    [[ $1 == *+ || $1 == unknown || ! -e $image ]] || return 0
    mkdir -p "${image%/*}"
    printf 'building %s from %s (its first download is about 6 GB) ...\n' "$image" "$base_image" >&2
    (cd "$root" && apptainer build --force --build-arg "BASE_IMAGE=$base_image" \
        --build-arg "RUNTIME=$runtime" --build-arg "REVISION=$1" "$image" scripts/apptainer.def) ||
        fail "apptainer build failed; its message is above." \
            "If it may not create user namespaces here: build on another machine, and copy $image."
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
    local device
    case ${GPUS:-all} in
        none) gpus=() ;;
        *[!0-9,]*)
            [[ ${GPUS:-all} == all ]] ||
                fail "GPUS=$GPUS is not understood. Allowed: all, none, or indices as in 0,1."
            gpus=(--gpus all)
            [[ $engine != podman ]] || gpus=(--device nvidia.com/gpu=all)
            ;;
        *)
            # Docker reads this value as CSV, so a list of devices needs quotes of its own.
            gpus=(--gpus "\"device=$GPUS\"")
            if [[ $engine == podman ]]; then
                gpus=()
                for device in ${GPUS//,/ }; do
                    gpus+=(--device "nvidia.com/gpu=$device")
                done
            fi
            ;;
    esac
}

data_folders() { # sets data
    data=()
    local folders=() folder
    if [[ -e ${DATA:-} ]]; then
        folders=("$DATA") # one, whose name may have spaces
    else
        read -r -d '' -a folders <<<"${DATA:-}" || true
    fi
    for folder in "${folders[@]}"; do
        [[ -e $folder ]] || fail "DATA=$folder does not exist."
        data+=("$(realpath -- "$folder")")
    done
}

name_files() { # name_files ARGUMENT...: sets arguments, with paths as the container has them, and files
    arguments=() files=() outs=()
    local word flag='' value
    for word in "$@"; do
        value=$word
        if [[ $word == --*=* ]]; then
            flag=${word%%=*} value=${word#*=}
            place_file "$flag" "$value"
            arguments+=("$flag=$placed")
            flag=
        elif [[ $word == --* ]]; then
            flag=$word
            arguments+=("$word")
        else
            place_file "$flag" "$value"
            arguments+=("$placed")
        fi
    done
}

place_file() { # place_file FLAG VALUE: sets placed, the path in the container
    placed=$2
    [[ -n $2 && $2 != - ]] || return 0
    local path
    path=$(realpath -m -- "$2")
    case $1 in
        --train | --dev | --bert | --vocab | --data | --file | --corpus | --warm-start | --run | --out) ;;
        *) return 0 ;;
    esac
    if [[ $path == "$runs" || $path == "$runs"/* ]]; then
        placed=$workspace/runs${path#"$runs"}
        return 0
    fi
    case $1 in
        --run) ;; # only below RUNS
        --out)
            mkdir -p -- "$path"
            outs+=("$path")
            placed=$path
            ;;
        *)
            [[ -e $path ]] ||
                fail "$1 $2: no such file or folder here, and a container sees only what is mounted." \
                    "DATA=<folder> mounts more of them."
            files+=("$path")
            placed=$path
            ;;
    esac
}

check_gpus() {
    ((${#gpus[@]})) || return 0
    local message
    if [[ $engine == apptainer ]]; then
        message=$(apptainer exec --nv "$image" nvidia-smi -L 2>&1) ||
            fail "apptainer --nv does not reach a GPU: ${message##*$'\n'}" \
                "Next: nvidia-smi on this node; on a machine without a GPU: GPUS=none"
        printf '%s\n' "$message" >&2
        return
    fi
    if message=$("$engine" run --rm "${gpus[@]}" --entrypoint nvidia-smi "$image" -L 2>&1); then
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

run_sif() { # run_sif COMMAND...: as this user, with nothing of their environment but settings
    local options=(--cleanenv --pwd "$workspace" --bind "$runs:$workspace/runs") path name
    ((${#gpus[@]} == 0)) || options+=(--nv)
    [[ ! ${GPUS:-all} =~ ^[0-9] ]] || export CUDA_VISIBLE_DEVICES=$GPUS
    for path in "${data[@]}" "${files[@]}" "${outs[@]}"; do
        [[ $path != *[:,]* ]] || fail "$path: apptainer can't mount names with a colon or a comma."
        options+=(--bind "$path:$path")
    done
    while IFS= read -r name; do
        [[ ! $name =~ $settings || $name == AMP_XLA_DRIVER_ROOT ]] ||
            options+=(--env "$name=${!name}")
    done < <(compgen -e)
    exec apptainer exec "${options[@]}" "$image" "$@"
}

run() { # run COMMAND...: in the image, as this user
    [[ $engine != apptainer ]] || run_sif "$@"
    local options=(
        --rm --init "${gpus[@]}"
        --ipc=host # data loaders' shared memory, as NVIDIA's images ask for
        --stop-timeout "$stop_seconds"
        --user "$(id -u):$(id -g)"
    )
    if [[ -n $rootless ]]; then
        options+=(--userns keep-id) # else files would belong to a user that nobody is
    else
        options+=(--ulimit memlock=-1 --ulimit stack=67108864) # pinned buffers: a user may not
    fi
    mount "$runs" "$workspace/runs"
    local folder name
    for folder in "${data[@]}" "${files[@]}"; do
        mount "$folder" "$folder" ro
    done
    for folder in "${outs[@]}"; do
        mount "$folder" "$folder"
    done
    # Settings travel; `--env NAME` takes the value from here.
    while IFS= read -r name; do
        [[ ! $name =~ $settings || $name == AMP_XLA_DRIVER_ROOT ]] || options+=(--env "$name")
    done < <(compgen -e)
    [[ ! -t 0 ]] || options+=(--interactive)
    [[ ! -t 0 || ! -t 1 ]] || options+=(--tty)
    exec "$engine" run "${options[@]}" "$image" "$@"
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
    build | train | run | test | shell) ;;
    *) fail "docker.sh ${action:-without an action}: build, train, run, test or shell." ;;
esac
[[ $action != train ]] || check_recipe "$recipe"
[[ $action != run || $# -gt 0 ]] ||
    fail "docker-run needs a command: make docker-run CMD=\"predict --file texts.txt\"."
choose_engine
gpu_options
data_folders
runs=$(realpath -m -- "${RUNS:-$root/runs}")
arguments=() files=() outs=()
case $action in
    train) name_files "$@" ;;
    run)
        command=$1
        shift
        # Its own default is inside the container, where it would be lost.
        [[ $command != prepare || " $*" == *" --out"* ]] || set -- "$@" --out "$root/data/pretraining"
        name_files "$@"
        ;;
    *) arguments=("$@") ;;
esac
choose_image
check_engine
build
[[ $action != build ]] || exit 0
check_gpus
mkdir -p -- "$runs"
launch=(python3 -m scripts.environment run --runtime "$runtime")
case $action in
    train)
        [[ -z ${HOSTS:-} ]] || fail "HOSTS=$HOSTS: one container a host; docs/launchers.md says how to start them."
        if [[ -n ${NP:-} ]]; then
            run "${launch[@]}" -- -m amp_xla ranks --np "$NP" --recipe "$recipe" -- "${arguments[@]}"
        else
            run "${launch[@]}" --recipe "$recipe" -- "${arguments[@]}"
        fi
        ;;
    run) run "${launch[@]}" -- -m amp_xla "$command" "${arguments[@]}" ;;
    test)
        ((${#arguments[@]})) || arguments=(-m 'not slow and not network')
        run "${launch[@]}" -- -m pytest -p no:cacheprovider "${arguments[@]}"
        ;;
    shell)
        if (($#)); then run "$@"; else run bash; fi
        ;;
esac
