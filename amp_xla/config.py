"""Command lines from frozen dataclasses, and dataclasses from saved files."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, TypeVar

import tyro

from amp_xla.errors import AmpXlaError, SettingsError

T = TypeVar("T")


def parse(config: Type[T], argv: Optional[Sequence[str]] = None, prog: Optional[str] = None) -> T:
    """Parses ``argv`` into a ``config``; unknown flags end the process with the closest names.

    Args:
      config: a frozen dataclass whose fields have docstrings (they are the ``--help``).
      argv: words; None = the process' own.
      prog: the command as the user types it.
    """
    return tyro.cli(
        config,
        args=argv,
        prog=prog,
        # "--flag / --no-flag" for booleans, one line per field; no machine-made subcommands; the
        # fields of a dataclass inside it look like its own.
        config=(tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes),
    )


def split_words(argv: Optional[Sequence[str]]) -> Tuple[List[str], List[str]]:
    """A command's own words, and behind ``--`` the recipe's; None = the process' words."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def recipe_module(recipe: str) -> Any:
    """A module in ``recipes`` by its name, or any by its dotted name.

    Raises:
      AmpXlaError: there is no such module.
    """
    name = recipe if "." in recipe else f"recipes.{recipe}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.rpartition(".")[0]):
            raise
        raise AmpXlaError(f"there is no {name.replace('.', '/')}.py") from None


def load(config: Type[T], path: Path) -> T:
    """Reads a saved config.

    Raises:
      SettingsError: the file is missing, not JSON, or has keys ``config`` does not know.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the configuration {path}: {error}") from error
    return _fill(config, values, path)


def _fill(config: Type[T], values: Dict[str, Any], path: Path) -> T:
    fields = {f.name: f for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise SettingsError(
            f"{path} has unknown keys {', '.join(unknown)}; allowed: {', '.join(sorted(fields))}"
        )
    for name, value in values.items():
        default = fields[name].default
        if dataclasses.is_dataclass(default) and isinstance(value, dict):
            values[name] = _fill(type(default), value, path)
    return config(**values)


def exit_code(function: Any, *args: Any) -> int:
    """Calls ``function``; turns this package's errors into one line and an exit code."""
    from amp_xla.training import stopping

    try:
        return int(function(*args) or 0)
    except AmpXlaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except stopping.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
