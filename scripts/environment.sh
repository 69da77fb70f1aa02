#!/bin/sh
# Find a Python 3.8+ and start scripts/environment with it. Everything else is in there.
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 2

# Where Python is told not to look into the folder it is started in, it is told where this code is.
if [ -n "${PYTHONSAFEPATH:-}" ]; then
    export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
fi

# sys.executable rather than the name: the name may be a pyenv shim, which is slow to start twice.
ask='import sys; sys.version_info >= (3, 8) and print(sys.executable)'
for name in python3 python3.12 python3.11 python3.10 python3.13 python3.9 python3.8 python; do
    python=$("$name" -c "$ask" 2>/dev/null) || continue
    if [ -n "$python" ]; then
        cd "$root" && exec "$python" -m scripts.environment "$@"
    fi
done
echo "error: no Python 3.8 or newer found. Install one (Debian, Ubuntu: sudo apt-get install" \
    "python3 python3-venv), then run the same command again." >&2
exit 2
