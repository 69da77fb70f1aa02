from __future__ import annotations

import pytest

from amp_xla.errors import SettingsError
from amp_xla.settings import Settings


def test_defaults_are_amp_with_the_constants_that_fit_float16():
    settings = Settings()
    assert (settings.precision, settings.xla) == ("amp", "off")
    assert settings.effective_infinity == 1e4
    assert settings.effective_epsilon == 1e-5
    assert settings.effective_loss_scale("float16") == 1000.0


@pytest.mark.parametrize("half", ["bfloat16", None])
def test_no_loss_scale_where_the_range_is_that_of_float32(half):
    assert Settings().effective_loss_scale(half) == 1.0
    assert Settings(loss_scale=8).effective_loss_scale(half) == 8.0


def test_full_precision_leaves_the_constants_of_bert4keras_and_keras():
    settings = Settings(precision="fp32")
    assert settings.effective_infinity is None and settings.effective_epsilon is None
    assert settings.effective_loss_scale("float16") == 1.0


def test_reads_the_environment_and_lets_arguments_win():
    environ = {"AMP_XLA_PRECISION": "tf32", "AMP_XLA_XLA": "on", "AMP_XLA_LOSS_SCALE": "dynamic"}
    settings = Settings.from_environment(environ, xla="no_lazy", precision=None)
    assert settings == Settings(precision="tf32", xla="no_lazy", loss_scale="dynamic")


def test_an_empty_variable_means_not_given():
    assert Settings.from_environment({"AMP_XLA_XLA": ""}) == Settings()


@pytest.mark.parametrize(
    "environ, words",
    [
        ({"AMP_XLA_PRECISION": "fp16"}, ["precision='fp16'", "fp32, tf32, amp"]),
        ({"AMP_XLA_XLA": "lit"}, ["did you mean lite?", "off, on, no_lazy, lite"]),
        ({"AMP_XLA_PRECISON": "amp"}, ["AMP_XLA_PRECISON", "did you mean AMP_XLA_PRECISION?"]),
        ({"AMP_XLA_INFINITY": "1e12"}, ["65504", "at most 32752"]),
        ({"AMP_XLA_INFINITY": "-1"}, ["infinity='-1'", "above 0"]),
        ({"AMP_XLA_EPSILON": "1e-12"}, ["rounds to zero", "at least"]),
        ({"AMP_XLA_EPSILON": "tiny"}, ["not a number"]),
        ({"AMP_XLA_LOSS_SCALE": "0"}, ["loss_scale", "above 0", "dynamic"]),
        ({"AMP_XLA_LOSS_SCALE": "inf"}, ["loss_scale", "finite"]),
        ({"AMP_XLA_LOSS_SCALE": "dynmic"}, ["loss_scale", "dynamic"]),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(environ, words):
    with pytest.raises(SettingsError) as error:
        Settings.from_environment(environ)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_variable_is_named_without_its_value():
    with pytest.raises(
        SettingsError, match=r"AMP_XLA_PRECISON \(did you mean AMP_XLA_PRECISION\?\)"
    ) as raised:
        Settings.from_environment({"AMP_XLA_PRECISON": "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_an_unknown_keyword_is_named():
    with pytest.raises(SettingsError, match="precison.*did you mean precision"):
        Settings.from_environment({}, precison="amp")


def test_a_large_infinity_is_fine_where_nothing_is_half():
    assert Settings(precision="tf32", infinity=1e12).effective_infinity == 1e12
