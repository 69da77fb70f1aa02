"""Settings and what they mean on a machine, without TensorFlow."""

from __future__ import annotations

import pytest

from amp_xla.errors import SettingsError
from amp_xla.settings import Precision, Settings

pytestmark = pytest.mark.once


@pytest.mark.parametrize("settings, half, infinity, epsilon, scale, words", [
    ({}, "float16", 1e4, 1e-5, 1000.0,
     "precision amp (float16), XLA off, infinity 1e4, epsilon 1e-5"),
    ({}, "bfloat16", 1e4, 1e-5, 1.0,
     "precision amp (bfloat16), XLA off, infinity 1e4, epsilon 1e-5"),
    ({}, None, 1e4, 1e-5, 1.0, "precision amp (float32), XLA off, infinity 1e4, epsilon 1e-5"),
    ({"loss_scale": 8, "xla": "on", "infinity": 3e4}, None, 3e4, 1e-5, 8.0,
     "precision amp (float32), XLA on, infinity 30000, epsilon 1e-5"),
    ({"precision": "fp32"}, "float16", None, None, 1.0, "precision fp32, XLA off"),
])  # fmt: skip
def test_one_value_says_what_the_settings_mean(settings, half, infinity, epsilon, scale, words):
    precision = Precision.of(Settings(**settings), half)
    values = (precision.infinity, precision.epsilon, precision.loss_scale)
    assert values == (infinity, epsilon, scale) and precision.describe() == words


def test_reads_the_environment_and_lets_arguments_win():
    environ = {"AMP_XLA_PRECISION": "tf32", "AMP_XLA_XLA": "on", "AMP_XLA_LOSS_SCALE": "dynamic"}
    settings = Settings.from_environment(environ, xla="no_lazy", precision=None)
    assert settings == Settings(precision="tf32", xla="no_lazy", loss_scale="dynamic")


@pytest.mark.parametrize("name, value, words", [
    ("PRECISION", "fp16", ["precision='fp16'", "fp32, tf32, amp"]),
    ("XLA", "lit", ["did you mean lite?", "off, on, no_lazy, lite"]),
    ("INFINITY", "1e12", ["65504", "at most 32752"]),
    ("EPSILON", "1e-12", ["rounds to zero", "at least"]), ("EPSILON", "tiny", ["not a number"]),
    ("LOSS_SCALE", "0", ["loss_scale", "above 0", "dynamic"]),
    ("LOSS_SCALE", "9" * 400, ["loss_scale='999", "finite in float32"]),
    ("PRECISON", "hunter2", ["AMP_XLA_PRECISON (did you mean AMP_XLA_PRECISION?)"]),
])  # fmt: skip
def test_a_bad_value_is_named_with_what_is_allowed(name, value, words):
    with pytest.raises(SettingsError) as error:
        Settings.from_environment({"AMP_XLA_" + name: value})
    message = str(error.value)
    assert len(message) < 250 and all(word in message for word in words)
    assert "hunter2" not in message  # an unknown variable may hold a secret


def test_an_unknown_keyword_is_named():
    with pytest.raises(SettingsError, match="precison.*did you mean precision"):
        Settings.from_environment({}, precison="amp")
