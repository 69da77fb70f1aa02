"""Configurations: ranges, marks, option groups, command lines, and saved files."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any, List, Optional, Sequence, Tuple, Union

import pytest
from typing_extensions import Annotated, Literal

from amp_xla.config import MAY_CHANGE, changed, fields, flat, parse, within
from amp_xla.errors import SettingsError
from tests.support.running import ROOT

pytestmark = pytest.mark.once


@dataclasses.dataclass(frozen=True)
class Group:
    """A group."""

    rate: Annotated[float, within(at_least=0, below=1)] = 0.5
    """a rate"""
    count: Annotated[Optional[int], within(at_least=1)] = None
    """a count"""
    mode: Optional[Literal["a", "b-c"]] = None
    """a mode"""
    peak_rate: Annotated[float, within(above=0)] = 1.0


@dataclasses.dataclass(frozen=True)
class Run:
    """A run."""

    name: Annotated[Optional[str], MAY_CHANGE] = None
    """its name"""


@dataclasses.dataclass(frozen=True)
class Config:
    """Try configurations."""

    steps: Annotated[int, within(above=0, at_most=10**6), MAY_CHANGE] = 3
    """how many"""
    sizes: Tuple[int, ...] = (1, 2)
    """sizes"""
    names: Optional[List[str]] = None
    """names"""
    group: Group = Group(rate=0.25)
    run: Run = Run()


@pytest.mark.parametrize("words, message", [
    ("--rate 1", "--rate 1: allowed is 0 to below 1"),
    ("--rate=-inf", "--rate -inf: allowed is 0 to below 1"),
    ("--peak-rate 1e400", "--peak-rate 1e400 (inf): allowed is above 0, and finite"),
    ("--peak_rate=1e-400", "--peak-rate 1e-400 (0): allowed is above 0"),
    ("--peak-rate " + "9" * 400, f"--peak-rate {'9' * 40}...: allowed is above 0, and finite"),
    ("--count 0", "--count 0: allowed is a whole number, 1 or more"),
    ("--count " + "9" * 400, f"--count {'9' * 40}...: allowed is a whole number, 1 or more"),
    ("--steps 0", "--steps 0: allowed is a whole number, above 0 to 1,000,000"),
    ("--steps 1e3", "'1e3' is not a whole number: --steps INT, how many"),
    ("--rate x", "'x' is not a number: --rate FLOAT, a rate"),
    ("--mode b", "--mode b: allowed is a, b-c"),
    ("--stepz 1", "unknown flag --stepz; did you mean --steps INT, how many"),
    ("--count 1 a.txt", "unexpected a.txt: values without a flag come before the first flag"),
])  # fmt: skip
def test_a_wrong_command_line_is_one_line(words, message, capsys):
    with pytest.raises(SettingsError) as raised:
        parse(Config, words.split(), "try")
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)
    assert capsys.readouterr().err == ""


def test_the_command_line_is_flat_and_the_help_shows_the_ranges(capsys):
    words = "--rate 0.5 --count 7 --name a --names b c --sizes 3"
    config = parse(Config, words.split(), "try")
    assert config == Config(3, (3,), ["b", "c"], Group(0.5, 7), Run("a"))
    with pytest.raises(SystemExit) as end:
        parse(Config, ["--help"], "try")
    assert end.value.code == 0
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "--rate FLOAT a rate (0 to below 1; default: 0.25)" in shown
    new = changed(Config(), rate=0.75, steps=5)
    assert (new.group.rate, new.steps, new.group.count) == (0.75, 5, None)
    with pytest.raises(SettingsError, match="no setting bogus"):
        changed(Config(), bogus=1)
    with pytest.raises(SettingsError, match="--rate 2"):
        changed(Config(), rate=2)
    with pytest.raises(SettingsError, match="--mode 'c': allowed is a, b"):  # from a file
        changed(Config(), mode="c")
    assert changed(Config(), mode="b-c").group.mode == "b-c"


@pytest.mark.parametrize("settings, problem", [
    *(([("words", kind, value)], "--words .*: allowed is a list$")
      for kind in (List[str], Sequence[str], Tuple[str, ...]) for value in ("abc", 5, {"a": 1})),
    ([("words", Optional[Sequence[str]], "abc")], "--words 'abc': allowed is a list or null"),
    ([("n", Union[int, Literal["auto"]], "no")], "--n 'no': allowed is auto or a whole n"),
    ([("n", Union[float, List[str]], "no")], "--n 'no': allowed is any finite number or a list"),
    ([("words", str, ["abc"])], r"--words \['abc'\]: allowed is text"),
    ([("rate", int, 1), ("b", Group, Group())], "Own.b.rate has the flag --rate of Own.rate; "),
    ([("a", Group, Group()), ("b", Group, Group())], "Own.b.rate .* --rate of Own.a.rate; rename"),
    ([("name", Run, Run())], "Own.name.name has the flag --name of Own.name; rename it"),
    ([("help", int, 1)], "Own.help has the flag --help of all commands; rename it"),
    ([("no_a", int, 1), ("a", bool, True)], "Own.a has the flag --no-a of Own.no_a; rename it"),
])  # fmt: skip
def test_settings_of_an_own_recipe_that_cannot_be_are_one_line(settings, problem):
    named = [(n, k, dataclasses.field(default_factory=lambda x=x: x)) for n, k, x in settings]
    kind = dataclasses.make_dataclass("Own", named, frozen=True)
    for words in ([], ["--help"]):
        with pytest.raises(SettingsError, match=f"^{problem}"):
            parse(kind, words, "try", lambda _: {})


def test_settings_of_an_own_recipe_that_can_be():
    @dataclasses.dataclass(frozen=True)
    class Other:
        a: Annotated[float, within(above=0)] = 0.0

    @dataclasses.dataclass(frozen=True)
    class Own:
        a: Group = Group()  # a group may be called like a setting of another group
        other: Other = Other()
        level: Literal[1, 2] = 1
        size: Union[int, Literal["auto"]] = "auto"
        of: Union[str, float] = "mean"
        extra: Any = None

        def defaults(self):
            return {"a": 0.5}

    globals().update(Other=Other)  # for the types' names
    assert parse(Own, ["--level", "2"], "try").other.a == 0.5
    for size in ("7", "auto"):
        assert str(parse(Own, ["--size", size, "--of", "max"], "try").size) == size
    assert changed(Own(), size=7, of=0.5, extra={"a": [1]}).extra == {"a": [1]}
    needed = dataclasses.make_dataclass("Needed", [("a", int)], frozen=True)
    with pytest.raises(SettingsError, match="every setting of Needed needs a default: .*'a'"):
        parse(needed, [], "try", lambda _: {})


CONFIGS = sorted(
    str(path.relative_to(ROOT))[:-3].replace("/", ".").replace(".__init__", "")
    for folder in ("amp_xla", "recipes", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if re.search(r"^class Config\b", path.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("module", CONFIGS)
def test_every_numeric_flag_has_a_range_that_its_default_is_in(module):
    config = importlib.import_module(module).Config
    defaults = flat(config())
    for name, field in fields(config).items():
        if field.numbers():
            assert field.range is not None, f"{module}: {field.flag} has no range"
        assert field.problem(defaults[name]) is None
