"""Patches Keras' ``fit`` and ``fit_generator`` to train with a ``Run`` among their callbacks."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from amp_xla import backend
from amp_xla.backend import configuring
from amp_xla.callbacks.run import Run
from amp_xla.models import dropout
from amp_xla.process.world import world
from amp_xla.training import distributed


def install() -> None:
    """Prepare Keras for ``Run``: patch the methods, make dropout repeatable, join the ranks."""
    configuring.current()
    if world().size > 1:
        distributed.join()
    dropout.make_repeatable()
    model = backend.graph_model()
    for name in ("fit", "fit_generator"):
        setattr(model, name, _handing_over(getattr(model, name)))


def _handing_over(method: Any) -> Any:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks") or ()
        run = next(
            (c for c in getattr(callbacks, "callbacks", callbacks) if isinstance(c, Run)), None
        )
        if run is None or run.in_fit:
            return method(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {**bound.arguments, "callbacks": list(callbacks)}
        model = arguments.pop("self")
        arguments.update(arguments.pop("kwargs", {}))
        return run.fit(method, model, arguments)

    return fit
