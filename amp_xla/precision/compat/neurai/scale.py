"""``neurai.mp.scale``'s names."""

from amp_xla.precision.compat.jmp import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    all_finite,
    select_tree,
)

__all__ = (
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "StaticLossScale",
    "all_finite",
    "select_tree",
)
