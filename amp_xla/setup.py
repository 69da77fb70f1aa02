"""The import that sets mixed precision, XLA and bert4keras' constants before TensorFlow starts.

    import amp_xla.setup  # above every import of TensorFlow, Keras or bert4keras

reads ``AMP_XLA_PRECISION``, ``AMP_XLA_XLA`` and the other variables in docs/switches.md.
``amp_xla.setup.configure(precision="amp", xla="on")`` does the same from Python. Both print the
settings in one line, and raise an error if they come too late for TensorFlow. On TensorFlow 2 they
turn eager execution off.
"""

from __future__ import annotations

import sys
from typing import Any

from amp_xla.backend import configuring
from amp_xla.backend.configuring import current, resolve
from amp_xla.errors import SettingsError, SetupOrderError
from amp_xla.process import output
from amp_xla.settings import AUTO, XLA_MODES, Precision, Settings

__all__ = ["SetupOrderError", "configure", "current", "resolve"]
_printed = ""
_ADVICE = (
    "AMP_XLA_XLA=on made BERT-base train 3.0 times as fast on an H100, AMP alone no faster; each "
    "batch shape compiles for a minute"
)


def configure(**overrides: Any) -> Precision:
    """Apply settings by ``configuring.configure``; print them if changed. Refuse ``xla="auto"``."""
    global _printed
    if Settings.from_environment(configuring._original_environment, **overrides).xla == AUTO:
        raise SettingsError(
            "xla=auto is for recipes, whose steps and shapes are known; allowed in a script: "
            f"{', '.join(XLA_MODES)}"
        )
    precision = configuring.configure(**overrides)
    line = precision.describe()
    if line != _printed:
        with output.messages():
            print(f"amp_xla: {'now ' if _printed else ''}{line}", file=sys.stderr)
            if not _printed and configuring.may_want_xla():
                print(f"amp_xla: {_ADVICE}", file=sys.stderr)
        _printed = line
    return precision


configure()
