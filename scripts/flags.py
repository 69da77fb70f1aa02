"""Write docs/flags.md: the flags of all recipes and commands, from their dataclasses.

    ./amp-xla python -m scripts.flags

Imports no TensorFlow. A test compares the page with what this program writes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from typing_extensions import get_args, get_type_hints

from amp_xla.commands import COMMANDS
from amp_xla.config import Field, Range, fields
from amp_xla.training.recipe import find_recipe, own_recipes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
INTRODUCTION = """\
# All flags

`./amp-xla python -m scripts.flags` writes this page from the code. `make train ARGS="--help"` and
`./amp-xla predict --help` print the same for one recipe or command. Flags are a run's
hyperparameters (learning rate, batch size, epochs, ...) and its other settings, which the run
stores in `config.json`. [Switches](switches.md) has the environment variables, and explains
precision, XLA and the tricks for fine-tuning.

`--lowercase` sets a flag that is true or false, `--no-lowercase` unsets it. **R** marks flags that
may change when a run is [resumed](resume.md). If the default is `none`, the column "meaning" says
what happens without the flag. In a checkout each command also has `--runtime` and `--python`.

## Recipes
"""


class Flag(NamedTuple):
    """A flag: its group's heading, its help text, and its default in one recipe or command."""

    heading: str
    field: Field
    text: str
    default: Any

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        kinds = [kind for kind in self.field.kinds if kind is not type(None)]
        choices = [choice for kind in kinds for choice in get_args(kind) if kind is not tuple]
        if choices:
            return ", ".join(f"`{choice}`" for choice in choices)
        if bool in kinds:
            return "true, false"
        if self.field.numbers():
            return str(self.field.range or Range())
        return "text"


def flags(config: Any, default: Any = None, heading: str = "") -> Iterator[Flag]:
    """Return the flags of a configuration class, in the order of its fields."""
    default = config() if default is None else default
    known, hints = fields(config), get_type_hints(config, include_extras=True)
    texts: Dict[str, str] = {}
    for base in reversed(config.__mro__[:-1]):
        texts.update(_docstrings(base))
    for field in dataclasses.fields(config):
        value, kind = getattr(default, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            name = str(inspect.getdoc(type(value))).split("\n")[0].rstrip(".")
            yield from flags(type(value), value, name)
            continue
        helps = [getattr(item, "help", None) for item in getattr(kind, "__metadata__", ())]
        text = next((each for each in helps if each), texts.get(field.name, ""))
        yield Flag(heading, known[field.name], " ".join(text.split()), value)


def _docstrings(config: Any) -> Dict[str, str]:
    """Return the string below each field of a dataclass."""
    tree = ast.parse(inspect.getsource(config))
    body = tree.body[0].body  # type: ignore[attr-defined]
    return {
        one.target.id: ast.literal_eval(other.value)
        for one, other in zip(body, body[1:])
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and isinstance(other, ast.Expr)
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value != "" else ""


def _names(recipes: List[str], every: List[str]) -> str:
    missing = [name for name in every if name not in recipes]
    if not missing:
        return "all"
    return f"all but {', '.join(missing)}" if len(missing) < 3 else ", ".join(recipes)


def _table(columns: str, rows: Sequence[Tuple[str, ...]]) -> List[str]:
    head = [f"| {columns} |", "|" + "---|" * len(columns.split("|"))]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _recipes() -> Iterator[str]:
    every = own_recipes()
    groups: Dict[str, Dict[Tuple[str, str], List[Tuple[str, Flag]]]] = {}
    for recipe in every:
        for flag in flags(find_recipe(recipe).config):
            key = (flag.field.flag, flag.text)
            heading = next((name for name, group in groups.items() if key in group), flag.heading)
            groups.setdefault(heading, {}).setdefault(key, []).append((recipe, flag))
    own = groups.pop("")
    several = {key: uses for key, uses in own.items() if len(uses) > 1}
    groups = {"Flags of several recipes": several, **groups}
    for recipe in every:
        single = {key: uses for key, uses in own.items() if [name for name, _ in uses] == [recipe]}
        if single:
            groups[f"Flags of {recipe}"] = single
    for heading, group in groups.items():
        yield f"### {heading}\n"
        rows = []
        for (name, text), uses in group.items():
            defaults: Dict[str, List[str]] = defaultdict(list)
            for recipe, flag in uses:
                defaults[_shown(flag.default)].append(recipe)
            most = max(defaults, key=lambda value: len(defaults[value]))
            others = [f"{', '.join(names)}: {v}" for v, names in defaults.items() if v != most]
            flag = uses[0][1]
            rows.append((
                f"`{name}`", "; ".join([most, *others]), flag.allowed, _cell(text),
                "R" * flag.field.may_change, _names([recipe for recipe, _ in uses], every),
            ))  # fmt: skip
        yield from _table("flag | default | allowed | meaning | R | recipes", rows)


def _commands() -> Iterator[str]:
    yield "## Commands\n\nValues may come first: `RUN FILE` means `--run RUN --file FILE`.\n"
    for name, command in COMMANDS.items():
        config: Optional[Any] = getattr(importlib.import_module(command.module), "Config", None)
        if config is None:
            continue
        yield f"### {' '.join(['amp-xla', name, *(word.upper() for word in command.positional)])}\n"
        yield f"{command.summary[0].upper()}{command.summary[1:]}.\n"
        rows = [
            (f"`{flag.field.flag}`", _shown(flag.default), flag.allowed, _cell(flag.text))
            for flag in flags(config)
        ]
        yield from _table("flag | default | allowed | meaning", rows)


def page() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_recipes(), *_commands()]).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
