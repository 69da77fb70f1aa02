"""``python -m amp_xla tuned -- --epochs 3``: train with what ``tune`` found."""

from amp_xla.speed.tune import train as main

__all__ = ["main"]
