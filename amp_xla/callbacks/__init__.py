"""A callback that makes Keras' ``model.fit`` a run: run folder, checkpoints, exact resume.

    model.fit(..., callbacks=[amp_xla.callbacks.Run("runs/ner", resume=True)])

Keras still computes gradients and updates. Import this module before the model is built: the import
makes the masks of Keras' ``Dropout`` depend on the step, so that a resumed run repeats them. It
also patches Keras' ``fit`` and ``fit_generator`` for ``Run``.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from amp_xla import backend
from amp_xla.backend import configuring
from amp_xla.callbacks.run import Run
from amp_xla.errors import AmpXlaError
from amp_xla.models import dropout
from amp_xla.process.world import world
from amp_xla.training import distributed

__all__ = ("Run",)


def _with_run(method: Any) -> Any:
    """Return Keras' ``fit``, changed to call ``Run.fit`` if a ``Run`` is among its callbacks."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks") or ()
        if isinstance(callbacks, Run):
            raise AmpXlaError("callbacks=Run(...): give a list, callbacks=[Run(...)]")
        callbacks = getattr(callbacks, "callbacks", callbacks)
        runs = [callback for callback in callbacks if isinstance(callback, Run)]
        if not runs or runs[0].in_fit:
            return method(self, *args, **kwargs)
        if runs[1:]:
            raise AmpXlaError(f"callbacks has {len(runs)} Run callbacks; allowed: one")
        run = runs[0]
        bound.apply_defaults()
        arguments = {**bound.arguments, "callbacks": list(callbacks)}
        model = arguments.pop("self")
        arguments.update(arguments.pop("kwargs", {}))
        return run.fit(method, model, arguments)

    return fit


configuring.current()
if world().size > 1:
    distributed.join()
dropout.make_repeatable()
for _name in ("fit", "fit_generator"):
    setattr(backend.graph_model(), _name, _with_run(getattr(backend.graph_model(), _name)))
