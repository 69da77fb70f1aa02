"""Command lines from frozen dataclasses, and dataclasses from saved files."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, TypeVar, cast

import tyro

from amp_xla.errors import AmpXlaError, SettingsError
from amp_xla.process.exits import exit_code  # noqa: F401  # older recipes take it from here
from amp_xla.process.fields import changed, check, flat, groups

T = TypeVar("T")


def parse(config: Type[T], argv: Optional[Sequence[str]] = None, prog: Optional[str] = None) -> T:
    """Parses ``argv`` into a ``config``; unknown flags are answered with the closest.

    Args:
      config: a frozen dataclass whose fields have docstrings (they are the ``--help``).
      argv: words; None = the process' own.
      prog: the command as the user types it.

    Raises:
      SettingsError: a number is out of its range; names the flag, the value and what is allowed.

    A config with a method ``defaults`` says what its values put in place of other defaults, as a
    preset does; what is typed stays.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    asks = [word for word in words if word in ("-h", "--help")]
    suited = None
    if hasattr(config, "defaults"):
        with contextlib.suppress(*([SettingsError] if asks else [])):
            typed = _parsed(config, [word for word in words if word not in asks], prog)
            suited = changed(config(), **cast(Any, typed).defaults())
    return cast(T, check(_parsed(config, words, prog, suited)))


def _parsed(config: Type[T], words: List[str], prog: Optional[str], default: Any = None) -> T:
    # "--flag / --no-flag" for booleans, one line per field; no machine-made subcommands; the fields
    # of a dataclass inside it look like its own.
    style = (tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = {} if default is None else {"default": default}
            return tyro.cli(config, args=words, prog=prog, config=style, **given)
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise SettingsError(_one_line(said.getvalue())) from None


# Behind it stands what to read: --help, as ever.
_ADVICE = re.compile(r" ?(?:For full helptext, (?:see|run) .*|Error parsing \S+: )")
_WORDS = (
    (re.compile(r"invalid literal for int\(\) with base 10: (.*?)(?= Argument helptext)"),
     r"\1 is not a whole number"),
    (re.compile(r"could not convert string to float: (.*?)(?= Argument helptext)"),
     r"\1 is not a number"),
    (re.compile(r" (?:Perhaps you meant|Arguments similar to [^:]*):"), "; did you mean"),
    (re.compile(r" Argument helptext:"), ":"),
)  # fmt: skip


def _one_line(box: str) -> str:
    """What stands in the frames that tyro draws around an error."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    text = _ADVICE.sub("", " ".join(line for line in lines if line.strip("─")))
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text or box.strip()


def split_words(argv: Optional[Sequence[str]]) -> Tuple[List[str], List[str]]:
    """A command's own words, and behind ``--`` the recipe's; None = the process' words."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def recipe_module(recipe: str) -> Any:
    """A recipe by its name in ``recipes``, or by the path of its file.

    Only what the user typed belongs in here, never a name found in a file: importing runs code.

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
    """Names of this project's recipes."""
    package = importlib.import_module(recipe_package())
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def recipe_package() -> str:
    """Recipes lie beside this package in a checkout, and inside it where it is installed."""
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
        raise AmpXlaError(f"the recipe {path} needs another name: {name!r} cannot be imported")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def recipe_name(recipe: str) -> str:
    """What a recipe's folder in runs/ is called."""
    return Path(recipe).stem if recipe.endswith(".py") else recipe


def own_recipe(recipe: str) -> str:
    """A name that a run's files say, if it is that of a recipe of this project.

    Raises:
      AmpXlaError: it is none: what a file names is not imported.
    """
    known = own_recipes()
    if recipe in known:
        return recipe
    raise AmpXlaError(
        f"the run is of recipe {recipe!r}, which is none of this project ({', '.join(known)}); "
        f"say where it is: --recipe path/to/{Path(str(recipe)).name}.py"
    )


def load(config: Type[T], path: Path) -> T:
    """Reads a saved config.

    Raises:
      SettingsError: the file is missing, not JSON, has keys ``config`` does not know, or a number
        out of its range.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"the configuration {path} is not a JSON object")
    try:
        return make(config, **values)
    except SettingsError as error:
        raise SettingsError(f"the configuration {path}: {error}") from error


def make(config: Type[T], **values: Any) -> T:
    """A config from flat values, as flags give them; option groups as dictionaries are allowed.

    Raises:
      SettingsError: a key is unknown, or a number is out of its range.
    """
    default = config()
    for name, _ in groups(default):
        group = values.get(name)
        if isinstance(group, dict):
            values.update(values.pop(name))
    unknown = sorted(set(values) - set(flat(default)) - {name for name, _ in groups(default)})
    if unknown:
        allowed = ", ".join(sorted(flat(default)))
        raise SettingsError(f"unknown keys {', '.join(unknown)}; allowed: {allowed}")
    return cast(T, changed(default, **values))


def document(config: Any) -> Dict[str, Any]:
    """What is saved of a config: flat, as its flags are, with what concerns the run only apart."""
    values = flat(config)
    run = getattr(config, "run", None)
    if dataclasses.is_dataclass(run) and not isinstance(run, type):
        values = {name: value for name, value in values.items() if name not in flat(run)}
        values["run"] = dataclasses.asdict(run)
    return values
