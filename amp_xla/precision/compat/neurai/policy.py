"""``neurai.mp.policy``'s names."""

from amp_xla.precision.compat.jmp import Policy, cast_to_full, cast_to_half, get_policy, half_dtype

__all__ = ("Policy", "cast_to_full", "cast_to_half", "get_policy", "half_dtype")
