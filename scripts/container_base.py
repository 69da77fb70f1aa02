"""Refuse an unsupported base image. This is the first step of an image's build.

The syntax of this file is valid on any Python 3. There are lock files for the supported Pythons.
"""

import sys

SUPPORTED = (
    "TensorFlow 1.15 on Python 3.8 (NVIDIA's tf1 images, 20.12 to 23.03), TensorFlow 2.12 and newer"
    " on Python 3.10 to 3.12 (NVIDIA's tf2 images from 23.04 on)"
)
TF2_LOCKS = {
    (3, 10): "container-tf2-py310.txt",
    (3, 11): "container-tf2.txt",
    (3, 12): "container-tf2.txt",
}


def refuse(reason: str) -> int:
    """Print why the base is unsupported; return the exit code."""
    sys.stderr.write("error: this base has " + reason + ". Supported: " + SUPPORTED + ".\n")
    return 2


def main() -> int:
    """Return 0 if this Python is supported; container_install checks TensorFlow."""
    minor = tuple(sys.version_info[:2])
    if minor != (3, 8) and minor not in TF2_LOCKS:
        return refuse("Python " + ".".join(map(str, minor)))
    try:
        __import__("pip")
    except ImportError:
        return refuse("no pip (Debian, Ubuntu: apt-get install python3-pip)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
