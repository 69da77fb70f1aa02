#!/usr/bin/env bash
# Build Horovod for a runtime once, and install it into that runtime's environment.
#
#   scripts/build_horovod.sh tf1|tf2
#
# Horovod compiles against the installed TensorFlow, so there is no wheel to download. The wheel built
# here has TensorFlow and Gloo, but no MPI and no NCCL: it is for tests and CPU runs. It is cached in
# .cache/wheels/<runtime>. The Horovod of NVIDIA's containers, which has NCCL, is not replaced.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '  %s\n' "$@" >&2
    exit 2
}

runtime=${1:-}
case $runtime in
    tf1 | tf2) ;;
    *) fail "runtime '$runtime' has no Horovod. Allowed: tf1, tf2." ;;
esac

python=$(./amp-xla env --runtime "$runtime")
requirements=$root/requirements/horovod.txt
version=$(sed -n 's/^horovod==//p' "$requirements")

# Two builds of one runtime run one after the other.
mkdir -p "$root/.cache"
exec 9>"$root/.cache/horovod-$runtime.lock"
flock 9

works() {
    "$python" - "$version" <<'PYTHON' >/dev/null 2>&1
import sys
import horovod, horovod.tensorflow
assert horovod.__version__ == sys.argv[1] or "/.venvs/" not in sys.prefix  # a container's
PYTHON
}

if works; then
    echo "horovod for $runtime: installed"
    exit 0
fi

uv=$("$(command -v python3 || echo "$python")" -c '
import pathlib
from scripts.environment.uv import uv
print(uv(pathlib.Path.cwd()))')

# A wheel fits one TensorFlow and one Python.
tensorflow=$("$python" -c '
import importlib.util, pathlib, re
folder = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent.parent
names = [d.name for d in folder.glob("tensorflow*-[0-9]*.dist-info")]
name = min(names, key=len, default="tensorflow")
print(re.sub(r"\.dist-info$", "", name))')
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
wheels=$root/.cache/wheels/$runtime/$tensorflow-$tag
mkdir -p "$wheels"

if ! compgen -G "$wheels/horovod-$version-*.whl" >/dev/null; then
    command -v g++ >/dev/null ||
        fail "Horovod needs a C++ compiler and there is no g++." "Next: sudo apt-get install g++ make"
    command -v make >/dev/null || fail "Horovod needs make." "Next: sudo apt-get install make"
    echo "building horovod $version for $tensorflow, $tag (about a minute on 2 cores) ..." >&2
    work=$(mktemp -d)
    while sleep 8 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do echo "... still building ($SECONDS s)" >&2; done 9>&- &
    ticker=$!
    trap 'kill $ticker; rm -rf "$work"' EXIT
    # pip, because uv cannot build a wheel of a release; cmake below 4, as Horovod's files need it.
    "$uv" pip install --quiet --python "$python" --target "$work/tools" \
        'pip==24.0' 'cmake==3.27.9' 'wheel==0.42.0'
    # This takes half the time of Horovod's -O3 -g, which tests and CPU runs do not need.
    printf '#!/bin/sh\nexec g++ "$@" -O1 -g0\n' >"$work/tools/bin/c++"
    chmod +x "$work/tools/bin/c++"
    if ! env PYTHONPATH="$work/tools" PATH="$work/tools/bin:$PATH" CXX="$work/tools/bin/c++" \
        HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_GLOO=1 \
        "$python" -m pip wheel --no-build-isolation --no-deps --no-cache-dir \
        --no-binary horovod --wheel-dir "$work/wheels" "horovod==$version" >"$work/log" 2>&1; then
        tail -n 40 "$work/log" >&2
        fail "Horovod did not build; the end of its log is above."
    fi
    mv "$work"/wheels/horovod-*.whl "$wheels/"
fi

"$uv" pip install --quiet --python "$python" --find-links "$wheels" --only-binary horovod \
    --requirement "$requirements"
works || fail "Horovod was installed for $runtime but cannot be imported." \
    "Next: $python -c 'import horovod.tensorflow'"
echo "horovod for $runtime: ready"
