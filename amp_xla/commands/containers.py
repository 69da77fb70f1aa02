"""Drivers and GPUs that NVIDIA's TensorFlow 1.15 containers with Python 3.8 need.

Source: "Driver Requirements" in NVIDIA's TensorFlow release notes, and the minimum drivers of the
CUDA Toolkit release notes. docs/doctor.md has the same table.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from amp_xla.backend.nvidia import Version


class Group(NamedTuple):
    """Releases with the same requirements.

    Attributes:
      first: year and month of the first release, e.g. (20, 3).
      cuda: CUDA version.
      driver: oldest driver for any GPU.
      datacenter: older driver branches that work on data-center GPUs (T4, V100, A100, ...) through
        the compatibility package inside the container.
      capability: newest compute capability that its libraries are compiled for.
    """

    first: Version
    cuda: str
    driver: Version
    datacenter: Sequence[Version]
    capability: Version


_R418, _R440, _R450, _R460 = (418, 40), (440, 33), (450, 51), (460, 27)
_R470, _R510, _R515, _R525 = (470, 57), (510, 47), (515, 65), (525, 85)
GROUPS: Sequence[Group] = (
    Group((20, 12), "11.1", (455, 23), (_R418, _R440, _R450), (8, 6)),
    Group((21, 2), "11.2", (460, 27), (_R418, _R440, _R450), (8, 6)),
    Group((21, 4), "11.3", (465, 19), (_R418, _R440, _R450, _R460), (8, 6)),
    Group((21, 7), "11.4", (470, 42), (_R418, _R440, _R450, _R460), (8, 6)),
    Group((21, 11), "11.5", (495, 29), (_R418, _R440, _R450, _R460, _R470), (8, 6)),
    Group((22, 1), "11.6", (510, 39), (_R418, _R440, _R450, _R460, _R470), (8, 6)),
    Group((22, 5), "11.7", (515, 43), (_R450, _R470, _R510), (8, 6)),
    Group((22, 9), "11.8", (520, 61), (_R450, _R470, _R510, _R515), (9, 0)),
    Group((23, 1), "12.0", (525, 60), (_R450, _R470, _R510, _R515), (9, 0)),
    Group((23, 3), "12.1", (530, 30), (_R450, _R470, _R510, _R515, _R525), (9, 0)),
)
LAST: Version = (23, 3)
# Names in nvidia-smi. GeForce, TITAN and workstation cards have no compatibility package.
_DATACENTER = frozenset(
    "Tesla P4 P40 P100 V100 T4 A2 A10 A16 A30 A40 A100 A800 L4 L40 H100 H200 H800".split()
)


def name(release: Version) -> str:
    """Return (21, 9) as ``"21.09"``."""
    return f"{release[0]}.{release[1]:02d}"


def group(release: Version) -> Optional[Group]:
    """Return the requirements of a release; None if it is not in the table."""
    if not GROUPS[0].first <= release <= LAST:
        return None
    return [entry for entry in GROUPS if entry.first <= release][-1]


def runs(entry: Group, driver: Version, gpu: str) -> bool:
    """Return True if a driver is new enough for a release on this GPU."""
    if driver[:2] >= entry.driver[:2]:
        return True
    datacenter = any(word in _DATACENTER for word in gpu.replace("-", " ").split())
    return datacenter and any(
        driver[0] == branch[0] and driver[:2] >= branch for branch in entry.datacenter
    )


def knows(entry: Group, capability: Version) -> bool:
    """Return True if a release's libraries have code for a GPU."""
    return capability <= entry.capability or capability[0] == entry.capability[0] == 8


def newest(driver: Version, gpu: str, capability: Version) -> Optional[Version]:
    """Return the newest release for this driver and GPU, or None."""
    release: Version = LAST
    for entry in reversed(GROUPS):
        if runs(entry, driver, gpu) and knows(entry, capability):
            return release
        year, month = entry.first
        release = (year, month - 1) if month > 1 else (year - 1, 12)
    return None
