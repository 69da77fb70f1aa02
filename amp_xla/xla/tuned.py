"""``python -m amp_xla tuned --recipe ... -- ...``: train with what ``tune`` found."""

from amp_xla.xla.tune import train as main

__all__ = ["main"]
