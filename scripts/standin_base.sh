#!/usr/bin/env bash
# A base image like NVIDIA's, made where theirs cannot be pulled: the same Python and TensorFlow version,
# no GPU. scripts/standin_test.sh builds this project's image on it and trains in there.
#
#   scripts/standin_base.sh tf1|tf2      -> localhost/standin:tf1, :tf2
#
# Needs root, debootstrap and buildah (Debian, Ubuntu: sudo apt-get install debootstrap buildah), a
# package registry, and a Python 3.8 (tf1) or 3.12 (tf2) on this machine, which is copied into the image.
# MIRROR is where debootstrap gets Debian from. No daemon: chroot isolation.
#
# What is not as in NVIDIA's images: no CUDA, stock TensorFlow. For tf1 it is PyPI's wheel for Python 3.7,
# which runs on 3.8 but for two small modules: one in Python takes the place of the first, TensorFlow
# does without the second.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache/standin
suite=bookworm
packages=ca-certificates,make,git,procps,libssl3,libffi8,zlib1g,libbz2-1.0,liblzma5,libsqlite3-0
packages+=,libreadline8,libgomp1,libstdc++6,libuuid1

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

runtime=${1:-}
case $runtime in
    tf1) minor=3.8 ;;
    tf2) minor=3.12 ;;
    *) fail "runtime '$runtime' has no stand-in. Allowed: tf1, tf2." ;;
esac
[[ $(id -u) == 0 ]] || fail "debootstrap and chroot need root: sudo $0 $runtime"
for tool in debootstrap buildah; do
    command -v "$tool" >/dev/null || fail "$tool is not installed: sudo apt-get install $tool"
done
cd "$root"
python=$(python3 - "$minor" <<'PYTHON'
import os, sys
sys.path.insert(0, os.getcwd())
from scripts.environment.interpreters import find
found = find([sys.argv[1]])
print(found.path if found else "")
PYTHON
)
[[ -n $python ]] || fail "no Python $minor on this machine: pyenv install $minor"
prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
[[ $prefix != /usr ]] || fail "$python is the system's own; needed is one in a folder, as pyenv makes it."
uv=$(python3 -c 'import pathlib; from scripts.environment.uv import uv; print(uv(pathlib.Path.cwd()))')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$cache"
if [[ ! -e $cache/$suite.tar ]]; then
    echo "building a small Debian with debootstrap (a minute) ..." >&2
    debootstrap --variant=minbase --include="$packages" "$suite" "$work/debian" ${MIRROR:+"$MIRROR"} \
        >"$work/log" || { tail -n 20 "$work/log" >&2 && fail "debootstrap failed, see above."; }
    tar -C "$work/debian" --exclude=./var/cache/apt --exclude=./var/lib/apt/lists \
        -cf "$cache/$suite.partial" .
    mv "$cache/$suite.partial" "$cache/$suite.tar"
    rm -rf "$work/debian"
fi

echo "building localhost/standin:$runtime: Python $minor and TensorFlow ..." >&2
tree=$work/tree
mkdir -p "$tree/opt/python"
tar -C "$tree" -xf "$cache/$suite.tar"
tar -C "$prefix" --exclude='*/site-packages/*' --exclude='*/test/*' --exclude=__pycache__ -cf - . |
    tar -C "$tree/opt/python" -xf -
for name in python3 "python$minor" pip3; do
    ln -sf "/opt/python/bin/$name" "$tree/usr/local/bin/$name"
done
echo /opt/python/lib >"$tree/etc/ld.so.conf.d/python.conf"
ldconfig -r "$tree"
site=$tree/opt/python/lib/python$minor/site-packages
mkdir -p "$site"
add=("$uv" pip install --quiet --python "$tree/opt/python/bin/python3" --break-system-packages)
case $runtime in
    tf1)
        version=1.15.5
        "${add[@]}" pip==21.2.4 'setuptools<66' wheel numpy==1.18.5 h5py==2.10.0 protobuf==3.20.3 \
            scipy==1.8.1 'grpcio<1.60' absl-py==1.4.0 astor==0.8.1 gast==0.2.2 google-pasta==0.2.0 \
            keras-applications==1.0.8 keras-preprocessing==1.1.2 opt-einsum==3.3.0 six \
            termcolor==2.3.0 wrapt==1.14.1 tensorboard==1.15.0 tensorflow-estimator==1.15.1 \
            'werkzeug<2.3' typing_extensions==4.5.0
        "$uv" pip install --quiet --no-deps --target "$work/tensorflow" --python-version 3.7 \
            --only-binary :all: "tensorflow-gpu==$version"
        cp -a "$work/tensorflow/." "$site/"
        mv "$site/tensorflow_gpu-$version.dist-info" "$site/tensorflow-$version.dist-info"
        sed -i 's/^Name: tensorflow-gpu/Name: tensorflow/' "$site/tensorflow-$version.dist-info/METADATA"
        core=$site/tensorflow_core/python
        rm -f "$core/_tf_stack.so" "$core/framework/fast_tensor_util.so"
        cp scripts/standin_tf_stack.py "$core/_tf_stack.py"
        # Python 3.8's logging hands over one argument more; without this a first warning is a TypeError.
        sed -i 's/_logger_find_caller(stack_info=False)/_logger_find_caller(stack_info=False, stacklevel=1)/' \
            "$core/platform/tf_logging.py"
        ;;
    tf2)
        version=2.17.0
        "${add[@]}" pip==24.3.1 setuptools==70.3.0 wheel numpy==1.26.4 h5py==3.11.0 \
            "tensorflow==$version" typing_extensions==4.12.2
        ;;
esac
# This machine's certificates, so that pip in the image reaches the registry that pip reaches here.
bundle=/etc/ssl/certs/ca-certificates.crt
install -D -m 644 "$bundle" "$tree$bundle"
# Debian's and Ubuntu's Pythons come without it.
rm -rf "$tree/opt/python/lib/python$minor/ensurepip"

container=$(buildah from scratch)
buildah add --quiet "$container" "$tree" / >/dev/null
buildah config --env "NVIDIA_TENSORFLOW_VERSION=$version" --env NVIDIA_BUILD_ID=standin \
    --env "PIP_CERT=$bundle" \
    --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin --cmd bash "$container"
buildah commit --quiet --rm "$container" "localhost/standin:$runtime" >/dev/null
echo "localhost/standin:$runtime is ready ($(du -sm "$tree" | cut -f1) MB)" >&2
