"""The parts of a recipe, and the import of a recipe by its name or path."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Type, Union

from typing_extensions import Literal

from amp_xla.config import fields, flat, parse
from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.process.checkout import shortest
from amp_xla.process.progress import note
from amp_xla.settings import Precision, Settings
from amp_xla.training.checkpoint import Checkpoint
from amp_xla.training.distributed import Ranks
from amp_xla.training.options import LoopOptions
from amp_xla.training.run import resumed_settings

FunctionName = Literal[
    "predict", "rank", "generate", "vectors", "fill", "scored", "exportable", "export"
]
Function = Optional[Callable[..., Any]]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A training job and the functions that use its runs. A recipe's file names it ``recipe``.

    The functions get the configuration of the run and its checkpoint, then the arguments below.
    They import TensorFlow when they are called, after the precision was set; see ``lazy``.

    Attributes:
      config: dataclass of the settings, with a field ``run`` (``RunOptions``).
      build: returns the ``Job`` of a configuration and a ``RunContext``.
      monitor: name of the dev metric that decides which checkpoint is best; or a function from the
        configuration to this name or to ``LoopOptions``.
      predict: lines -> ``Answers``, for ``amp-xla predict``.
      rank: as ``predict``, with the argument ``query``, for ``predict --query``.
      generate: as ``predict``, with the argument ``generation``, for ``predict --beams``.
      fill: texts, number of predictions -> ``Filling``s of each text, for ``amp-xla fill``.
      scored: ``Samples`` -> ``Scorer``, for ``amp-xla evaluate``; gets no configuration, and
        imports no TensorFlow.
      exportable: () -> ``Exportable``, for ``amp-xla export``; runs in float32.
      vectors: lines -> float32 [lines, hidden], for ``predict --vectors``.
      export: writes a SavedModel to a folder, and returns a text about its inputs and outputs; in
        place of ``exportable``, if no other format is possible.
      join: joins the processes that train together; None = by Horovod.
    """

    config: Type[Any]
    build: Callable[[Any, Any], Any]
    monitor: Union[str, Callable[[Any], Union[str, LoopOptions]]]
    predict: Function = None
    rank: Function = None
    generate: Function = None
    fill: Function = None
    scored: Function = None
    exportable: Function = None
    export: Function = None
    vectors: Function = None
    join: Optional[Callable[[], Ranks]] = None

    @property
    def name(self) -> str:
        """Name of the recipe's folder in ``runs/``."""
        return Path(str(sys.modules[self.build.__module__].__file__)).stem

    @property
    def file(self) -> str:
        """Path of the recipe's file, quoted for a shell; empty for this project's recipes."""
        path = Path(str(sys.modules[self.build.__module__].__file__)).resolve()
        return "" if path.parent == Path(own_package().__path__[0]).resolve() else shortest(path)

    def parse(self, words: Optional[Sequence[str]]) -> Any:
        """Return the configuration for the flags ``words``; None = those of the command line."""
        for name in {"runtime", "python"} & {*fields(self.config)}:
            raise SettingsError(f"rename the setting {name}: ./amp-xla has the flag --{name}")
        stored = functools.partial(resumed_settings, recipe=self.name)
        return parse(self.config, words, f"amp-xla train {self.file or self.name}", stored)

    def loop_options(self, config: Any) -> LoopOptions:
        """Return the options of the training loop."""
        monitor = self.monitor if isinstance(self.monitor, str) else self.monitor(config)
        if isinstance(monitor, LoopOptions):
            return monitor
        length = {n: v for n, v in flat(config).items() if n in ("epochs", "patience")}
        return config.intervals.loop(monitor=monitor, **length)

    def need(self, function: FunctionName, run: str, why: str) -> Callable[..., Any]:
        """Return the recipe's function with this name; raise AmpXlaError if the recipe has none.

        The message starts with ``run`` and ends with ``why``.
        """
        served: Function = vars(self)[function]
        if served is None:
            raise AmpXlaError(f"{run}: recipe {self.name} has no `{function}`; {why}")
        return served

    def call(self, name: FunctionName, checkpoint: Checkpoint, *args: Any, **named: Any) -> Any:
        """Call one of the recipe's functions with a run's configuration, in the run's precision.

        ``exportable`` runs in float32. XLA is off.
        """
        note(f"{self.name}: loading libraries and {checkpoint.path.name} ...")
        config = checkpoint.config(self.config)
        if "precision_options" in vars(config):  # before TensorFlow's import
            from amp_xla.backend import configuring

            stored, names = checkpoint.identity["settings"], ("precision", "infinity", "epsilon")
            meant = Precision.of(Settings(**{name: stored.get(name) for name in names}), None)
            configuring.resolve(
                precision="fp32" if name == "exportable" else meant.settings.precision, xla="off",
                infinity=meant.infinity, epsilon=meant.epsilon,
            )  # fmt: skip
        return vars(self)[name](config, checkpoint, *args, **named)


def lazy(function: str) -> Callable[..., Any]:
    """Return a function that imports ``package.module:name`` when it is called, and calls it."""
    module, _, name = function.partition(":")
    return lambda *args, **named: getattr(importlib.import_module(module), name)(*args, **named)


def find_recipe(recipe: str) -> Recipe:
    """Return a recipe by its name in ``recipes`` or by the path of its file.

    Pass only what the user typed, never a name from a file: importing runs code.

    Raises:
      AmpXlaError: there is no such recipe, its name cannot be imported, or it has no ``recipe``.
    """
    if recipe.endswith(".py"):
        module = module_of(recipe)
    elif recipe in own_recipes():
        module = importlib.import_module(f"{own_package().__name__}.{recipe}")
    else:
        raise AmpXlaError(
            f"there is no recipe {recipe}; allowed: {', '.join(own_recipes())}, or the path of a "
            f".py file"
        )
    loaded = vars(module).get("recipe")
    if not isinstance(loaded, Recipe):
        raise AmpXlaError(
            f"{recipe} has no object `recipe` of the class amp_xla.training.recipe.Recipe; "
            f"docs/own-recipe.md shows one"
        )
    return loaded


def own_recipes() -> List[str]:
    """Return the names of this project's recipes."""
    return sorted(module.name for module in pkgutil.iter_modules(own_package().__path__))


def own_package() -> Any:
    """Return the recipes' package: ``recipes`` in a checkout, ``amp_xla.recipes`` if installed."""
    inside = "amp_xla.recipes"
    return importlib.import_module(inside if importlib.util.find_spec(inside) else "recipes")


def module_of(path: str) -> Any:
    """Import the file at a path that the user typed; return its module.

    The file may import other files of its folder.
    """
    path = os.path.abspath(path)
    name = Path(path).stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == path:
        return loaded
    if not os.path.isfile(path):
        raise AmpXlaError(f"there is no recipe {path}")
    if loaded is not None or not name.isidentifier():
        raise AmpXlaError(f"{path} needs another name: {name!r} cannot be imported")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the path ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    sys.path.insert(0, os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def own_recipe(recipe: str) -> str:
    """Return ``recipe``, a name from a run's files, if this project has a recipe of this name.

    Raises:
      AmpXlaError: the project has no such recipe.
    """
    known = own_recipes()
    if recipe in known:
        return recipe
    raise AmpXlaError(
        f"recipe {recipe!r} trained the run, but this project has only {', '.join(known)}; if you "
        f"wrote that recipe, give its path: --recipe path/to/{Path(str(recipe)).name}.py"
    )
