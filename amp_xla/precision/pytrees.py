"""JAX pytree classes, registered once JAX is imported; imports no JAX itself."""

from __future__ import annotations

import sys
from typing import Any, Dict, Tuple

_Fields = Tuple[Tuple[str, ...], Tuple[str, ...]]
_waiting: Dict[type, _Fields] = {}


def declare(cls: type, leaves: Tuple[str, ...], meta: Tuple[str, ...]) -> None:
    """Declare which attributes of ``cls`` are traced (``leaves``) and which compiled in."""
    _waiting[cls] = (leaves, meta)


def register() -> None:
    """Register the declared classes if JAX is imported."""
    if _waiting and "jax" in sys.modules:
        while _waiting:
            cls, (leaves, meta) = _waiting.popitem()
            _register(cls, leaves, meta)


def _register(cls: type, leaves: Tuple[str, ...], meta: Tuple[str, ...]) -> None:
    import jax

    def flatten(value: Any) -> Any:
        keys = (jax.tree_util.GetAttrKey(name) for name in leaves)
        children = tuple(zip(keys, (getattr(value, name) for name in leaves)))
        return children, tuple(getattr(value, name) for name in meta)

    def unflatten(static: Tuple[Any, ...], children: Any) -> Any:
        # Without __init__: JAX also builds pytrees of placeholders, which fail its checks.
        new: Any = object.__new__(cls)
        for name, child in zip(leaves + meta, (*children, *static)):
            object.__setattr__(new, name, child)
        return new

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
