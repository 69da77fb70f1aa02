"""NVIDIA's TensorFlow containers with TensorFlow 1.15: which driver and which GPUs each one takes.

Source: "Driver Requirements" in NVIDIA's TensorFlow release notes, and the table of minimum
drivers in the CUDA Toolkit release notes. docs/doctor.md has the same table to read.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from amp_xla.backend.nvidia import Version, version

__all__ = ["Version", "version"]


class Group(NamedTuple):
    """Releases with the same needs.

    Attributes:
      first: year and month of the first one, e.g. (20, 3).
      cuda: its CUDA.
      driver: the oldest driver that runs it on any GPU.
      datacenter: older driver branches that run it on data-center GPUs (T4, V100, A100, ...)
        through the compatibility package inside the container.
      capability: the newest compute capability that its libraries are compiled for.
    """

    first: Version
    cuda: str
    driver: Version
    datacenter: Sequence[Version]
    capability: Version


_R418, _R440, _R450, _R460 = (418, 40), (440, 33), (450, 51), (460, 27)
_R470, _R510, _R515, _R525 = (470, 57), (510, 47), (515, 65), (525, 85)
GROUPS: Sequence[Group] = (
    Group((20, 3), "10.2", (440, 33), (_R418,), (7, 5)),
    Group((20, 6), "11.0", (450, 36), (_R418, _R440), (8, 0)),
    Group((20, 10), "11.1", (455, 23), (_R418, _R440, _R450), (8, 6)),
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
FIRST_SUPPORTED: Version = (20, 12)  # the first with Python 3.8; before, it is 3.6
# As nvidia-smi names them. GeForce, TITAN and workstation cards have no compatibility package.
_DATACENTER = frozenset(
    "Tesla P4 P40 P100 V100 T4 A2 A10 A16 A30 A40 A100 A800 L4 L40 H100 H200 H800".split()
)


def name(release: Version) -> str:
    """(21, 9) -> ``"21.09"``."""
    return f"{release[0]}.{release[1]:02d}"


def group(release: Version) -> Optional[Group]:
    """The needs of a release; None where it is older than 20.03 or newer than 23.03."""
    if not GROUPS[0].first <= release <= LAST:
        return None
    return [entry for entry in GROUPS if entry.first <= release][-1]


def is_datacenter(gpu: str) -> bool:
    """Whether a GPU, by its name, may use the compatibility package."""
    words = gpu.replace("-", " ").split()
    return any(word in _DATACENTER for word in words)


def runs(entry: Group, driver: Version, gpu: str) -> bool:
    """Whether a driver is new enough for a release on this GPU."""
    if driver[:2] >= entry.driver[:2]:
        return True
    return is_datacenter(gpu) and any(
        driver[0] == branch[0] and driver[:2] >= branch for branch in entry.datacenter
    )


def newest(driver: Version, gpu: str, capability: Version) -> Optional[Version]:
    """The newest release with Python 3.8 that this driver runs and that knows this GPU."""
    fitting = [
        (entry, after)
        for entry, after in zip(GROUPS, [*[g.first for g in GROUPS[1:]], None])
        if runs(entry, driver, gpu)
        and knows(entry, capability)
        and (after is None or after > FIRST_SUPPORTED)
    ]
    if not fitting:
        return None
    after = fitting[-1][1]
    if after is None:
        return LAST
    return (after[0], after[1] - 1) if after[1] > 1 else (after[0] - 1, 12)


def knows(entry: Group, capability: Version) -> bool:
    """Whether a release's libraries have code for a GPU: its own, or one of its generation."""
    return capability <= entry.capability or capability[0] == entry.capability[0] == 8
