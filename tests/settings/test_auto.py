"""``--xla auto``: a table of runs, and what wins over it."""

import pytest

from amp_xla.settings import auto
from amp_xla.training.options import PrecisionOptions

H100, T4, P100, CPU = (9, 0), (7, 5), (6, 0), None
BASE, LARGE, SMALL = (12, 768), (24, 1024), (3, 192)


@pytest.mark.parametrize(
    "on, steps, tokens, size, shapes, card, runtime",
    [
        (False, 400, 64 * 384, BASE, 1, H100, "tf2"),
        (True, 500, 64 * 384, BASE, 1, H100, "tf2"),
        (False, 500, 64 * 384, BASE, 2, H100, "tf2"),
        (True, 1_000, 64 * 384, BASE, 2, H100, "tf2"),
        (False, 1_000, 32 * 128, BASE, 1, H100, "tf2"),
        (True, 3_000, 32 * 128, BASE, 1, H100, "tf2"),
        (False, 60, 64 * 384, BASE, 1, H100, "tf2"),
        (True, 10**6, 1024 * 128, BASE, 1, H100, "tf2"),
        (False, 500, 32 * 384, LARGE, 1, H100, "tf2"),
        (True, 800, 32 * 384, LARGE, 1, H100, "tf2"),
        (False, 840, 16 * 96, SMALL, 1, H100, "tf2"),
        (True, 200_000, 64 * 128, SMALL, 1, H100, "tf2"),
        (True, 1_000, 64 * 384, BASE, 2, T4, "tf2"),
        (False, 10**6, 64 * 384, BASE, 1, P100, "tf2"),
        (False, 400, 64 * 384, BASE, 1, T4, "tf1"),
        (True, 1_000, 64 * 384, BASE, 1, H100, "tf1"),
        (False, 10**6, 64 * 384, BASE, 1, CPU, "tf2"),
        (False, 10**6, 64 * 384, BASE, 1, CPU, "tf1"),
        (False, 10**6, 0, None, 1, H100, "tf2"),
        (False, 10**6, 0, None, 1, CPU, "tf2"),
    ],
)
def test_xla_is_on_where_it_pays(on, steps, tokens, size, shapes, card, runtime):
    work = size and auto.Work(steps, tokens, *size, shapes)
    choice = auto.choose(work, card, runtime)
    assert (choice.on, choice.lengths) == (on, 2 if on else None), choice
    assert ("not measured on TensorFlow 1.15" in str(choice)) == (runtime == "tf1" and card != CPU)
    assert f"--xla {'off' if on else 'on'} overrules" in str(choice)


def test_a_flag_wins_over_the_variable_and_both_over_auto(monkeypatch):
    monkeypatch.delenv("AMP_XLA_XLA", raising=False)
    assert PrecisionOptions().xla_mode == "auto"
    monkeypatch.setenv("AMP_XLA_XLA", "on")
    assert (PrecisionOptions().xla_mode, PrecisionOptions(xla="off").xla_mode) == ("on", "off")
