"""Training jobs in JAX, with the same data, run folders and checkpoint rules as in TensorFlow."""

from __future__ import annotations

from amp_xla.errors import UnsupportedError

try:
    import jax  # noqa: F401
    import optax  # noqa: F401
except ImportError as error:
    raise UnsupportedError(
        f"this recipe needs JAX, which cannot be imported ({error}): run make with RUNTIME=jax, or "
        f"pip install 'amp-xla[jax]'"
    ) from error
