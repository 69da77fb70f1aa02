"""`python -m scripts.environment`: what the Makefile calls."""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import List, Optional

from scripts.environment.build import ensure
from scripts.environment.errors import SetupError
from scripts.environment.runtimes import choose
from scripts.environment.uv import say

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one command; returns the exit status, or does not return where `run` succeeds."""
    parser = argparse.ArgumentParser(prog="scripts/environment.sh", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("python", "print the path of the runtime's Python, building its environment if need be"),
        ("choose", "say which runtime a command would get, and build nothing"),
        ("run", "run the runtime's Python with the arguments after --"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--runtime", default="auto", help="auto, tf1, tf2, nvtf1, jax, dev")
        command.add_argument("--python", default="", help="a Python with TensorFlow, used as it is")
        if name != "python":
            command.add_argument("--recipe", help="run recipes/RECIPE.py with the arguments")
            command.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    try:
        recipe = getattr(options, "recipe", None)
        prefix = [] if recipe is None else recipe_words(recipe, options.root)
        runtime = options.runtime if recipe is None else runtime_of(recipe, options.runtime)
        choice = choose(runtime, options.python, getattr(options, "rest", ()))
        if options.command == "choose":
            print(choice.line())
            return 0
        if options.runtime != "dev":
            say(choice.line())
        if choice.provided and choice.python:
            python = choice.python.path
            if not choice.complete:
                complete(python, installing=options.command == "python", root=options.root)
        else:
            python = str(ensure(choice, options.root))
    except SetupError as error:
        say(f"error: {error}")
        return 2
    except OSError as error:  # a read-only checkout, a full disk
        say(
            f"error: {error.filename or options.root}: {error.strerror}; environments are built in"
            f" {options.root / '.venvs'}, which must be writable for that"
        )
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command again goes on from here")
        return 130
    if options.command == "python":
        print(python)
        return 0
    rest = options.rest[1:] if options.rest[:1] == ["--"] else options.rest
    sys.stdout.flush()
    os.execv(python, [python, *prefix, *rest])


def complete(python: str, installing: bool, root: Path) -> None:
    """Add what a provided Python lacks, where the user said so with `make env`.

    Raises:
      SetupError: the user did not say so.
    """
    if not installing:
        raise SetupError(
            f"{python} has TensorFlow but not bert4keras. `make env` adds what this project needs"
            " and moves nothing that is there; then the same command again."
        )
    command = [python, "-m", "scripts.container_install"]
    if subprocess.run(command, stdout=2, cwd=str(root)).returncode:
        raise SetupError(f"`{' '.join(command)}` failed; its message is above.")


def runtime_of(recipe: str, asked: str) -> str:
    """The runtime of a recipe: those called `jax_...` run in JAX, those called `keras_...` in
    TensorFlow 2, whose Keras has policies, the others in any TensorFlow.

    Raises:
      SetupError: another one was asked for.
    """
    kind = Path(recipe).stem.partition("_")[0]
    own = {"jax": "jax", "keras": "tf2"}.get(kind)
    if asked == "auto":
        return own or asked
    if (asked != own) if own else (asked == "jax"):
        needs = {"jax": "JAX", "tf2": "TensorFlow 2"}
        where = f"{needs[own]}: leave RUNTIME out, or give RUNTIME={own}" if own else "TensorFlow"
        raise SetupError(f"RECIPE={recipe} does not run on RUNTIME={asked}, but in {where}.")
    return asked


def recipe_words(name: str, root: Path) -> List[str]:
    """What Python is told to run for a recipe; the recipe's flags come behind it.

    Raises:
      SetupError: there is no such recipe.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise SetupError(f"RECIPE={name} is no file.")
        return ["-m", "amp_xla", "train", "--recipe", name, "--"]
    return ["-m", check_recipe(name, root)]


def check_recipe(name: str, root: Path) -> str:
    """The module of a recipe.

    Raises:
      SetupError: there is no such recipe; names those that there are.
    """
    known = sorted(p.stem for p in (root / "recipes").glob("*.py") if not p.stem.startswith("_"))
    if name in known:
        return f"recipes.{name}"
    close = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise SetupError(f"RECIPE={name} is unknown.{hint} Recipes: {', '.join(known) or 'none'}.")


if __name__ == "__main__":
    sys.exit(main())
