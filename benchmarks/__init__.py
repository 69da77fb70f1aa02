"""Benchmarks: one file per question, run as ``./amp-xla python -m benchmarks.<file>``."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def named(name: str, only: str) -> bool:
    """Return whether a name contains one of the texts in ``only``, separated by semicolons."""
    return any(part.strip() in name for part in only.split(";"))
