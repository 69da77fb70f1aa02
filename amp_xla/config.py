"""Configuration: frozen dataclasses as command lines and as flat dictionaries.

A field states its range, and whether a resumed run may change it; its docstring is the help text:

    log_every: Annotated[int, within(at_least=1), MAY_CHANGE] = 20

Fields of dataclasses inside a dataclass (option groups) are flags without a prefix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import sys
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    cast,
)

import tyro
from typing_extensions import Literal, get_args, get_origin, get_type_hints

from amp_xla.errors import SettingsError
from amp_xla.process import json_files, output
from amp_xla.process.checkout import as_typed

T = TypeVar("T")
MAY_CHANGE = "may change on resume"
_LARGEST_INTEGER = 2**63 - 1
_SHOWN_CHARACTERS = 40


@dataclasses.dataclass(frozen=True)
class Range:
    """Allowed numbers of a field. NaN and infinities are never allowed."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and abs(value) < math.inf
            and (not isinstance(value, int) or abs(value) <= _LARGEST_INTEGER)
            and self.at_least <= value <= self.at_most
            and self.above < value < self.below
        )

    def __str__(self) -> str:
        open_low, open_high = self.above > -math.inf, self.below < math.inf
        low = f"above {_plain(self.above)}" if open_low else _plain(self.at_least)
        high = f"below {_plain(self.below)}" if open_high else _plain(self.at_most)
        if max(self.at_least, self.above) > -math.inf:
            endless = min(self.at_most, self.below) == math.inf
            return (low if open_low else f"{low} or more") if endless else f"{low} to {high}"
        if open_high:
            return high
        return f"up to {high}" if self.at_most < math.inf else "any finite number"

    def __call__(self, default: str) -> str:
        """Return the end of a flag's help text: the range and the default."""
        return f"({self}; default: {default})"


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def within(
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    help: Optional[str] = None,
) -> Any:
    """Return the annotation for a field's range; ``help`` replaces the field's docstring."""
    return tyro.conf.arg(help=help, help_behavior_hint=Range(at_least, above, at_most, below))


class Field(NamedTuple):
    """A field of a configuration: name, type, range, and whether it may change on resume."""

    name: str
    kind: Any
    range: Optional[Range]
    may_change: bool

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def kinds(self) -> Tuple[Any, ...]:
        """The accepted types: several for a ``Union``, also if it is written ``int | None``."""
        return get_args(self.kind) if "Union" in str(get_origin(self.kind)) else (self.kind,)

    def numbers(self) -> Tuple[type, ...]:
        """Return which of ``int`` and ``float`` the field accepts; () for other types."""
        return tuple(kind for kind in (int, float) if kind in self.kinds)

    def problem(self, value: Any, words: Sequence[str] = ()) -> Optional[str]:
        """Return what is wrong with a value, or None; ``words``: the command line."""
        if Any in self.kinds or (value is None and type(None) in self.kinds):
            return None
        numbers, limits = self.numbers(), self.range or Range()
        choices = [x for kind in self.kinds if get_origin(kind) is Literal for x in get_args(kind)]
        allowed = [", ".join(map(str, choices))] if choices else []
        if numbers:
            finite = ", and finite" * bool(self.range and value == limits.at_most == limits.below)
            allowed.append("a whole number, " * (float not in numbers) + f"{limits}{finite}")
        # Tuples are lists in JSON. A text is a ``Sequence`` of letters, but no list.
        named = (int, float, type(None), Literal) if allowed else ()
        origins = [kind for kind in (get_origin(k) or k for k in self.kinds) if kind not in named]
        kinds = tuple(list if k is tuple or isinstance([], k) else k for k in origins)
        allowed += [json_files.NAMES.get(kind, kind.__name__) for kind in kinds]
        fits = numbers and value in limits and (float in numbers or isinstance(value, int))
        listed = list(value) if isinstance(value, tuple) else value
        if fits or value in choices or isinstance(listed, kinds):
            return None
        text = repr(value)
        typed = re.findall(f"{self.flag.replace('-', '[-_]')}[ =](\\S+)", " ".join(words))
        if typed and isinstance(value, float):
            rounded = value in (0.0, math.inf, -math.inf) and re.search("[1-9]", typed[-1])
            text = typed[-1] + (f" ({value:g})" if rounded else "")  # 1e400, 1e-400
        text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
        return f"{text}: allowed is {' or '.join(allowed)}"


def fields(config: Any) -> Dict[str, Field]:
    """Return fields by name, also those of option groups; raise SettingsError for equal flags."""
    result: Dict[str, Field] = {}
    places = {"--help": "all commands"}
    hints = get_type_hints(config, include_extras=True)
    for field in dataclasses.fields(config):
        kind: Any = hints[field.name]
        metadata: Tuple[Any, ...] = getattr(kind, "__metadata__", ())
        kind = get_args(kind)[0] if metadata else kind
        help_hints = [getattr(item, "help_behavior_hint", None) for item in metadata]
        ranges = [hint for hint in help_hints if isinstance(hint, Range)]
        may_change = any(item is MAY_CHANGE for item in metadata)
        single = Field(field.name, kind, ranges[0] if ranges else None, may_change)
        is_group = dataclasses.is_dataclass(kind)
        members = fields(kind) if is_group else {single.name: single}
        place = f"{config.__name__}.{field.name}"
        inner = {single.flag: place} if is_group else {}  # `changed` would take one for the other
        for each in members.values():
            where = f"{place}.{each.name}" if is_group else place
            for flag in (each.flag, f"--no-{each.flag[2:]}")[: 1 + (each.kind is bool)]:
                other = places.get(flag) or inner.get(flag)
                if other:
                    raise SettingsError(f"{where} has the flag {flag} of {other}; rename it")
                places[flag] = where
        result.update(members)
    return result


def flat(config: Any) -> Dict[str, Any]:
    """Return name -> value of all fields, including the fields of option groups."""
    result: Dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        result.update(flat(value) if dataclasses.is_dataclass(value) else {field.name: value})
    return result


def changed(config: T, **values: Any) -> T:
    """Return a copy of ``config`` with new values for some fields, which may be in option groups.

    Raises:
      SettingsError: a field is unknown, or its value is not allowed.
    """
    _check(type(config), values)  # before a group's __post_init__ compares its values
    new: Dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, config)):
        group, name = getattr(config, field.name), field.name
        names = flat(group) if dataclasses.is_dataclass(group) else [name]
        inside = {key: values.pop(key) for key in list(values) if key in names}
        if inside:
            new[name] = inside[name] if name in inside else changed(group, **inside)
    if values:
        raise SettingsError(f"{type(config).__module__} has no setting {', '.join(sorted(values))}")
    return dataclasses.replace(cast(Any, config), **new)


def _check(config: Type[Any], values: Mapping[str, Any], words: Sequence[str] = ()) -> None:
    known = fields(config)
    for name, value in values.items():
        problem = known[name].problem(value, words) if name in known else None
        if problem:
            raise SettingsError(f"{known[name].flag} {problem}")


def parse(
    config: Type[T],
    argv: Optional[Sequence[str]] = None,
    prog: Optional[str] = None,
    stored: Optional[Callable[[Any], Dict[str, Any]]] = None,
) -> T:
    """Parse a command line; an unknown flag is an error that names the closest one.

    A configuration may have a method ``defaults``, which returns the defaults that depend on other
    flags, e.g. the learning rate that depends on ``--bert``.

    Args:
      argv: command-line words; None = ``sys.argv[1:]``.
      prog: the command, ``amp-xla ...``.
      stored: function (configuration) -> defaults from an earlier run; {} if there is no such run.

    Raises:
      SettingsError: a flag or value is not allowed.
      AmpXlaError: a word of the command line is not UTF-8.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for word in words:
        output.check_name(word)
    help_words = [word for word in words if word in ("-h", "--help")]
    default = None
    if stored is not None or hasattr(config, "defaults"):
        known = fields(config)
        try:
            given = flat(config())
        except TypeError as error:
            raise SettingsError(
                f"every setting of {config.__name__} needs a default: {error}"
            ) from None
        # Check these before they become flags. ``defaults`` may replace the rest: numbers and None.
        free = {n for n, v in given.items() if known[n].numbers() and isinstance(v, (int, float))}
        _check(config, {n: v for n, v in given.items() if v is not None and n not in free})
        with contextlib.suppress(*([SettingsError] if help_words else [])):
            typed: Any = _parse(config, [word for word in words if word not in help_words], prog)
            values = {} if stored is None else stored(typed)
            if not values and hasattr(config, "defaults"):
                values = typed.defaults()
            default = changed(config(), **values)
    parsed = _parse(config, words, prog, default)
    _check(config, flat(parsed), words)
    return parsed


def _parse(config: Type[T], words: List[str], prog: Optional[str], default: Any = None) -> T:
    style = (tyro.conf.AvoidSubcommands, tyro.conf.OmitArgPrefixes)
    errors, prog = io.StringIO(), prog and as_typed(prog)
    try:
        with contextlib.redirect_stderr(errors):
            defaults = {} if default is None else {"default": default}
            return tyro.cli(config, args=words, prog=prog, config=style, **defaults)
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise SettingsError(_one_line(errors.getvalue())) from None


def _choices(match: Any) -> str:
    flag, value, choices = match.groups()
    names = sorted(set(re.findall(r"'([^']*)'", choices)) - {"None"})
    return f"{flag} {value}: allowed is {', '.join(names)}"


_ADVICE = re.compile(r" ?(?:For full helptext, (?:see|run) .*|Error parsing \S+: )")
_WORDS = (
    (re.compile(r"invalid literal for int\(\) with base 10: (.*?)(?= Argument helptext)"),
     r"\1 is not a whole number"),
    (re.compile(r"could not convert string to float: (.*?)(?= Argument helptext)"),
     r"\1 is not a number"),
    (re.compile(r" (?:Perhaps you meant|Arguments similar to [^:]*):"), "; did you mean"),
    (re.compile(r" Argument helptext:"), ":"),
    (re.compile(r"\{None\}\|"), ""),
    (re.compile(r"Argument (--\S+): invalid choice: '(.*?)' \(choose from (.*?)\)"), _choices),
    (re.compile(r"(did you mean|:) (--\S+(?:, --\S+| [A-Z{]\S*))"), r"\1 \2,"),
    (re.compile(r"^Unrecognized options:"), "unknown flag"),
    (re.compile(r"^Unrecognized arguments: (.*)"),
     r"unexpected \1: values without a flag come before the first flag"),
)  # fmt: skip


def _one_line(box: str) -> str:
    """Return tyro's error message in one line and in plain words, without the frame around it."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    text = _ADVICE.sub("", " ".join(line for line in lines if line.strip("─")))
    for pattern, words in _WORDS:
        text = pattern.sub(words, text)
    return text or box.strip()


def split_words(argv: Optional[Sequence[str]]) -> Tuple[List[str], List[str]]:
    """Split a command line at ``--`` into the command's words and the recipe's words."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]
