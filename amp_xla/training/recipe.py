"""Recipes by name or path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any, List

from amp_xla.errors import AmpXlaError


def recipe_module(recipe: str) -> Any:
    """Import a recipe by its name in ``recipes`` or by the path of its file.

    Pass only what the user typed, never a name from a file: importing runs code.

    Raises:
      AmpXlaError: there is no such recipe.
    """
    if recipe.endswith(".py"):
        return _from_path(os.path.abspath(recipe))
    name = recipe if "." in recipe else f"{recipe_package()}.{recipe}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.rpartition(".")[0]):
            raise
        raise AmpXlaError(
            f"there is no {name.replace('.', '/')}.py; recipes: {', '.join(own_recipes())}"
        ) from None


def own_recipes() -> List[str]:
    """Return the names of this project's recipes."""
    package = importlib.import_module(recipe_package())
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def recipe_package() -> str:
    """Return the recipes' package: ``recipes`` in a checkout, ``amp_xla.recipes`` if installed."""
    inside = "amp_xla.recipes"
    return inside if importlib.util.find_spec(inside) is not None else "recipes"


def _from_path(path: str) -> Any:
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
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def recipe_name(recipe: str) -> str:
    """Return the name of a recipe's folder in ``runs/``."""
    return Path(recipe).stem if recipe.endswith(".py") else recipe


def recipe_of(part: Any) -> str:
    """Return the name of the recipe that has the class or function ``part``."""
    return Path(str(sys.modules[part.__module__].__file__)).stem


def own_recipe(recipe: str) -> str:
    """Check that the recipe name from a run's files is one of this project's; return it.

    Raises:
      AmpXlaError: the name is not one of them; importing it could run any code.
    """
    known = own_recipes()
    if recipe in known:
        return recipe
    raise AmpXlaError(
        f"recipe {recipe!r} trained the run, but this project has only {', '.join(known)}; if you "
        f"wrote that recipe, give its path: --recipe path/to/{Path(str(recipe)).name}.py"
    )
