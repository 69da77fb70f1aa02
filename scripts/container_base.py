"""Refuse an unsupported base image. This is the first step of an image's build.

This file runs on any Python 3, even an unsupported one. Each supported Python has a lock file.
"""

import sys

SUPPORTED = (
    "TensorFlow 1.15 on Python 3.8 (NVIDIA's tf1 images, 20.12 to 23.03), TensorFlow 2.14 and newer"
    " on Python 3.10 to 3.12 (NVIDIA's tf2 images from the end of 2023 on)"
)
TF2_LOCKS = {
    (3, 10): "container-tf2-py310.txt",
    (3, 11): "container-tf2.txt",
    (3, 12): "container-tf2.txt",
}


def problem() -> str:
    """Return why this Python is unsupported, or ''; container_install checks TensorFlow."""
    minor = tuple(sys.version_info[:2])
    if minor != (3, 8) and minor not in TF2_LOCKS:
        return "Python " + ".".join(map(str, minor))
    try:
        __import__("pip")
    except ImportError:
        return "no pip (Debian, Ubuntu: apt-get install python3-pip)"
    return ""


if __name__ == "__main__":
    if problem():
        sys.stderr.write("error: this base has " + problem() + ". Supported: " + SUPPORTED + ".\n")
        sys.exit(2)
