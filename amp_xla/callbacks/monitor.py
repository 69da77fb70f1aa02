"""The value of the epoch logs that decides which checkpoint is best."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from amp_xla.backend import keras
from amp_xla.errors import AmpXlaError

# Parts of the names of values for which lower is better.
_LOWER = ("loss", "error", "mae", "mse", "perplexity")
_KERAS = ("keras", "tensorflow", "tensorflow_core", "tf_keras")


def higher_is_better(name: str) -> bool:
    """Return whether a larger value of this name is better."""
    return not any(word in name.lower() for word in _LOWER)


def known(name: Optional[str], model: Any, given: Mapping[str, Any], run: Any) -> Optional[str]:
    """Return the monitor ``name`` as Keras writes it; 1.15 has ``acc`` for "accuracy".

    Raises:
      AmpXlaError: no epoch of ``fit`` will have it.
    """
    validates = given["validation_data"] is not None or given.get("validation_split")
    values = [f"val_{metric}" for metric in model.metrics_names] if validates else []
    if name is None or name in values or f"val_{name}" in values:
        return name
    for one, other in (("accuracy", "acc"), ("acc", "accuracy")):
        written = f"{name[: -len(one)]}{other}"
        if name.endswith(one) and (written in values or f"val_{written}" in values):
            return written
    others = [callback for callback in given["callbacks"] if callback is not run]
    if not any(map(_writes, others)):
        raise AmpXlaError(
            f"Run(monitor={name!r}): fit has no such value; allowed: "
            f"{', '.join(values) or 'none without validation_data'}"
        )
    return name  # a callback may write it


def _writes(callback: Any) -> bool:
    """Return whether a callback may write values into the logs: it calls code of the script."""
    is_own = type(callback).__module__.partition(".")[0] not in _KERAS
    return is_own or isinstance(callback, keras.callbacks.LambdaCallback)
