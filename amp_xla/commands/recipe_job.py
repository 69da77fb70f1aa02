"""Build the model that ``inspect``, ``rehearse`` or ``plan`` examines: a recipe's or a script's.

A recipe's model is built for mixed precision with float16, as on a GPU.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from amp_xla import backend
from amp_xla.config import changed, flat
from amp_xla.data.batches.protocol import micro_batches, whole
from amp_xla.errors import AmpXlaError, DataError
from amp_xla.process import durable, regular
from amp_xla.process.progress import note
from amp_xla.settings import AUTO, Precision, Settings, auto
from amp_xla.training.context import build_job, work_of
from amp_xla.training.options import precision_options
from amp_xla.training.recipe import find_recipe, module_of

LOOKED_AT = 200  # batches


class ScriptFunction(NamedTuple):
    """A user's script, and the name of a function or model in it: ``my_script.py:build_model``."""

    path: str
    name: str

    @classmethod
    def of(cls, target: str) -> Optional[ScriptFunction]:
        """Split ``PATH.py:NAME``; return None for the name of a recipe."""
        path, colon, name = target.rpartition(":")
        return cls(path, name) if colon and path.endswith(".py") else None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


class Subject(NamedTuple):
    """The model to examine: a compiled Keras model, or a recipe's job.

    Attributes:
      batches: iterator of batches; None if a script returns no batch and ``--batch`` is not given.
      settings: the recipe's settings by name; empty for a script.
      auto: what ``--xla auto`` would choose on a GPU; None for a script or another ``--xla``.
    """

    model: Any
    batches: Optional[Iterator[Any]]
    settings: Mapping[str, Any] = {}
    auto: Optional[auto.Choice] = None


@dataclasses.dataclass(frozen=True)
class SubjectOptions:
    """The recipe or script that a command looks at, and the folder for its report."""

    recipe: str = "classification"
    """name of a recipe, path of its file, or my_script.py:build_model"""
    batch: Optional[str] = None
    """name of a batch in the script, or of a function that returns one; none = the batch that
    build_model returns; without one, inspect and plan assume 32 rows of 128 tokens"""
    out: Optional[str] = None
    """folder for the JSON report; none = runs/<recipe>/<command>"""

    def _folder(self, command: str) -> Path:
        script = ScriptFunction.of(self.recipe)
        recipe = Path(script.path if script else self.recipe).stem
        return Path(self.out or f"runs/{recipe}/{command}")

    def open(self, command: str, words: Sequence[str], **work: Any) -> Subject:
        """Build the recipe's job or the script's model for ``command``, which will write a report.

        Args:
          words: flags of the recipe, or of the script.
          work: ``steps`` and ``gpus``, as in ``open_recipe``.

        Raises:
          AmpXlaError: the recipe, script or batch does not exist; ``--batch`` is given for a
            recipe; or the precision is not amp. OSError: the report's folder is not writable.
        """
        regular.refuse_unwritable(self._folder(command))
        note(f"building {self.recipe} ...")
        script = ScriptFunction.of(self.recipe)
        if script is None:
            if self.batch is not None:
                raise AmpXlaError(
                    f"--batch {self.batch}: {self.recipe} is a recipe, which has its own batches; "
                    f"--batch is for my_script.py:build_model"
                )
            subject = open_recipe(self.recipe, words, **work)
        else:
            import amp_xla.setup  # for scripts that do not import it

            subject = open_script(script, words, self.batch)
            _require_amp("precision", amp_xla.setup.current().settings.precision)
        note("running TensorFlow's mixed-precision pass against a virtual GPU ...")
        return subject

    def write(self, command: str, name: str, report: Any) -> None:
        """Print a report, and write it as JSON to the file ``name`` in the command's folder."""
        path = self._folder(command) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, json.dumps(report.to_json(), indent=1).encode() + b"\n")
        print(f"\n{report}\n\nwritten: {path}")


def open_recipe(recipe: str, words: Sequence[str], steps: int = 0, gpus: int = 1) -> Subject:
    """Build a recipe's job with ``precision=amp`` and the loss scale for float16.

    ``--xla auto`` is decided for ``steps`` and ``gpus``; 0 steps = as many as in the recipe.

    Raises:
      AmpXlaError: the recipe does not exist or has no ``--precision``, or ``words`` set another.
    """
    found = find_recipe(recipe)
    config = found.parse(words)
    options = precision_options(config, "this shows what the graph rewrite does in")
    _require_amp("--precision", options.precision)
    # Without a GPU a recipe would build itself for bfloat16 or float32.
    settings = Settings.from_environment(os.environ, precision="amp", loss_scale=options.loss_scale)
    scale = Precision.of(settings, "float16").loss_scale
    mode = options.xla_mode
    config = changed(
        config, precision="amp", loss_scale=str(scale), xla="off" if mode == AUTO else mode
    )
    job = build_job(found.build, config)
    choice = None
    if mode == AUTO:
        work = work_of(config, whole(job.batches), gpus)
        work = work and work._replace(steps=steps or work.steps)
        choice = auto.choose(work, auto.TENSOR_CORES, backend.kind())
        note(f"with a GPU, --xla auto (the default) would choose: {choice}")
    return Subject(job, feeds(job), flat(config), choice)


def _require_amp(name: str, precision: Optional[str]) -> None:
    if precision not in (None, "amp"):
        raise AmpXlaError(
            f"{name} {precision}: this command shows what mixed precision does; allowed: amp"
        )


def feeds(job: Any) -> Iterator[List[Any]]:
    """Return an endless iterator of micro-batches: lists of arrays in placeholder order."""
    epochs = (job.batches.epoch(number, start=0) for number in itertools.count())
    parts = (part for epoch in epochs for batch in epoch for part in micro_batches(batch))
    return (job.step.arrays(part, number) for number, part in enumerate(parts))


def longest(batches: Optional[Iterator[Any]]) -> Tuple[Optional[Sequence[Any]], float]:
    """Return the largest of the first batches and mean / largest size; without batches, None, 1."""
    if batches is None:
        note("no batch given: assuming 32 rows of 128 tokens")
        return None, 1.0
    looked_at = list(itertools.islice(batches, LOOKED_AT))
    sizes = [_size(batch) for batch in looked_at]
    return looked_at[int(np.argmax(sizes))], float(np.mean(sizes) / max(sizes))


def _size(batch: Any) -> int:
    """Return the number of elements of a batch's first array that is not empty."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(parts, (list, tuple)):
        return int(np.size(parts))
    return next(filter(None, map(_size, parts)), 0)


def open_script(script: ScriptFunction, words: Sequence[str], batch: Optional[str]) -> Subject:
    """Import a script and build its model.

    Args:
      script: its ``name`` is that of a compiled Keras model, or of a function that returns model
        or (model, batch).
      words: ``sys.argv[1:]`` for the script.
      batch: name of an object in the script: a batch as for ``fit``, an iterator or ``Sequence`` of
        batches, or a function that returns one of these.

    Raises:
      AmpXlaError: the file or a name in it is missing, or a value has another type.
    """
    if not os.path.isfile(script.path):
        raise AmpXlaError(f"there is no file {script.path}")
    from amp_xla.backend import keras

    path = os.path.abspath(script.path)
    sys.argv[:] = [path, *words]
    module = module_of(path)
    model = _value(module, script)
    batches: Optional[Iterator[Any]] = None
    if isinstance(model, tuple) and len(model) == 2:
        model, returned = model
        batches = _batches(returned, f"the batch from {script}")
    if not isinstance(model, keras.models.Model):
        raise AmpXlaError(
            f"{script} is of type {type(model).__name__}; allowed: a compiled Keras model, a "
            f"function that returns one, or a function that returns (model, batch)"
        )
    if batch is not None:
        source = ScriptFunction(script.path, batch.replace(f"{script.path}:", ""))
        batches = _batches(_value(module, source), str(source))
    return Subject(model, batches)


def _value(module: Any, script: ScriptFunction) -> Any:
    """Return the object ``script.name`` of a module; if it is a function, return its result."""
    if not hasattr(module, script.name):
        names = [name for name in vars(module) if not name.startswith("_")]
        close = difflib.get_close_matches(script.name, names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise AmpXlaError(f"{script.path} has no {script.name!r}{hint}")
    value = getattr(module, script.name)
    is_function = callable(value) and not hasattr(value, "layers")
    return value() if is_function else value


def _batches(value: Any, source: str) -> Iterator[Any]:
    """Return batches from one batch, an iterator, a ``Sequence`` or a bert4keras generator."""
    if isinstance(value, (tuple, list, dict, np.ndarray)):
        value = itertools.repeat(value if isinstance(value, (tuple, list)) else [value])
    elif hasattr(value, "forfit"):
        value = iter(() if getattr(value, "steps", 1) == 0 else value.forfit(random=False))
    elif hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        sequence = value
        value = (sequence[i] for i in itertools.cycle(range(len(sequence))))
    if not hasattr(value, "__next__"):
        raise DataError(
            f"{source} is of type {type(value).__name__}; allowed: a batch as for fit, such as "
            f"(inputs, targets), or a Sequence, generator or bert4keras DataGenerator of batches"
        )
    first = next(value, None)
    if first is None or not _size(first):
        raise DataError(f"{source} has no samples; at least 1 is needed")
    return itertools.chain([first], value)
