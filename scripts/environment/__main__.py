"""`./amp-xla`: choose the runtime of a command, build its environment, start the command in it."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from amp_xla.commands import COMMANDS, OF_A_SCRIPT, unknown_command, usage
from amp_xla.process import json_files, output
from amp_xla.process.checkout import running
from scripts.environment import SetupError, say
from scripts.environment.build import ensure
from scripts.environment.installed import distributions, inside_container, tensorflow_version
from scripts.environment.runtimes import Choice, choose
from scripts.environment.uv import uv

ROOT = Path(__file__).resolve().parents[2]
HERE = ("env", "python", "pip")  # commands of the environment, not of the package
OPTIONS = """
  env                        build a runtime's environment if needed; print its Python
  python WORDS               run Python in it: examples/ner_crf.py, -m benchmarks.gpu
  pip WORDS                  add packages to it, e.g. pip install '.[onnx]', until its lock changes

before --:
  --runtime R   auto, tf1, tf2, nvtf1 or jax; default: $RUNTIME, else that of the recipe or run
  --python P    path of a Python with TensorFlow, to use unchanged"""


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Start the command in its environment; return an exit code if no program is started."""
    before, words = take_options(words, "python")  # those before the command
    if not words or words[0] in ("-h", "--help"):
        return shown(usage("./amp-xla") + OPTIONS)
    command = words[0]
    if command not in (*HERE, *COMMANDS):
        say(unknown_command(command, HERE))
        return 2
    options, rest = take_options(words[1:], command)
    options = {**before, **options}
    try:
        request = options.get("runtime") or os.environ.get("RUNTIME") or "auto"
        why = f"RUNTIME={request}"
        if command not in HERE:
            asked, request = request, runtime_for(command, rest, request, root)
            if request != asked:
                of_a_run = COMMANDS[command].positional[0] == "run" or "--resume" in rest
                why = f"the {'run was trained with' if of_a_run else 'recipe needs'} {request}"
        choice = choose(request, options.get("python", ""), why)
        if request != "dev" and choice.runtime.name != os.environ.get("RUNTIME_SHOWN"):
            say(choice.line())
        python = prepared(choice, installing=command == "env", root=root)
    except SetupError as error:
        say(f"error: {error}")
        return 2
    except OSError as error:  # a read-only checkout, a full disk
        say(
            f"error: {error.filename or root}: {error.strerror}; environments are built in"
            f" {root / '.venvs'}, which must be writable"
        )
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command continues")
        return 130
    if command == "env":
        return shown(python)
    program = [*running("amp_xla", python), command]  # ./amp-xla has set PYTHONPATH
    if command == "python":
        program = [python]
    elif command == "pip":  # environments that uv builds have no pip
        program = [python, "-m", "pip"]
        if not choice.provided:
            program, rest = [uv(root), "pip", *rest[:1], "--python", python], rest[1:]
    os.execv(program[0], [*program, *rest])


def shown(text: str) -> int:
    """Print to standard output; return the exit code."""
    try:
        print(text)
        output.flush()
    except BrokenPipeError:
        output.discard()
        return 141
    except OSError as error:  # a full disk
        output.discard()
        say(f"error: cannot write to standard output: {error.strerror}")
        return 2
    return 0


def take_options(words: Sequence[str], command: str) -> Tuple[Dict[str, str], List[str]]:
    """Take --runtime and --python out of the words before `--`; return them and the other words.

    `header` has its own flag --runtime: the TensorFlow of the user's script. After `python` and
    `pip` they come first, because the other words are another program's.
    """
    names = ("--python",) if command == "header" else ("--runtime", "--python")
    options: Dict[str, str] = {}
    rest: List[str] = []
    iterator = iter(words)
    for word in iterator:
        name, sign, value = word.partition("=")
        if word == "--" or (command in HERE[1:] and name not in names):
            rest += [word, *iterator]
        elif name in names:
            options[name[2:]] = value if sign else next(iterator, "")
        else:
            rest.append(word)
    return options, rest


def prepared(choice: Choice, installing: bool, root: Path) -> str:
    """Return the path of the Python to run, after installing the packages that it needs.

    Raises:
      SetupError: a provided Python lacks bert4keras and `installing` is False, or a build fails.
    """
    if not choice.provided:
        return str(ensure(choice, root))
    if choice.complete:
        return choice.python
    if not installing:
        raise SetupError(
            f"{choice.python} has TensorFlow but not bert4keras. `make env` adds what this project"
            " needs and changes nothing that is installed; then repeat the command."
        )
    command = [choice.python, "-m", "scripts.container_install"]
    if subprocess.run(command, stdout=2, cwd=str(root)).returncode:
        raise SetupError(f"`{' '.join(command)}` failed; its message is above.")
    return choice.python


def runtime_for(command: str, words: Sequence[str], request: str, root: Path) -> str:
    """Return the runtime that a command's recipe or run needs, else the requested one.

    Raises:
      SetupError: the recipe is unknown or does not fit runtime or NP, or a script trained the run.
    """
    subject = COMMANDS[command].positional[:1]
    if subject == ("recipe",):
        recipe = argument(words, "recipe", "classification")
        if ".py:" in recipe:  # a function of the user's script
            return request
        if command == "ranks" and Path(recipe).stem.startswith("jax_"):
            raise SetupError(
                f"RECIPE={recipe} does not take NP: start it once per process, with the"
                " variables in docs/jax.md."
            )
        if "--resume" in words and request == "auto" and not has_tensorflow():
            name = flag(words, "name") or "latest"
            request = runtime_of_run(process_of(f"runs/{Path(recipe).stem}/{name}")) or request
        return runtime_of_recipe(find_recipe(recipe, root), request)
    if subject == ("run",):
        builds = command == "export" and any(".py:" in word for word in words)
        default = f"runs/{'pretraining' if command == 'fill' else 'classification'}/latest"
        run = argument(words, "run", "" if builds else default)
        process = process_of(run) if run else {}
        of_script = process.get("recipe") == "script" and not flag(words, "recipe")
        if of_script and command not in ("report", "verify") and not builds:
            raise SetupError(f"{run}: {OF_A_SCRIPT}")
        if request == "auto" and not has_tensorflow():
            return runtime_of_run(process) or "auto"
    return request


def has_tensorflow() -> bool:
    """Return whether this is a container with TensorFlow, which all commands use."""
    python = sys.executable
    return inside_container() and tensorflow_version(python, distributions(python)) is not None


def argument(words: Sequence[str], name: str, default: str) -> str:
    """Return the value of the flag `--name`, or the first word if that is a value, or `default`."""
    own_words = list(words[: words.index("--")] if "--" in words else words)
    value = flag(own_words, name)
    if value is not None:
        return value
    positional = own_words and not own_words[0].startswith("-")
    return own_words[0] if positional else default


def flag(words: Sequence[str], name: str) -> Optional[str]:
    """Return the value of the flag `--name`; None if it is not there."""
    for index, word in enumerate(words):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}":
            return "".join(words[index + 1 : index + 2])
    return None


def process_of(run: str) -> Dict[str, object]:
    """Return the content of a run's run.json; empty if it cannot be used."""
    try:
        process: Dict[str, object] = json_files.read(Path(run) / "run.json", most=1 << 20)
    except (OSError, ValueError):  # the command that follows reports it
        return {}
    return process


def runtime_of_run(process: Dict[str, object]) -> Optional[str]:
    """Return the runtime that trained a run; None = unknown."""
    tensorflow = str(process.get("tensorflow", ""))
    if tensorflow.startswith("1.15"):
        return "nvtf1" if "+nv" in tensorflow else "tf1"
    if tensorflow.startswith("2."):
        return "tf2"
    return "jax" if "jax" in process else None


def runtime_of_recipe(recipe: str, request: str) -> str:
    """Return the runtime for a recipe: `jax_...` needs JAX.

    Raises:
      SetupError: the recipe does not run on the requested runtime.
    """
    required = "jax" if Path(recipe).stem.startswith("jax_") else None
    if request == "auto":
        return required or request
    if required and request != required:
        raise SetupError(f"RECIPE={recipe} needs RUNTIME={required}, found RUNTIME={request}.")
    if not required and request == "jax":
        raise SetupError(f"RECIPE={recipe} needs TensorFlow, found RUNTIME=jax.")
    return request


def find_recipe(name: str, root: Path) -> str:
    """Check that a recipe or a recipe's file exists; return its name.

    Raises:
      SetupError: there is no such recipe or file.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise SetupError(f"recipe {name}: there is no such file.")
        return name
    known = sorted(p.stem for p in (root / "recipes").glob("*.py") if not p.stem.startswith("_"))
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise SetupError(f"recipe {name} is unknown.{hint} Recipes: {', '.join(known)}.")
    return name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
