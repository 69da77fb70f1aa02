"""What a settings field allows, and what its value can change: stated where the field is declared.

dropout: Annotated[float, within(at_least=0, below=1)] = 0.1
log_every: Annotated[int, within(at_least=1), MAY_CHANGE, SAME_SPEED] = 20
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple, Type, Union

import tyro
from typing_extensions import get_args, get_origin, get_type_hints

from amp_xla.errors import SettingsError


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something that is true of a field's value; ``name`` is for readers."""

    name: str


MAY_CHANGE = Mark("a resumed run may have another value: no step depends on it, or its content is")
SAME_SPEED = Mark("another value makes the same graph of the same shapes: a step is as fast")


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field may hold. Infinities and NaN never are among them."""

    at_least: Optional[float] = None
    above: Optional[float] = None
    at_most: Optional[float] = None
    below: Optional[float] = None

    def __contains__(self, value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = f"above {_plain(self.above)}" if self.above is not None else ""
        if self.at_least is not None:
            low = _plain(self.at_least)
        high = f"below {_plain(self.below)}" if self.below is not None else ""
        if self.at_most is not None:
            high = _plain(self.at_most)
        if low and high:
            return f"{low} to {high}"
        if high:
            return high if self.below is not None else f"up to {high}"
        return f"{low} or more" if self.at_least is not None else low or "any finite number"

    def __call__(self, default: str) -> str:
        """What ``--help`` prints behind a field's text."""
        return f"({self}; default: {default})"


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def within(
    at_least: Optional[float] = None,
    at_most: Optional[float] = None,
    above: Optional[float] = None,
    below: Optional[float] = None,
) -> Any:
    """For ``Annotated``: the range of a number, checked by ``check`` and shown by ``--help``."""
    return tyro.conf.arg(help_behavior_hint=Range(at_least, above, at_most, below))


class Field(NamedTuple):
    """A settings field: ``name`` as in Python, ``kind`` its type without what is annotated."""

    name: str
    kind: Any
    range: Optional[Range]
    marks: Tuple[Mark, ...]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def numbers(self) -> Tuple[type, ...]:
        """Which of int and float the field holds; empty for text, choices and switches."""
        kinds = get_args(self.kind) if get_origin(self.kind) is Union else (self.kind,)
        return tuple(kind for kind in (int, float) if kind in kinds)

    def problem(self, value: Any) -> Optional[str]:
        """What is wrong with ``value``, or None."""
        numbers = self.numbers()
        if not numbers or (value is None and type(None) in get_args(self.kind)):
            return None
        allowed = self.range or Range()
        if value in allowed and (float in numbers or isinstance(value, int)):
            return None
        whole = "" if float in numbers else "a whole number, "
        return f"{value!r}: allowed is {whole}{allowed}"


def fields(config: Any) -> Dict[str, Field]:
    """Every field of a settings class by its flag's name; those of option groups included."""
    found: Dict[str, Field] = {}
    hints = get_type_hints(config, include_extras=True)
    for field in dataclasses.fields(config):
        kind: Any = hints[field.name]
        metadata: Tuple[Any, ...] = getattr(kind, "__metadata__", ())
        kind = get_args(kind)[0] if metadata else kind
        if dataclasses.is_dataclass(kind):
            found.update(fields(kind))
            continue
        hints_behind = (getattr(item, "help_behavior_hint", None) for item in metadata)
        ranges = [hint for hint in hints_behind if isinstance(hint, Range)]
        marks = tuple(item for item in metadata if isinstance(item, Mark))
        found[field.name] = Field(field.name, kind, ranges[0] if ranges else None, marks)
    return found


def groups(config: Any) -> Iterator[Tuple[str, Any]]:
    """(field name, value) of the option groups in a settings value."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield field.name, value


def flat(config: Any) -> Dict[str, Any]:
    """Flag's name -> value, through the option groups; the groups themselves leave no trace."""
    inside = dict(groups(config))
    found: Dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name in inside:
            found.update(flat(inside[field.name]))
        else:
            found[field.name] = getattr(config, field.name)
    return found


def unmarked(config: Any, mark: Mark) -> Dict[str, Any]:
    """``flat``, without the fields that carry ``mark``."""
    known = fields(type(config))
    return {name: value for name, value in flat(config).items() if mark not in known[name].marks}


def part(config: Any, kind: Type[Any]) -> Any:
    """The option group of type ``kind`` in a settings value, or None."""
    return next((value for _, value in groups(config) if isinstance(value, kind)), None)


def changed(config: Any, **values: Any) -> Any:
    """A copy with other values, wherever among the option groups their fields are.

    Raises:
      SettingsError: there is no such field, or its value is out of range.
    """
    _check(type(config), values)  # before a group compares them with each other
    own = {field.name for field in dataclasses.fields(config)}
    new = {name: values.pop(name) for name in list(values) if name in own}
    for name, group in groups(config):
        known = fields(type(group))
        inside = {key: values.pop(key) for key in list(values) if key in known}
        if inside:
            new[name] = changed(new.get(name, group), **inside)
    if values:
        raise SettingsError(f"{type(config).__module__} has no setting {', '.join(sorted(values))}")
    return check(dataclasses.replace(config, **new))


def check(config: Any) -> Any:
    """Returns ``config`` if every number in it is in its range.

    Raises:
      SettingsError: one is not; names the flag, the value and what is allowed.
    """
    _check(type(config), flat(config))
    return config


def _check(config: Type[Any], values: Mapping[str, Any]) -> None:
    known = fields(config)
    for name, value in values.items():
        problem = known[name].problem(value) if name in known else None
        if problem:
            raise SettingsError(f"{known[name].flag} {problem}")
